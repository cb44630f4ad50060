package replica

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Three members are activated from a manifest: each installs the base before it
// answers, the log goes on after it, producers find their answers. A sleeper that
// still holds the log of before drops it.
func TestActivationFromABase(t *testing.T) {
	src, sn := lone(t, Twins{})
	for i := range int32(5) {
		sn.append(idem(1, 0, i, "v"))
	}
	src.run()
	seal, _ := sn.r.Seal()

	w, ns := three(t, Twins{})
	ns[0].append(plain("of before"))
	w.run()
	w.truth = map[meta.LSN]string{}
	w.epoch, w.rev = 8, 8
	w.epoch++
	w.rev++
	w.row = &Assignment{
		Revision: w.rev, Shard: shardID, Lineage: lineage, Epoch: w.epoch, Leader: ns[1].cfg.Self, Boot: ns[1].cfg.Boot, Members: w.members, Now: w.now,
		Base: &Base{LSN: 30, Mark: 25, State: seal.State},
	}
	first := *w.row
	ns[1].step(&first)
	w.run()
	if ns[1].r.Status().Role != Fencing || ns[0].r.d.Promise() != 1 {
		t.Fatalf("a sleeper answered from below the base: %+v", ns[1].r.Status())
	}
	for _, n := range ns {
		again := *w.row
		n.step(&again)
	}
	for range 3 {
		w.tick()
		w.run()
	}
	if s := ns[1].r.Status(); !s.Serving || s.Start != 31 || s.Last != 31 || s.Droppable != 31 {
		t.Fatalf("%+v", s)
	}
	retry := ns[1].append(idem(1, 0, 4, "v"))
	next := ns[1].append(idem(1, 0, 5, "v"))
	w.run()
	if a := ns[1].good(retry); !a.Duplicate || a.First != 4 {
		t.Fatalf("%+v", a)
	}
	if a := ns[1].good(next); a.First != 5 || a.LSN != 32 {
		t.Fatalf("%+v", a)
	}
	w.tick()
	w.run()
	w.same()
	ns[2].save()
	ns[2].crash(0)
	w.grant(0)
	w.row.Base = nil
	for range 3 {
		w.run()
		w.tick()
	}
	if !ns[0].r.Status().Serving {
		t.Fatalf("%+v", ns[0].r.Status())
	}
	// The next mark goes on from the base's, and its state is the refold from there.
	s, ok := ns[0].r.Seal()
	if !ok || s.Start != 31 || s.Parent != 25 {
		t.Fatalf("%+v", s)
	}
	f, err := NewRefold(seal.State, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Rebase(30, 25)
	for i := range ns[0].log {
		if e := &ns[0].log[i]; e.LSN < s.End {
			if err := f.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := f.State(); !bytes.Equal(st.Encode(), s.State) || st.NextOffset() != s.NextOffset || st.StartOffset() != s.StartOffset || st.Vector().Validate() != nil {
		t.Fatal("the refold from the base is not the seal's state")
	}
	if err := f.Apply(&ns[0].log[0]); !errors.Is(err, meta.ErrCorrupt) {
		t.Fatalf("an entry that does not follow: %v", err)
	}
	archive(w, ns[0])
	w.same()
}

// A base that can't be read stops the shard and changes nothing.
func TestBadBase(t *testing.T) {
	sw, sn := lone(t, Twins{})
	sn.append(plain("a"))
	sw.run()
	seal, _ := sn.r.Seal()
	for name, b := range map[string]Base{
		"no state":           {LSN: 30, Mark: 20},
		"torn":               {LSN: 30, Mark: 20, State: seal.State[:40]},
		"below its state":    {LSN: 1, Mark: 20, State: seal.State},
		"mark inside of it":  {LSN: 30, Mark: 2, State: seal.State},
		"another state's":    {LSN: 30, Mark: 20, State: append(slices.Clone(seal.State), 0)},
		"begins with a zero": {LSN: 30, Mark: 20, State: append([]byte{0}, seal.State[1:]...)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, Twins{})
			n := w.nodes[0]
			n.step(&Assignment{Revision: 1, Shard: shardID, Lineage: lineage, Epoch: 5, Leader: n.cfg.Self, Boot: n.cfg.Boot, Members: w.members, Base: &b})
			if s := n.r.Status(); s.Role != Stopped || len(n.writes) != 0 || len(n.alarms) != 1 {
				t.Fatalf("%+v", s)
			}
		})
	}
}

// What does not continue the log is refused by the fold, with no change.
func TestFoldRefusesWhatDoesNotFit(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a"))
	n.propose(Propose{Kind: ProposeClose})
	w.run()
	next := func() entry.Entry {
		e := n.log[1]
		e.LSN, e.Offset, e.Payload = 4, 1, plain("b")
		return e
	}
	for name, r := range map[string]Record{
		"after a close":          {Kind: KindEntry, Entry: next()},
		"LSN repeated":           {Kind: KindEntry, Entry: n.log[1]},
		"cut below the mark":     {Kind: KindTruncate, LSN: 1},
		"cut above the end":      {Kind: KindTruncate, LSN: 9},
		"unknown record":         {Kind: 77},
		"state record, torn":     {Kind: KindState, Data: []byte{localVersion, 0}},
		"state record, later":    {Kind: KindState, Data: []byte{9}},
		"base record, torn":      {Kind: KindBase, LSN: 9, Data: []byte{baseVersion}},
		"base record, later":     {Kind: KindBase, LSN: 9, Data: []byte{9}},
		"base without its state": {Kind: KindBase, LSN: 9, Data: (&installation{lineage: lineage}).encode()},
	} {
		before := n.r.d.Encode()
		if err := n.r.d.Apply(&r); !errors.Is(err, meta.ErrCorrupt) && !errors.Is(err, meta.ErrFormatLevel) {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(n.r.d.Encode(), before) {
			t.Errorf("%s: the state changed", name)
		}
	}
}

// The queue against a plain slice.
func TestFifo(t *testing.T) {
	rnd := newRand(t, 3)
	var f fifo[*int]
	var plain []*int
	for range 200_000 {
		if rnd.IntN(100) < 50+rnd.IntN(2)*len(plain)%3 || len(plain) < 3 && rnd.IntN(4) != 0 {
			v := new(int)
			f.push(v)
			plain = append(plain, v)
		} else if len(plain) > 0 {
			if got := f.pop(); got != plain[0] {
				t.Fatal("another element came out")
			}
			plain = plain[1:]
		}
		if f.len() != len(plain) || (f.first() == nil) != (len(plain) == 0) {
			t.Fatalf("%d elements, want %d", f.len(), len(plain))
		}
	}
	push := func(n int) {
		for range n {
			v := new(int)
			f.push(v)
			plain = append(plain, v)
		}
	}
	for _, n := range []int{5000, 10, 100} { // deep, and shifted down on the way
		push(n)
		for len(plain) > 200 || n == 100 && len(plain) > 0 {
			if got := f.pop(); got != plain[0] {
				t.Fatal("another element came out")
			}
			plain = plain[1:]
		}
	}
	push(5000)
	for f.len() > 0 {
		f.pop()
	}
	if cap(f.buf) != 0 {
		t.Fatal("a large buffer is kept")
	}
}
