package tiering

import (
	"fmt"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/bucket"
)

// Step is a manifest and the index objects that must be in the bucket before it.
type Step struct {
	Manifest *Manifest
	objects  []object // index objects first, the manifest last
}

type object struct {
	key  string
	data []byte
}

// Key is where the step's manifest will lie.
func (s *Step) Key() string { return s.Manifest.Key() }

// Next builds the manifest of a committed archive mark that applied: a pure
// function of its arguments, so that whoever builds it builds the same bytes.
//
// Parent is the manifest that the mark names ([entry.MarkPayload.Parent]), nil if
// it names none. Head and mark are the mark's entry. Vector is the shard's epoch
// vector and must hold the pair that covers mark.End-1; only that pair is kept.
// Errors are [meta.ErrInvalid] for a parent that is not the one named and
// [meta.ErrCorrupt] for a mark that does not continue it. Nothing aliases the
// arguments but Row and State, which must stay unchanged.
func Next(shard meta.ShardID, parent *Manifest, head entry.Header, mark *entry.MarkPayload, vector meta.Vector) (*Step, error) {
	return next(shard, parent, head, mark, vector, width)
}

func next(shard meta.ShardID, parent *Manifest, head entry.Header, mark *entry.MarkPayload, vector meta.Vector, width int) (*Step, error) {
	m := &Manifest{
		Shard: shard, Lineage: head.Lineage, Mark: head.LSN, Epoch: head.Epoch, Level: mark.Level,
		ArchivedEnd: mark.End, StartOffset: mark.StartOffset, Row: readBytes(mark.Row), State: readBytes(mark.State),
	}
	if err := m.inherit(parent, mark); err != nil {
		return nil, err
	}
	if err := m.take(mark.Segment); err != nil {
		return nil, err
	}
	// A range without a segment ends at most where reading starts.
	m.NextOffset = max(m.NextOffset, m.StartOffset)
	var err error
	if m.Vector, err = covering(vector, mark.End, shard); err != nil {
		return nil, err
	}
	m.Older = slices.DeleteFunc(m.Older, func(x IndexRef) bool { return !m.live(x.NextOffset) })
	m.Segments = slices.DeleteFunc(m.Segments, func(s meta.SegmentRef) bool { return !m.live(s.NextOffset) })
	step := &Step{Manifest: m}
	if err := step.roll(width); err != nil {
		return nil, err
	}
	b, err := m.Encode()
	if err != nil {
		return nil, err
	}
	step.objects = append(step.objects, object{m.Key(), b})
	return step, nil
}

// inherit takes over what the parent lists, after checking that it is the one
// the mark continues.
func (m *Manifest) inherit(parent *Manifest, mark *entry.MarkPayload) error {
	if parent == nil {
		if mark.Parent != 0 {
			return meta.Invalidf("mark at LSN %d of %s continues the manifest of mark %d: it is needed", m.Mark, m.Shard, mark.Parent)
		}
		return nil
	}
	switch {
	case parent.Shard != m.Shard || parent.Mark != mark.Parent:
		return meta.Invalidf("mark at LSN %d of %s continues the manifest of mark %d: got that of mark %d of %s", m.Mark, m.Shard, mark.Parent, parent.Mark, parent.Shard)
	case parent.Lineage > m.Lineage:
		return meta.Errorf(meta.ErrForeign, "mark at LSN %d of %s has lineage %s: its parent is of the later %s", m.Mark, m.Shard, meta.Hex(m.Lineage), meta.Hex(parent.Lineage))
	case parent.Lineage == m.Lineage && parent.Mark >= m.Mark, parent.ArchivedEnd != mark.Start:
		return meta.Errorf(meta.ErrCorrupt, "mark at LSN %d of %s archives from LSN %d: its parent of mark %d ends at %d", m.Mark, m.Shard, mark.Start, parent.Mark, parent.ArchivedEnd)
	case mark.StartOffset < parent.StartOffset:
		return meta.Errorf(meta.ErrCorrupt, "mark at LSN %d of %s moves the start offset back from %d to %d", m.Mark, m.Shard, parent.StartOffset, mark.StartOffset)
	}
	m.Parent, m.NextOffset = parent.ID(), parent.NextOffset
	m.Older, m.Segments = slices.Clone(parent.Older), slices.Clone(parent.Segments)
	return nil
}

// take adds the segment that the mark names, if any, after checking that it goes on
// where the parent ends and that its key is its own: sweeps find what a manifest
// names by what the key says.
func (m *Manifest) take(s *meta.SegmentRef) error {
	if s == nil {
		return nil
	}
	bad := func(format string, args ...any) error {
		return meta.Errorf(meta.ErrCorrupt, "mark at LSN %d of %s: segment %s: %w", m.Mark, m.Shard, s.Key, fmt.Errorf(format, args...))
	}
	k, err := ParseSegmentKey(s.Key)
	switch {
	case err != nil:
		return bad("%w", err)
	case k.Shard != m.Shard || k.Lineage > m.Lineage || k.Base != s.FirstLSN:
		return bad("its key is that of another shard, a later lineage or another range than [%d, %d)", s.FirstLSN, s.NextLSN)
	case s.FirstOffset < m.NextOffset:
		return bad("it starts at offset %d, below %d", s.FirstOffset, m.NextOffset)
	case s.FirstOffset > max(m.NextOffset, m.StartOffset):
		return bad("it starts at offset %d: those from %d on would be lost", s.FirstOffset, m.NextOffset)
	}
	m.Segments = append(m.Segments, *s)
	m.NextOffset = s.NextOffset
	return nil
}

// covering is the last pair below end. Older pairs are left out: a copy may have
// dropped them by the time it builds a manifest, and the bytes must be the same.
func covering(v meta.Vector, end meta.LSN, shard meta.ShardID) (meta.Vector, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(v) {
		if p.LSN < end {
			return meta.Vector{p}, nil
		}
	}
	if end > 1 {
		return nil, meta.Invalidf("epoch vector of %s does not cover LSN %d", shard, end-1)
	}
	return nil, nil
}

// roll moves what is too much for one object into index objects.
func (st *Step) roll(width int) error {
	m := st.Manifest
	if len(m.Segments) <= width {
		return nil
	}
	x := &indexObject{Shard: m.Shard, ID: m.ID(), Segments: slices.Clone(m.Segments[:width])}
	m.Segments = slices.Clone(m.Segments[width:])
	for {
		ref, err := st.add(x)
		if err != nil {
			return err
		}
		m.Older = append(m.Older, ref)
		first := slices.IndexFunc(m.Older, func(r IndexRef) bool { return r.Depth == x.Depth })
		if len(m.Older)-first < width || x.Depth == maxDepth {
			return nil
		}
		x = &indexObject{Shard: m.Shard, ID: m.ID(), Depth: x.Depth + 1, Indexes: slices.Clone(m.Older[first:])}
		m.Older = m.Older[:first]
	}
}

func (st *Step) add(x *indexObject) (IndexRef, error) {
	b, err := x.encode()
	if err != nil {
		return IndexRef{}, err
	}
	r := IndexRef{Key: indexKey(x.Shard, x.ID, x.Depth), Size: int64(len(b)), CRC: bucket.Checksum(b), Depth: x.Depth}
	if x.Depth == 0 {
		first, last := &x.Segments[0], &x.Segments[len(x.Segments)-1]
		r.FirstLSN, r.FirstOffset, r.FirstTime = first.FirstLSN, first.FirstOffset, first.FirstTime
		r.NextLSN, r.NextOffset, r.LastTime = last.NextLSN, last.NextOffset, last.LastTime
		r.Segments = uint64(len(x.Segments))
		for i := range x.Segments {
			r.Bytes += uint64(x.Segments[i].Size)
		}
	} else {
		first, last := &x.Indexes[0], &x.Indexes[len(x.Indexes)-1]
		r.FirstLSN, r.FirstOffset, r.FirstTime = first.FirstLSN, first.FirstOffset, first.FirstTime
		r.NextLSN, r.NextOffset, r.LastTime = last.NextLSN, last.NextOffset, last.LastTime
		for i := range x.Indexes {
			r.Segments += x.Indexes[i].Segments
			r.Bytes += x.Indexes[i].Bytes
		}
	}
	st.objects = append(st.objects, object{r.Key, b})
	return r, nil
}
