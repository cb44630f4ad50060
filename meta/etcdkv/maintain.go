package etcdkv

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// room refuses a transaction that makes new keys once nine tenths of the quota
// are in use, which keeps the rest for deletes and assignments.
func (s *Store) room(t catalog.Transaction) error {
	if s.server.Backend().SizeInUse() < s.opt.Quota/10*9 {
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
	return meta.Errorf(meta.ErrExhausted, "the catalog is nearly at its space quota of %d bytes and takes nothing new: "+
		"delete streams that are not needed, or raise the quota", s.opt.Quota)
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
			return
		case <-s.full:
		case <-t.C:
		}
		if err := s.Maintain(s.ctx); err != nil && s.ctx.Err() == nil {
			s.opt.Log.Warn("catalog maintenance failed", "error", err)
		}
	}
}

// Maintain looks after space: with the file near its quota, or the alarm raised,
// it drops all history, gives free pages back and clears the alarm once there is
// room. Writes wait while the file is rewritten. It runs on its own as well.
func (s *Store) Maintain(ctx context.Context) error {
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
	if !alarmed && be.Size() < s.opt.Quota/10*8 {
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
	}
	if !alarmed || be.Size() > s.opt.Quota/20*19 {
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
