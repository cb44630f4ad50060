package broker

import (
	"iter"
	"slices"

	"github.com/varve-io/varve/services/internal/replica"
)

// proposals are a shard's proposals without an answer, by id. Ids rise, and answers
// come mostly in that order.
type proposals struct {
	list []waiter
	head int // those before it were answered
}

type waiter struct {
	id   uint64
	done func(replica.Answer) // nil: answered
}

func (w *proposals) add(id uint64, done func(replica.Answer)) {
	if w.head > len(w.list)/2 && len(w.list) == cap(w.list) {
		n := copy(w.list, w.list[w.head:])
		clear(w.list[n:])
		w.list, w.head = w.list[:n], 0
	}
	w.list = append(w.list, waiter{id, done})
}

// take removes a proposal and returns who waits for it; nil if nobody does.
func (w *proposals) take(id uint64) func(replica.Answer) {
	i, found := slices.BinarySearchFunc(w.list[w.head:], id, func(x waiter, id uint64) int {
		switch {
		case x.id < id:
			return -1
		case x.id > id:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	done := w.list[w.head+i].done
	w.list[w.head+i].done = nil
	for w.head < len(w.list) && w.list[w.head].done == nil {
		w.head++
	}
	if w.head == len(w.list) {
		w.list, w.head = w.list[:0], 0
	}
	return done
}

// all takes everything, in order.
func (w *proposals) all() iter.Seq2[uint64, func(replica.Answer)] {
	list := w.list[w.head:]
	*w = proposals{}
	return func(yield func(uint64, func(replica.Answer)) bool) {
		for _, x := range list {
			if x.done != nil && !yield(x.id, x.done) {
				return
			}
		}
	}
}

// rest gives the buffer back if nobody waits.
func (w *proposals) rest() {
	if w.head == len(w.list) {
		*w = proposals{}
	}
}
