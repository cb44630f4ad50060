package replica

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/varve-io/varve/meta"
)

func at(o meta.Offset) *meta.Offset { return &o }
func token(s string) *string        { return &s }

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

// No answer, positive, duplicate or negative, leaves before what it was computed
// from is committed.
// Rows: E31
func TestE31_NoAnswerBeforeCommit(t *testing.T) {
	t.Run("duplicate", func(t *testing.T) {
		twin(t, Twins{DuplicateAtOnce: true}, func(t *testing.T, twins Twins) {
			_, ns := three(t, twins)
			w := ns[0].w
			first := ns[0].append(idem(1, 0, 0, "a"))
			ns[0].sync(-1)
			w.net = nil                               // reaches nobody
			retry := ns[0].append(idem(1, 0, 0, "a")) // over a new connection
			cond := ns[0].propose(Propose{Kind: ProposeBatch, Bytes: plain("x"), ExpectedOffset: at(0)})
			other := ns[0].append(idem(1, 0, 0, "other"))
			ns[0].sync(-1)
			for _, id := range []uint64{first, retry, cond, other} {
				ns[0].silent(id)
			}
			w.grant(1, 1, 2) // the leader is deposed, the entry vanishes
			w.run(1, 2)
			w.tick()
			w.run()
			for _, id := range []uint64{first, retry} {
				a := ns[0].answer(id)
				must(errors.Is(a.Err, meta.ErrUnknown) && a.Applied == AppliedUnknown, "%+v", a)
			}
			a := ns[0].answer(cond)
			must(a.Err != nil && a.Applied == AppliedNo, "a condition computed from what vanished: %+v", a)
			id := ns[1].append(idem(1, 0, 0, "a"))
			w.run()
			must(!ns[1].good(id).Duplicate && ns[1].good(id).First == 0, "%+v", ns[1].good(id))
		})
	})
	t.Run("condition before duplicate", func(t *testing.T) {
		twin(t, Twins{ConditionFirst: true}, func(t *testing.T, twins Twins) {
			w, n := lone(t, twins)
			p := Propose{Kind: ProposeBatch, ExpectedOffset: at(0)}
			p.Bytes = idem(1, 0, 0, "a")
			first := n.propose(p)
			p.Bytes = idem(1, 0, 0, "a")
			early := n.propose(p)
			w.run()
			p.Bytes = idem(1, 0, 0, "a")
			late := n.propose(p)
			w.run()
			n.good(first)
			must(n.good(early).Duplicate && n.good(late).Duplicate, "a retry of a conditional append that had succeeded")
		})
	})
}

// A negative answer and CheckTail of three members need a round of confirmations
// that began after they arrived, answered by adopters.
// It is the core's part of C4.
func TestNegativeAnswersNeedARound(t *testing.T) {
	w, ns := three(t, Twins{})
	id := ns[0].append(plain("a"))
	w.run()
	ns[0].good(id)
	neg := ns[0].propose(Propose{Kind: ProposeBatch, Bytes: plain("b"), ExpectedOffset: at(0)})
	tail := ns[0].propose(Propose{Kind: CheckTail})
	ns[0].silent(neg)
	first := append(w.take(MsgConfirm, 1), w.take(MsgConfirm, 2)...)
	second := ns[0].propose(Propose{Kind: CheckTail})
	for _, m := range first[:1] {
		w.deliver(m)
	}
	for _, m := range w.take(MsgConfirmAnswer, 0) {
		w.deliver(m)
	}
	if a := ns[0].answer(neg); a.Err == nil || a.Applied != AppliedNo {
		t.Fatalf("%+v", a)
	}
	var c *meta.ConditionFailed
	if !errors.As(ns[0].answer(neg).Err, &c) || c.Actual != 1 || c.Expected != 0 {
		t.Fatalf("%+v", ns[0].answer(neg))
	}
	ns[0].silent(tail) // it came when that round had begun: it needs the next
	ns[0].silent(second)
	w.run()
	if a := ns[0].good(tail); a.Tail != 1 {
		t.Fatalf("%+v", a)
	}
	ns[0].good(second)

	// A leader that was deposed without knowing answers nobody.
	w.grant(1, 1, 2)
	w.run(1, 2)
	w.net = nil
	stale := ns[0].propose(Propose{Kind: CheckTail})
	w.run(1, 2)
	ns[0].silent(stale)
	w.tick()
	w.run()
	if a := ns[0].answer(stale); a.Err == nil {
		t.Fatalf("%+v", a)
	}
}

// CheckTail of one member: the commit mark of the moment it came is enough.
func TestCheckTailOfOne(t *testing.T) {
	w, n := lone(t, Twins{})
	id := n.append(plain("a", "b"))
	w.run()
	n.good(id)
	n.append(plain("pending"))
	tail := n.propose(Propose{Kind: CheckTail})
	if _, ok := n.answers[tail]; !ok {
		w.run()
	}
	if a := n.good(tail); a.Tail < 2 {
		t.Fatalf("%+v", a)
	}
}

// Levels none and leader are a hint: no conditions, no idempotence; durable at the leader.
func TestLevels(t *testing.T) {
	w, ns := three(t, Twins{})
	for _, l := range []Level{None, Leader} {
		for _, p := range []Propose{
			{Bytes: idem(1, 0, 0, "a")}, {Bytes: plain("a"), ExpectedOffset: at(0)}, {Bytes: plain("a"), FenceToken: token("")},
		} {
			p.Kind, p.Level = ProposeBatch, l
			if a := ns[0].answer(ns[0].propose(p)); !errors.Is(a.Err, meta.ErrInvalid) || a.Applied != AppliedNo {
				t.Fatalf("%+v", a)
			}
		}
		id := ns[0].propose(Propose{Kind: ProposeBatch, Level: l, Bytes: plain("a")})
		w.net = nil
		ns[0].silent(id)
		ns[0].sync(-1)
		ns[0].good(id)
	}
	for _, b := range [][]byte{nil, make([]byte, 61), plain("a")[:70], append(plain("a"), 0)} {
		if a := ns[0].answer(ns[0].append(b)); !errors.Is(a.Err, meta.ErrInvalid) {
			t.Fatalf("%d bytes: %+v", len(b), a)
		}
	}
	if a := ns[0].answer(ns[0].propose(Propose{Kind: ProposeBatch, Bytes: plain("a"), Level: 9})); !errors.Is(a.Err, meta.ErrInvalid) {
		t.Fatalf("%+v", a)
	}
	if a := ns[0].answer(ns[0].propose(Propose{Kind: 99})); !errors.Is(a.Err, meta.ErrInvalid) {
		t.Fatalf("%+v", a)
	}
}

// The order of checks and the fence token, plain and strict.
func TestFenceToken(t *testing.T) {
	w, n := lone(t, Twins{})
	try := func(p Propose) Answer {
		if p.Kind == 0 {
			p.Kind, p.Bytes = ProposeBatch, plain("x")
		}
		id := n.propose(p)
		w.run()
		return n.answer(id)
	}
	good := func(a Answer) {
		t.Helper()
		if a.Err != nil {
			t.Fatalf("%+v", a)
		}
	}
	refused := func(a Answer, kind error) {
		t.Helper()
		if !errors.Is(a.Err, kind) || a.Applied != AppliedNo {
			t.Fatalf("%+v", a)
		}
	}
	refused(try(Propose{FenceToken: token("one")}), meta.ErrFenced)
	good(try(Propose{FenceToken: token("")}))
	good(try(Propose{Kind: ProposeFence, Token: "one"}))
	good(try(Propose{})) // not strict
	good(try(Propose{FenceToken: token("one")}))
	refused(try(Propose{FenceToken: token("two"), ExpectedOffset: at(99)}), meta.ErrFenced) // token before offset
	refused(try(Propose{Kind: ProposeFence, Token: "two", FenceToken: token("zero")}), meta.ErrFenced)
	good(try(Propose{Kind: ProposeFence, Token: "two", Strict: true, FenceToken: token("one")}))
	refused(try(Propose{}), meta.ErrFenced)
	refused(try(Propose{FenceToken: token("one")}), meta.ErrFenced)
	good(try(Propose{FenceToken: token("two")}))
	refused(try(Propose{Kind: ProposeTrim, Start: 1, FenceToken: token("one")}), meta.ErrFenced)
	good(try(Propose{Kind: ProposeFence, Token: "three"})) // the next writer takes over
	good(try(Propose{Kind: ProposeFence}))
	good(try(Propose{}))
	refused(try(Propose{Kind: ProposeFence, Strict: true}), meta.ErrInvalid)
	refused(try(Propose{Kind: ProposeFence, Token: string(make([]byte, 200))}), meta.ErrInvalid)
	w.grant(0)
	w.run()
	good(try(Propose{FenceToken: token("")}))
	w.same()
}

func TestTrim(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a", "b", "c"))
	id := n.propose(Propose{Kind: ProposeTrim, Start: 4})
	w.run()
	var out *meta.OffsetOutOfRange
	if a := n.answer(id); !errors.As(a.Err, &out) || out.End != 3 {
		t.Fatalf("%+v", a)
	}
	for _, c := range []struct {
		start, want meta.Offset
		same        bool
	}{{2, 2, false}, {1, 2, true}, {3, 3, false}} {
		id := n.propose(Propose{Kind: ProposeTrim, Start: c.start})
		w.run()
		if a := n.good(id); a.Start != c.want || a.NoEffect != c.same {
			t.Fatalf("%+v: %+v", c, a)
		}
	}
}

// After close only marks and confirmations follow, until the next epoch.
func TestClose(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a"))
	id := n.propose(Propose{Kind: ProposeClose})
	refused := []uint64{
		n.append(plain("late")), n.propose(Propose{Kind: ProposeTrim, Start: 1}), n.propose(Propose{Kind: ProposeFence, Token: "x"}),
	}
	again := n.propose(Propose{Kind: ProposeClose})
	w.run()
	n.good(id)
	if !n.good(again).NoEffect || !n.r.Status().Closed {
		t.Fatalf("%+v", n.r.Status())
	}
	for _, id := range refused {
		if a := n.answer(id); !errors.Is(a.Err, meta.ErrUnavailable) || a.Applied != AppliedNo {
			t.Fatalf("%+v", a)
		}
	}
	archive(w, n)
	if v := n.r.Status(); v.Droppable != 4 {
		t.Fatalf("%+v", v)
	}
	w.grant(0)
	w.run()
	next := n.append(plain("b"))
	w.run()
	if n.good(next).First != 1 {
		t.Fatalf("%+v", n.answers[next])
	}
	w.same()
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

// What waits is answered when leadership ends, each with whether it was applied.
func TestResign(t *testing.T) {
	w, n := lone(t, Twins{})
	appended := n.append(plain("a"))
	n.step(Resign{Reason: meta.Errorf(meta.ErrDeleted, "the stream is deleted")})
	if a := n.answer(appended); !errors.Is(a.Err, meta.ErrUnknown) || !errors.Is(a.Err, meta.ErrDeleted) || a.Applied != AppliedUnknown {
		t.Fatalf("%+v", a)
	}
	var not *meta.NotLeader
	if a := n.answer(n.append(plain("b"))); !errors.As(a.Err, &not) || a.Applied != AppliedNo {
		t.Fatalf("%+v", a)
	}
	w.grant(0)
	w.run()
	id := n.append(plain("c"))
	w.run()
	if a := n.good(id); a.First != 1 { // the first one stood in the log: it was committed by the next epoch
		t.Fatalf("%+v", a)
	}
}
