package wal

import (
	"fmt"
	"sort"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

// span is an extent with its file, pinned so that it is not recycled meanwhile.
type span struct {
	extent Extent
	file   *logFile
}

// pin takes hold of a shard's extents from place i on, until about most bytes.
// Called with the mutex.
func (l *Log) pin(s *shard, i int, most int64) []span {
	var spans []span
	for bytes := int64(0); i < len(s.extents) && (len(spans) == 0 || bytes < most); i++ {
		e := s.extents[i]
		f := l.index.file(e.Position)
		if f == nil {
			break
		}
		f.pins.Add(1)
		spans = append(spans, span{e, f})
		bytes += int64(e.Bytes)
	}
	return spans
}

func unpin(spans []span) {
	for _, sp := range spans {
		sp.file.pins.Add(-1)
	}
}

// walk reads an extent and calls visit with each live entry's encoded bytes and
// the position of its frame, in order of LSN, until visit returns false. Every
// frame up to the last one wanted is verified.
func (sp span) walk(visit func(at Position, h entry.Header, encoded []byte) bool) error {
	return sp.walkIn(make([]byte, sp.extent.Bytes), visit)
}

// walkIn is walk with a buffer of the extent's size.
func (sp span) walkIn(b []byte, visit func(at Position, h entry.Header, encoded []byte) bool) error {
	e := sp.extent
	if err := sp.file.readAt(b, e.Position); err != nil {
		return err
	}
	want := e.First
	for at := 0; want < e.Next; {
		if at >= len(b) {
			return meta.Errorf(meta.ErrCorrupt, "log file %s: entry %d is missing from the frames at position %d to %d", sp.file.name, want, e.Position, e.End())
		}
		position := e.Position + Position(at)
		h, body, err := frame.Decode(b[at:], sp.file.header.Salt, uint64(position))
		if err != nil {
			return fmt.Errorf("log file %s, position %d: %w", sp.file.name, position, err)
		}
		at += h.Size()
		if h.Kind == frame.Relocation && len(body) >= frame.RelocationHeader {
			body = body[frame.RelocationHeader:]
		} else if h.Kind != frame.Entry {
			continue
		}
		head, _, err := entry.Peek(body)
		if err != nil {
			return fmt.Errorf("log file %s, position %d: %w", sp.file.name, position, err)
		}
		if head.LSN != want {
			continue
		}
		want++
		if !visit(position, head, body) {
			return nil
		}
	}
	return nil
}

// Cursor remembers where a reader of one shard is, so that one who follows the tail
// doesn't walk the same frames again for each entry. The zero value knows nothing.
// Not safe for concurrent use.
type Cursor struct {
	// Reuse makes entries valid until the next call only: their bytes lie in memory
	// that is used again.
	Reuse bool

	lsn   meta.LSN // the last entry that was returned
	at    Position // and the place of its frame then
	arena []byte
}

// room gives n bytes; with Reuse, of those that the call before gave out.
func (c *Cursor) room(n int) []byte {
	if !c.Reuse {
		return make([]byte, n)
	}
	if len(c.arena)+n > cap(c.arena) {
		c.arena = make([]byte, 0, max(n, 2*cap(c.arena))) // the old one goes with its entries
	}
	c.arena = c.arena[:len(c.arena)+n]
	return c.arena[len(c.arena)-n:]
}

// narrow cuts off what lies before the cursor. An entry that was moved since, or is
// gone, is not at its old place in any extent: positions are never used twice.
func (c *Cursor) narrow(e *Extent) {
	if c.at > e.Position && c.at < e.End() && c.lsn > e.First && c.lsn < e.Next {
		e.Bytes, e.Position, e.First = uint32(e.End()-c.at), c.at, c.lsn
	}
}

// Read returns whole entries of a shard from an LSN on: at least one if there is
// one, and then up to about most bytes. Payloads are the caller's. An LSN at the
// end gives none. Below the start, above the end, and for a shard that isn't
// known the error is [ErrNotLocal]; bytes that don't verify are a
// [meta.ErrCorrupt] with file and position. Entries are readable once they are
// acknowledged.
func (l *Log) Read(n ShardNumber, from meta.LSN, most int) ([]entry.Entry, error) {
	return l.ReadOn(n, from, most, &Cursor{})
}

// ReadOn is [Log.Read] for a reader that goes on where its last call ended.
func (l *Log) ReadOn(n ShardNumber, from meta.LSN, most int, c *Cursor) ([]entry.Entry, error) {
	l.mu.Lock()
	s := l.index.byNumber[n]
	if s == nil || from < s.start || from > s.end {
		l.mu.Unlock()
		return nil, fmt.Errorf("shard %d, entry %d: %w", n, from, ErrNotLocal)
	}
	// The first extent may hold much below from.
	spans := l.pin(s, s.find(from), int64(most)+maxExtent)
	l.mu.Unlock()
	defer unpin(spans)
	c.arena = c.arena[:0]
	if len(spans) > 0 && c.lsn < from {
		c.narrow(&spans[0].extent)
	}
	var entries []entry.Entry
	bytes := 0
	for _, sp := range spans {
		err := sp.walkIn(c.room(int(sp.extent.Bytes)), func(at Position, _ entry.Header, encoded []byte) bool {
			e, size, err := entry.Decode(encoded)
			if err != nil || e.LSN < from {
				return err == nil // a frame that verifies holds an entry that does
			}
			if len(entries) > 0 && bytes+size > most {
				bytes = most
				return false
			}
			entries, bytes = append(entries, e), bytes+size
			c.lsn, c.at = e.LSN, at
			return bytes < most
		})
		if err != nil {
			if len(entries) > 0 {
				return entries, nil // the next call meets it at its own place
			}
			return nil, l.damaged(n, err)
		}
		if bytes >= most && len(entries) > 0 {
			break
		}
	}
	return entries, nil
}

func (l *Log) damaged(n ShardNumber, err error) error {
	err = fmt.Errorf("reading shard %d: %w", n, err)
	if f := l.opts.Events.Damaged; f != nil {
		f(n, err)
	}
	return err
}

// FindOffset returns the batch entry that holds an offset; false when no local one
// does. Of the last batch only the caller knows where its offsets end: any offset
// from its first on finds it.
func (l *Log) FindOffset(n ShardNumber, o meta.Offset) (lsn meta.LSN, found bool, err error) {
	for back := 0; ; back++ {
		sp, ok := l.near(n, func(e Extent) bool { return e.Offset <= o }, -1-back)
		if !ok {
			return 0, false, nil
		}
		seen := false
		err := sp.walk(func(_ Position, h entry.Header, _ []byte) bool {
			if h.Offset > o {
				return false
			}
			// An entry that starts at or below the offset ends the batch before it.
			seen, lsn, found = true, h.LSN, h.Kind == entry.Batch
			return true
		})
		unpin([]span{sp})
		if err != nil {
			return 0, false, l.damaged(n, err)
		}
		if seen {
			return lsn, found, nil
		}
	}
}

// FindTime returns the first batch entry whose append time is not before t; false
// when no local one is.
func (l *Log) FindTime(n ShardNumber, t meta.Micros) (lsn meta.LSN, found bool, err error) {
	for on := 0; !found; on++ {
		sp, ok := l.near(n, func(e Extent) bool { return e.Time < t }, on-1)
		if !ok {
			if on == 0 {
				continue // no extent begins before t: start with the first one
			}
			return 0, false, nil
		}
		err := sp.walk(func(_ Position, h entry.Header, _ []byte) bool {
			lsn, found = h.LSN, h.Kind == entry.Batch && h.Time >= t
			return !found
		})
		unpin([]span{sp})
		if err != nil {
			return 0, false, l.damaged(n, err)
		}
	}
	return lsn, true, nil
}

// near pins the extent that lies step after the first one that before says no to;
// step -1 is the last one it says yes to.
func (l *Log) near(n ShardNumber, before func(Extent) bool, step int) (span, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.index.byNumber[n]
	if s == nil {
		return span{}, false
	}
	i := step + sort.Search(len(s.extents), func(i int) bool { return !before(s.extents[i]) })
	if i < 0 || i >= len(s.extents) {
		return span{}, false
	}
	spans := l.pin(s, i, 1)
	if len(spans) == 0 {
		return span{}, false
	}
	return spans[0], true
}
