package replica

import (
	"errors"
	"testing"

	"github.com/varve-io/varve/meta"
)

func at(o meta.Offset) *meta.Offset { return &o }

func token(s string) *string { return &s }

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
