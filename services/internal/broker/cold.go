package broker

import (
	"context"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering"
)

// manifest is the newest written manifest of the shard that this broker knows, or
// that the bucket has; nil when there is none.
func (s *shard) manifest(ctx context.Context) (*tiering.Manifest, error) {
	s.mu.Lock()
	m := s.tier.manifest
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	return s.refetch(ctx)
}

// refetch looks for the newest manifest in the bucket: at the first cold read, and
// when an object that a manifest names is gone.
func (s *shard) refetch(ctx context.Context) (*tiering.Manifest, error) {
	s.mu.Lock()
	lineage, row := s.core().Status().Lineage, s.row
	s.mu.Unlock()
	if lineage == 0 {
		lineage = row.Lineage
	}
	m, err := s.b.opts.Store.Newest(ctx, s.id, lineage, manifestID(row.Base))
	if err != nil || m == nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, s.gone
	}
	if old := s.tier.manifest; old != nil && (old.Lineage > m.Lineage || old.Lineage == m.Lineage && old.Mark > m.Mark) {
		return old, nil
	}
	s.tier.manifest = m
	return m, nil
}

// openCold returns the reader over the bucket, on the newest manifest known; nil
// when nothing is archived.
func (r *Reader) openCold(ctx context.Context) (*tiering.Reader, error) {
	m, err := r.s.manifest(ctx)
	if err != nil || m == nil {
		return nil, err
	}
	switch {
	case r.cold == nil:
		r.cold = r.s.b.opts.Store.NewReader(m, r.s.refetch)
	case r.cold.Manifest() != m:
		r.cold.Update(m)
	}
	return r.cold, nil
}

// coldRead reads from the bucket. No entries and no error: nothing archived lies
// there; the log has it.
func (r *Reader) coldRead(ctx context.Context, from meta.Offset, most int) ([]entry.Entry, error) {
	cold, err := r.openCold(ctx)
	if err != nil || cold == nil {
		return nil, err
	}
	p, err := cold.Read(ctx, from, most)
	if err != nil {
		return nil, err
	}
	return p.Entries, nil
}

// attachBucket lets a shard without a leader show what the bucket holds of it.
func (s *shard) attachBucket(ctx context.Context) error {
	m, err := s.refetch(ctx)
	if err != nil {
		return err
	}
	if m == nil {
		return s.lead(ctx) // nothing to show: say what the shard waits for
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.Offset < m.NextOffset {
		s.seen.Offset, s.seen.Start = m.NextOffset, max(s.seen.Start, m.StartOffset)
	}
	return nil
}
