package wal

import (
	"encoding/binary"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

// queue is what was appended and not yet taken by the writer, in order.
type queue struct {
	head, tail *Write
	cost       int64
}

func (q *queue) push(w *Write) {
	w.next = nil
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.next = w
	}
	q.tail = w
	q.cost += w.cost
}

// take removes writes from the front, at least one, up to about most bytes of room.
func (q *queue) take(most int64) (head *Write, taken int64) {
	head = q.head
	var last *Write
	for w := q.head; w != nil && (last == nil || taken+w.cost <= most); w = w.next {
		taken += w.cost
		last = w
	}
	if last == nil {
		return nil, 0
	}
	q.head, last.next = last.next, nil
	if q.head == nil {
		q.tail = nil
	}
	q.cost -= taken
	return head, taken
}

// Append queues a write and never blocks on the disk. The order of calls for a
// shard is their order in the log. After an error nothing was queued and Done is
// not called: [ErrClosed], [meta.ErrPoisoned], [meta.ErrExhausted] for a write
// that has no room (reserve it first), [meta.ErrInvalid] for records that don't
// fit the shard's log.
//
// Done gets nil, or a [meta.ErrPoisoned], or an [ErrClosed] when Close ran out of
// time: then the outcome is unknown until the log is opened again.
func (l *Log) Append(w *Write) error {
	frames, largest, err := measure(w)
	if err != nil {
		return err
	}
	if largest > l.largest() {
		return meta.Invalidf("shard %d: a frame of %d bytes doesn't fit into a log file of %d bytes: at most %d", w.Shard, largest, l.folder.size, l.largest())
	}
	w.section, w.moves, w.sibling = nil, nil, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	s := l.index.byNumber[w.Shard]
	if s == nil || s.forgotten {
		return meta.Invalidf("shard %d is not known to the log: bind it first", w.Shard)
	}
	next, forgotten, err := follow(s, w.Records)
	if err != nil {
		return err
	}
	w.cost = l.queue.charge(frames)
	slack := max(l.space.slack, slackFor(largest))
	if l.space.physical(slack)-l.space.queued < w.cost {
		return l.exhaustedf(w.cost)
	}
	l.space.slack = slack
	l.space.queued += w.cost
	s.next, s.forgotten = next, forgotten
	w.shard = s
	l.queue.push(w)
	l.signal()
	return nil
}

// measure sums a write's frames and checks each record by itself.
func measure(w *Write) (frames, largest int64, err error) {
	for i := range w.Records {
		r := &w.Records[i]
		switch {
		case r.Kind < Entry || r.Kind > Forget:
			return 0, 0, meta.Invalidf("shard %d: record %d has unknown kind %d", w.Shard, i, r.Kind)
		case len(r.Entry.Payload) > entry.MaxPayload:
			return 0, 0, meta.Invalidf("shard %d: entry %d has a payload of %d bytes: at most %d", w.Shard, r.Entry.LSN, len(r.Entry.Payload), entry.MaxPayload)
		case len(r.Data) > MaxData:
			return 0, 0, meta.Invalidf("shard %d: record %d has %d bytes of data: at most %d", w.Shard, i, len(r.Data), MaxData)
		}
		n := int64(frame.HeaderSize + bodySize(r))
		frames, largest = frames+n, max(largest, n)
	}
	return frames + bindAllowance, largest, nil
}

// bindAllowance is the most that a bind record can take: two names and numbers.
const bindAllowance = frame.HeaderSize + 2*(2+meta.MaxNameLen) + 8 + 4

func bodySize(r *Record) int {
	switch r.Kind {
	case Entry:
		return r.Entry.Size()
	case Truncate:
		return 8
	case State:
		return len(r.Data)
	case Base:
		return 8 + len(r.Data)
	default:
		return 0
	}
}

// follow checks that records fit the end of a shard's log as queued so far, and
// returns the end they make.
func follow(s *shard, records []Record) (next meta.LSN, forgotten bool, err error) {
	next = s.next
	for i := range records {
		r := &records[i]
		if forgotten {
			return 0, false, meta.Invalidf("shard %d: a record follows the one that forgets the shard", s.number)
		}
		switch r.Kind {
		case Entry:
			if r.Entry.LSN != next {
				return 0, false, meta.Invalidf("shard %d: entry %d doesn't follow %d", s.number, r.Entry.LSN, next-1)
			}
			next++
		case Truncate:
			if r.LSN >= next {
				return 0, false, meta.Invalidf("shard %d: truncate keeps up to %d, but the log ends at %d", s.number, r.LSN, next-1)
			}
			next = r.LSN + 1
		case Base:
			if next = r.LSN + 1; next == 0 {
				return 0, false, meta.Invalidf("shard %d: a base at LSN %d leaves no entry behind it", s.number, r.LSN)
			}
		case Forget:
			forgotten = true
		}
	}
	return next, forgotten, nil
}

// appendBind encodes a shard's identity.
func appendBind(b []byte, id meta.ShardID) []byte {
	b = entry.AppendString16(b, id.Stream.Namespace)
	b = entry.AppendString16(b, id.Stream.Name)
	b = binary.LittleEndian.AppendUint64(b, uint64(id.Incarnation))
	return binary.LittleEndian.AppendUint32(b, id.Shard)
}

func decodeBind(b []byte) (meta.ShardID, error) {
	d := entry.NewDecoder(b)
	id := meta.ShardID{Stream: meta.StreamName{Namespace: d.String16(meta.MaxNameLen), Name: d.String16(meta.MaxNameLen)},
		Incarnation: meta.Incarnation(d.U64()), Shard: d.U32()}
	if err := d.Finish("bind record"); err != nil {
		return id, err
	}
	return id, id.Stream.Validate()
}
