package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/tiering"
)

// attempt is one acquisition of leadership, shared by all who wait for it.
type attempt struct {
	done   chan struct{} // closed at the end; err is set before
	err    error
	notify chan struct{} // holds one token: the core's status changed
}

func newAttempt() *attempt {
	return &attempt{done: make(chan struct{}), notify: make(chan struct{}, 1)}
}

func (a *attempt) changed() { poke(a.notify) }

// leadTimeout bounds one acquisition: reading the row, granting, two syncs.
const leadTimeout = 30 * time.Second

// lead makes this broker's replica the serving leader of its shard, or says why
// it can't. Most calls return at once. Cancelling ctx ends the wait, not the
// acquisition.
func (s *shard) lead(ctx context.Context) error {
	if s.serving.Load() {
		return nil
	}
	s.mu.Lock()
	if s.gone != nil {
		defer s.mu.Unlock()
		return s.gone
	}
	if s.b.closing.Load() {
		defer s.mu.Unlock()
		return meta.Errorf(meta.ErrUnavailable, "broker %s is stopping: try again, it or another one will answer", s.b.self.Broker)
	}
	if s.core().Status().Serving {
		s.mu.Unlock()
		return nil
	}
	a := s.attempt
	if a == nil {
		a = newAttempt()
		s.attempt = a
		s.b.opts.Group.Go("leadership", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, leadTimeout)
			defer cancel()
			err := s.acquire(ctx, a)
			if errors.Is(err, meta.ErrNotFound) {
				s.b.buryIfDeleted(ctx, s)
			}
			s.mu.Lock()
			if err != nil && s.gone != nil {
				err = s.gone // says better what happened
			}
			a.err, s.attempt = err, nil
			s.mu.Unlock()
			close(a.done)
			return nil // told to those who wait; not the end of the broker
		})
	}
	s.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return meta.Errorf(meta.ErrUnavailable, "shard %s: no leader in time: %w", s.id, context.Cause(ctx))
	}
}

// acquire asks for an epoch, hands it to the core and waits until the core serves.
// An epoch that this copy can't lead, since it promised as high a one already (the
// catalog was set back), is followed by the next.
func (s *shard) acquire(ctx context.Context, a *attempt) error {
	for {
		served, err := s.tryEpoch(ctx, a)
		if served || err != nil {
			return err
		}
	}
}

func (s *shard) tryEpoch(ctx context.Context, a *attempt) (served bool, err error) {
	row, err := s.grant(ctx)
	if err != nil {
		return false, err
	}
	stream, err := s.b.readStream(ctx, s.id.Stream)
	if err != nil {
		return false, err
	}
	if stream.Incarnation != s.id.Incarnation {
		return false, meta.Errorf(meta.ErrDeleted, "stream %s: incarnation %d is gone, %d has its name", s.id.Stream, s.id.Incarnation, stream.Incarnation)
	}
	assignment, err := s.assignment(ctx, row)
	if err != nil {
		return false, err
	}
	// Promise, opening entry and base are written out of the room for commands.
	release, err := s.b.log.ReserveCommand(ctx, s.openingBytes(assignment))
	if err != nil {
		return false, err
	}
	defer release()
	s.mu.Lock()
	if s.gone != nil {
		defer s.mu.Unlock()
		return false, s.gone
	}
	s.row, s.stream, s.read = placed(row), &stream, s.b.opts.Now()
	s.step(assignment)
	s.mu.Unlock()
	return s.opened(ctx, a, row)
}

// openingBytes is the room that taking an epoch needs in the log. It is only taken
// while there is room for a mark besides: many shards that are opened while the log
// is full must not use up what archiving needs to make room. An archiver that opens
// a shard is let in without that.
func (s *shard) openingBytes(a *replica.Assignment) int64 {
	n := int64(2048)
	if a.Base != nil {
		n += int64(len(a.Base.State))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tier.busy {
		n += s.b.markRoom()
	}
	return n
}

// markRoom is what is left free in the log for a mark by all that is not archiving.
func (b *Broker) markRoom() int64 {
	st := b.log.Status()
	file := st.Bytes / int64(max(st.Files, 1))
	return min(1<<20, file/4) &^ (64<<10 - 1) // nothing of files below 256 KiB, which have no such room
}

// opened waits until the core serves the row's epoch. It is false without an error
// when the copy needs another one.
func (s *shard) opened(ctx context.Context, a *attempt, row catalog.ShardRow) (served bool, err error) {
	for {
		s.mu.Lock()
		st, gone, alarm := s.core().Status(), s.gone, s.alarm
		s.mu.Unlock()
		switch {
		case gone != nil:
			return false, gone
		case st.Serving:
			s.mu.Lock()
			s.alarm = nil // it was about an epoch that is over
			s.mu.Unlock()
			if row.Epoch > 1 {
				s.b.sweepLater(s.id) // an upload may have been interrupted by the last stop
			}
			return true, nil
		case st.Role == replica.Poisoned:
			return false, meta.Errorf(meta.ErrPoisoned, "shard %s: the broker's storage failed", s.id)
		case st.Role == replica.Stopped:
			return false, meta.Errorf(meta.ErrCorrupt, "shard %s is stopped: %w", s.id, errors.Join(alarm, waiting(st)))
		case st.NeedsEpoch && st.Epoch == row.Epoch:
			return false, nil
		case st.Role == replica.Following, st.Role == replica.Fencing, st.Role == replica.Copying:
			// Only this broker's own disk is waited for here: no other copy can be
			// reached, so that what is missing does not come by itself.
			return false, &meta.NoQuorum{Shard: s.id, Waiting: st.Waiting}
		}
		select {
		case <-a.notify:
		case <-ctx.Done():
			return false, &meta.NoQuorum{Shard: s.id, Waiting: append(st.Waiting, "its log: the epoch's opening is not on disk yet")}
		}
	}
}

func waiting(st replica.Status) error {
	if len(st.Waiting) == 0 {
		return nil
	}
	return fmt.Errorf("%v", st.Waiting)
}

// transition is what a row needs before this broker's boot may lead it.
type transition uint8

const (
	keep     transition = iota // the epoch is ours already
	grant                      // the next epoch, members as they are
	form                       // the next epoch, with this broker as the only member
	succeed                    // this directory's id was rotated: the shard goes on in the next lineage
	noQuorum                   // the row's members are others
)

// judge decides which transition a row needs. A lone member goes on after a
// rotation of its storage id, or several while the shard rested, only where the
// superblock says that the row's id was its own once: a wiped directory had none.
func judge(row catalog.ShardRow, self meta.Member, descends func(meta.StorageID) bool, boot meta.BootNonce) transition {
	switch row.State {
	case catalog.ShardCreated, catalog.ShardHibernating:
		return form
	}
	if row.Leader == self && row.Boot == boot {
		return keep
	}
	m, ok := row.Member(self.Broker)
	switch {
	case ok && m == self:
		return grant
	case ok && len(row.Members) == 1 && descends(m.Storage):
		return succeed
	default:
		return noQuorum
	}
}

// grant brings the shard's row to where this boot leads it.
func (s *shard) grant(ctx context.Context) (catalog.ShardRow, error) {
	cat := s.b.opts.Catalog
	for {
		row, err := cat.Shard(ctx, s.id)
		if err != nil {
			return row, err
		}
		next := row
		move := judge(row, s.b.self, s.b.descends, s.b.boot)
		if move == keep && s.needsEpoch(row) {
			move = grant
		}
		switch move {
		case keep:
			return row, nil
		case grant:
			next, err = cat.Grant(ctx, row, s.b.self, s.b.boot, nil)
		case form:
			next, err = cat.Grant(ctx, row, s.b.self, s.b.boot, []meta.Member{s.b.self})
		case succeed:
			if next, err = s.succeed(ctx, row); err == nil {
				s.b.opts.Logger.Warn("shard goes on after its directory's storage id was rotated; what was not on disk is given up",
					"shard", s.id.String(), "lineage", next.Lineage)
			}
		case noQuorum:
			s.mu.Lock()
			s.row = placed(row) // so that what the bucket has of its lineage can be read
			s.mu.Unlock()
			return row, s.noQuorum(row)
		}
		switch {
		case err == nil:
			return next, nil
		case errors.Is(err, meta.ErrConflict):
			continue // somebody wrote first: look again
		case errors.Is(err, meta.ErrUnknown):
			if _, _, err := cat.Settle(ctx, row, next); err != nil && ctx.Err() != nil {
				return row, err
			}
			continue
		default:
			return row, err
		}
	}
}

// needsEpoch reports whether the copy was given the row's epoch and can't lead it.
func (s *shard) needsEpoch(row catalog.ShardRow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.core().Status()
	return st.NeedsEpoch && st.Epoch == row.Epoch
}

// succeed re-forms the shard under this directory's new storage id, from the
// furthest of its copy and the bucket: an acknowledged record may have reached the
// bucket and not the disk.
func (s *shard) succeed(ctx context.Context, row catalog.ShardRow) (catalog.ShardRow, error) {
	archive, err := s.b.newest(ctx, row)
	if err != nil {
		return row, err
	}
	s.mu.Lock()
	st := s.core().Status()
	s.mu.Unlock()
	_, base := goOnFrom(st, archive)
	return s.b.opts.Catalog.Abandon(ctx, row, catalog.Abandonment{Survivor: s.b.self, Boot: s.b.boot, Base: base})
}

// noQuorum names the copies that the shard waits for.
func (s *shard) noQuorum(row catalog.ShardRow) error {
	e := &meta.NoQuorum{Shard: s.id}
	for _, m := range row.Members {
		why := "it is not this broker"
		if m.Broker == s.b.self.Broker {
			why = fmt.Sprintf("this broker's directory is storage %s now, a stranger: bring back the directory with storage %s, or give up what only it holds with `varve shard abandon`",
				s.b.self.Storage, m.Storage)
		}
		e.Waiting = append(e.Waiting, m.String()+": "+why)
	}
	return e
}

// assignment is the row as the core wants it.
func (s *shard) assignment(ctx context.Context, row catalog.ShardRow) (*replica.Assignment, error) {
	a := &replica.Assignment{
		Revision: uint64(row.Revision), Shard: s.id, Lineage: row.Lineage, Epoch: row.Epoch,
		Leader: row.Leader, Boot: row.Boot, Members: row.Members, Level: s.b.opts.Catalog.Level(),
		Instance: uint64(row.Revision), // rows of one shard never share a revision, so no two copies share a number
	}
	s.mu.Lock()
	st := s.core().Status()
	vector := s.durable.Vector()
	s.mu.Unlock()
	begins := st.Lineage != 0 && st.Lineage < row.Lineage // the row's lineage, after an abandon
	switch {
	case begins && st.Last > 0 && st.Last >= row.Base.Through:
		// The survivor goes on from all that it has.
		a.Reform = &replica.Reform{From: st.Lineage, Epoch: vector.EpochAt(st.Last), LSN: st.Last}
	case !row.Base.IsZero() && (begins || st.Last < row.Base.Through):
		m, err := s.b.opts.Store.LoadManifest(ctx, s.id, manifestID(row.Base))
		if err != nil {
			return nil, err
		}
		a.Base = &replica.Base{Lineage: row.Lineage, LSN: row.Base.Through, Mark: row.Base.Mark, State: m.State}
	case begins:
		a.Base = &replica.Base{Lineage: row.Lineage} // from nothing
	}
	return a, nil
}

// manifestID names the manifest of a row's base; zero for none.
func manifestID(b catalog.Base) tiering.ManifestID {
	return tiering.ManifestID{Lineage: b.Lineage, Mark: b.Mark}
}
