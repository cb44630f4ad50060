package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/wal"
)

// applyTombstones reads what concerns this broker, at one revision, and drops the
// local data of every deleted incarnation before any shard opens. A shard that is
// merely not in the catalog is kept.
func (b *Broker) applyTombstones(ctx context.Context, found *replay) (view *catalog.View, assigned []catalog.ShardRow, err error) {
	for _, r := range found.shards {
		b.holding(r.id.Stream)
	}
	view = b.opts.Catalog.View(b.self.Broker, catalog.ViewOptions{Holds: b.holds, Held: b.heldNames})
	u, err := view.Next(ctx)
	if err != nil {
		view.Close()
		return nil, nil, fmt.Errorf("reading tombstones: %w", err)
	}
	for _, t := range u.Deleted {
		h := b.holding(t.Stream)
		h.dead = max(h.dead, t.Through)
	}
	for n, r := range found.shards {
		if r.id.Incarnation > b.held[r.id.Stream].dead {
			continue
		}
		if err := b.log.Append(&wal.Write{Shard: n, Records: []wal.Record{{Kind: wal.Forget}}}); err != nil {
			view.Close()
			return nil, nil, err
		}
		delete(found.shards, n)
		b.opts.Logger.Info("removed local data of a stream that was deleted meanwhile", "shard", r.id.String())
	}
	return view, u.Assigned, nil
}

// reportUnknown tells of every shard held here that the catalog does not know and
// no tombstone covers. Its data stays.
func (b *Broker) reportUnknown(ctx context.Context, assigned []catalog.ShardRow, rewound bool) {
	known := make(map[meta.ShardID]bool, len(assigned))
	for _, row := range assigned {
		known[row.ID] = true
	}
	for _, s := range b.all() {
		if !known[s.id] {
			b.reportUnexplained(ctx, s.id, rewound)
		}
	}
}

// watch applies what the catalog tells: tombstones, and assignments to others.
func (b *Broker) watch(ctx context.Context, view *catalog.View) error {
	defer view.Close()
	for {
		u, err := view.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			b.opts.Logger.Warn("the catalog can't be followed; trying again", "error", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		for _, t := range u.Deleted {
			b.bury(t)
		}
		for _, id := range u.Removed {
			b.routes.drop(id.Stream)
			if !u.Full {
				b.reportUnexplained(ctx, id, u.Rewound)
			}
		}
		if u.Full { // a row may also have come and gone between two looks
			b.reportUnknown(ctx, u.Assigned, u.Rewound)
		}
	}
}

// reportUnexplained looks at a shard that left the catalog with no tombstone that
// covers it: an older catalog was put in place, or rows were lost. Data stays.
func (b *Broker) reportUnexplained(ctx context.Context, id meta.ShardID, rewound bool) {
	b.mu.RLock()
	s := b.shards[id]
	b.mu.RUnlock()
	if s == nil {
		return
	}
	if _, err := b.opts.Catalog.Shard(ctx, id); errors.Is(err, meta.ErrNotFound) && !errors.Is(err, meta.ErrDeleted) {
		why := meta.Errorf(meta.ErrNotFound, "the catalog does not know this shard, and no tombstone covers it (an older catalog: %t); its data is kept", rewound)
		s.mu.Lock()
		s.alarm = why
		s.mu.Unlock()
		b.events.alarm(id, why)
	}
}

// bury removes every incarnation that a tombstone covers: it answers what waits,
// drops the local data through the log, and never touches a later incarnation.
func (b *Broker) bury(t meta.Tombstone) {
	b.routes.drop(t.Stream)
	b.mu.Lock()
	h, ok := b.held[t.Stream]
	if !ok {
		b.mu.Unlock()
		return
	}
	h.dead = max(h.dead, t.Through)
	var dead []*shard
	for _, s := range h.shards {
		if t.Covers(s.id.Incarnation) {
			dead = append(dead, s)
		}
	}
	b.mu.Unlock()
	for _, s := range dead {
		s.bury(meta.Errorf(meta.ErrDeleted, "stream %s: incarnation %d was deleted", s.id.Stream, s.id.Incarnation))
	}
	// Out of the maps last: a checkpoint meets a shard that it can capture, or one
	// whose end is in the log's queue already.
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range dead {
		if b.shards[s.id] == s {
			delete(b.shards, s.id)
		}
	}
	if h = b.held[t.Stream]; h != nil {
		h.shards = slices.DeleteFunc(h.shards, func(s *shard) bool { return slices.Contains(dead, s) })
		if len(h.shards) == 0 {
			delete(b.held, t.Stream)
		}
	}
}

// bury ends the shard and drops its local data, in one step.
func (s *shard) bury(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(why)
	if !s.forget() {
		s.b.busy.add(&s.b.busy.buried, s)
	}
}

// forget drops the local data of a shard that has ended. It is false when there is
// no room in the log just now. Any other failure means that the log failed or is
// closed; the next start applies the tombstone again. s.mu is held.
func (s *shard) forget() bool {
	if s.number == 0 {
		return true
	}
	err := s.b.log.Append(&wal.Write{Shard: s.number, Records: []wal.Record{{Kind: wal.Forget}}})
	if errors.Is(err, meta.ErrExhausted) {
		return false
	}
	s.number = 0
	return true
}

// forgetBuried tries again what found no room in the log.
func (b *Broker) forgetBuried() {
	for _, s := range b.busy.take(&b.busy.buried) {
		s.mu.Lock()
		done := s.forget()
		s.mu.Unlock()
		if !done {
			b.busy.add(&b.busy.buried, s)
		}
	}
}

// buryIfDeleted takes the catalog's word that a shard's incarnation is deleted,
// for one that the watch can't tell of since it came here after the delete.
func (b *Broker) buryIfDeleted(ctx context.Context, s *shard) {
	if t, err := b.opts.Catalog.Tombstone(ctx, s.id.Stream); err == nil && t.Covers(s.id.Incarnation) {
		b.bury(t)
	}
}
