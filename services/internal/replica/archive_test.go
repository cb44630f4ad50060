package replica

import (
	"bytes"
	"errors"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// markOf is what an archiver makes of a seal.
func markOf(s Seal) []byte {
	p := entry.MarkPayload{Start: s.Start, End: s.End, Parent: s.Parent, StartOffset: s.StartOffset, Level: s.Level, Row: []byte("row"), State: s.State}
	if s.NextOffset > s.FirstOffset {
		p.Segment = &meta.SegmentRef{Key: "k", FirstLSN: s.Start, NextLSN: s.End, FirstOffset: s.FirstOffset, NextOffset: s.NextOffset}
	}
	return p.Encode()
}

// archive seals, marks and confirms all that is committed.
func archive(w *world, n *node) (mark meta.LSN) {
	s, ok := n.r.Seal()
	must(ok, "nothing to seal")
	id := n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
	w.run()
	mark = n.good(id).LSN
	id = n.propose(Propose{Kind: ProposeConfirm, LSN: mark})
	w.run()
	n.good(id)
	return mark
}

// A seal ends at the commit mark.
// Rows: T2
func TestT2_OnlyCommittedIsArchived(t *testing.T) {
	twin(t, Twins{ArchiveToEnd: true}, func(t *testing.T, twins Twins) {
		w, n := lone(t, twins)
		n.append(plain("a"))
		w.run()
		n.append(plain("never committed"))
		s, ok := n.r.Seal()
		must(ok && s.End == n.r.d.Commit()+1 && s.NextOffset == 1, "sealed up to LSN %d offset %d; committed is %d", s.End, s.NextOffset, n.r.d.Commit())
	})
	w, n := lone(t, Twins{})
	n.append(plain("a"))
	w.run()
	n.append(plain("pending"))
	s, _ := n.r.Seal()
	s.End++
	a := n.answer(n.propose(Propose{Kind: ProposeMark, Bytes: entry.MarkPayload{Start: s.Start, End: s.End}.Encode()}))
	if !errors.Is(a.Err, meta.ErrInvalid) || a.Applied != AppliedNo {
		t.Fatalf("a mark beyond the commit mark: %+v", a)
	}
}

// The state in a seal is the fold to exactly its end, whatever is committed or
// pending later, and refolding the entries gives the same bytes.
// Rows: T12
func TestT12_StateIsTheFoldToTheEnd(t *testing.T) {
	twin(t, Twins{StateOfNow: true}, func(t *testing.T, twins Twins) {
		w, n := lone(t, twins)
		n.append(idem(5, 0, 0, "a", "b"))
		w.run()
		archive(w, n)
		n.append(idem(5, 0, 2, "c"))
		n.append(idem(6, 0, 0, "d"))
		w.run()
		n.append(idem(5, 0, 3, "pending"))
		s, ok := n.r.Seal()
		must(ok, "nothing to seal")
		last, err := entry.DecodeMark(n.log[s.Parent-1].Payload)
		must(err == nil, "mark: %v", err)
		f, err := NewRefold(last.State, n.r.Expiry())
		must(err == nil, "refold: %v", err)
		for i := s.Start; i < s.End; i++ {
			must(f.Apply(&n.log[i-1]) == nil, "refold LSN %d", i)
		}
		must(bytes.Equal(f.State().Encode(), s.State), "the seal's state is not the fold to LSN %d", s.End-1)

		// Restored from it, the pending sequence is new: no ghost duplicate, nothing skipped.
		r := restored(t, s, meta.LSN(20))
		a := r.good(func() uint64 { id := r.append(idem(5, 0, 3, "pending")); r.w.run(); return id }())
		must(!a.Duplicate && a.First == s.NextOffset, "after the restore: %+v", a)
		d := r.good(func() uint64 { id := r.append(idem(5, 0, 2, "c")); r.w.run(); return id }())
		must(d.Duplicate && d.First == 2, "after the restore, a retry: %+v", d)
	})
}

// restored is a lone node that starts from a seal's state at a base.
func restored(t *testing.T, s Seal, at meta.LSN) *node {
	w := newWorld(t, 1, Twins{})
	w.epoch, w.rev = 50, 50
	n := w.nodes[0]
	w.row = nil
	w.epoch++
	a := &Assignment{
		Revision: 60, Shard: shardID, Lineage: lineage + 1, Epoch: w.epoch, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: w.members,
		Base: &Base{LSN: at, Mark: s.End, State: s.State},
	}
	w.row = a
	n.step(a)
	w.run()
	must(n.r.Status().Serving, "restored: %+v", n.r.Status())
	return n
}

// Every prefix, refolded, is the state that the core had at that commit mark.
// Rows: T12, W12
func TestT12_RefoldAtEveryLSN(t *testing.T) {
	w, n := lone(t, Twins{})
	f, _ := NewRefold(nil, n.r.Expiry())
	check := func() {
		w.run()
		for l := f.State().LSN() + 1; l <= n.r.d.Commit(); l++ {
			if err := f.Apply(&n.log[l-1]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(f.State().Encode(), n.r.d.state.Encode()) {
			t.Fatalf("differs at LSN %d", n.r.d.Commit())
		}
	}
	for i := range int32(40) {
		n.append(idem(int64(i%3), 0, i/3, "x"))
		check()
		switch i % 8 {
		case 3:
			archive(w, n)
		case 5:
			n.propose(Propose{Kind: ProposeTrim, Start: meta.Offset(i / 2)})
		case 6:
			n.propose(Propose{Kind: ProposeFence, Token: "t", Strict: false})
		case 7:
			w.grant(0)
		}
		check()
	}
}

// A mark applies only on the archived end and after the mark it names. A deposed
// leader's mark in flight, committed by the next one, makes a second one refused.
// Rows: T13
func TestT13_MarkIsCompareAndSet(t *testing.T) {
	w, ns := three(t, Twins{})
	ns[0].append(plain("a"))
	w.run()
	s, _ := ns[0].r.Seal()
	first := markOf(s)
	id := ns[0].propose(Propose{Kind: ProposeMark, Bytes: first})
	ns[0].sync(-1)
	for _, m := range w.take(MsgAppend, 1) { // it reaches one follower; then the leader is gone
		w.deliver(m)
	}
	ns[1].sync(-1)
	w.net = nil
	ns[0].down = true
	w.grant(1, 1, 2)
	w.run(1, 2)
	if !ns[1].r.Status().Serving || ns[1].r.d.state.archived != s.End {
		t.Fatalf("the inherited mark did not apply: %+v", ns[1].r.Status())
	}
	again := ns[1].propose(Propose{Kind: ProposeMark, Bytes: first})
	w.run(1, 2)
	if a := ns[1].answer(again); !errors.Is(a.Err, meta.ErrConflict) || a.Applied != AppliedNo {
		t.Fatalf("the same mark again: %+v", a)
	}
	if m := ns[1].r.Marks(); len(m) != 1 || m[0].End != s.End {
		t.Fatalf("marks to put: %+v", m)
	}
	ns[0].down = false
	ns[0].step(Resign{})
	if a := ns[0].answer(id); !errors.Is(a.Err, meta.ErrUnknown) || a.Applied != AppliedUnknown {
		t.Fatalf("the old leader's proposer: %+v", a)
	}
	// The fold judges too: a mark that got into the log beside its place is a no-op.
	d := ns[1].r.d.clone()
	before := d.state.archived
	stray := entry.Entry{Header: entry.Header{Kind: entry.Mark, Level: 1, Lineage: lineage, Epoch: d.tail.epoch, LSN: d.tail.lsn + 1, Offset: d.tail.next, Time: d.tail.time}, Payload: first}
	if err := d.Apply(&Record{Kind: KindEntry, Entry: stray}); err != nil {
		t.Fatal(err)
	}
	d.advance(stray.LSN)
	if d.state.archived != before || d.state.mark == stray.LSN {
		t.Fatal("a mark beside the archived end applied")
	}
}

// Droppable moves at the confirmation, not at the mark, and answers of level
// archive leave then.
// It is the core's part of T1.
// Scenarios: B70
func TestArchiveLevelWaitsForTheManifest(t *testing.T) {
	w, n := lone(t, Twins{})
	id := n.propose(Propose{Kind: ProposeBatch, Bytes: idem(1, 0, 0, "a"), Level: Archive})
	late := n.propose(Propose{Kind: ProposeBatch, Bytes: plain("b"), Level: Quorum})
	w.run()
	n.good(late)
	n.silent(id)
	s, _ := n.r.Seal()
	after := n.propose(Propose{Kind: ProposeBatch, Bytes: plain("c"), Level: Archive})
	m := n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
	w.run()
	mark := n.good(m)
	n.silent(id)
	if v := n.r.Status(); v.ArchivedEnd != s.End || v.Droppable != 1 || v.Marks != 1 {
		t.Fatalf("after the mark: %+v", v)
	}
	retry := n.propose(Propose{Kind: ProposeBatch, Bytes: idem(1, 0, 0, "a"), Level: Archive})
	w.run()
	n.silent(retry)
	bad := n.propose(Propose{Kind: ProposeConfirm, LSN: mark.LSN + 1})
	c := n.propose(Propose{Kind: ProposeConfirm, LSN: mark.LSN})
	w.run()
	n.good(c)
	if a := n.answer(bad); !errors.Is(a.Err, meta.ErrConflict) {
		t.Fatalf("a confirmation of no mark: %+v", a)
	}
	if a := n.good(id); a.First != 0 || a.Duplicate {
		t.Fatalf("%+v", a)
	}
	if a := n.good(retry); a.First != 0 || !a.Duplicate {
		t.Fatalf("%+v", a)
	}
	n.silent(after)
	if v := n.r.Status(); v.Droppable != s.End || v.Marks != 0 {
		t.Fatalf("after the confirmation: %+v", v)
	}
	again := n.propose(Propose{Kind: ProposeConfirm, LSN: mark.LSN})
	w.run()
	if a := n.good(again); !a.NoEffect {
		t.Fatalf("%+v", a)
	}
	n.step(Resign{})
	if a := n.answer(after); !errors.Is(a.Err, meta.ErrUnknown) || a.Applied != AppliedUnknown {
		t.Fatalf("%+v", a)
	}
}

// A mark that names no segment frees what a trim gave up.
func TestMarkWithoutSegment(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a", "b", "c"))
	w.run()
	archive(w, n)
	n.propose(Propose{Kind: ProposeTrim, Start: 2})
	w.run()
	s, ok := n.r.Seal()
	if !ok || s.FirstOffset != s.NextOffset || s.StartOffset != 2 {
		t.Fatalf("%+v", s)
	}
	archive(w, n)
	if v := n.r.Status(); v.Droppable != s.End || v.StartOffset != 2 {
		t.Fatalf("%+v", v)
	}
	w.same()
}

func TestMalformedMarks(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a"))
	w.run()
	s, _ := n.r.Seal()
	good := markOf(s)
	s.NextOffset = 9
	for name, b := range map[string][]byte{"empty": nil, "torn": good[:30], "too long": make([]byte, entry.MaxPayload+1), "segment beyond the end": markOf(s)} {
		if a := n.answer(n.propose(Propose{Kind: ProposeMark, Bytes: b})); !errors.Is(a.Err, meta.ErrInvalid) || errors.Is(a.Err, meta.ErrPoisoned) || a.Applied != AppliedNo {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestTooManyMarks(t *testing.T) {
	w, n := lone(t, Twins{})
	n.r.cfg.Limits.Marks = 2
	for range 2 {
		s, _ := n.r.Seal()
		n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
		w.run()
	}
	s, _ := n.r.Seal()
	if a := n.answer(n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})); !errors.Is(a.Err, meta.ErrExhausted) {
		t.Fatalf("%+v", a)
	}
}
