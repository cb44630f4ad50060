package replica

import (
	"errors"
	"fmt"
	"testing"

	"github.com/varve-io/varve/meta"
)

// The opening entry is durable before the epoch serves.
// Rows: E2, E24
func TestE2_OpeningEntryIsDurableFirst(t *testing.T) {
	twin(t, Twins{CountUnsynced: true}, func(t *testing.T, twins Twins) {
		w := newWorld(t, 1, twins)
		n := w.nodes[0]
		w.grant(0)
		n.sync(-1) // the promise
		must(len(n.log) == 1, "no opening entry was written")
		a := n.answer(n.append(plain("early"))) // its fsync is held
		must(errors.Is(a.Err, meta.ErrUnavailable) && a.Applied == AppliedNo, "an append before the opening entry is durable: %+v", a)
		n.crash(0)
		must(n.r.d.Last() == 0, "the log kept %d entries", n.r.d.Last())
		w.grant(0)
		w.run()
		must(n.r.Status().Serving, "does not serve")
	})
}

// An epoch is led by one boot. The leader's unsynced tail goes with its machine;
// resuming the epoch would put another record under an LSN that a follower has.
// It is the core's part of D7.
// Rows: E24
func TestE24_EpochBelongsToOneBoot(t *testing.T) {
	t.Run("one member", func(t *testing.T) {
		twin(t, Twins{ResumeEpoch: true}, func(t *testing.T, twins Twins) {
			w, n := lone(t, twins)
			n.append(plain("a"))
			n.crash(0)
			w.run()
			s := n.r.Status()
			must(s.Role == Following && s.NeedsEpoch, "after a restart under the old grant: %+v", s)
			a := n.answer(n.append(plain("b")))
			must(a.Err != nil && a.Applied == AppliedNo, "an append under the old grant: %+v", a)
			w.grant(0)
			w.run()
			must(n.r.Status().Serving, "does not lead the new epoch")
		})
	})
	t.Run("three members", func(t *testing.T) {
		twin(t, Twins{ResumeEpoch: true}, func(t *testing.T, twins Twins) {
			w, ns := three(t, twins)
			ns[0].append(plain("sent, not written"))
			for _, m := range w.take(MsgAppend, 1) {
				w.deliver(m)
			}
			ns[1].sync(-1)
			ns[0].crash(0) // before its own write
			w.run()
			id := ns[0].append(plain("another"))
			w.run()
			w.tick()
			w.run()
			a := ns[0].answer(id)
			must(a.Err != nil, "served on under the old grant: %+v", a)
		})
	})
}

// What was granted to an epoch that this copy has promised already can't be led,
// and the same row again changes nothing.
// Rows: E17
func TestE17_FenceNeverGoesBack(t *testing.T) {
	w, ns := three(t, Twins{})
	f := ns[1]
	for _, c := range []struct {
		epoch  meta.Epoch
		answer MessageKind
	}{{1, MsgFenceAnswer}, {5, MsgFenceAnswer}, {5, MsgFenceAnswer}, {4, MsgStaleRoute}, {1, MsgStaleRoute}, {9, MsgFenceAnswer}, {8, MsgStaleRoute}} {
		w.net = nil
		f.step(&Message{Kind: MsgFence, From: ns[0].cfg.Self, To: f.cfg.Self, Boot: ns[0].cfg.Boot, Shard: shardID, Lineage: lineage, Epoch: c.epoch})
		f.sync(-1)
		if len(w.net) != 1 || w.net[0].Kind != c.answer || w.net[0].Epoch != c.epoch {
			t.Fatalf("fence of epoch %d: %+v", c.epoch, w.net)
		}
	}
	if f.r.d.Promise() != 9 {
		t.Fatalf("promise %d", f.r.d.Promise())
	}
	w.net = nil
	f.step(&Message{Kind: MsgAppend, From: ns[0].cfg.Self, To: f.cfg.Self, Boot: ns[0].cfg.Boot, ToBoot: f.cfg.Boot, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 1, PrevLSN: 1, PrevEpoch: 1})
	f.sync(-1)
	if len(w.net) != 1 || w.net[0].Kind != MsgStaleRoute || w.net[0].Held.Promise != 9 {
		t.Fatalf("an append of a lower epoch: %+v", w.net)
	}
	// A grant may exceed every promise reported.
	w.epoch = 40
	w.grant(2)
	w.run()
	if !ns[2].r.Status().Serving {
		t.Fatalf("%+v", ns[2].r.Status())
	}
}

// Who gave no answer is absent, not zero; a majority is of the configured size,
// and falling short of it waits and names whom for.
// Rows: E18, E34
func TestE18_Majority(t *testing.T) {
	twin(t, Twins{MajorityShort: true}, func(t *testing.T, twins Twins) {
		for _, size := range []int{1, 2, 3, 5} {
			for up := 1; up <= size; up++ {
				w := newWorld(t, size, twins)
				var among []int
				for i := range up {
					among = append(among, i)
				}
				w.grant(0)
				for range 3 {
					w.run(among...)
					w.tick()
				}
				s := w.nodes[0].r.Status()
				must(s.Serving == (up > size/2), "%d of %d answer: serving %v", up, size, s.Serving)
				if !s.Serving {
					must(len(s.Waiting) == size-up, "%d of %d answer: waits for %q", up, size, s.Waiting)
				}
			}
		}
	})
}

// A promise is durable before it is answered: here it is answered, lost with the
// machine, and the old leader commits through the copy that gave it.
// Scenarios: B25
// Rows: E20
func TestE20_PromiseIsDurableFirst(t *testing.T) {
	twin(t, Twins{PromiseUnwritten: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		w.grant(1, 1)
		ns[1].sync(-1)
		for _, m := range w.take(MsgFence, 2) {
			w.deliver(m)
		}
		for _, m := range w.take(MsgFenceAnswer, 1) {
			w.deliver(m)
		}
		ns[1].sync(-1)
		w.net = nil
		ns[2].crash(0) // with the promise
		x := ns[0].append(plain("x"))
		for range 4 {
			w.tick()
			w.take(MsgFence, 1)
			for _, m := range w.net {
				if w.index(m.From) == 1 || w.index(m.To) == 1 {
					w.take(m.Kind, w.index(m.To))
				}
			}
			w.run(0, 2)
		}
		ns[0].good(x)
		ns[0].down = true
		w.net = nil
		for range 4 {
			w.tick()
			w.run(1, 2)
		}
		must(ns[1].r.Status().Serving, "node 1: %+v", ns[1].r.Status())
	})
}

// A follower with a longer tail of the epoch before is cut at the opening entry.
// It is the core's part of E13.
// Rows: E7
func TestE7_LongerTailIsCutAtTheOpeningEntry(t *testing.T) {
	twin(t, Twins{VectorTooEarly: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		for i := range 4 {
			ns[0].append(plain(fmt.Sprint(i)))
		}
		w.run() // everybody ends at LSN 5
		for i := range 5 {
			ns[0].append(plain(fmt.Sprint("tail", i)))
		}
		ns[0].sync(-1) // ends at 10; nobody else has it
		w.net = nil
		ns[0].crash(0)
		w.grant(1, 1, 2)
		w.run(1, 2)
		must(ns[1].r.d.Last() == 6, "node 1 opens at %d", ns[1].r.d.Last())
		ns[1].step(Tick{})
		w.tick()
		for _, m := range w.take(MsgFence, 0) {
			w.deliver(m)
		}
		ns[0].sync(-1)
		for _, m := range w.take(MsgFenceAnswer, 1) {
			must(m.Last == 10, "the copy says that it ends at %d", m.Last)
			w.deliver(m)
		}
		for _, m := range w.take(MsgReconcile, 0) {
			w.deliver(m)
		}
		must(ns[0].r.d.Last() == 5, "cut to LSN %d", ns[0].r.d.Last())
		for l := range ns[0].writes { // a crash at every step of it leaves no pair without its entry
			d := NewDurable()
			for _, wr := range ns[0].writes[:l+1] {
				for i := range wr.Records {
					must(d.Apply(&wr.Records[i]) == nil, "write %d", l)
				}
			}
			v := d.Vector()
			must(len(v) == 0 || v[len(v)-1].LSN <= d.Last(), "write %d: vector %v, end %d", l, v, d.Last())
		}
		w.run()
		w.tick()
		w.run()
		w.same()
	})
}

// A diverged follower whose end is the same number is not counted.
// Scenarios: B21
// Rows: E19
func TestE19_ReconcileBeforeCounting(t *testing.T) {
	twin(t, Twins{CountUnadopted: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		ns[0].append(plain("stray 1"))
		ns[0].append(plain("stray 2"))
		ns[0].sync(-1) // ends at 3 alone
		w.net = nil
		ns[0].crash(0)
		ns[2].down = true
		w.grant(1, 1)
		ns[1].sync(-1)
		for _, m := range w.take(MsgFence, 0) { // node 0 promises: its tail is the best log
			w.deliver(m)
		}
		w.net = nil // but its answer is lost, and node 2 answers instead
		ns[2].down = false
		w.tick()
		for _, m := range w.take(MsgFence, 2) {
			w.deliver(m)
		}
		ns[2].sync(-1)
		for _, m := range w.take(MsgFenceAnswer, 1) {
			w.deliver(m)
		}
		ns[1].sync(-1)
		ns[2].down = true
		w.net = nil
		id := ns[1].append(plain("new"))
		ns[1].sync(-1) // ends at 3 too
		w.tick()
		for _, m := range w.take(MsgFence, 0) {
			w.deliver(m)
		}
		ns[0].sync(-1)
		for _, m := range w.take(MsgFenceAnswer, 1) {
			must(m.Last == 3, "node 0 ends at %d", m.Last)
			w.deliver(m)
		}
		ns[1].silent(id)
		w.run(0, 1)
		ns[1].good(id)
		ns[2].down = false
		w.tick()
		w.run()
		w.same()
	})
}

// Raft's figure 8: an entry of an earlier epoch that a majority holds is not
// committed by copies alone, since another log may still win.
// Scenarios: B24
// Rows: E22
func TestE22_InheritedCommitsThroughTheOpeningEntry(t *testing.T) {
	script := func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		ns[0].append(plain("old")) // LSN 2, epoch 1, at node 0 alone
		ns[0].sync(-1)
		w.net = nil
		ns[0].crash(0)
		w.grant(1, 1, 2) // epoch 2: its opening entry is at node 1 alone, LSN 2
		ns[1].sync(-1)
		for _, m := range w.take(MsgFence, 2) {
			w.deliver(m)
		}
		ns[2].sync(-1)
		for _, m := range w.take(MsgFenceAnswer, 1) {
			w.deliver(m)
		}
		ns[1].append(plain("not yet"))
		ns[1].sync(-1)
		w.net = nil
		ns[1].crash(0)
		w.grant(0, 0, 2) // epoch 3: node 0 leads again, with node 2
		ns[0].sync(-1)
		for _, m := range w.take(MsgFence, 2) {
			w.deliver(m)
		}
		ns[2].sync(-1)
		for _, m := range w.take(MsgFenceAnswer, 0) {
			w.deliver(m)
		}
		ns[0].sync(-1)
		for range 2 { // reconcile, then "old" alone reaches node 2, not the opening entry
			for _, m := range w.take(MsgReconcile, 2) {
				w.deliver(m)
			}
			for _, m := range w.take(MsgAppend, 2) {
				m.Entries = m.Entries[:1]
				w.deliver(m)
			}
			ns[2].sync(-1)
			for _, m := range w.take(MsgAppendAnswer, 0) {
				w.deliver(m)
			}
		}
		w.net = nil
		ns[0].down = true
		w.grant(1, 1, 2) // epoch 4: node 1's log ends with epoch 2, it wins
		w.run(1, 2)
		must(ns[1].r.Status().Serving, "node 1: %+v", ns[1].r.Status())
		must(len(ns[1].log) > 1 && ns[1].log[1].Epoch == 2, "LSN 2 has epoch %d", ns[1].log[1].Epoch)
	}
	twin(t, Twins{CommitByCopies: true}, script)
	twin(t, Twins{BestByLSN: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		for range 5 {
			ns[0].append(plain("stray"))
		}
		ns[0].sync(-1)
		w.net = nil
		ns[0].crash(0)
		w.grant(1, 1, 2)
		w.run(1, 2) // commits its opening entry at LSN 2
		must(ns[1].r.Status().Serving, "node 1 does not serve")
		ns[1].down = true
		w.grant(2, 0, 2)
		w.run(0, 2) // node 0 has the longer log, node 2 the better one
		must(ns[2].r.Status().Serving, "node 2: %+v, alarms %v", ns[2].r.Status(), ns[2].alarms)
	})
}

// A candidate whose log is not the best one cuts what differs and copies the rest.
func TestCandidateCopiesTheBestLog(t *testing.T) {
	w, ns := three(t, Twins{})
	for i := range 6 {
		ns[0].append(plain(fmt.Sprint(i)))
	}
	w.run(0, 1) // node 2 has none of it
	ns[2].net(t)
	w.net = nil
	ns[0].down = true
	w.grant(2, 1, 2)
	w.run(1, 2)
	if !ns[2].r.Status().Serving || ns[2].r.d.state.next != 6 {
		t.Fatalf("%+v", ns[2].r.Status())
	}
	ns[0].down = false
	ns[0].step(&Assignment{Revision: w.rev, Shard: shardID, Lineage: lineage, Epoch: w.epoch, Leader: ns[2].cfg.Self, Boot: ns[2].cfg.Boot, Members: w.members})
	w.tick()
	w.run()
	w.tick()
	w.run()
	w.same()
}

func (n *node) net(t *testing.T) {
	if n.r.d.Last() != 1 {
		t.Fatalf("node %d ends at %d", n.id, n.r.d.Last())
	}
}

// A best log that can't be reached from here is named, and nothing is cut.
func TestUnreachableBestLogIsNamed(t *testing.T) {
	w, ns := three(t, Twins{})
	w.grant(2, 2)
	ns[2].sync(-1)
	w.net = nil
	ns[2].step(&Message{
		Kind: MsgFenceAnswer, From: ns[1].cfg.Self, To: ns[2].cfg.Self, Boot: 9, Instance: 1, Shard: shardID, Lineage: lineage, Epoch: 2,
		Vector: vec(1, 1), First: 500, Last: 900, Commit: 600, Stamp: 1,
	})
	s := ns[2].r.Status()
	if s.Serving || s.Best != ns[1].cfg.Self || s.Last != 1 || len(s.Waiting) == 0 {
		t.Fatalf("%+v", s)
	}
}

// Fence, end and vector come from one moment after the stop: what was being
// written is in the answer, and nothing of a lower epoch is taken after.
// Rows: E16
func TestE16_FenceReadsAfterTheStop(t *testing.T) {
	twin(t, Twins{LowerEpochs: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		ns[0].append(plain("racing"))
		for _, m := range w.take(MsgAppend, 1) {
			w.deliver(m) // written at node 1, not durable yet
		}
		w.grant(2, 2)
		ns[2].sync(-1)
		for _, m := range w.take(MsgFence, 1) {
			w.deliver(m)
		}
		must(len(w.take(MsgFenceAnswer, 2)) == 0, "answered before the promise is durable")
		ns[1].sync(-1)
		got := w.take(MsgFenceAnswer, 2)
		must(len(got) == 1 && got[0].Last == 2 && got[0].Vector.EpochAt(2) == 1, "fence answer: %+v", got)
		acks := w.take(MsgAppendAnswer, 0)
		must(len(acks) == 1 && acks[0].Last == 2, "what was acknowledged is not what the answer has: %+v", acks)
		ns[0].sync(-1)
		late := ns[0].append(plain("late"))
		w.deliver(acks[0])
		for _, m := range w.take(MsgAppend, 1) {
			w.deliver(m)
		}
		ns[1].sync(-1)
		must(ns[1].r.d.Last() == 2, "took LSN %d of a lower epoch after its promise", ns[1].r.d.Last())
		w.deliver(got[0])
		w.run()
		w.tick()
		w.run()
		must(ns[0].answer(late).Err != nil, "%+v", ns[0].answer(late))
		must(ns[2].r.Status().Serving && ns[2].r.d.state.next == 1, "node 2: %+v", ns[2].r.Status())
	})
}

// Pairs are derived from the entries, one an epoch, also where epochs follow each
// other with nothing between: two logs that differ there only must be told apart.
// Scenarios: B22
// Rows: E8
func TestE8_EveryEpochHasItsPair(t *testing.T) {
	twin(t, Twins{ReplacePair: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		ns[0].crash(0)
		w.grant(0, 0, 2)
		ns[0].sync(-1)
		for _, m := range w.take(MsgFence, 2) {
			w.deliver(m)
		}
		ns[2].sync(-1)
		for _, m := range w.take(MsgFenceAnswer, 0) {
			w.deliver(m)
		}
		ns[0].sync(-1) // its opening entry, LSN 2 of epoch 2, is here alone
		w.net = nil
		ns[0].down = true
		w.grant(1, 1, 2)
		w.run(1, 2) // LSN 2 of epoch 3
		must(ns[1].r.Status().Serving, "node 1: %+v", ns[1].r.Status())
		ns[0].down = false
		for range 3 {
			w.tick()
			w.run()
		}
		id := ns[1].append(plain("a"))
		w.run()
		w.tick()
		w.run()
		ns[1].good(id)
		w.same()
	})
}
