package replica

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/varve-io/varve/meta"
)

// Sequences as a table: each row is sent in order, then committed.
// Scenarios: B146, B148
// Rows: C3, C9
func TestC3_Sequences(t *testing.T) {
	type row struct {
		id    int64
		epoch int16
		seq   int32
		what  string // records
		dup   bool
		first meta.Offset
		kind  error
		gap   int32 // wanted sequence of a gap; -1: no gap
		maybe bool  // applied: unknown
	}
	const top = math.MaxInt32
	rows := []row{
		{id: 1, seq: 3, what: "x", kind: meta.ErrUnknownWriter, gap: 0, maybe: true},
		{id: 1, seq: 0, what: "ab", first: 0, gap: -1},
		{id: 1, seq: 0, what: "ab", first: 0, dup: true, gap: -1},
		{id: 1, seq: 0, what: "ax", kind: meta.ErrInvalid, gap: -1},
		{id: 1, seq: 0, what: "abc", kind: meta.ErrInvalid, gap: -1},
		{id: 1, seq: 1, what: "b", kind: meta.ErrInvalid, gap: -1},
		{id: 1, seq: 3, what: "d", gap: 2},
		{id: 1, seq: 2, what: "c", first: 2, gap: -1},
		{id: 1, seq: 0, what: "ab", first: 0, dup: true, gap: -1},
		{id: 1, seq: top, what: "z", gap: 3}, // before 0: never came
		{id: 1, epoch: 1, seq: 3, what: "d", gap: 0},
		{id: 1, epoch: 1, seq: 0, what: "d", first: 3, gap: -1},
		{id: 1, epoch: 0, seq: 3, what: "d", kind: meta.ErrProducerFence, gap: -1},
		{id: 1, epoch: 0, seq: 0, what: "ab", kind: meta.ErrProducerFence, gap: -1},
		{id: 2, epoch: 7, seq: 0, what: "e", first: 4, gap: -1},
	}
	for _, committedBetween := range []bool{true, false} {
		t.Run(fmt.Sprint("committed between ", committedBetween), func(t *testing.T) {
			w, n := lone(t, Twins{})
			var ids []uint64
			for _, r := range rows {
				var values []string
				for _, c := range r.what {
					values = append(values, string(c))
				}
				ids = append(ids, n.append(idem(r.id, r.epoch, r.seq, values...)))
				if committedBetween {
					w.run()
				}
			}
			w.run()
			for i, r := range rows {
				a := n.answer(ids[i])
				var gap *meta.SequenceGap
				isGap := errors.As(a.Err, &gap)
				if r.kind == nil && r.gap < 0 {
					if a.Err != nil || a.Applied != AppliedYes || a.First != r.first || a.Duplicate != r.dup || a.Time == 0 {
						t.Errorf("row %d %+v: %+v", i, r, a)
					}
					continue
				}
				if a.Err == nil || r.kind != nil && !errors.Is(a.Err, r.kind) ||
					isGap != (r.gap >= 0) || isGap && (gap.Want != r.gap || gap.UnknownApplied != r.maybe) ||
					(a.Applied == AppliedUnknown) != r.maybe || a.Applied == AppliedYes {
					t.Errorf("row %d %+v: %+v", i, r, a)
				}
			}
			if n.r.d.state.next != 5 {
				t.Errorf("next offset %d", n.r.d.state.next)
			}
		})
	}
}

// int32 sequences wrap to 0 after 2^31-1, in the middle of a batch too.
func TestC3_SequencesWrap(t *testing.T) {
	w, n := lone(t, Twins{})
	const top = math.MaxInt32
	d := n.r.d
	d.state.table.store(1, 0, 0, stored{seq: top - 4, count: 2, crc: 1, offset: 0, time: 1}) // next is top-2
	a := n.append(idem(1, 0, top-2, "a", "b"))
	b := n.append(idem(1, 0, top, "c", "d")) // takes top and 0
	c := n.append(idem(1, 0, 1, "e"))
	again := n.append(idem(1, 0, top, "c", "d"))
	inside := n.append(idem(1, 0, 0, "d"))
	w.run()
	for i, id := range []uint64{a, b, c} {
		if n.good(id).First != meta.Offset(2*i) {
			t.Fatalf("%+v", n.answers[id])
		}
	}
	if x := n.good(again); !x.Duplicate || x.First != 2 {
		t.Fatalf("%+v", x)
	}
	if x := n.answer(inside); !errors.Is(x.Err, meta.ErrInvalid) {
		t.Fatalf("%+v", x)
	}
}

// A retry within the window gets the first answer, one that is older says so; both
// also with part of the window pending.
func TestC3_Window(t *testing.T) {
	for _, pending := range []bool{false, true} {
		w, n := lone(t, Twins{})
		var first []uint64
		for i := range int32(40) {
			first = append(first, n.append(idem(1, 0, i, fmt.Sprint(i))))
			if !pending || i == 20 {
				w.run()
			}
		}
		old := n.append(idem(1, 0, 2, "2"))
		edge := n.append(idem(1, 0, 8, "8"))
		w.run()
		if a := n.good(edge); !a.Duplicate || a.OffsetUnknown || a.First != 8 || a.Time != n.good(first[8]).Time {
			t.Fatalf("pending %v: %+v", pending, a)
		}
		if a := n.good(old); !a.Duplicate || a.OffsetUnknown == pending {
			// With entries pending, more than the window is still known.
			t.Fatalf("pending %v: %+v", pending, a)
		}
	}
}

// Append times never go back, whatever the clock does; the log age counts steps of
// at most 60 s.
// It is the core's part of C8.
// Scenarios: B119
// Rows: C2
func TestClockJumps(t *testing.T) {
	w, n := lone(t, Twins{})
	minute := meta.Micros(60_000_000)
	var last meta.Micros
	n.append(idem(1, 0, 0, "a"))
	for i, now := range []meta.Micros{w.now + minute, w.now + 365*24*60*minute, w.now, w.now - 1000*minute, 1, w.now + 365*24*60*minute + 5} {
		id := n.propose(Propose{Kind: ProposeBatch, Bytes: plain("x"), Now: now})
		w.run()
		a := n.good(id)
		if a.Time < last {
			t.Fatalf("append %d has time %d after %d", i, a.Time, last)
		}
		last = a.Time
	}
	if age := meta.Micros(n.r.d.state.age); age > 2*minute+2000 {
		t.Fatalf("log age %d", age)
	}
	retry := n.append(idem(1, 0, 0, "a"))
	w.run()
	if a := n.good(retry); !a.Duplicate {
		t.Fatalf("the jump expired a producer: %+v", a)
	}
}

// Producers expire by log age and never before; then their next batch is refused
// with "applied: unknown", and a new session starts at 0.
// Scenarios: B151
// Rows: C9
func TestC9_Expiry(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(idem(1, 0, 0, "a"))
	w.run()
	pass := func(minutes int) {
		for range minutes {
			w.now += 60_000_000
			n.append(idem(2, 0, n.r.nextOf(2), "tick"))
			w.run()
		}
	}
	pass(59)
	retry := n.append(idem(1, 0, 0, "a"))
	w.run()
	if a := n.good(retry); !a.Duplicate {
		t.Fatalf("%+v", a)
	}
	pass(3)
	late := n.append(idem(1, 0, 1, "b"))
	w.run()
	a := n.answer(late)
	var gap *meta.SequenceGap
	if !errors.Is(a.Err, meta.ErrUnknownWriter) || !errors.As(a.Err, &gap) || !gap.UnknownApplied || a.Applied != AppliedUnknown {
		t.Fatalf("%+v", a)
	}
	if n.r.d.state.table.find(2) == nil {
		t.Fatal("the busy producer is gone")
	}
	w.same()
}

func (r *Replica) nextOf(id int64) int32 {
	if c := r.d.state.table.find(id); c != nil {
		return c.next()
	}
	return 0
}

// When the table is full new producers are refused, nobody is evicted.
// Rows: C9
func TestC9_FullTableRefusesNewProducers(t *testing.T) {
	w, n := lone(t, Twins{})
	n.r.cfg.Limits.TableSoft, n.r.cfg.Limits.TableHard = 10*(clientSize+storedSize), 20*(clientSize+storedSize)
	full := -1
	for i := range 30 {
		id := n.append(idem(int64(i+1), 0, 0, "a"))
		w.run()
		if a := n.answer(id); a.Err != nil {
			if !errors.Is(a.Err, meta.ErrExhausted) || a.Applied != AppliedNo {
				t.Fatalf("%+v", a)
			}
			full = i
			break
		}
	}
	if full != 10 {
		t.Fatalf("refused producer %d", full)
	}
	for i := range int32(4) { // those that are in go on, and retries find their answer
		id := n.append(idem(1, 0, i, "a"))
		w.run()
		if a := n.good(id); a.Duplicate != (i == 0) {
			t.Fatalf("%+v", a)
		}
	}
	n.good(func() uint64 { id := n.append(plain("no producer")); w.run(); return id }())
	refused := false
	for i := int32(4); i < 40 && !refused; i++ { // up to the hard bound
		id := n.append(idem(1, 0, i, "a"))
		w.run()
		refused = errors.Is(n.answer(id).Err, meta.ErrExhausted)
	}
	if !refused || n.r.d.state.table.bytes > 20*(clientSize+storedSize) {
		t.Fatalf("refused %v at %d bytes", refused, n.r.d.state.table.bytes)
	}
	w.same()
}

// A stream's own bound on producers counts those in the table and those that are
// pending; who is in goes on.
// Rows: C9
func TestC9_ProducersBound(t *testing.T) {
	w, n := lone(t, Twins{})
	send := func(id int64, seq int32) uint64 {
		return n.propose(Propose{Kind: ProposeBatch, Bytes: idem(id, 0, seq, "a"), Producers: 3})
	}
	first := send(1, 0)
	w.run()
	n.good(first)
	ids := []uint64{send(1, 1), send(2, 0), send(2, 1), send(3, 0)} // pending
	refused := send(4, 0)
	more := send(1, 2)
	w.run()
	for _, id := range append(ids, more) {
		n.good(id)
	}
	if a := n.answer(refused); !errors.Is(a.Err, meta.ErrExhausted) || a.Applied != AppliedNo {
		t.Fatalf("%+v", a)
	}
}
