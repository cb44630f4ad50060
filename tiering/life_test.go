package tiering

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
)

// life is a world in which anything may happen in any order.
type life struct {
	*world
	r       *rand.Rand
	stale   *Manifest // what a leader's older view would be; of the own lineage
	ahead   *Step     // its index objects are put, its manifest not yet
	pins    []*Manifest
	readers []*Reader
	older   map[string]bool // objects of lineages before
	retired map[string]time.Time
}

func (l *life) step() {
	switch l.r.IntN(12) {
	default: // half of the time
		l.world.append(1 + l.r.IntN(3))
		if l.r.IntN(6) == 0 {
			l.s.GiveUp(l.upload().Key)
		}
		ref := l.upload()
		l.mark(&ref)
		l.put()
	case 6:
		if next := l.manifest; next != nil {
			l.trim(l.start + meta.Offset(l.r.IntN(int(next.NextOffset-l.start)+1)))
			l.mark(nil)
			l.put()
		}
	case 7:
		l.world.append(1)
		l.upload() // and the leader dies
		l.elect()
	case 8:
		if l.manifest != nil {
			l.pins = append(l.pins, l.manifest)
		}
	case 9:
		if n := len(l.pins); n > 0 {
			i := l.r.IntN(n)
			l.pins = append(l.pins[:i:i], l.pins[i+1:]...)
		}
	case 10:
		if l.manifest != nil {
			l.readers = append(l.readers, l.reader())
		}
	case 11:
		if n := len(l.readers); n > 0 {
			l.readers[0].Close()
			l.readers = l.readers[1:]
		}
	}
	if l.r.IntN(40) == 0 {
		l.abandon()
	}
}

// put writes the manifest of the newest mark, with a sweep between its index objects
// and itself.
func (l *life) put() {
	st := l.world.step()
	for _, o := range st.objects[:len(st.objects)-1] {
		if _, err := l.b.Put(l.t.Context(), o.key, bucket.Bytes(o.data), bucket.PutOptions{}); err != nil {
			l.t.Fatal(err)
		}
		l.ahead = st
	}
	for range 1 + 2*l.r.IntN(2) { // the bucket may be away for longer than any grace
		l.sweepAndLook()
		l.clock.advance(time.Minute)
	}
	if l.r.IntN(3) == 0 {
		l.stale = l.manifest
	}
	l.write()
	l.ahead = nil
}

// abandon goes on in the next lineage, from the manifest that is newest now.
func (l *life) abandon() {
	l.lin++
	l.elect()
	l.stale = nil
	for _, key := range l.keys("") {
		l.older[key] = true
	}
}

// needs are the objects that a manifest can't be read without.
func needs(m *Manifest, objects map[string][]byte) (map[string]bool, []string) {
	a := &audit{objects: objects, named: make(map[string]bool)}
	a.named[m.Key()] = true
	a.manifest(m)
	return a.named, a.faults
}

func (l *life) objects() map[string][]byte {
	out := make(map[string][]byte)
	for _, key := range l.keys("") {
		b, _, err := l.b.Load(l.t.Context(), key, 1<<30)
		if err != nil {
			l.t.Fatal(err)
		}
		out[key] = b
	}
	return out
}

func (l *life) sweepAndLook() {
	l.t.Helper()
	before := l.objects()
	pinned := make(map[string]bool)
	for _, m := range l.pins {
		keys, _ := needs(m, before)
		for key := range keys {
			pinned[key] = true
		}
	}
	view := l.manifest
	if l.stale != nil && l.r.IntN(3) == 0 {
		view = l.stale
	}
	l.clock.advance(time.Duration(l.r.IntN(40)) * time.Second)
	_, err := l.s.Sweep(l.t.Context(), SweepRequest{Shard: l.shard, Lineage: l.lin, Authority: func(context.Context) (Authority, error) {
		a := l.authority()
		a.Manifest, a.Pinned = view, func(key string) bool { return pinned[key] }
		return a, nil
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	after := l.objects()
	for key := range l.older {
		if after[key] == nil {
			l.t.Fatalf("%s of an earlier lineage is gone", key)
		}
	}
	in := append([]*Manifest{l.manifest}, l.pins...)
	for _, r := range l.readers {
		in = append(in, r.Manifest())
	}
	for _, m := range in {
		if m == nil {
			continue
		}
		keys, faults := needs(m, after)
		if l.pinnedOrNewest(m) && after[m.Key()] == nil || len(faults) > 0 {
			l.t.Fatalf("manifest %s (%d objects) after a sweep: %q", m.Key(), len(keys), faults)
		}
	}
	if l.ahead != nil {
		for _, o := range l.ahead.objects[:len(l.ahead.objects)-1] {
			if after[o.key] == nil {
				l.t.Fatalf("%s, put ahead of its manifest, is gone", o.key)
			}
		}
	}
	for key := range before {
		if _, err := ParseSegmentKey(key); err == nil && after[key] == nil && l.manifest != nil {
			l.gone(key)
		}
	}
}

// gone checks that what a written manifest named had its grace.
func (l *life) gone(key string) {
	if at, ok := l.retired[key]; ok && l.clock.now().Sub(at) < l.s.opt.Grace {
		l.t.Fatalf("%s went %s after it was retired", key, l.clock.now().Sub(at))
	}
}

func (l *life) pinnedOrNewest(m *Manifest) bool {
	for _, p := range append([]*Manifest{l.manifest}, l.pins...) {
		if p == m {
			return true
		}
	}
	return false
}

// noteRetired remembers when the newest manifest stopped naming something.
func (l *life) noteRetired(before *Manifest) {
	if before == nil || before == l.manifest {
		return
	}
	objects := l.objects()
	had, _ := needs(before, objects)
	has, _ := needs(l.manifest, objects)
	for key := range had {
		if _, seen := l.retired[key]; !has[key] && !seen {
			l.retired[key] = l.clock.now()
		}
	}
}

// Rows: T7
// Whatever comes in whatever order (archives, trims inside segments and inside index
// objects, elections, pins, readers, stale views, index objects ahead of their
// manifest, a new lineage): no sweep takes what the newest manifest, a pinned one or a
// reader needs, nothing goes before its grace, and in the end nothing is left over.
func TestT7_AnyOrderOfEverything(t *testing.T) {
	for seed := range uint64(8) {
		w := newWorld(t, func(o *Options) { o.Grace = time.Minute })
		w.width = 3
		l := &life{world: w, r: rand.New(rand.NewPCG(seed, 21)), older: make(map[string]bool), retired: make(map[string]time.Time)}
		for range 70 {
			before := l.manifest
			l.step()
			l.noteRetired(before)
			if l.manifest != nil && l.r.IntN(3) == 0 {
				l.sweepAndLook()
			}
		}
		l.checkAll()
		l.pins, l.stale = nil, nil
		for _, r := range l.readers {
			r.Close()
		}
		l.readers = nil
		l.world.append(1)
		l.archive()      // of this lineage and epoch
		if seed%2 == 0 { // else what the running epoch left is known as retired or given up
			l.elect()
		}
		for range 8 {
			l.sweepAndLook()
			l.clock.advance(time.Hour)
		}
		for _, key := range l.audit().unnamed() {
			if !l.older[key] {
				t.Errorf("seed %d: %s is left over", seed, key)
			}
		}
		for key, first := range l.s.seen {
			if first.IsZero() {
				t.Errorf("seed %d: %s is remembered though it is gone", seed, key)
			}
		}
		l.checkAll()
		if t.Failed() {
			return
		}
	}
}
