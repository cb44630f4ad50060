package replica

import (
	"fmt"
	"testing"

	"github.com/varve-io/varve/meta"
)

// A producer's state outlives the records it was made from.
// Scenarios: B152
func TestProducerOutlivesItsRecords(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(idem(1, 0, 0, "a"))
	w.run()
	first := n.good(1)
	archive(w, n)
	n.propose(Propose{Kind: ProposeTrim, Start: 1})
	w.run()
	archive(w, n)
	retry := n.append(idem(1, 0, 0, "a"))
	next := n.append(idem(1, 0, 1, "b"))
	w.run()
	if a := n.good(retry); !a.Duplicate || a.First != first.First || a.Time != first.Time {
		t.Fatalf("%+v", a)
	}
	if a := n.good(next); a.Duplicate || a.First != 1 {
		t.Fatalf("%+v", a)
	}
}

// A mark whose manifest was not put before a crash is listed after the restart,
// without any new traffic.
// Scenarios: B70
func TestUnconfirmedMarkSurvivesARestart(t *testing.T) {
	for _, checkpoint := range []bool{false, true} {
		w, n := lone(t, Twins{})
		n.append(plain("a"))
		w.run()
		s, _ := n.r.Seal()
		id := n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
		w.run()
		mark := n.good(id).LSN
		if checkpoint {
			n.save()
		}
		n.crash(0)
		w.grant(0)
		w.run()
		marks := n.r.Marks()
		if len(marks) != 1 || marks[0].LSN != mark || marks[0].End != s.End || marks[0].NextOffset != 1 {
			t.Fatalf("checkpoint %v: %+v", checkpoint, marks)
		}
		c := n.propose(Propose{Kind: ProposeConfirm, LSN: mark})
		w.run()
		n.good(c)
		if v := n.r.Status(); v.Droppable != s.End {
			t.Fatalf("%+v", v)
		}
	}
}

// A candidate that copies the best log does not serve before it reached the end
// that was promised, whatever arrives: nothing, less, twice, from before.
// Scenarios: B20
func TestCopyReachesThePromisedEnd(t *testing.T) {
	w, ns := three(t, Twins{})
	for i := range 6 {
		ns[0].append(plain(fmt.Sprint(i)))
	}
	w.run(0, 1)
	w.net = nil
	ns[0].down = true
	w.grant(2, 1, 2)
	var seen []Message
	for range 40 {
		ns[1].sync(-1)
		ns[2].sync(-1)
		net := w.net
		w.net = nil
		for _, m := range net {
			if m.Kind == MsgFetchAnswer {
				seen = append(seen, m)
				short := m
				short.Entries = nil
				w.deliver(short) // done early
				for _, old := range seen[:len(seen)-1] {
					w.deliver(old)
				}
				m.Entries = m.Entries[:1]
			}
			if m.Kind == MsgFetchAnswer || w.index(m.To) != 0 {
				w.deliver(m)
			}
			if s := ns[2].r.Status(); s.Role == Leading && s.Last < 8 {
				t.Fatalf("leads at LSN %d", s.Last)
			}
		}
	}
	if s := ns[2].r.Status(); !s.Serving || s.Committed != 6 {
		t.Fatalf("%+v", s)
	}
}

// Quick changes of leader, one record under each, some of which nobody else saw:
// all copies end the same.
// Scenarios: B21, B22, B23
func TestQuickLeaderChanges(t *testing.T) {
	w, ns := three(t, Twins{})
	for i := range 12 {
		l := ns[i%3]
		w.grant(l.id)
		if i%2 == 0 {
			w.run(l.id, (l.id+1)%3)
		} else {
			w.run()
		}
		l.append(plain(fmt.Sprint("seen ", i)))
		if i%4 == 3 {
			l.sync(-1) // nobody else hears of it
			w.net = nil
		} else {
			w.run(l.id, (l.id+2)%3)
		}
	}
	w.grant(0)
	for range 6 {
		w.run()
		w.tick()
	}
	if !ns[0].r.Status().Serving {
		t.Fatalf("%+v", ns[0].r.Status())
	}
	w.same()
}

// A writer that slept through any number of epochs is refused: no clean-up of what
// fenced it, since what fences it is the promise.
// Scenarios: B29
func TestSleepingLeaderIsRefused(t *testing.T) {
	w, ns := three(t, Twins{})
	ns[0].down = true
	for i := range 20 {
		l := 1 + i%2
		w.grant(l, 1, 2)
		w.run(1, 2)
		ns[l].append(plain(fmt.Sprint(i)))
		w.run(1, 2)
		archive2(w, ns[l])
	}
	w.net = nil
	ns[0].down = false
	id := ns[0].append(plain("late"))
	tail := ns[0].propose(Propose{Kind: CheckTail})
	w.run()
	w.tick()
	w.run()
	for _, id := range []uint64{id, tail} {
		if a := ns[0].answer(id); a.Err == nil {
			t.Fatalf("%+v", a)
		}
	}
	for l, e := range ns[1].log {
		if l > 0 && e.Epoch == 1 {
			t.Fatal("the late record is in the log")
		}
	}
}

// archive2 archives with node 0 out of reach.
func archive2(w *world, n *node) {
	s, ok := n.r.Seal()
	must(ok, "nothing to seal")
	id := n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
	w.run(1, 2)
	c := n.propose(Propose{Kind: ProposeConfirm, LSN: n.good(id).LSN})
	w.run(1, 2)
	n.good(c)
}

// Records of every size that a batch may have are taken or refused for good.
// Scenarios: B157
func TestBatchSizes(t *testing.T) {
	w, n := lone(t, Twins{})
	for _, c := range []struct {
		size int
		ok   bool
	}{{0, true}, {1, true}, {1 << 20, true}, {4<<20 - 200, true}} {
		id := n.append(plain(string(make([]byte, c.size))))
		w.run()
		if a := n.answer(id); (a.Err == nil) != c.ok {
			t.Fatalf("%d bytes: %+v", c.size, a)
		}
	}
	if big := append(plain("x"), make([]byte, 5<<20)...); n.answer(n.append(big)).Applied != AppliedNo {
		t.Fatal("too large a batch was taken")
	}
	if n.r.d.state.next != meta.Offset(4) {
		t.Fatal("a record is missing")
	}
}
