package sdk

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// errRetired says that a lane takes no more records: the stream has another number
// of shards now.
var errRetired = errors.New("lane retired")

// lane is a producer's way to one shard.
//
//	add -> forming --(full, or due)--> queue[sent:] --(send)--> queue[:sent] --(answer)--> done
//	                                        ^                        |
//	                                        +----(session broke)-----+
//
// Its goroutine (run) goes through these states:
//
//	waiting --(something to send)--> opening --(opened)--> pumping --(idle)--> waiting
//	                                   |  ^                   |
//	                      (refused)    v  |    (broke)        |
//	                     waiting <-- judging <----------------+
//
// What C3 rests on:
//   - A batch gets its sequence when it is sealed, and its bytes never change while
//     anybody may have them. Only what certainly was not stored is renumbered.
//   - Batches of a session that broke are sent again, from the first without an
//     answer, in order; at most 32 are ever without one, as many as the shard
//     remembers, so each is recognized.
//   - A batch that fails takes all after it along, and the producer goes on under the
//     next epoch, which fences what may still be on its way.
type lane struct {
	p     *Producer
	shard uint32
	wake  chan struct{} // has room for one

	// Of run only:
	id       int64
	epoch    int16
	sequence int32 // of the next batch to seal
	shards   uint32
	known    uint64 // incarnation that the last session was bound to; 0: whichever has the name
	last     *Error // newest failure since the last success

	mu       sync.Mutex
	retired  bool
	forming  *chunk
	queue    []*chunk
	sent     int    // queue[:sent] are in flight
	accepted uint64 // records
	finished uint64 // records, in the same order
	flushTo  uint64 // records up to this one don't wait for more
	waiters  []waiter
	room     int // bytes to make ready for the next batch
}

type waiter struct {
	until uint64
	ch    chan struct{}
}

// chunk is a batch on its way.
type chunk struct {
	builder batch.Builder
	data    []byte // once sealed
	first   int32  // sequence, once sealed
	count   int
	cost    int64 // credit
	dones   []func(Position, error)
	since   time.Time // when its first record was accepted
	doubt   bool      // an earlier session may have stored it
}

func newLane(p *Producer, shard uint32, opened *varvev1.AppendSessionOpened) *lane {
	return &lane{
		p: p, shard: shard, wake: make(chan struct{}, 1), id: randomID(),
		shards: max(1, opened.GetShards()), known: opened.GetIncarnation(),
	}
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// add accepts a record.
func (l *lane) add(r *batch.Record, cost int64, done func(Position, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired {
		return errRetired
	}
	if f := l.forming; f != nil && f.builder.SizeWith(r) > l.p.o.BatchBytes {
		l.push(l.p.o.BatchBytes)
		l.signal()
	}
	if l.forming == nil {
		l.forming = &chunk{since: time.Now()}
		l.forming.builder.Grow(l.room)
		l.signal()
	}
	if err := l.forming.builder.Add(r); err != nil {
		if l.forming.count == 0 {
			l.forming = nil
			return &Error{Op: l.p.op(), Applied: AppliedNo, Err: err}
		}
		l.push(0)
		l.forming = &chunk{since: time.Now()}
		l.signal()
		if err = l.forming.builder.Add(r); err != nil {
			l.forming = nil
			return &Error{Op: l.p.op(), Applied: AppliedNo, Err: err}
		}
	}
	f := l.forming
	f.count++
	f.cost += cost
	f.dones = append(f.dones, done)
	l.accepted++
	return nil
}

// push queues the batch that is forming; the next one probably needs as much room.
// mu is held.
func (l *lane) push(room int) {
	l.queue, l.forming, l.room = append(l.queue, l.forming), nil, room
}

func (l *lane) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = true
	l.signal()
}

func (l *lane) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushTo = l.accepted
	l.signal()
}

// flushed waits until all that flush meant has its answer.
func (l *lane) flushed(ctx context.Context) error {
	l.mu.Lock()
	if l.finished >= l.flushTo {
		l.mu.Unlock()
		return nil
	}
	w := waiter{l.flushTo, make(chan struct{})}
	l.waiters = append(l.waiters, w)
	l.mu.Unlock()
	select {
	case <-w.ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// next returns the batch to send now, if any, and otherwise how long the one that
// is forming still waits (0: nothing is forming).
func (l *lane) next(limit int) (*chunk, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent >= limit {
		return nil, 0
	}
	if l.sent == len(l.queue) {
		f := l.forming
		if f == nil {
			return nil, 0
		}
		waits := l.p.o.Linger - time.Since(f.since)
		if l.sent > 0 && waits > 0 && l.flushTo <= l.accepted-uint64(f.count) {
			return nil, waits
		}
		l.push(f.builder.Size())
	}
	c := l.queue[l.sent]
	l.sent++
	return c, 0
}

// empty reports whether there is nothing to deliver.
func (l *lane) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) == 0 && l.forming == nil
}

// head is the batch whose answer is next; nil when none is in flight.
func (l *lane) head() *chunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent == 0 {
		return nil
	}
	return l.queue[0]
}

// oldest is when the first record without an answer was accepted.
func (l *lane) oldest() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.queue) > 0:
		return l.queue[0].since, true
	case l.forming != nil:
		return l.forming.since, true
	}
	return time.Time{}, false
}

// seal gives a batch its bytes. Sequences follow the queue, as batches are sealed
// in its order.
func (l *lane) seal(c *chunk) error {
	if c.data != nil {
		return nil
	}
	data, err := l.p.client.codec.Seal(&c.builder, l.p.o.Compression, l.triple())
	if err != nil {
		return err
	}
	c.data, c.first, c.builder = data, l.sequence, batch.Builder{}
	l.sequence = batch.NextSequence(l.sequence, c.count)
	return nil
}

func (l *lane) triple() batch.Producer {
	if l.p.o.NotIdempotent {
		return batch.NoProducer()
	}
	return batch.Producer{ID: l.id, Epoch: l.epoch, Sequence: l.sequence}
}

// rename starts a new numbering, which fences what bears the old one, and gives it
// to all sealed batches. None of them may be stored anywhere.
func (l *lane) rename(newID bool) {
	if newID || l.epoch == math.MaxInt16 {
		l.id, l.epoch = randomID(), 0
	} else {
		l.epoch++
	}
	l.sequence = 0
	l.mu.Lock()
	queue := append([]*chunk(nil), l.queue...)
	l.mu.Unlock()
	for _, c := range queue {
		if c.data == nil {
			break // the rest isn't sealed either
		}
		batch.SetProducer(c.data, l.triple())
		c.first = l.sequence
		l.sequence = batch.NextSequence(l.sequence, c.count)
	}
}

// pop takes the head out of the queue.
func (l *lane) pop() *chunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.sent--
	return c
}

// finish tells the callers of a batch and gives back its room.
func (l *lane) finish(c *chunk, at Position, err error) {
	for _, done := range c.dones {
		switch {
		case done != nil:
			done(at, err)
		case err != nil:
			l.p.failed(err)
		}
		if !at.Unknown && err == nil {
			at.Offset++
		}
	}
	l.p.credit.Release(c.cost)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished += uint64(c.count)
	keep := l.waiters[:0]
	for _, w := range l.waiters {
		if w.until <= l.finished {
			close(w.ch)
		} else {
			keep = append(keep, w)
		}
	}
	clear(l.waiters[len(keep):])
	l.waiters = keep
}
