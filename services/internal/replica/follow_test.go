package replica

import (
	"errors"
	"fmt"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// to is a message of the first node, as leader of an epoch, to a follower.
func (w *world) to(f *node, kind MessageKind, e meta.Epoch, m Message) Message {
	m.Kind, m.From, m.To = kind, w.nodes[0].cfg.Self, f.cfg.Self
	m.Boot, m.ToBoot, m.Instance = w.nodes[0].cfg.Boot, f.cfg.Boot, 1
	m.Shard, m.Lineage, m.Epoch = shardID, lineage, e
	return m
}

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

// A stranger promises and copies; its word counts only once it has copied all that
// the leader had, durably, and the row names it.
// Scenarios: B18, B27
// Rows: E28, D8
func TestE28_StrangerDoesNotCount(t *testing.T) {
	twin(t, Twins{CountStrangers: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		id := ns[0].append(plain("w"))
		w.run(0, 1)
		ns[0].good(id)
		ns[1].crash(0)
		d := ns[1].r.d
		d.Break() // node 1's log is broken; nodes 0 and 1 alone had "w"
		ns[1].r = New(ns[1].cfg, d)
		ns[1].r.seq, ns[1].r.synced = uint64(len(ns[1].writes)), uint64(len(ns[1].writes))
		ns[1].base, ns[1].log = 0, nil
		w.net = nil
		ns[0].down = true
		w.grant(2, 1, 2)
		for range 3 {
			w.run(1, 2)
			w.tick()
		}
		must(!ns[2].r.Status().Serving, "serves without w")
		ns[0].down = false
		again := *w.row
		ns[0].step(&again)
		for range 4 {
			w.run()
			w.tick()
		}
		must(ns[2].r.Status().Serving, "does not serve with all three: %+v", ns[2].r.Status())
		must(ns[2].r.d.state.next == 1, "w is gone")
		must(!ns[1].r.d.Stranger(), "node 1 is still a stranger: %+v", ns[1].r.Status())
		must(ns[1].r.d.Commit() == ns[2].r.d.Commit(), "node 1 is behind")
	})
}

// The opening entry alone does not readmit a stranger: it may have acknowledged
// more of this very epoch before it lost it.
func TestE28_StrangerCopiesInFull(t *testing.T) {
	w, ns := three(t, Twins{})
	for i := range 5 {
		ns[0].append(plain(fmt.Sprint(i)))
	}
	w.run(0, 1)
	w.net = nil
	f := ns[1]
	f.crash(0)
	f.r.d.Break()
	f.base, f.log = 0, nil
	for range 2 {
		w.tick()
	}
	step := func(kind MessageKind, to *node, cut int) {
		for _, m := range w.take(kind, to.id) {
			if cut > 0 {
				m.Entries = m.Entries[:cut]
			}
			w.deliver(m)
		}
		to.sync(-1)
	}
	ns[0].append(plain("more"))
	ns[0].sync(-1)
	step(MsgAppend, f, 0) // for the boot before: passed over
	for range 3 {
		w.tick()
	}
	step(MsgFence, f, 0)
	step(MsgFenceAnswer, ns[0], 0)
	step(MsgReconcile, f, 0)
	step(MsgAppendAnswer, ns[0], 0)
	step(MsgAppend, f, 1)
	if !f.r.adopted() || !f.r.d.Stranger() {
		t.Fatalf("adopted %v, stranger %v at LSN %d", f.r.adopted(), f.r.d.Stranger(), f.r.d.Last())
	}
	w.run(0, 1)
	if f.r.d.Stranger() || f.r.d.Last() != ns[0].r.d.Last() {
		t.Fatalf("still a stranger at LSN %d", f.r.d.Last())
	}
}

// A lone member that came back under another storage id, or broken, waits.
// It is the core's part of D7.
// Rows: E34
func TestE34_LoneStrangerWaits(t *testing.T) {
	for name, spoil := range map[string]func(*node){
		"new storage id": func(n *node) { n.cfg.Self.Storage = meta.StorageID{99}; n.r.d.Estrange() },
		"broken":         func(n *node) { n.r.d.Break() },
		"wiped":          func(n *node) { n.cfg.Self.Storage = meta.StorageID{99}; n.r.d = NewDurable() },
	} {
		t.Run(name, func(t *testing.T) {
			w, n := lone(t, Twins{})
			n.append(plain("a"))
			w.run()
			spoil(n)
			n.cfg.Boot++
			seq := n.r.seq
			n.r = New(n.cfg, n.r.d)
			n.r.seq, n.r.synced = seq, seq
			w.epoch++
			a := &Assignment{Revision: 9, Shard: shardID, Lineage: lineage, Epoch: w.epoch, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: w.members}
			n.step(a)
			w.run()
			if s := n.r.Status(); s.Serving || len(s.Waiting) == 0 {
				t.Fatalf("%+v", s)
			}
		})
	}
}

// Abandon: the next lineage goes on from the copy's own log, and it counts again.
// It is the core's part of E35.
func TestReformFromTheOwnLog(t *testing.T) {
	w, n := lone(t, Twins{})
	for i := range 3 {
		n.append(idem(1, 0, int32(i), "v"))
	}
	w.run()
	n.append(plain("torn off"))
	n.crash(0)
	n.r.d.Estrange()
	n.cfg.Self.Storage = meta.StorageID{77}
	seq := n.r.seq
	n.r = New(n.cfg, n.r.d)
	n.r.seq, n.r.synced = seq, seq
	members := []meta.Member{n.cfg.Self}
	a := &Assignment{
		Revision: 9, Shard: shardID, Lineage: lineage + 1, Epoch: 5, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: members,
		Reform: &Reform{From: lineage, Epoch: 1, LSN: n.r.d.Last()},
	}
	n.step(a)
	w.run()
	if s := n.r.Status(); !s.Serving || s.Stranger || s.Committed != 3 || s.Lineage != lineage+1 {
		t.Fatalf("%+v", s)
	}
	id := n.append(idem(1, 0, 2, "v"))
	w.run()
	if a := n.good(id); !a.Duplicate || a.First != 2 {
		t.Fatalf("%+v", a)
	}
	again := *a
	n.step(&again)
	old := *a
	old.Revision, old.Lineage, old.Epoch = 10, lineage, 90
	n.step(&old) // an older lineage is not believed, even with a higher revision
	if s := n.r.Status(); s.Lineage != lineage+1 {
		t.Fatalf("%+v", s)
	}
	w.same()
}

// A copy that adopted an epoch is not cut for a leader of it: a second, late
// reconciliation finds entries that were acknowledged since.
// Rows: E29
func TestE29_AdoptedIsNeverCut(t *testing.T) {
	twin(t, Twins{TruncateAdopted: true}, func(t *testing.T, twins Twins) {
		w := newWorld(t, 3, twins)
		w.grant(0)
		var late []Message
		for range 40 {
			for _, n := range w.nodes {
				n.sync(-1)
			}
			net := w.net
			w.net = nil
			for _, m := range net {
				if m.Kind == MsgReconcile && w.index(m.To) == 1 {
					late = append(late, m)
				}
				w.deliver(m)
			}
		}
		must(len(late) > 0, "no reconciliation")
		ns := w.nodes
		id := ns[0].append(plain("a"))
		w.run(0, 1)
		ns[0].good(id)
		w.deliver(late[0])
		must(ns[1].r.d.Last() == 2, "an acknowledged entry was cut: end %d", ns[1].r.d.Last())
		must(len(ns[1].alarms) == 0, "%v", ns[1].alarms)
	})
}

// A commit mark counts only in an adopted epoch, and up to the copy's own end.
// Rows: E30
func TestE30_MarkNeedsAdoption(t *testing.T) {
	twin(t, Twins{MarkUnadopted: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		for i := range 4 {
			ns[0].append(plain(fmt.Sprint("stray", i)))
		}
		ns[0].sync(-1)
		w.net = nil
		ns[0].crash(0)
		f := ns[0]
		m := Message{From: ns[1].cfg.Self, To: f.cfg.Self, Boot: ns[1].cfg.Boot, Shard: shardID, Lineage: lineage, Epoch: 2, Instance: 1, ToBoot: f.cfg.Boot}
		m.Kind = MsgFence
		f.step(&m)
		f.sync(-1)
		m.Kind, m.Commit = MsgCommitMark, 140
		f.step(&m)
		f.sync(-1)
		must(f.r.d.Commit() <= 1, "a diverged copy believes a mark: committed to %d", f.r.d.Commit())
	})
	w, ns := three(t, Twins{})
	m := w.to(ns[1], MsgCommitMark, 1, Message{Commit: 140})
	ns[1].step(&m)
	if c := ns[1].r.d.Commit(); c != 1 {
		t.Fatalf("committed to %d: the copy ends at 1", c)
	}
	_ = w
}

// Marks can't be lost for good: no queue, the latest value is sent until it is
// acknowledged; a restarted copy on a quiet shard learns it too.
// Rows: E15
func TestE15_MarksAreNotLost(t *testing.T) {
	w, ns := three(t, Twins{})
	for i := range 200 {
		ns[0].append(plain(fmt.Sprint(i)))
		for _, n := range ns {
			n.sync(-1)
		}
		net := w.net
		w.net = nil
		for _, m := range net {
			if m.Kind != MsgCommitMark || i%7 == 0 {
				w.deliver(m)
			}
		}
	}
	for range 4 {
		w.tick()
		w.run()
	}
	for _, n := range ns {
		if n.r.d.Commit() != 201 {
			t.Fatalf("node %d knows %d", n.id, n.r.d.Commit())
		}
	}
	ns[2].crash(0) // a quiet shard: no append wakes the leader
	ns[2].r = New(ns[2].cfg, func() *Durable { d := ns[2].replay(); return d }())
	ns[2].r.seq, ns[2].r.synced = uint64(len(ns[2].writes)), uint64(len(ns[2].writes))
	if c := ns[2].r.d.Commit(); c == 201 {
		t.Fatal("the copy knows the mark from its own disk: nothing is shown")
	}
	again := *w.row
	ns[2].step(&again)
	ns[0].step(Connected{Peer: ns[2].cfg.Self, Boot: ns[2].cfg.Boot})
	w.run()
	if c := ns[2].r.d.Commit(); c != 201 {
		t.Fatalf("after its restart node 2 knows %d", c)
	}
	w.same()
}

// A changed storage id is not counted any more, on an idle shard too.
// It is the core's part of D4.
func TestConnectedUnderAnotherStorage(t *testing.T) {
	w, ns := three(t, Twins{})
	wiped := ns[1].cfg.Self
	wiped.Storage = meta.StorageID{88}
	ns[0].step(Connected{Peer: wiped, Boot: 7})
	ns[0].step(Connected{Peer: ns[2].cfg.Self, Boot: 7})
	w.net = nil
	m := Message{From: ns[1].cfg.Self, To: ns[0].cfg.Self, Boot: ns[1].cfg.Boot, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 1, Last: 2, Adopted: true, Stamp: 999}
	id := ns[0].append(plain("x"))
	ns[0].sync(-1)
	for _, kind := range []MessageKind{MsgFenceAnswer, MsgAppendAnswer} { // of the copy that was there before
		late := m
		late.Kind = kind
		ns[0].step(&late)
		ns[0].silent(id)
	}
	for range 2 { // a copy that is back counts when it is measured again
		w.tick()
		w.run(0, 2)
	}
	ns[0].silent(id) // node 2 still runs its first boot here: what it says is passed over
	ns[0].step(Connected{Peer: ns[2].cfg.Self, Boot: ns[2].cfg.Boot})
	w.run(0, 2)
	ns[0].good(id)
}

// A base is installed whole, with the promise that was there before.
// Rows: E32
func TestE32_BaseNeverLowersThePromise(t *testing.T) {
	twin(t, Twins{BaseOverwrites: true}, func(t *testing.T, twins Twins) {
		_, src := lone(t, Twins{})
		for i := range 5 {
			src.append(idem(1, 0, int32(i), "v"))
		}
		src.w.run()
		s, _ := src.r.Seal()
		w := newWorld(t, 3, twins)
		f := w.nodes[1]
		f.step(&Assignment{Revision: 1, Shard: shardID, Lineage: lineage, Epoch: 20, Leader: w.members[0], Members: w.members, Instance: 1})
		m := w.to(f, MsgFence, 20, Message{})
		f.step(&m)
		f.sync(-1)
		before := len(f.writes)
		f.step(&Assignment{Revision: 2, Shard: shardID, Lineage: lineage, Epoch: 20, Leader: w.members[0], Members: w.members, Base: &Base{LSN: 30, Mark: 20, State: s.State}})
		must(len(f.writes) == before+1 && len(f.writes[before].Records) == 1, "a base takes %d writes", len(f.writes)-before)
		must(f.r.d.Promise() == 20, "the promise is %d now", f.r.d.Promise())
		v := f.r.Status()
		must(v.Last == 30 && v.Start == 31 && v.Commit == 30 && v.Next == 5 && v.Droppable == 31 && v.Producers == 1, "%+v", v)
		w.net = nil
		m = w.to(f, MsgFence, 7, Message{}) // an old leader after it
		f.step(&m)
		f.sync(-1)
		must(len(w.net) == 1 && w.net[0].Kind == MsgStaleRoute, "an old leader's fence: %+v", w.net)
	})
}

// A fence names the row's base: a copy that ends below it installs it first.
// It is the core's part of T14.
func TestSleeperDoesNotAnswerFromBelowTheBase(t *testing.T) {
	w, ns := three(t, Twins{})
	w.net = nil
	m := w.to(ns[1], MsgFence, 6, Message{Floor: 50})
	ns[1].step(&m)
	ns[1].sync(-1)
	if len(w.net) != 1 || w.net[0].Kind != MsgStaleRoute || ns[1].r.d.Promise() != 1 {
		t.Fatalf("%+v", w.net)
	}
}

// Another incarnation or lineage: StaleRoute, no byte written, no vote; later it
// succeeds.
// Rows: N10, N11, N9
func TestN10_IncarnationIsNamed(t *testing.T) {
	twin(t, Twins{MatchByName: true}, func(t *testing.T, twins Twins) {
		for name, change := range map[string]func(*Message){
			"incarnation": func(m *Message) { m.Shard.Incarnation++ },
			"lineage":     func(m *Message) { m.Lineage++ },
		} {
			w, ns := three(t, twins)
			w.net = nil
			writes := len(ns[1].writes)
			for _, kind := range []MessageKind{MsgFence, MsgAppend, MsgReconcile, MsgCommitMark, MsgFetch, MsgConfirm} {
				m := w.to(ns[1], kind, 1, Message{Last: 9, Commit: 9, First: 1, Vector: vec(1, 1)})
				change(&m)
				if kind == MsgFence {
					m.Epoch = 7
				}
				ns[1].step(&m)
				ns[1].sync(-1)
				must(len(ns[1].writes) == writes, "another %s: a %s wrote", name, kind)
				must(len(w.net) == 1 && w.net[0].Kind == MsgStaleRoute && w.net[0].Held.Incarnation == shardID.Incarnation, "another %s: %s was answered with %+v", name, kind, w.net)
				w.net = nil
			}
			for _, kind := range []MessageKind{MsgAppendAnswer, MsgConfirmAnswer, MsgFenceAnswer} { // and answers of it do not count
				id := ns[0].append(plain("x"))
				ns[0].sync(-1)
				w.net = nil
				m := Message{Kind: kind, From: ns[1].cfg.Self, To: ns[0].cfg.Self, Boot: ns[1].cfg.Boot, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 1, Last: 99, Adopted: true, Stamp: 999}
				change(&m)
				ns[0].step(&m)
				ns[0].silent(id)
			}
			w.tick()
			w.run()
			must(ns[0].r.d.Commit() == 4, "later it does not succeed: %d", ns[0].r.d.Commit())
		}
	})
}

// Positions belong to a boot and to an instance of a copy.
// Rows: D10, E33
func TestE33_AnswersBelongToACopy(t *testing.T) {
	for name, c := range map[string]struct {
		off    Twins
		change func(*Message)
	}{
		"boot":     {Twins{IgnoreBoot: true}, func(m *Message) { m.Boot-- }},
		"instance": {Twins{IgnoreInstance: true}, func(m *Message) { m.Instance-- }},
	} {
		t.Run(name, func(t *testing.T) {
			twin(t, c.off, func(t *testing.T, twins Twins) {
				w, ns := three(t, twins)
				id := ns[0].append(plain("x"))
				ns[0].sync(-1)
				w.net = nil
				m := Message{Kind: MsgAppendAnswer, From: ns[1].cfg.Self, To: ns[0].cfg.Self, Boot: ns[1].cfg.Boot, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 1, Last: 2, Adopted: true, Stamp: 999}
				c.change(&m)
				ns[0].step(&m)
				ns[0].silent(id)
			})
		})
	}
}

// An answer from another storage id than the row's does not count.
// Rows: D11
func TestD11_FenceAnswerFromAnotherStorage(t *testing.T) {
	w := newWorld(t, 3, Twins{})
	w.grant(0)
	w.nodes[0].sync(-1)
	m := Message{Kind: MsgFenceAnswer, From: meta.Member{Broker: "b1", Storage: meta.StorageID{66}}, To: w.members[0], Boot: 5, Shard: shardID, Lineage: lineage, Epoch: 1}
	w.nodes[0].step(&m)
	w.nodes[0].sync(-1)
	if w.nodes[0].r.Status().Role != Fencing {
		t.Fatalf("%+v", w.nodes[0].r.Status())
	}
}

// A copy that ends below what it acknowledged is not counted any more, with an alarm.
func TestCopyThatLostAcknowledged(t *testing.T) {
	w, ns := three(t, Twins{})
	for i := range 3 {
		ns[0].append(plain(fmt.Sprint(i)))
	}
	w.run()
	m := Message{Kind: MsgAppendAnswer, From: ns[1].cfg.Self, To: ns[0].cfg.Self, Boot: ns[1].cfg.Boot, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 1, Last: 2, Adopted: true, Stamp: 1 << 40}
	ns[0].step(&m)
	if len(ns[0].alarms) != 1 || !errors.Is(ns[0].alarms[0], meta.ErrStranger) {
		t.Fatalf("%v", ns[0].alarms)
	}
	id := ns[0].append(plain("x"))
	w.run(0, 1)
	ns[0].silent(id)
	w.tick()
	w.run()
	ns[0].good(id) // with node 2
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

// On an operator's word a broken copy with nothing in the bucket begins its next
// lineage from nothing; without that word it waits.
func TestBeginFromNothing(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("gone"))
	w.run()
	n.rotten = true
	n.crash(0)
	a := Assignment{Revision: 9, Shard: shardID, Lineage: lineage + 1, Epoch: 5, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: w.members}
	first := a
	n.step(&first)
	w.run()
	if s := n.r.Status(); s.Serving || s.NeedsEpoch || len(s.Waiting) == 0 {
		t.Fatalf("%+v", s)
	}
	a.Base = &Base{}
	n.step(&a)
	w.truth = map[meta.LSN]string{}
	w.run()
	if s := n.r.Status(); !s.Serving || s.Stranger || s.Last != 1 {
		t.Fatalf("%+v", s)
	}
}

// A base below what the only member has would drop it: the shard stops instead.
func TestBaseDoesNotDropTheOnlyCopy(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a"))
	w.run()
	s, _ := n.r.Seal()
	n.append(plain("b"))
	w.run()
	n.step(&Assignment{
		Revision: 9, Shard: shardID, Lineage: lineage + 1, Epoch: 5, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: w.members,
		Base: &Base{LSN: s.End - 1, Mark: s.End, State: s.State},
	})
	if st := n.r.Status(); st.Role != Stopped || st.Last != 3 || len(n.alarms) != 1 {
		t.Fatalf("%+v", st)
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

// The commit mark goes into the log now and then: a replay's overlay stays short.
func TestReplayKnowsARecentMark(t *testing.T) {
	w, n := lone(t, Twins{})
	for range 3 * markEvery {
		n.append(plain("x"))
		n.sync(-1)
	}
	if d := n.replay(); d.over.len() > markEvery+2 || d.Commit() > n.r.d.Commit() {
		t.Fatalf("%d entries above the mark", d.over.len())
	}
	w.same()
}
