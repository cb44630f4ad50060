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

// Another incarnation or lineage: StaleRoute, no byte written, no vote; later it
// succeeds.
// Rows: N10, N11
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

// Epoch 0 is "no grant yet": it leads nothing, fences nothing and has no entry; for
// a log whose history is unknown no vector is made up, and nothing is cut.
func TestE11_EpochZero(t *testing.T) {
	w, ns := three(t, Twins{})
	n := newWorld(t, 1, Twins{}).nodes[0]
	n.step(&Assignment{Revision: 1, Shard: shardID, Lineage: lineage, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: []meta.Member{n.cfg.Self}, Instance: 1})
	n.w.run()
	if s := n.r.Status(); s.Role != Following || s.Last != 0 || s.Promise != 0 || s.NeedsEpoch || len(n.r.d.Vector()) != 0 {
		t.Fatalf("%+v", s)
	}
	w.net = nil
	writes := len(ns[1].writes)
	for _, kind := range []MessageKind{MsgFence, MsgReconcile, MsgAppend} {
		m := w.to(ns[1], kind, 0, Message{Last: 1})
		ns[1].step(&m)
	}
	if len(ns[1].writes) != writes || len(w.net) != 3 || w.net[0].Kind != MsgStaleRoute {
		t.Fatalf("epoch 0 was taken: %+v", w.net)
	}
	e := entry.Entry{Header: entry.Header{Kind: entry.Open, Level: 1, Lineage: lineage, LSN: 1}, Payload: entry.OpenPayload{}.Encode()}
	if err := n.r.d.Apply(&Record{Kind: KindEntry, Entry: e}); !errors.Is(err, meta.ErrCorrupt) {
		t.Fatalf("an opening entry of epoch 0: %v", err)
	}
	// A leader whose vector has nothing in common with a pruned follower cuts nothing.
	f := ns[1]
	fence := w.to(f, MsgFence, 9, Message{})
	f.step(&fence)
	for _, v := range []meta.Vector{nil, {}, vec(5, 4, 9, 6), vec(9, 1, 5, 4)} {
		m := w.to(f, MsgReconcile, 9, Message{Vector: v, Last: 6})
		f.step(&m)
		if f.r.d.Last() != 1 || len(f.alarms) != 0 {
			t.Fatalf("vector %v: end %d, %v", v, f.r.d.Last(), f.alarms)
		}
	}
}
