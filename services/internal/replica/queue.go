package replica

import (
	"slices"

	"github.com/varve-io/varve/meta"
)

// waiter is an answer that may not leave yet.
type waiter struct {
	answer   Answer
	lsn      meta.LSN    // leaves once this is committed (or, for a hint, durable)
	round    uint64      // and once this round of confirmations is complete; 0: none needed
	offset   meta.Offset // Archive: and once a written manifest covers what is below
	archive  bool
	appended bool // something of it stands in the log
	stored   bool // a duplicate: something of it stood in the log before
}

// queues hold the answers by what they wait for. Each is in the order of LSNs, so
// only its head is looked at; archived ones are looked at when the bucket moves.
type queues struct {
	committing fifo[waiter] // lsn
	confirming fifo[waiter] // lsn and round
	hints      fifo[waiter] // lsn durable here
	archiving  []waiter
	covered    meta.Offset // confirmedOff as of the last look at archiving
}

// fifo is a queue that keeps its buffer while it is small.
type fifo[T any] struct {
	buf  []T
	head int
}

// Buffers larger than this, in elements, are given back when they run empty.
const keepBuffer = 1024

func (f *fifo[T]) push(v T) { f.buf = append(f.buf, v) }
func (f *fifo[T]) all() []T { return f.buf[f.head:] }
func (f *fifo[T]) len() int { return len(f.buf) - f.head }

// first is the oldest element, or nil.
func (f *fifo[T]) first() *T {
	if f.head == len(f.buf) {
		return nil
	}
	return &f.buf[f.head]
}

// pop takes the oldest element; there is one.
func (f *fifo[T]) pop() T {
	v := f.buf[f.head]
	clear(f.buf[f.head : f.head+1])
	f.head++
	switch {
	case f.head == len(f.buf) && cap(f.buf) > keepBuffer:
		f.buf, f.head = nil, 0
	case f.head == len(f.buf):
		f.buf, f.head = f.buf[:0], 0
	case f.head > keepBuffer && f.head > len(f.buf)/2:
		n := copy(f.buf, f.buf[f.head:])
		clear(f.buf[n:])
		f.buf, f.head = f.buf[:n], 0
	}
	return v
}

// rest gives an empty queue's buffer back.
func (f *fifo[T]) rest() {
	if f.len() == 0 {
		f.buf, f.head = nil, 0
	}
}

// wait queues an answer.
func (r *Replica) wait(w waiter) {
	if w.round > 0 {
		r.confirming.push(w)
	} else {
		r.committing.push(w)
	}
}

// release lets go every answer of which all that it was computed from is
// committed, in an epoch whose opening entry is.
func (r *Replica) release() {
	if r.role != Leading {
		return
	}
	at := r.d.state.lsn
	if at < r.openLSN {
		return
	}
	for w := r.hints.first(); w != nil && w.lsn <= r.durable; w = r.hints.first() {
		r.deliver(r.hints.pop().answer)
	}
	for w := r.committing.first(); w != nil && w.lsn <= at; w = r.committing.first() {
		done := r.committing.pop()
		if done.archive && done.offset > r.d.state.confirmedOff {
			r.archiving = append(r.archiving, done)
			continue
		}
		r.deliver(done.answer)
	}
	r.releaseConfirmed(at)
	if len(r.archiving) > 0 && r.covered != r.d.state.confirmedOff {
		r.covered = r.d.state.confirmedOff
		r.archiving = slices.DeleteFunc(r.archiving, func(w waiter) bool {
			if w.offset > r.covered {
				return false
			}
			r.deliver(w.answer)
			return true
		})
	}
}

// releaseConfirmed lets go the answers that need a round of confirmations, and
// begins the next round when one is over and answers wait for it.
func (r *Replica) releaseConfirmed(at meta.LSN) {
	if r.confirming.len() == 0 {
		return
	}
	round := r.confirmedRound()
	for w := r.confirming.first(); w != nil && w.lsn <= at && w.round <= round; w = r.confirming.first() {
		r.deliver(r.confirming.pop().answer)
	}
	if w := r.confirming.first(); w != nil && w.round > r.round && r.round <= round {
		r.round = w.round
		for i := range r.peers {
			r.drive(&r.peers[i])
		}
	}
}

func (r *Replica) deliver(a Answer) {
	a.Start, a.Tail = r.d.state.start, r.d.state.next
	r.out.Answers = append(r.out.Answers, a)
}

// freshRound is the round that an answer needs which must not come from a leader
// that was deposed without knowing it: one that begins after now.
func (r *Replica) freshRound() uint64 {
	if len(r.peers) == 1 {
		return 0
	}
	if r.confirmedRound() >= r.round {
		r.round++ // none is under way: begin one
		return r.round
	}
	return r.round + 1
}

// confirmedRound is the newest round that a majority of adopters answered. This
// copy confirms itself.
func (r *Replica) confirmedRound() uint64 {
	var few [8]uint64
	rounds := few[:0]
	for i := range r.peers {
		switch p := &r.peers[i]; {
		case !p.counts(&r.cfg.Twins):
			rounds = append(rounds, 0)
		case p.self:
			rounds = append(rounds, r.round)
		case p.adopted:
			rounds = append(rounds, p.confirmed)
		default:
			rounds = append(rounds, 0)
		}
	}
	slices.Sort(rounds)
	if n := r.quorum(); n <= len(rounds) {
		return rounds[len(rounds)-n]
	}
	return 0
}

// drop answers everything that waits, when a tenure ends: what stands in the log
// may survive or not; what does not was not applied.
func (r *Replica) drop(reason error) {
	q := *r.queues
	*r.queues = queues{}
	for _, w := range slices.Concat(q.hints.all(), q.committing.all(), q.confirming.all(), q.archiving) {
		a := Answer{ID: w.answer.ID, Err: reason, Applied: AppliedNo}
		if w.appended || w.stored {
			a.Err = meta.Errorf(meta.ErrUnknown, "shard %s: leadership ended before the outcome was known: %w", r.shard, reason)
			a.Applied = AppliedUnknown
		} else if w.answer.Applied == AppliedUnknown {
			a.Applied = AppliedUnknown
		}
		r.out.Answers = append(r.out.Answers, a)
	}
}

// refuse answers at once: nothing that is not known for good went into it.
func (r *Replica) refuse(id uint64, err error) {
	r.out.Answers = append(r.out.Answers, Answer{ID: id, Err: err, Applied: AppliedNo})
}
