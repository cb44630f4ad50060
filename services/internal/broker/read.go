package broker

import (
	"context"
	"errors"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/wal"
)

// Page is a run of committed batches of one shard, without a gap.
type Page struct {
	// Entries are whole batches, as stored; shared and read-only. The first may
	// begin below the offset that was asked for.
	Entries []entry.Entry
	Next    meta.Offset // where to go on
	Start   meta.Offset // first offset that can be read
	Tail    meta.Offset // next offset of the shard, as far as committed
	Lineage meta.Lineage
	Cold    bool // from the bucket
}

// Reader reads one shard on behalf of one client. It holds no goroutine and no
// file. Not safe for concurrent use; close it.
type Reader struct {
	s       *shard
	cold    *tiering.Reader
	next    meta.LSN    // where it goes on in the log, if it is asked for at; 0: not known
	at      meta.Offset // the offset after the last batch that was read
	cursor  wal.Cursor
	waiting error // the shard has no leader: why. What lies above the bucket is not known
}

// Reader opens a shard for reading. The shard's leader is asked for first, since
// only it knows what is committed; where there is none, what the bucket holds can
// still be read.
func (b *Broker) Reader(ctx context.Context, id meta.ShardID) (*Reader, error) {
	s, err := b.shard(ctx, id)
	if err != nil {
		return nil, err
	}
	r := &Reader{s: s}
	if err := s.lead(ctx); err != nil {
		if quorum := (*meta.NoQuorum)(nil); !errors.As(err, &quorum) {
			return nil, err
		}
		if err := s.attachBucket(ctx); err != nil {
			return nil, err
		}
		r.waiting = err
	}
	return r, nil
}

// Close ends the reader.
func (r *Reader) Close() {
	if r.cold != nil {
		r.cold.Close()
		r.cold = nil
	}
}

// Near reports whether an offset is where the reader goes on in the log, so that
// reading from there takes no longer than the disk does.
func (r *Reader) Near(from meta.Offset) bool { return r.next > 0 && r.at == from }

// Ends returns the shard's start and tail as readers may see them now.
func (r *Reader) Ends() (Ends, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.s.ends(), r.s.gone
}

// ends is what readers may see. s.mu is held.
func (s *shard) ends() Ends {
	v := s.core().Status()
	return Ends{Start: s.seen.Start, Tail: s.seen.Offset, LastTime: v.LastTime, Lineage: v.Lineage}
}

// Read returns the batches from an offset on: at least one if there is one, and
// then up to about most bytes. At the tail the page is empty; where the shard has no
// leader, what the bucket holds ends in a [meta.NoQuorum] instead, as nobody knows
// whether more was acknowledged.
//
// Errors: [meta.OffsetOutOfRange]; meta.ErrDeleted once the incarnation is gone;
// meta.ErrCorrupt naming the object or file that does not verify.
func (r *Reader) Read(ctx context.Context, from meta.Offset, most int) (Page, error) {
	s := r.s
	for range 3 { // an entry may leave the log between being found and being read
		s.mu.Lock()
		gone, seen, ends, number := s.gone, s.seen, s.ends(), s.number
		s.mu.Unlock()
		p := Page{Next: from, Start: ends.Start, Tail: ends.Tail, Lineage: ends.Lineage}
		switch {
		case gone != nil:
			return p, gone
		case from < ends.Start || from > ends.Tail:
			return p, &meta.OffsetOutOfRange{Asked: from, Start: ends.Start, End: ends.Tail}
		case from == ends.Tail && r.waiting != nil && !s.serving.Load():
			return p, r.waiting
		case from == ends.Tail:
			return p, nil
		}
		entries, local, err := r.local(number, seen, from, most)
		if err != nil {
			return p, err
		}
		if !local {
			entries, err = r.coldRead(ctx, from, most)
			if out := (*meta.OffsetOutOfRange)(nil); errors.As(err, &out) {
				continue // trimmed meanwhile
			}
			if err != nil {
				return p, err
			}
			p.Cold = true
		} else {
			r.Close() // what the bucket holds need not be pinned for a reader of the log
		}
		if len(entries) > 0 {
			p.Entries = entries
			p.Next = after(entries[len(entries)-1])
			s.b.events.read(entries, p.Cold)
			return p, nil
		}
	}
	return Page{}, meta.Errorf(meta.ErrCorrupt, "shard %s: offset %d is below the tail but neither in the log nor in the bucket; `varve shard describe` shows what each holds", s.id, from)
}

// local reads committed batches from the log. local is false when the offset is
// not there any more.
func (r *Reader) local(number wal.ShardNumber, seen replica.Committed, from meta.Offset, most int) (entries []entry.Entry, local bool, err error) {
	if number == 0 {
		return nil, false, nil
	}
	lsn, found := r.next, r.next > 0 && r.at == from
	r.next = 0
	if found {
		entries, err = r.batches(number, lsn, seen, from, most)
	}
	if len(entries) == 0 && err == nil { // commands alone lie there, or it is not known where
		if lsn, found, err = r.s.b.log.FindOffset(number, from); err != nil || !found {
			return nil, false, err
		}
		entries, err = r.batches(number, lsn, seen, from, most)
	}
	if errors.Is(err, wal.ErrNotLocal) {
		return nil, false, nil
	}
	if err != nil || len(entries) == 0 {
		return nil, err != nil, err
	}
	last := entries[len(entries)-1]
	r.next, r.at = last.LSN+1, after(last)
	return entries, true, nil
}

// batches reads committed batches from an LSN on, those that end above an offset.
func (r *Reader) batches(number wal.ShardNumber, lsn meta.LSN, seen replica.Committed, from meta.Offset, most int) ([]entry.Entry, error) {
	all, err := r.s.b.log.ReadOn(number, lsn, most, &r.cursor)
	if err != nil {
		return nil, err
	}
	kept := all[:0]
	for _, e := range all {
		if e.LSN > seen.LSN {
			break
		}
		if e.Kind == entry.Batch && after(e) > from {
			kept = append(kept, e)
		}
	}
	if len(kept) > 0 && kept[0].Offset > from {
		return nil, nil // the place that was remembered is another's now: look again
	}
	return kept, nil
}

// FindTime returns the first offset whose append time is not before t: the tail
// when there is none. It is never below the start.
func (r *Reader) FindTime(ctx context.Context, t meta.Micros) (meta.Offset, error) {
	for range 3 { // an entry may leave the log between being found and being read
		o, err := r.findTime(ctx, t)
		if !errors.Is(err, wal.ErrNotLocal) {
			return o, err
		}
	}
	return 0, meta.Errorf(meta.ErrUnavailable, "shard %s: its log is being moved into the bucket: try again", r.s.id)
}

func (r *Reader) findTime(ctx context.Context, t meta.Micros) (meta.Offset, error) {
	s := r.s
	s.mu.Lock()
	gone, seen, number, end := s.gone, s.seen, s.number, s.core().Status().ArchivedEnd
	s.mu.Unlock()
	if gone != nil {
		return 0, gone
	}
	if end > 1 {
		cold, err := r.openCold(ctx)
		if err != nil {
			return 0, err
		}
		if cold != nil {
			o, found, err := cold.FindTime(ctx, t)
			if err != nil {
				return 0, err
			}
			if found {
				return min(max(o, seen.Start), seen.Offset), nil
			}
		}
	}
	if number == 0 {
		return seen.Offset, nil
	}
	lsn, found, err := s.b.log.FindTime(number, t)
	if err != nil {
		return 0, err
	}
	if !found || lsn > seen.LSN {
		return seen.Offset, nil
	}
	entries, err := s.b.log.Read(number, lsn, 1)
	if err == nil && len(entries) == 0 {
		err = wal.ErrNotLocal
	}
	if err != nil {
		return 0, err
	}
	return min(max(entries[0].Offset, seen.Start), seen.Offset), nil
}

// Wait blocks until the shard's tail lies above an offset, the broker drains, or
// ctx ends, and then returns nil; the caller looks again. An error says that the
// shard is gone.
func (r *Reader) Wait(ctx context.Context, above meta.Offset) error {
	for {
		r.s.mu.Lock()
		if r.s.gone != nil || r.s.seen.Offset > above || r.s.seen.Start > above {
			defer r.s.mu.Unlock()
			return r.s.gone
		}
		moved := r.s.changes()
		r.s.mu.Unlock()
		select {
		case <-moved:
		case <-r.s.b.drained.Done():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// after is the offset after a batch's last record. The batch was checked when it
// was accepted.
func after(e entry.Entry) meta.Offset { return e.Offset + meta.Offset(batchCount(e.Payload)) }

// batchCount is the number of records in a stored batch; 0 if it is not one.
func batchCount(b []byte) int {
	i, err := batch.Parse(b)
	if err != nil {
		return 0
	}
	return i.Count
}
