package tiering

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/segment"
)

// Segments lists the segments of a manifest that hold a record at or above an
// offset (and above the start offset), oldest first, reading index objects as they
// come. A pair with an error is the last.
func (s *Store) Segments(ctx context.Context, m *Manifest, from meta.Offset) iter.Seq2[meta.SegmentRef, error] {
	return func(yield func(meta.SegmentRef, error) bool) {
		at := max(from, m.StartOffset)
		for {
			ref, err := s.find(ctx, m, aboveOffset(at))
			if err != nil {
				yield(meta.SegmentRef{}, err)
				return
			}
			if ref == nil || !yield(*ref, nil) {
				return
			}
			at = ref.NextOffset
		}
	}
}

// Retention is how much of a shard is kept; zero means no limit.
type Retention struct {
	Age     time.Duration
	Bytes   uint64 // of segment objects
	Records uint64
}

// Retained returns the start offset that a retention asks for as of now, never
// below the manifest's and never above the last archived segment's end. Segments
// go whole: one goes by age when its last append time is older, and by bytes or
// records when what is left without it is still as much as the limit. It moves
// nothing: a trim through the log does.
func (s *Store) Retained(ctx context.Context, m *Manifest, keep Retention, now meta.Micros) (meta.Offset, error) {
	start := m.StartOffset
	bytes, err := s.liveBytes(ctx, m, m.Older)
	if err != nil {
		return start, err
	}
	for i := range m.Segments {
		bytes += uint64(m.Segments[i].Size)
	}
	records := uint64(m.NextOffset - start)
	for ref, err := range s.Segments(ctx, m, start) {
		if err != nil {
			return m.StartOffset, err
		}
		size, count := uint64(ref.Size), uint64(ref.NextOffset-start)
		old := keep.Age > 0 && ref.LastTime < now-meta.Micros(keep.Age.Microseconds())
		big := keep.Bytes > 0 && bytes >= size && bytes-size >= keep.Bytes
		many := keep.Records > 0 && records-count >= keep.Records
		if !old && !big && !many {
			break
		}
		start, bytes, records = ref.NextOffset, bytes-min(bytes, size), records-count
	}
	return start, nil
}

// liveBytes sums the segments below index objects, without those wholly below the
// start offset: only an index object that the start lies in is read.
func (s *Store) liveBytes(ctx context.Context, m *Manifest, refs []IndexRef) (sum uint64, err error) {
	for i := range refs {
		switch r := &refs[i]; {
		case !m.live(r.NextOffset):
		case m.live(r.FirstOffset + 1):
			sum += r.Bytes
		default:
			x, err := s.list(ctx, r)
			if err != nil {
				return 0, err
			}
			below, err := s.liveBytes(ctx, m, x.Indexes)
			if err != nil {
				return 0, err
			}
			sum += below
			for j := range x.Segments {
				if m.live(x.Segments[j].NextOffset) {
					sum += uint64(x.Segments[j].Size)
				}
			}
		}
	}
	return sum, nil
}

// Inspect reads one segment object whole, a block at a time, and checks all there
// is to check. Errors are those of [segment.Inspect], or of the bucket.
func (s *Store) Inspect(ctx context.Context, key string) (*segment.Report, error) {
	info, err := s.bucket.Head(ctx, key)
	if err != nil {
		return nil, err
	}
	return segment.Inspect(&objectReader{ctx, s, key, info.Size}, info.Size)
}

// objectReader reads an object by ranges, past the cache.
type objectReader struct {
	ctx  context.Context
	s    *Store
	key  string
	size int64
}

func (r *objectReader) ReadAt(b []byte, at int64) (int, error) {
	n := min(int64(len(b)), r.size-at)
	if n <= 0 {
		return 0, io.EOF
	}
	op := func() ([]byte, error) {
		rctx, cancel := context.WithTimeout(r.ctx, r.s.opt.GetTimeout)
		defer cancel()
		return r.s.bucket.Get(rctx, r.key, at, n)
	}
	got, err := retry(r.ctx, r.s, r.s.opt.FetchFor, op, passing, func(error, time.Duration) { r.s.count.getRetries.Add(1) })
	copied := copy(b, got)
	if err == nil && copied < len(b) {
		err = io.EOF
	}
	return copied, err
}
