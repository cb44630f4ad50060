package tiering

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/segment"
)

// Reader reads a shard's archived records on any broker; it needs no leader. It
// has one user at a time and pins what its manifest names against sweeps of the
// same Store until it is closed or given a newer manifest.
//
// It keeps the block it is in and the index of its segment, so a scan downloads
// each once however small the cache is; while all readers together keep more than
// the cache may hold, a further one does without.
type Reader struct {
	s       *Store
	refetch func(context.Context) (*Manifest, error)
	m       atomic.Pointer[Manifest] // written by the user, read by sweeps

	held struct { // the block that was read last, and the index of its segment
		key   cacheKey
		data  []byte
		ref   string
		index *segment.Index
	}
	next meta.Offset // where the last page ended: a read from there is a scan
}

// NewReader makes a reader over a manifest. Refetch is called when an object that
// the manifest names is gone; it returns the shard's newest written manifest
// ([Store.Newest] does), and nil means that the shard has none.
func (s *Store) NewReader(m *Manifest, refetch func(context.Context) (*Manifest, error)) *Reader {
	r := &Reader{s: s, refetch: refetch}
	r.m.Store(m)
	s.mu.Lock()
	s.readers[r] = struct{}{}
	s.mu.Unlock()
	return r
}

// Close gives up the reader's pin. Pages handed out stay valid.
func (r *Reader) Close() {
	r.keep(cacheKey{}, nil)
	r.s.mu.Lock()
	delete(r.s.readers, r)
	r.s.mu.Unlock()
}

// Manifest is what the reader reads by.
func (r *Reader) Manifest() *Manifest { return r.m.Load() }

// Update makes the reader read by a newer manifest of the same shard.
func (r *Reader) Update(m *Manifest) { r.m.Store(m) }

// Page is what one read returns.
type Page struct {
	// Entries hold the records, batch by batch, in order. The first and, where
	// segments overlap, later ones may begin below the offset they were read for:
	// records below it are to be left out. Bytes are shared and read-only.
	Entries []entry.Entry
	From    meta.Offset // first offset that the page answers for
	Next    meta.Offset // where to go on
	End     bool        // nothing archived lies at Next: go on in the log
}

// Read returns whole batches from an offset on: at least one, if any, and further
// ones up to maxBytes. It returns early, without an error, with what it has when
// the rest can't be had. An offset below the start is a [*meta.OffsetOutOfRange]
// (its End is the end of what is archived), one at or past the archived end an
// empty page with End set.
//
// A [*DamagedError] names the object and the offsets that can't be read; a read
// from beyond them works. When ctx ends, the error is a [meta.ErrUnavailable] and
// the download goes on: the same read again finds it.
func (r *Reader) Read(ctx context.Context, from meta.Offset, maxBytes int) (Page, error) {
	p := Page{From: from, Next: from}
	size := 0
	gone := "" // the object last found missing
	for size < maxBytes || len(p.Entries) == 0 {
		m := r.m.Load()
		if p.Next < m.StartOffset {
			return r.finish(p, &meta.OffsetOutOfRange{Asked: p.Next, Start: m.StartOffset, End: m.NextOffset})
		}
		ref, err := r.s.find(ctx, m, aboveOffset(p.Next))
		if err == nil && ref == nil {
			p.End = true
			break
		}
		full := false
		if err == nil {
			full, err = r.take(ctx, ref, &p, &size, maxBytes)
		}
		if lost := lostObject(err, ref); lost != nil {
			err = r.refresh(ctx, m, lost, &gone)
		}
		if err != nil {
			return r.finish(p, err)
		}
		if full {
			break
		}
	}
	return r.finish(p, nil)
}

func (r *Reader) finish(p Page, err error) (Page, error) {
	if len(p.Entries) > 0 {
		err = nil
	}
	if err == nil {
		r.next = p.Next
	}
	return p, err
}

// take adds one block's batches to the page. It reports that the page is full
// when the next batch does not fit.
func (r *Reader) take(ctx context.Context, ref *meta.SegmentRef, p *Page, size *int, maxBytes int) (full bool, err error) {
	x, err := r.index(ctx, ref)
	if err != nil {
		return false, err
	}
	i := x.ByOffset(p.Next)
	if i == len(x.Blocks) {
		err := meta.Errorf(meta.ErrCorrupt, "its index ends at offset %d, before %d", x.NextOffset, ref.NextOffset)
		return false, r.s.name(err, ref, ref.IndexAt, ref.IndexLen, p.Next, ref.NextOffset)
	}
	k := &x.Blocks[i]
	// Once a block, so that what others push out of the cache meanwhile is not
	// fetched again with every page.
	if p.From == r.next && r.s.opt.ReadAhead > 0 && r.held.key != r.s.cacheKey(ref.Key, k.At) {
		r.s.ahead(ref, x.Blocks[i:min(i+1+r.s.opt.ReadAhead, len(x.Blocks))])
	}
	data, err := r.block(ctx, ref, k)
	if err != nil {
		return false, err
	}
	before := p.Next
	for e, err := range segment.Entries(data) {
		var end meta.Offset
		if err == nil {
			end, err = segment.NextOffset(&e)
		}
		if err != nil {
			return false, r.s.name(err, ref, k.At, int64(k.Len), p.Next, k.NextOffset)
		}
		if end <= p.Next {
			continue
		}
		if len(p.Entries) > 0 && *size+e.Size() > maxBytes {
			return true, nil
		}
		p.Entries = append(p.Entries, e)
		p.Next = end
		*size += e.Size()
	}
	if p.Next == before {
		err := meta.Errorf(meta.ErrCorrupt, "its index says that the block ends at offset %d, but it holds nothing from %d on", k.NextOffset, before)
		return false, r.s.name(err, ref, k.At, int64(k.Len), before, k.NextOffset)
	}
	return false, nil
}

func (r *Reader) index(ctx context.Context, ref *meta.SegmentRef) (*segment.Index, error) {
	if r.held.index != nil && r.held.ref == ref.Key {
		return r.held.index, nil
	}
	x, err := r.s.index(ctx, ref)
	if err == nil {
		r.held.ref, r.held.index = ref.Key, x
	}
	return x, err
}

func (r *Reader) block(ctx context.Context, ref *meta.SegmentRef, k *segment.Block) ([]byte, error) {
	key := r.s.cacheKey(ref.Key, k.At)
	if r.held.data != nil && r.held.key == key {
		return r.held.data, nil
	}
	data, err := r.s.block(ctx, ref, k)
	if err == nil {
		r.keep(key, data)
	}
	return data, err
}

// keep holds a block for the next page, in place of the one before.
func (r *Reader) keep(key cacheKey, data []byte) {
	n := int64(len(data))
	if r.s.held.Add(n-int64(len(r.held.data))) > r.s.mostHeld() {
		r.s.held.Add(-n)
		key, data = cacheKey{}, nil
	}
	r.held.key, r.held.data = key, data
}

// mostHeld is how many bytes readers keep, all together.
func (s *Store) mostHeld() int64 { return max(s.opt.CacheBytes, 64*int64(s.opt.BlockSize)) }

// lostObject returns the object that an error says is missing, nil if it is
// another error.
func lostObject(err error, ref *meta.SegmentRef) *missingError {
	if err == nil || !missing(err) {
		return nil
	}
	var lost *missingError
	if errors.As(err, &lost) {
		return lost
	}
	return &missingError{ref.Key, ref.FirstOffset, ref.NextOffset, err}
}

// refresh gets the newest manifest after an object was found missing. The second
// time in one read that the same object is named is an error: it is not there.
func (r *Reader) refresh(ctx context.Context, had *Manifest, lost *missingError, gone *string) error {
	if *gone == lost.key {
		return r.s.damaged(&DamagedError{
			Key: lost.key, First: lost.first, Next: lost.next,
			Err: meta.Errorf(meta.ErrCorrupt, "it is missing from %s, though manifest %s names it", r.s.bucket.Location(), had.Key()),
		})
	}
	*gone = lost.key
	m, err := r.refetch(ctx)
	if err != nil {
		return meta.Errorf(meta.ErrUnavailable, "object %s is gone and the newest manifest can't be had: %w", lost.key, err)
	}
	if m == nil {
		return meta.Errorf(meta.ErrNotFound, "object %s is gone and so is every manifest of %s", lost.key, had.Shard)
	}
	r.m.Store(m)
	return nil
}

// FindTime returns the first archived offset whose append time is not before t,
// never below the start offset. Found is false when there is none: then the
// answer is in the log, or the end of it. All records of a batch share its append
// time. Errors are those of [Reader.Read].
//
// Archived records come before those in the log only, so ask here first.
func (r *Reader) FindTime(ctx context.Context, t meta.Micros) (at meta.Offset, found bool, err error) {
	gone := ""
	for {
		m := r.m.Load()
		at, found, lost, err := r.findTime(ctx, m, t)
		if lost == nil {
			return at, found, err
		}
		if err := r.refresh(ctx, m, lost, &gone); err != nil {
			return 0, false, err
		}
	}
}

func (r *Reader) findTime(ctx context.Context, m *Manifest, t meta.Micros) (at meta.Offset, found bool, lost *missingError, err error) {
	ref, err := r.s.find(ctx, m, func(e ends) bool { return e.time >= t && m.live(e.offset) })
	if err != nil || ref == nil {
		return 0, false, lostObject(err, nil), err
	}
	if ref.FirstTime >= t {
		return max(ref.FirstOffset, m.StartOffset), true, nil, nil
	}
	x, err := r.index(ctx, ref)
	if err != nil {
		return 0, false, lostObject(err, ref), err
	}
	k := &x.Blocks[min(x.ByTime(t), len(x.Blocks)-1)]
	data, err := r.block(ctx, ref, k)
	if err != nil {
		return 0, false, lostObject(err, ref), err
	}
	for e, err := range segment.Entries(data) {
		if err != nil {
			return 0, false, nil, r.s.name(err, ref, k.At, int64(k.Len), k.FirstOffset, k.NextOffset)
		}
		if e.Time >= t {
			return max(e.Offset, m.StartOffset), true, nil, nil
		}
	}
	err = meta.Errorf(meta.ErrCorrupt, "its index says that the block reaches append time %d", k.LastTime)
	return 0, false, nil, r.s.name(err, ref, k.At, int64(k.Len), k.FirstOffset, k.NextOffset)
}
