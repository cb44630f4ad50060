package replica

import (
	"testing"

	"github.com/varve-io/varve/meta"
)

func vec(pairs ...uint64) meta.Vector {
	var v meta.Vector
	for i := 0; i < len(pairs); i += 2 {
		v = append(v, meta.EpochStart{Epoch: meta.Epoch(pairs[i]), LSN: meta.LSN(pairs[i+1])})
	}
	return v
}

// Rows: E4, E5, E6, E7
func TestE6_Diverge(t *testing.T) {
	for _, c := range []struct {
		name        string
		a           meta.Vector
		aLast       meta.LSN
		b           meta.Vector
		bLast       meta.LSN
		agreed      meta.LSN
		unknown     bool
		description string
	}{
		{name: "unknown with unknown (E5)", unknown: true},
		{name: "unknown with known (E5)", b: vec(1, 1), bLast: 4, unknown: true},
		{name: "not a vector (E4)", a: vec(2, 1, 1, 5), aLast: 9, b: vec(1, 1), bLast: 4, unknown: true},
		{name: "the same", a: vec(1, 1), aLast: 4, b: vec(1, 1), bLast: 4, agreed: 4},
		{name: "a prefix", a: vec(1, 1), aLast: 4, b: vec(1, 1), bLast: 2, agreed: 2},
		{name: "end before the next pair", a: vec(1, 1, 2, 5), aLast: 7, b: vec(1, 1), bLast: 3, agreed: 3},
		{name: "end just before the next pair", a: vec(1, 1, 2, 5), aLast: 7, b: vec(1, 1), bLast: 4, agreed: 4},
		{name: "end at the next pair", a: vec(1, 1, 2, 5), aLast: 7, b: vec(1, 1), bLast: 5, agreed: 4},
		{name: "end after the next pair (E7)", a: vec(18, 1, 19, 6), aLast: 6, b: vec(18, 1), bLast: 10, agreed: 5},
		{name: "different epochs after", a: vec(1, 1, 3, 5), aLast: 9, b: vec(1, 1, 2, 5), bLast: 8, agreed: 4},
		{name: "the same epoch at another place is not common", a: vec(1, 1, 3, 5), aLast: 9, b: vec(1, 1, 3, 6), bLast: 8, agreed: 4},
		{name: "last common, not first", a: vec(1, 1, 2, 3, 4, 6), aLast: 9, b: vec(1, 1, 2, 3, 3, 5), bLast: 8, agreed: 4},
		{name: "nothing in common from the start", a: vec(2, 1), aLast: 3, b: vec(1, 1), bLast: 2, agreed: 0},
		{name: "nothing in common, pruned", a: vec(5, 10), aLast: 12, b: vec(1, 1), bLast: 2, unknown: true},
		{name: "pruned, in common", a: vec(5, 10, 7, 14), aLast: 20, b: vec(1, 1, 5, 10, 6, 13), bLast: 15, agreed: 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, turned := range []bool{false, true} {
				a, aLast, b, bLast := c.a, c.aLast, c.b, c.bLast
				if turned {
					a, aLast, b, bLast = b, bLast, a, aLast
				}
				agreed, known := Diverge(a, aLast, b, bLast)
				if known == c.unknown || known && agreed != c.agreed {
					t.Fatalf("turned %v: agreed %d, known %v; want %d, %v", turned, agreed, known, c.agreed, !c.unknown)
				}
			}
		})
	}
}

// Diverge against the slow, obvious way: compare two logs entry by entry.
func TestE6_DivergeAgainstEntries(t *testing.T) {
	rnd := newRand(t, 11)
	for range 3000 {
		logs := [2][]meta.Epoch{}
		shared := rnd.IntN(6)
		e := meta.Epoch(0)
		for range shared {
			if e == 0 || rnd.IntN(2) == 0 {
				e++
			}
			logs[0], logs[1] = append(logs[0], e), append(logs[1], e)
		}
		for i := range logs { // from here on, epochs of their own
			own := e*10 + 10 + meta.Epoch(i)
			for range rnd.IntN(4) {
				if rnd.IntN(2) == 0 || len(logs[i]) == shared {
					own += 2
				}
				logs[i] = append(logs[i], own)
			}
		}
		of := func(log []meta.Epoch) (v meta.Vector) {
			for i, e := range log {
				if i == 0 || log[i-1] != e {
					v = append(v, meta.EpochStart{Epoch: e, LSN: meta.LSN(i + 1)})
				}
			}
			return v
		}
		want := meta.LSN(0)
		for i := range min(len(logs[0]), len(logs[1])) {
			if logs[0][i] != logs[1][i] {
				break
			}
			want++
		}
		got, known := Diverge(of(logs[0]), meta.LSN(len(logs[0])), of(logs[1]), meta.LSN(len(logs[1])))
		if empty := len(logs[0]) == 0 || len(logs[1]) == 0; known == empty || known && got != want {
			t.Fatalf("%v and %v: agreed %d, known %v; want %d", logs[0], logs[1], got, known, want)
		}
	}
}

// Rows: E22
func TestE22_Better(t *testing.T) {
	for _, c := range []struct {
		ae   meta.Epoch
		al   meta.LSN
		be   meta.Epoch
		bl   meta.LSN
		want bool
	}{{2, 3, 1, 9, true}, {1, 9, 2, 3, false}, {2, 4, 2, 3, true}, {2, 3, 2, 3, false}, {0, 0, 0, 0, false}, {1, 1, 0, 0, true}} {
		if got := Better(c.ae, c.al, c.be, c.bl); got != c.want {
			t.Errorf("Better(%d, %d, %d, %d) = %v", c.ae, c.al, c.be, c.bl, got)
		}
	}
}

// Ten elections without a record stack up, archives in between cut the vector at
// its bound, and it stays strict.
// Rows: E8
func TestE8_IdleElections(t *testing.T) {
	w, n := lone(t, Twins{})
	for range 9 {
		w.grant(0)
		w.run()
	}
	v := n.r.d.Vector()
	if len(v) != 10 || v.Validate() != nil || n.r.d.state.next != 0 {
		t.Fatalf("vector %v", v)
	}
	for range meta.MaxVector + 100 {
		w.grant(0)
		w.run()
		if !n.r.Status().Serving { // nothing is archived: it waits and says why
			break
		}
	}
	s := n.r.Status()
	if s.Serving || len(s.Waiting) == 0 || len(n.r.d.Vector()) != meta.MaxVector {
		t.Fatalf("at the bound: %d pairs, %+v", len(n.r.d.Vector()), s)
	}
}

func TestE8_ArchiveShortensTheVector(t *testing.T) {
	w, n := lone(t, Twins{})
	for i := range meta.MaxVector + 500 {
		w.grant(0)
		w.run()
		must(n.r.Status().Serving, "election %d: %+v", i, n.r.Status())
		if i%100 == 0 {
			archive(w, n)
		}
	}
	v := n.r.d.Vector()
	if err := v.Validate(); err != nil || len(v) >= meta.MaxVector {
		t.Fatalf("%d pairs: %v", len(v), err)
	}
	if v.EpochAt(n.r.d.state.archived-1) == 0 {
		t.Fatal("no pair covers the archived end")
	}
	w.same()
}
