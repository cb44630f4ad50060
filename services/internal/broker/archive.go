package broker

import (
	"context"
	"iter"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/segment"
)

// archivers is how many shards are archived at once.
const archivers = 2

const (
	scheduleEvery  = time.Second
	archiveBackoff = time.Second      // after a shard's first failure; doubles
	archivePause   = 30 * time.Second // at most
)

// schedule decides which shards are archived next: those whose tail is big or old
// enough or wanted, those with a mark that waits for its manifest, and, when the
// log runs out of room, the biggest tails.
func (b *Broker) schedule(ctx context.Context) error {
	defer close(b.jobs)
	tick := time.NewTicker(scheduleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.sealUp:
		case <-ctx.Done():
			return nil
		}
		st := b.log.Status()
		pressed := b.pressure.Load() && st.Used > st.Budget/2
		b.pressure.Store(pressed)
		sent := 0
		for _, t := range b.log.Tails() { // biggest first
			b.mu.RLock()
			s := b.shards[t.ID]
			b.mu.RUnlock()
			if s == nil || !s.due(t.Bytes, pressed && sent < archivers) {
				continue
			}
			select {
			case b.jobs <- s:
				sent++
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// due reports whether the shard should be archived now, and books it if so.
func (s *shard) due(bytes int64, pressed bool) bool {
	now := s.b.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.core.Status()
	if s.tier.busy || s.gone != nil || !st.Serving || now.Before(s.tier.tryAfter) {
		return false
	}
	cfg := s.stream.Config.Over(s.b.opts.Defaults)
	open := !s.tier.dirty.IsZero() && st.Commit >= st.ArchivedEnd
	switch {
	case st.Marks > 0:
	case open && (pressed || s.tier.wanted || bytes >= cfg.SegmentBytes || now.Sub(s.tier.dirty) >= cfg.SegmentAge):
	default:
		return false
	}
	s.tier.busy = true
	return true
}

// archiver works shards off until the schedule ends.
func (b *Broker) archiver(ctx context.Context) error {
	for s := range b.jobs {
		err := s.archive(ctx)
		s.mu.Lock()
		s.tier.busy = false
		if err != nil && s.gone == nil && ctx.Err() == nil {
			s.tier.failures++
			pause := min(archiveBackoff<<min(s.tier.failures-1, 10), archivePause)
			s.tier.tryAfter = b.opts.Now().Add(pause)
			b.events.archiveFailed(s.id, err, pause)
		} else {
			s.tier.failures = 0
		}
		s.mu.Unlock()
		b.kick()
	}
	return nil
}

// archive moves a shard's committed tail into the bucket. Each step is taken from
// what the log says, so that a stop anywhere is gone on from:
//
//	settle: every applied mark without a confirmed manifest: put it, confirm it
//	seal:   the committed range from the archived end on, and the state at its end
//	upload: the segment, under a key of its own
//	mark:   through the log; then settle again
func (s *shard) archive(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	seal, ok := s.core.Seal()
	epoch, vector, stream := s.row, s.core.Durable().Vector(), s.stream
	if ok && s.core.Status().Last < seal.End {
		s.tier.dirty, s.tier.wanted = time.Time{}, false // set again by what is proposed from now on
	}
	s.mu.Unlock()
	if !ok {
		return nil
	}
	err := s.mark(ctx, seal, epoch, vector, stream)
	if err == nil {
		err = s.settle(ctx)
	}
	if err != nil {
		s.mu.Lock()
		if s.tier.dirty.IsZero() {
			s.tier.dirty = s.b.opts.Now()
		}
		s.tier.wanted = true // what was sealed is still due
		s.mu.Unlock()
	}
	return err
}

// mark uploads a sealed range and appends its archive mark.
func (s *shard) mark(ctx context.Context, seal replica.Seal, row catalog.ShardRow, vector meta.Vector, stream catalog.StreamRow) error {
	p := entry.MarkPayload{
		Start: seal.Start, End: seal.End, Parent: seal.Parent, StartOffset: seal.StartOffset,
		Level: seal.Level, Row: catalog.EncodeStream(stream), State: seal.State,
	}
	if seal.NextOffset > max(seal.FirstOffset, seal.StartOffset) {
		ref, err := s.b.opts.Store.UploadSegment(ctx, tiering.Sealed{
			Identity: segment.Identity{Shard: s.id, Lineage: row.Lineage, Epoch: row.Epoch, FirstLSN: seal.Start, NextLSN: seal.End, Level: seal.Level},
			Vector:   vector, State: seal.State,
			Entries: func(ctx context.Context) iter.Seq2[entry.Entry, error] { return s.entries(ctx, seal.Start, seal.End) },
		})
		if err != nil {
			return err
		}
		p.Segment = &ref
	}
	b := p.Encode()
	a, _, err := s.command(ctx, &replica.Propose{Kind: replica.ProposeMark, Bytes: b}, int64(len(b)))
	if p.Segment != nil && (err == nil && a.NoEffect || err != nil && a.Err != nil && a.Applied == replica.AppliedNo) {
		s.b.opts.Store.GiveUp(p.Segment.Key) // no mark will ever name it
	}
	return err
}

// entries walks a committed range of the log.
func (s *shard) entries(ctx context.Context, from, to meta.LSN) iter.Seq2[entry.Entry, error] {
	const page = 4 << 20
	return func(yield func(entry.Entry, error) bool) {
		for from < to {
			list, err := s.b.log.Read(s.number, from, page)
			if err == nil && len(list) == 0 {
				err = meta.Errorf(meta.ErrCorrupt, "shard %s: the log ends at LSN %d, below the sealed range's end %d", s.id, from, to)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(entry.Entry{}, err)
				return
			}
			for _, e := range list {
				if e.LSN >= to {
					return
				}
				if !yield(e, nil) {
					return
				}
				from = e.LSN + 1
			}
		}
	}
}

// settle puts the manifest of every applied mark that has none yet, in order, and
// confirms each through the log.
func (s *shard) settle(ctx context.Context) error {
	for {
		s.mu.Lock()
		marks := s.core.Marks()
		s.mu.Unlock()
		if len(marks) == 0 {
			return nil
		}
		if err := s.settleOne(ctx, marks[0]); err != nil {
			return err
		}
	}
}

func (s *shard) settleOne(ctx context.Context, ref replica.MarkRef) error {
	list, err := s.b.log.Read(s.number, ref.LSN, 1)
	if err != nil || len(list) == 0 || list[0].LSN != ref.LSN || list[0].Kind != entry.Mark {
		return meta.Errorf(meta.ErrCorrupt, "shard %s: archive mark at LSN %d is not in the log: %v", s.id, ref.LSN, err)
	}
	p, err := entry.DecodeMark(list[0].Payload)
	if err != nil {
		return err
	}
	parent, err := s.parent(ctx, ref)
	if err != nil {
		return err
	}
	s.mu.Lock()
	vector := s.core.Durable().Vector()
	s.mu.Unlock()
	step, err := tiering.Next(s.id, parent, list[0].Header, &p, vector)
	if err != nil {
		return err
	}
	if err := s.b.opts.Store.PutManifest(ctx, step); err != nil {
		return err
	}
	confirm := entry.ConfirmPayload{Mark: ref.LSN}.Encode()
	if _, _, err := s.command(ctx, &replica.Propose{Kind: replica.ProposeConfirm, LSN: ref.LSN}, int64(len(confirm))); err != nil {
		return err
	}
	s.mu.Lock()
	if s.gone == nil {
		s.tier.manifest = step.Manifest
	}
	s.mu.Unlock()
	s.b.events.archived(s.id, &p)
	s.b.sweepLater(s.id)
	return nil
}

// parent is the manifest that a mark continues.
func (s *shard) parent(ctx context.Context, ref replica.MarkRef) (*tiering.Manifest, error) {
	if ref.Parent == 0 {
		return nil, nil
	}
	s.mu.Lock()
	m, lineage, base := s.tier.manifest, s.row.Lineage, s.row.Base
	s.mu.Unlock()
	if m != nil && m.Mark == ref.Parent {
		return m, nil
	}
	id := tiering.ManifestID{Lineage: lineage, Mark: ref.Parent}
	m, err := s.b.opts.Store.LoadManifest(ctx, s.id, id)
	if err != nil && !base.IsZero() && base.Mark == ref.Parent {
		m, err = s.b.opts.Store.LoadManifest(ctx, s.id, tiering.ManifestID{Lineage: base.Lineage, Mark: base.Mark})
	}
	return m, err
}
