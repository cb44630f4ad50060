package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering"
)

// purge removes what the bucket holds too much: deleted incarnations, in the order
// in which the catalog notes them, and the garbage of shards that this broker
// leads. What fails is found again in the next round.
func (b *Broker) purge(ctx context.Context) error {
	tick := time.NewTicker(b.opts.Purge)
	defer tick.Stop()
	var tidied time.Time
	poke(b.purgeUp) // a delete may have been interrupted by the last stop
	for {
		select {
		case <-tick.C:
		case <-b.purgeUp:
		case <-ctx.Done():
			return nil
		}
		if err := b.purgeDeleted(ctx); err != nil && ctx.Err() == nil {
			b.opts.Logger.Warn("removing deleted streams from the bucket failed; trying again", "error", err)
		}
		b.sweepShards(ctx)
		if b.opts.Now().Sub(tidied) >= tidyEvery {
			tidied = b.opts.Now()
			if _, err := b.opts.Store.Tidy(ctx); err != nil && ctx.Err() == nil {
				b.opts.Logger.Warn("removing what interrupted uploads left failed; trying again tomorrow", "error", err)
			}
		}
	}
}

// tidyEvery is how often parts of uploads that a killed process left are looked for.
const tidyEvery = 24 * time.Hour

// claimAge is how long a check of the claim on the bucket's prefix is believed
// before another manifest is written: a cluster that lost the prefix must not go on
// acknowledging what nobody will believe.
const claimAge = time.Minute

// claimed makes sure, now and then, that the prefix is still this cluster's.
func (b *Broker) claimed(ctx context.Context) error {
	now := b.opts.Now().UnixNano()
	if last := b.claimSeen.Load(); last != 0 && now-last >= 0 && now-last < int64(claimAge) {
		return nil
	}
	if err := b.opts.Store.CheckClaim(ctx); err != nil {
		return err
	}
	b.claimSeen.Store(now)
	return nil
}

// purgeSoon starts a round.
func (b *Broker) purgeSoon() { poke(b.purgeUp) }

// purgeDeleted works off the catalog's notes of deleted incarnations.
func (b *Broker) purgeDeleted(ctx context.Context) error {
	const page = 100
	var failed error // the first; one that can't be purged holds no other up
	last := catalog.Purge{}
	for ctx.Err() == nil {
		list, err := b.opts.Catalog.Purges(ctx, last, page)
		if err != nil || len(list) == 0 {
			return cmp.Or(failed, err)
		}
		for _, p := range list {
			failed = cmp.Or(failed, b.purgeOne(ctx, p))
		}
		last = list[len(list)-1]
	}
	return failed
}

// purgeTimeout bounds the purge of one incarnation within a round, so that one whose
// objects the bucket refuses has no more than that of everybody's time.
const purgeTimeout = 30 * time.Second

func (b *Broker) purgeOne(ctx context.Context, p catalog.Purge) error {
	ctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	if b.archiving(p.Stream, p.Incarnation) {
		// The archiver wakes the purge when it ends.
		return meta.Errorf(meta.ErrUnavailable, "stream %s, incarnation %d: an upload is still ending, something of it may yet come into the bucket", p.Stream, p.Incarnation)
	}
	if err := b.opts.Store.PutTombstone(ctx, meta.Tombstone{Stream: p.Stream, Through: p.Incarnation}); err != nil {
		return err
	}
	req := tiering.IncarnationRequest{Stream: p.Stream, Incarnation: p.Incarnation}
	for {
		r, err := b.opts.Store.SweepIncarnation(ctx, req)
		if err != nil {
			return err
		}
		if r.Failed > 0 || r.Pinned > 0 {
			return meta.Errorf(meta.ErrUnavailable, "stream %s, incarnation %d: %d objects could not be deleted, %d are pinned", p.Stream, p.Incarnation, r.Failed, r.Pinned)
		}
		if r.After == "" {
			break
		}
		req.After = r.After
	}
	return b.opts.Catalog.PurgeDone(ctx, p)
}

// archiving reports whether an archiver is still at work on an incarnation.
func (b *Broker) archiving(n meta.StreamName, i meta.Incarnation) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for s := range b.active {
		if s.id.Stream == n && s.id.Incarnation == i {
			return true
		}
	}
	return false
}

// sweepLater books a shard for the next round.
func (b *Broker) sweepLater(id meta.ShardID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shards[id] != nil {
		b.sweeps[id] = struct{}{}
	}
}

func (b *Broker) sweepShards(ctx context.Context) {
	b.mu.Lock()
	var list []*shard
	for id := range b.sweeps {
		if s := b.shards[id]; s != nil {
			list = append(list, s)
		}
		delete(b.sweeps, id)
	}
	b.mu.Unlock()
	slices.SortFunc(list, func(x, y *shard) int { return x.id.Compare(y.id) })
	for _, s := range list {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			b.opts.Logger.Warn("removing a shard's garbage failed; trying again", "shard", s.id.String(), "error", err)
			b.sweepLater(s.id)
		}
	}
}

func (s *shard) sweep(ctx context.Context) error {
	if _, err := s.manifest(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	lineage := s.core().Status().Lineage
	s.mu.Unlock()
	req := tiering.SweepRequest{Shard: s.id, Lineage: lineage, Authority: s.authority}
	waiting := 0
	for {
		r, err := s.b.opts.Store.Sweep(ctx, req)
		if err != nil {
			return err
		}
		waiting += r.Waiting + r.Pinned + r.Failed
		if r.After == "" {
			break
		}
		req.After = r.After
	}
	if waiting > 0 {
		s.b.sweepLater(s.id)
	}
	return nil
}

// authority is what the shard's log says about its objects, now.
func (s *shard) authority(context.Context) (tiering.Authority, error) {
	s.mu.Lock()
	st, marks, number, gone, m := s.core().Status(), s.core().Marks(), s.number, s.gone, s.tier.manifest
	s.mu.Unlock()
	if gone != nil {
		return tiering.Authority{}, gone
	}
	if !st.Serving {
		return tiering.Authority{}, meta.Errorf(meta.ErrUnavailable, "shard %s: only its leader may sweep", s.id)
	}
	named := map[string]bool{}
	for _, ref := range marks {
		list, err := s.b.log.Read(number, ref.LSN, 1)
		if err != nil || len(list) == 0 {
			return tiering.Authority{}, meta.Errorf(meta.ErrCorrupt, "shard %s: archive mark at LSN %d is not in the log: %v", s.id, ref.LSN, err)
		}
		p, err := entry.DecodeMark(list[0].Payload)
		if err != nil {
			return tiering.Authority{}, err
		}
		if p.Segment != nil {
			named[p.Segment.Key] = true
		}
	}
	if m != nil && m.Lineage != st.Lineage {
		m = nil // what an earlier lineage's manifest names is of that lineage, and left alone
	}
	return tiering.Authority{
		Through: st.Epoch - 1, Manifest: m,
		Marked: func(key string) bool { return named[key] },
	}, nil
}
