package etcdkv

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// ceiling is the file size at which etcd itself refuses every write: the quota,
// and what is kept back for deletes, assignments and pages that are rewritten.
func (o Options) ceiling() int64 { return o.Quota + o.Quota/4 + 8<<20 }

// room refuses a transaction that makes new keys once the quota is in use.
func (s *Store) room(t catalog.Transaction) error {
	if s.server == nil {
		return nil // its own process sees to that
	}
	grow := int64(0)
	for _, op := range t.Then {
		grow += int64(len(op.Key) + len(op.Value))
	}
	limit, be := s.opt.Quota, s.server.Backend()
	if be.SizeInUse()+s.unseen.Add(grow) < limit {
		return nil
	}
	be.ForceCommit() // the size in use is known only as of the last write to the file
	s.unseen.Store(grow)
	if be.SizeInUse()+grow < limit {
		return nil
	}
	s.askMaintenance()
	absent := make(map[string]bool)
	for _, c := range t.If {
		if c.Kind == catalog.CompareMod && c.Revision == 0 {
			absent[c.Key] = true
		}
	}
	creates := false
	for _, op := range t.Then {
		if op.Delete {
			return nil
		}
		creates = creates || absent[op.Key]
	}
	if !creates {
		return nil
	}
	return meta.Errorf(meta.ErrExhausted, "the catalog has used its space quota of %d bytes and takes nothing new: "+
		"delete streams that are not needed", s.opt.Quota)
}

func (s *Store) askMaintenance() {
	select {
	case s.full <- struct{}{}:
	default:
	}
}

func (s *Store) maintainLoop() {
	t := time.NewTicker(s.opt.MaintainEvery)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.failed.done:
			s.cancel(s.failed.err) // whoever waits for an answer will get none
			return
		case <-s.full:
		case <-t.C:
		}
		if err := s.Maintain(s.ctx); err != nil && s.ctx.Err() == nil {
			s.opt.Log.Warn("catalog maintenance failed", "error", err)
		}
	}
}

// Maintain looks after space: with the quota or the file nearly full, or the alarm raised,
// it drops all history, gives free pages back and clears the alarm once there is
// room. Writes wait while the file is rewritten. It runs on its own as well.
func (s *Store) Maintain(ctx context.Context) error {
	if s.server == nil {
		return nil // its own process sees to that
	}
	ctx, done, err := s.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	alarmed := false
	for _, a := range s.server.Alarms() {
		alarmed = alarmed || a.Alarm == pb.AlarmType_NOSPACE
	}
	be := s.server.Backend()
	if !alarmed && be.Size() < s.opt.ceiling()/10*8 && be.SizeInUse() < s.opt.Quota/10*8 {
		return nil
	}
	r, err := s.client.Get(ctx, s.opt.Prefix, clientv3.WithKeysOnly())
	if err != nil {
		return translate(err, meta.ErrUnavailable)
	}
	if _, err := s.client.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !isCompacted(err) {
		return translate(err, meta.ErrUnavailable)
	}
	be.ForceCommit()
	if alarmed || be.SizeInUse() < be.Size()/4*3 {
		if err := s.server.Defragment(); err != nil {
			return meta.Errorf(meta.ErrUnavailable, "catalog: defragment: %w", err)
		}
		// The new data file has the old one's name in memory only.
		if err := syncNames(s.opt.Dir, s.opt.syncDir); err != nil {
			return err
		}
	}
	if !alarmed || be.Size() > s.opt.ceiling()/20*19 {
		return nil
	}
	_, err = s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	return translate(err, meta.ErrUnavailable)
}

// Compact drops the history below a revision.
func (s *Store) Compact(ctx context.Context, at catalog.Revision) error {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = s.client.Compact(ctx, int64(at), clientv3.WithCompactPhysical())
	if isCompacted(err) {
		return nil
	}
	return translate(err, meta.ErrUnavailable)
}

func isCompacted(err error) bool {
	return err != nil && translate(err, meta.ErrUnavailable) == catalog.ErrCompacted
}
