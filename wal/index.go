package wal

import (
	"slices"
	"sort"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

// maxExtent bounds how many bytes a reader walks to find one entry.
const maxExtent = 128 << 10

// shard is what the log knows of one shard: some 200 bytes and its extents.
// start, end and extents are what was applied, in log order; next runs ahead of
// end by what is queued.
type shard struct {
	number  ShardNumber
	id      meta.ShardID
	next    meta.LSN // the next entry to be queued
	start   meta.LSN // first local entry
	end     meta.LSN // after the last local entry
	extents []Extent // by LSN, without overlap

	forgotten bool     // a Forget is queued
	known     bool     // its bind record is applied, or the checkpoint names it
	boundAt   Position // of the bind record; 0 if the checkpoint names it

	// The writer's: whether it has placed the bind record, and its writes in the
	// batch being placed.
	bound      bool
	head, tail *Write
}

// placed is a frame at its place in the log: all that the index needs of it.
type placed struct {
	kind     frame.Kind
	position Position
	size     int
	header   entry.Header // Entry, Relocation
	lsn      meta.LSN     // Truncate, Base
	from     Position     // Relocation
}

// index finds entries. Its methods are the one fold of the log: the writer and
// the replay both apply frames through [index.apply], in log order.
type index struct {
	byNumber map[ShardNumber]*shard
	byID     map[meta.ShardID]*shard
	last     ShardNumber // the highest number ever given
	files    []*logFile  // that hold something, by position
	// copyIsAppend is the twin CopyIsAppend.
	copyIsAppend bool
}

func newIndex() *index {
	return &index{byNumber: map[ShardNumber]*shard{}, byID: map[meta.ShardID]*shard{}}
}

// add makes a shard known.
func (x *index) add(n ShardNumber, id meta.ShardID) *shard {
	s := &shard{number: n, id: id, next: 1, start: 1, end: 1}
	x.byNumber[n], x.byID[id] = s, s
	x.last = max(x.last, n)
	return s
}

// file finds the file that holds a position, or nil.
func (x *index) file(p Position) *logFile {
	i := sort.Search(len(x.files), func(i int) bool { return x.files[i].first() > p })
	if i == 0 || !x.files[i-1].holds(p) {
		return nil
	}
	return x.files[i-1]
}

// apply folds one frame into the index. It reports whether the frame counted: a
// relocation whose source is no longer what the index maps its LSN to does not.
func (x *index) apply(s *shard, p placed) (bool, error) {
	switch p.kind {
	case frame.Entry:
		if p.header.LSN != s.end {
			return false, meta.Errorf(meta.ErrCorrupt, "shard %d: entry %d at position %d doesn't follow %d", s.number, p.header.LSN, p.position, s.end-1)
		}
		x.insert(s, len(s.extents), p)
		s.end++
	case frame.Relocation:
		return x.relocate(s, p), nil
	case frame.Bind:
		s.known, s.boundAt = true, p.position
	case frame.Truncate:
		if p.lsn >= s.end {
			return false, meta.Errorf(meta.ErrCorrupt, "shard %d: truncate at position %d keeps up to %d, but the log ends at %d", s.number, p.position, p.lsn, s.end-1)
		}
		x.truncate(s, p.lsn)
	case frame.Base:
		x.clear(s)
		s.start, s.end = p.lsn+1, p.lsn+1
	case frame.Forget:
		x.clear(s)
		s.start = s.end
		delete(x.byNumber, s.number)
		if x.byID[s.id] == s {
			delete(x.byID, s.id)
		}
	}
	return true, nil
}

// insert puts a frame's entry before extent i, or joins it to the one before.
func (x *index) insert(s *shard, i int, p placed) {
	if f := x.file(p.position); f != nil {
		f.live += int64(p.size)
	}
	if i > 0 {
		e := &s.extents[i-1]
		if e.Next == p.header.LSN && e.End() == p.position && int(e.Bytes)+p.size <= maxExtent {
			e.Bytes += uint32(p.size)
			e.Next++
			return
		}
	}
	s.extents = slices.Insert(s.extents, i, Extent{Position: p.position, Bytes: uint32(p.size),
		First: p.header.LSN, Next: p.header.LSN + 1, Offset: p.header.Offset, Time: p.header.Time})
}

// find returns the place of the extent that holds an LSN, or of the first one
// after it.
func (s *shard) find(lsn meta.LSN) int {
	return sort.Search(len(s.extents), func(i int) bool { return s.extents[i].Next > lsn })
}

// relocate moves one entry's place, if the index still maps it to the place that
// it was copied from.
func (x *index) relocate(s *shard, p placed) bool {
	lsn := p.header.LSN
	if x.copyIsAppend {
		s.end = max(s.end, lsn+1)
		s.next = max(s.next, s.end)
	}
	i := s.find(lsn)
	if i == len(s.extents) || s.extents[i].First > lsn || p.from < s.extents[i].Position || p.from >= s.extents[i].End() {
		if x.copyIsAppend {
			x.insert(s, i, p)
			return true
		}
		return false
	}
	e := s.extents[i]
	after := e
	after.First, after.Offset, after.Time = lsn+1, p.header.Offset, p.header.Time
	e.Next = lsn
	// The old run becomes up to two, before and after the entry; both keep its
	// bytes, as a reader walks over what it doesn't want.
	x.release(&s.extents[i])
	s.extents = slices.Delete(s.extents, i, i+1)
	if e.First < e.Next {
		s.extents = slices.Insert(s.extents, i, e)
		x.hold(&s.extents[i])
		i++
	}
	if after.First < after.Next {
		s.extents = slices.Insert(s.extents, i, after)
		x.hold(&s.extents[i])
	}
	x.insert(s, i, p)
	return true
}

func (x *index) hold(e *Extent) {
	if f := x.file(e.Position); f != nil {
		f.live += int64(e.Bytes)
	}
}

func (x *index) release(e *Extent) {
	if f := x.file(e.Position); f != nil {
		f.live -= int64(e.Bytes)
	}
}

// truncate drops every entry above an LSN.
func (x *index) truncate(s *shard, keep meta.LSN) {
	i := s.find(keep + 1)
	if i < len(s.extents) && s.extents[i].First <= keep {
		s.extents[i].Next = keep + 1
		i++
	}
	for j := i; j < len(s.extents); j++ {
		x.release(&s.extents[j])
	}
	s.extents = shrink(s.extents[:i])
	s.end = keep + 1
	s.start = min(s.start, s.end)
}

// drop forgets every entry below an LSN.
func (x *index) drop(s *shard, below meta.LSN) {
	below = min(below, s.end)
	if below <= s.start {
		return
	}
	i := s.find(below)
	for j := range i {
		x.release(&s.extents[j])
	}
	s.extents = shrink(slices.Delete(s.extents, 0, i))
	if len(s.extents) > 0 {
		s.extents[0].First = max(s.extents[0].First, below)
	}
	s.start = below
}

func (x *index) clear(s *shard) {
	for i := range s.extents {
		x.release(&s.extents[i])
	}
	s.extents = nil
}

// shrink gives memory back when little of a list is left.
func shrink(e []Extent) []Extent {
	switch {
	case len(e) == 0:
		return nil
	case cap(e) > 16 && len(e) < cap(e)/4:
		return slices.Clone(e)
	}
	return e
}

// live is the sum of a shard's extents and the position of the oldest.
func (s *shard) live() (bytes int64, oldest Position) {
	for i := range s.extents {
		e := &s.extents[i]
		bytes += int64(e.Bytes)
		if i == 0 || e.Position < oldest {
			oldest = e.Position
		}
	}
	return bytes, oldest
}
