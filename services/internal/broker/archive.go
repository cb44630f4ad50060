package broker

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/segment"
	"github.com/varve-io/varve/wal"
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
//
// A shard that nobody used since the start is led for it, if it holds what the
// bucket lacks: else an idle stream would never be archived, and would keep room
// from all others.
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
		sent, renewed := 0, 0
		for _, s := range b.candidates(pressed) {
			if renewed < mostRenewed && s.stale() {
				renewed++
				_ = s.renew(ctx) // what was known before holds on
			}
			if !s.due(pressed && sent < archivers) {
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
func (s *shard) due(pressed bool) bool {
	now := s.b.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.core().Status()
	if s.tier.busy || s.gone != nil || !st.Serving && !owes(&st.View) || st.Role >= replica.Stopped || now.Before(s.tier.tryAfter) {
		return false
	}
	cfg := s.b.opts.Defaults
	if s.stream != nil {
		cfg = s.stream.Effective
	}
	// While all that is new is still on its way to the disk there is nothing to seal.
	sealable := st.Commit >= st.ArchivedEnd && (st.Committed > st.Archived || st.Last == st.Commit)
	open := !s.tier.dirty.IsZero() && (sealable || !st.Serving)
	switch {
	case st.Marks > 0:
	case open && (pressed || s.tier.wanted != 0 && s.tier.wanted <= st.Commit || s.b.log.Tail(s.number).Bytes >= cfg.SegmentBytes || now.Sub(s.tier.dirty) >= cfg.SegmentAge):
	default:
		return false
	}
	s.tier.busy = true
	return true
}

// archiver works shards off until the schedule ends.
func (b *Broker) archiver(ctx context.Context) error {
	for s := range b.jobs {
		b.mu.Lock()
		b.active[s] = struct{}{}
		b.mu.Unlock()
		err := s.archiveWhileHeld(ctx)
		b.mu.Lock()
		delete(b.active, s)
		b.mu.Unlock()
		s.mu.Lock()
		s.tier.busy = false
		s.freshen()
		if s.gone != nil {
			b.purgeSoon() // it waits until nothing more comes of this shard
		}
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

// archiveWhileHeld is archive, ended when the shard goes.
func (s *shard) archiveWhileHeld(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	gone := s.gone
	s.tier.cancel = cancel
	s.mu.Unlock()
	if gone != nil {
		return gone
	}
	err := s.archive(ctx)
	s.mu.Lock()
	s.tier.cancel = nil
	s.mu.Unlock()
	return err
}

// archive moves a shard's committed tail into the bucket. Each step is taken from
// what the log says, so that a stop anywhere is gone on from:
//
//	settle: every applied mark without a confirmed manifest: put it, confirm it
//	seal:   the committed range from the archived end on, and the state at its end
//	upload: the segment, under a key of its own
//	mark:   through the log; then settle again
func (s *shard) archive(ctx context.Context) error {
	if err := s.lead(ctx); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	// The mark carries the stream's row: as of now, or as last read while the
	// catalog can't be asked.
	if err := s.renew(ctx); errors.Is(err, meta.ErrNotFound) {
		return err
	}
	s.mu.Lock()
	seal, ok := s.core().Seal()
	row, vector, stream := s.row, s.durable.Vector(), s.stream
	s.mu.Unlock()
	if !ok {
		return nil
	}
	seal, err := s.shorten(ctx, seal, stream.Effective.SegmentBytes)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.sealed(seal.End)
	s.mu.Unlock()
	err = s.mark(ctx, seal, row, vector, stream.StreamRow)
	if err == nil {
		err = s.settle(ctx)
	}
	if err != nil {
		s.mu.Lock()
		if s.tier.dirty.IsZero() {
			s.soil()
		}
		s.want(seal.End - 1) // what was sealed is still due
		s.mu.Unlock()
	}
	return err
}

// sealed takes what lies below an LSN off what is to be archived; the rest is as
// old as now. s.mu is held.
func (s *shard) sealed(end meta.LSN) {
	if s.tier.wanted < end {
		s.tier.wanted = 0
	}
	s.tier.dirty = time.Time{}
	if s.durable.Last() >= end {
		s.soil()
	}
}

// mark uploads a sealed range and appends its archive mark.
func (s *shard) mark(ctx context.Context, seal replica.Seal, row placing, vector meta.Vector, stream catalog.StreamRow) error {
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
	if p.Segment != nil && (err == nil && a.NoEffect || err != nil && !mayApply(err)) {
		s.b.opts.Store.GiveUp(p.Segment.Key) // no mark will ever name it
	}
	return err
}

// entries walks a committed range of the log. An entry is valid until the next.
func (s *shard) entries(ctx context.Context, from, to meta.LSN) iter.Seq2[entry.Entry, error] {
	const page = 1 << 20
	return func(yield func(entry.Entry, error) bool) {
		s.mu.Lock()
		number := s.number
		s.mu.Unlock()
		cursor := wal.Cursor{Reuse: true}
		for from < to {
			list, err := s.b.log.ReadOn(number, from, page, &cursor)
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
		marks := s.core().Marks()
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
	s.mu.Lock()
	number, vector, row := s.number, s.durable.Vector(), s.row
	s.mu.Unlock()
	list, err := s.b.log.Read(number, ref.LSN, 1)
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
	// A mark that an abandon found without its manifest gets it in the lineage
	// that goes on, the only one that is believed.
	head := list[0].Header
	head.Lineage = row.Lineage
	step, err := tiering.Next(s.id, parent, head, &p, vector)
	if err != nil {
		return err
	}
	if err := s.b.claimed(ctx); err != nil {
		return err
	}
	if err := s.b.opts.Store.PutManifest(ctx, step); err != nil {
		return err
	}
	// Known before it is confirmed: once the log drops what it covers, a reader
	// must find it here, and a sweep must see what it names.
	s.mu.Lock()
	if s.gone == nil {
		s.tier.manifest = step.Manifest
	}
	s.mu.Unlock()
	confirm := entry.ConfirmPayload{Mark: ref.LSN}.Encode()
	if _, _, err := s.command(ctx, &replica.Propose{Kind: replica.ProposeConfirm, LSN: ref.LSN}, int64(len(confirm))); err != nil {
		return err
	}
	s.b.events.archived(s.id, &p)
	s.b.sweepLater(s.id)
	return nil
}

// parent is the manifest that a mark continues: one of the own lineage, or, for the
// lineage's first marks, one of the history that it is based on. Both may have been
// built from marks of the same LSN, and the own one may be of this very mark, put
// before a stop: a mark never continues itself.
func (s *shard) parent(ctx context.Context, ref replica.MarkRef) (*tiering.Manifest, error) {
	if ref.Parent == 0 {
		return nil, nil
	}
	s.mu.Lock()
	known, lineage, base := s.tier.manifest, s.row.Lineage, s.row.Base
	s.mu.Unlock()
	based := !base.IsZero() && base.Lineage < lineage
	if ref.Parent < ref.LSN || !based {
		own := tiering.ManifestID{Lineage: lineage, Mark: ref.Parent}
		if known != nil && known.ID() == own {
			return known, nil
		}
		m, err := s.b.opts.Store.LoadManifest(ctx, s.id, own)
		if !errors.Is(err, bucket.ErrNotExist) || !based {
			return m, err
		}
	}
	if known != nil && known.Mark == ref.Parent && known.Lineage == base.Lineage {
		return known, nil
	}
	return s.ancestor(ctx, manifestID(base), ref.Parent)
}

// ancestor is the manifest of a mark that the base's continues, or the base's own.
// The copy may have lost the marks since, while the bucket kept their manifests; and
// the one asked for may be of a lineage before the base's.
func (s *shard) ancestor(ctx context.Context, base tiering.ManifestID, mark meta.LSN) (*tiering.Manifest, error) {
	for id := base; ; {
		m, err := s.b.opts.Store.LoadManifest(ctx, s.id, id)
		if err != nil || m.Mark == mark {
			return m, err
		}
		if id = m.Parent; id.IsZero() || m.Mark < mark {
			return nil, meta.Errorf(meta.ErrCorrupt, "shard %s: no manifest of mark %d leads to the one of mark %d, on which its lineage is based", s.id, mark, base.Mark)
		}
	}
}

// settingsAge is how long a stream's settings hold for its archiving without
// another look, and mostRenewed how many streams are looked at in one round.
const (
	settingsAge  = time.Minute
	mostRenewed  = 16
	renewTimeout = 5 * time.Second
)

// renew reads the stream's row and settings again.
func (s *shard) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	_, err := s.b.readStream(ctx, s.id.Stream)
	return err
}

// stale reports whether a stream with something to archive should be read again.
func (s *shard) stale() bool {
	now := s.b.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == nil || s.tier.dirty.IsZero() || now.Sub(s.read) < settingsAge {
		return false
	}
	s.read = now // also when it can't be read
	return true
}
