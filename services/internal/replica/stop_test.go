package replica

import (
	"errors"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// A wrong leader asks to cut below the commit mark: refused, the shard stops, the
// data stays.
// Rows: E14
func TestE14_NeverBelowTheCommitMark(t *testing.T) {
	w, ns := three(t, Twins{})
	ns[0].append(plain("a"))
	w.run()
	w.tick()
	w.run()
	f := ns[1]
	commit, last := f.r.d.Commit(), f.r.d.Last()
	if commit != 2 {
		t.Fatalf("commit mark %d", commit)
	}
	fence := w.to(f, MsgFence, 9, Message{})
	f.step(&fence)
	f.sync(-1)
	m := w.to(f, MsgReconcile, 9, Message{Vector: vec(1, 1, 9, 2), Last: 2})
	f.step(&m)
	f.sync(-1)
	if f.r.d.Last() != last || len(f.alarms) != 1 || f.r.Status().Role != Stopped {
		t.Fatalf("end %d, alarms %v, %+v", f.r.d.Last(), f.alarms, f.r.Status())
	}
	m = w.to(f, MsgFence, 10, Message{})
	w.net = nil
	f.step(&m)
	f.sync(-1)
	if len(w.net) != 0 || f.r.d.Promise() != 9 {
		t.Fatal("a stopped shard goes on")
	}
}

// A member's commit mark beyond the best log of a majority stops the shard.
func TestCommitMarkBeyondTheBestLog(t *testing.T) {
	w, ns := three(t, Twins{})
	w.grant(2, 2)
	ns[2].sync(-1)
	w.net = nil
	ns[2].step(&Message{
		Kind: MsgFenceAnswer, From: ns[1].cfg.Self, To: ns[2].cfg.Self, Boot: 9, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 2,
		Vector: vec(1, 1), First: 1, Last: 1, Commit: 7, Stamp: 1,
	})
	if s := ns[2].r.Status(); s.Role != Stopped || len(ns[2].alarms) != 1 {
		t.Fatalf("%+v", s)
	}
}

// A failed write or sync acknowledges nothing more, for good, whatever succeeds
// later; outcomes are told apart.
// It is the core's part of E3.
// Scenarios: B13, B15
func TestFailureIsForGood(t *testing.T) {
	w, n := lone(t, Twins{})
	done := n.append(plain("durable"))
	w.run()
	n.good(done)
	id := n.append(plain("doubtful"))
	neg := n.propose(Propose{Kind: ProposeBatch, Bytes: plain("x"), ExpectedOffset: new(meta.Offset)})
	n.step(Failed{Err: errors.New("EIO")})
	if a := n.answer(id); !errors.Is(a.Err, meta.ErrUnknown) || !errors.Is(a.Err, meta.ErrPoisoned) || a.Applied != AppliedUnknown {
		t.Fatalf("%+v", a)
	}
	if a := n.answer(neg); !errors.Is(a.Err, meta.ErrPoisoned) || a.Applied != AppliedNo {
		t.Fatalf("%+v", a)
	}
	n.sync(-1) // a later success proves nothing
	if a := n.answer(n.append(plain("later"))); !errors.Is(a.Err, meta.ErrPoisoned) || a.Applied != AppliedNo {
		t.Fatalf("%+v", a)
	}
	w.grant(0)
	w.run()
	if s := n.r.Status(); s.Role != Poisoned || s.Serving || n.r.d.Commit() != 2 {
		t.Fatalf("%+v", s)
	}
}

// Entries that do not fit, or that this build does not know, stop the shard; what
// was taken before them is written, so that log and state stay the same.
func TestBadEntriesStopTheShard(t *testing.T) {
	good := func(w *world) entry.Entry {
		e := w.nodes[0].log[0]
		e.Kind, e.LSN, e.Payload = entry.Batch, 2, plain("x")
		return e
	}
	for name, spoil := range map[string]func(e *entry.Entry){
		"gap in offsets":    func(e *entry.Entry) { e.Offset++ },
		"time goes back":    func(e *entry.Entry) { e.Time = 1 },
		"no opening entry":  func(e *entry.Entry) { e.Epoch = 0 },
		"later lineage":     func(e *entry.Entry) { e.Lineage++ },
		"unpromised epoch":  func(e *entry.Entry) { e.Epoch = 7; e.Kind = entry.Open },
		"unknown kind":      func(e *entry.Entry) { e.Kind = 99 },
		"later level":       func(e *entry.Entry) { e.Level = 99 },
		"malformed payload": func(e *entry.Entry) { e.Payload = e.Payload[:10] },
	} {
		t.Run(name, func(t *testing.T) {
			w, ns := three(t, Twins{})
			first, second := good(w), good(w)
			second.LSN, second.Offset = 3, 1
			spoil(&second)
			m := w.to(ns[1], MsgAppend, 1, Message{PrevLSN: 1, PrevEpoch: 1, First: 2, Last: 3, Entries: []entry.Entry{first, second}})
			ns[1].step(&m)
			if s := ns[1].r.Status(); s.Role != Stopped || len(ns[1].alarms) != 1 || s.Last != 2 {
				t.Fatalf("%+v", s)
			}
			if got := ns[1].replay().Last(); got != 2 {
				t.Fatalf("the log ends at %d, the state at 2", got)
			}
		})
	}
}
