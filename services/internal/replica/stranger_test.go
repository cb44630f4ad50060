package replica

import (
	"fmt"
	"testing"

	"github.com/varve-io/varve/meta"
)

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
