package tiering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/segment"
)

// DamagedError says that an object that a manifest names is missing or does not
// verify. Only the records it holds can't be read: reading goes on at Next. It is
// a [meta.ErrCorrupt].
type DamagedError struct {
	Key         string
	At, Len     int64       // the bytes in question; zero Len when the object is missing
	First, Next meta.Offset // the records that can't be read; equal when not known
	Err         error
}

func (e *DamagedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "object %s", e.Key)
	if e.Len > 0 {
		fmt.Fprintf(&b, ", bytes %d to %d", e.At, e.At+e.Len-1)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Next > e.First {
		fmt.Fprintf(&b, "; offsets %d to %d can't be read, the stream goes on at %d", e.First, e.Next-1, e.Next)
	}
	b.WriteString("; put the object back as it was")
	return b.String()
}

// Unwrap makes it a [meta.ErrCorrupt].
func (e *DamagedError) Unwrap() []error { return []error{meta.ErrCorrupt, e.Err} }

func (s *Store) damaged(e *DamagedError) error {
	s.count.damaged.Add(1)
	if f := s.opt.Events.Damaged; f != nil {
		f(e.Key, e)
	}
	return e
}

// errMissing marks an object that is not in the bucket.
func missing(err error) bool { return errors.Is(err, bucket.ErrNotExist) }

// cacheKey is where a part of an object is cached.
func (s *Store) cacheKey(object string, at int64) cacheKey {
	if s.opt.Twins.CacheByName {
		if k, err := ParseSegmentKey(object); err == nil {
			object = k.Shard.Stream.String() + "/" + meta.Hex(k.Base)
		}
	}
	return cacheKey{object, at}
}

// fetch downloads a range and hands it to check; when that fails the range is
// fetched once more. It holds a permit only while a request runs.
func (s *Store) fetch(key string, at, n int64, check func([]byte) error) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.FetchFor)
	defer cancel()
	op := func() ([]byte, error) {
		release, err := s.permit(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
		rctx, cancel := context.WithTimeout(ctx, s.opt.GetTimeout)
		defer cancel()
		b, err := s.bucket.Get(rctx, key, at, n)
		s.count.gets.Add(1)
		s.count.getBytes.Add(uint64(len(b)))
		return b, err
	}
	notify := func(error, time.Duration) { s.count.getRetries.Add(1) }
	var err error
	for range 2 {
		var b []byte
		if b, err = retry(ctx, s, s.opt.FetchFor, op, passing, notify); err == nil {
			if int64(len(b)) != n {
				err = meta.Errorf(meta.ErrCorrupt, "got %d of %d bytes", len(b), n)
			} else if err = check(b); err == nil {
				return b, nil
			}
		}
		if !errors.Is(err, meta.ErrCorrupt) {
			return nil, err
		}
	}
	return nil, err
}

// index returns a segment's index, of the exact range that the reference names.
func (s *Store) index(ctx context.Context, ref *meta.SegmentRef) (*segment.Index, error) {
	r := *ref
	v, err := s.cache.get(ctx, s.cacheKey(r.Key, r.IndexAt), func() (any, int64, error) {
		var x *segment.Index
		_, err := s.fetch(r.Key, r.IndexAt, r.IndexLen, func(b []byte) (err error) {
			if x, err = segment.ParseTail(b, r.Size); err != nil {
				return notCorrupt(err)
			}
			return isThat(x, &r)
		})
		return x, 256 + 2*r.IndexLen, s.name(err, &r, r.IndexAt, r.IndexLen, r.FirstOffset, r.NextOffset)
	})
	if err != nil {
		return nil, err
	}
	return v.(*segment.Index), nil
}

// isThat checks that an object is the one that its key and reference say. A segment
// of another shard may have the same size and ranges, and all its checksums verify.
func isThat(x *segment.Index, ref *meta.SegmentRef) error {
	k, err := ParseSegmentKey(ref.Key)
	switch {
	case err != nil:
		return meta.Errorf(meta.ErrCorrupt, "%w", err)
	case x.Shard != k.Shard || x.Lineage != k.Lineage || x.Epoch != k.Epoch || x.FirstLSN != k.Base:
		return meta.Errorf(meta.ErrCorrupt, "it is a segment of %s, lineage %s, epoch %d, from LSN %d on: not what its key says", x.Shard, meta.Hex(x.Lineage), x.Epoch, x.FirstLSN)
	case x.FirstLSN != ref.FirstLSN || x.NextLSN != ref.NextLSN || x.FirstOffset != ref.FirstOffset || x.NextOffset != ref.NextOffset:
		return meta.Errorf(meta.ErrCorrupt, "it holds LSN [%d, %d) and offsets [%d, %d), not what its reference says", x.FirstLSN, x.NextLSN, x.FirstOffset, x.NextOffset)
	}
	return nil
}

// notCorrupt makes any failure to parse a whole tail a corruption.
func notCorrupt(err error) error {
	var short *segment.ShortTail
	if errors.As(err, &short) {
		return meta.Errorf(meta.ErrCorrupt, "%w", err)
	}
	return err
}

// name turns a corruption into an error that names object, bytes and records.
func (s *Store) name(err error, ref *meta.SegmentRef, at, n int64, first, next meta.Offset) error {
	if err == nil || !errors.Is(err, meta.ErrCorrupt) {
		return err
	}
	return s.damaged(&DamagedError{Key: ref.Key, At: at, Len: n, First: first, Next: next, Err: err})
}

func (s *Store) blockLoad(ref meta.SegmentRef, k segment.Block) func() (any, int64, error) {
	return func() (any, int64, error) {
		b, err := s.fetch(ref.Key, k.At, int64(k.Len), k.Verify)
		return b, int64(len(b)) + 128, s.name(err, &ref, k.At, int64(k.Len), k.FirstOffset, k.NextOffset)
	}
}

// block returns the verified bytes of one block.
func (s *Store) block(ctx context.Context, ref *meta.SegmentRef, k *segment.Block) ([]byte, error) {
	v, err := s.cache.get(ctx, s.cacheKey(ref.Key, k.At), s.blockLoad(*ref, *k))
	if err != nil {
		return nil, err
	}
	return v.([]byte), nil
}

// ahead starts the download of a block that is asked for next, and of those behind
// it that a scan will want, without waiting. One that the cache has no room for would
// be fetched again when it is asked for.
func (s *Store) ahead(ref *meta.SegmentRef, blocks []segment.Block) {
	if int64(blocks[0].Len) > s.opt.CacheBytes/2 {
		return
	}
	cost := int64(0)
	for i := range blocks {
		s.cache.prefetch(s.cacheKey(ref.Key, blocks[i].At), cost, s.blockLoad(*ref, blocks[i]))
		if i+1 < len(blocks) {
			cost = int64(blocks[i+1].Len)
		}
	}
}

// list returns an index object.
func (s *Store) list(ctx context.Context, ref *IndexRef) (*indexObject, error) {
	r := *ref
	v, err := s.cache.get(ctx, cacheKey{r.Key, 0}, func() (any, int64, error) {
		var x *indexObject
		_, err := s.fetch(r.Key, 0, r.Size, func(b []byte) (err error) {
			if got := bucket.Checksum(b); got != r.CRC {
				return meta.Errorf(meta.ErrCorrupt, "segment list sums to %08x: the manifest says %08x", got, r.CRC)
			}
			x, err = decodeIndexObject(b)
			return err
		})
		return x, r.Size, s.name(err, &meta.SegmentRef{Key: r.Key}, 0, r.Size, r.FirstOffset, r.NextOffset)
	})
	if err != nil {
		return nil, err
	}
	return v.(*indexObject), nil
}

// find returns the first segment of a manifest whose ends pass, nil if none does.
func (s *Store) find(ctx context.Context, m *Manifest, pass func(ends) bool) (found *meta.SegmentRef, err error) {
	err = s.from(ctx, m, pass, func(ref *meta.SegmentRef) bool {
		found = ref
		return false
	})
	return found, err
}

// from yields the segments of a manifest whose ends pass, in order, until it is told
// to stop. Pass must stay true once it is: ends only grow along the list.
func (s *Store) from(ctx context.Context, m *Manifest, pass func(ends) bool, yield func(*meta.SegmentRef) bool) error {
	more, err := s.walk(ctx, m.Older, pass, yield)
	for i := searchSegments(m.Segments, pass); more && i < len(m.Segments); i++ {
		more = yield(&m.Segments[i])
	}
	return err
}

// walk is from for what lies below index objects, and says whether to go on.
func (s *Store) walk(ctx context.Context, refs []IndexRef, pass func(ends) bool, yield func(*meta.SegmentRef) bool) (more bool, err error) {
	for i := searchIndexes(refs, pass); i < len(refs); i++ {
		x, err := s.list(ctx, &refs[i])
		if missing(err) {
			return false, &missingError{refs[i].Key, refs[i].FirstOffset, refs[i].NextOffset, err}
		}
		if err != nil {
			return false, err
		}
		if more, err := s.walk(ctx, x.Indexes, pass, yield); err != nil || !more {
			return false, err
		}
		for j := searchSegments(x.Segments, pass); j < len(x.Segments); j++ {
			if !yield(&x.Segments[j]) {
				return false, nil
			}
		}
	}
	return true, nil
}

// missingError says which object of a manifest is not there.
type missingError struct {
	key         string
	first, next meta.Offset
	err         error
}

func (e *missingError) Error() string { return e.err.Error() }
func (e *missingError) Unwrap() error { return e.err }
