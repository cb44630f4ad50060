package tiering

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
)

func TestSegmentsAndInspect(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.append(4)
		w.archive()
	}
	var keys []string
	for ref, err := range w.s.Segments(t.Context(), w.manifest, 17) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, ref.Key)
	}
	if len(keys) != 3 || keys[0] != w.manifest.Segments[2].Key {
		t.Fatal(keys)
	}
	rep, err := w.s.Inspect(t.Context(), keys[0])
	if err != nil || len(rep.Faults) > 0 || rep.Records != 8 {
		t.Fatalf("%+v %v", rep, err)
	}
	w.overwrite(keys[0], func(b []byte) []byte { b[500] ^= 1; return b })
	rep, err = w.s.Inspect(t.Context(), keys[0])
	var out bytes.Buffer
	if err != nil || len(rep.Faults) == 0 {
		t.Fatal(err)
	}
	if _, err := rep.WriteTo(&out); err != nil || !strings.Contains(out.String(), "DAMAGED") {
		t.Fatal(out.String())
	}
}

// Retention's part; pins of snapshots belong to the whole.
// B64, B66: the start offset that a retention asks for is what walking all records
// says: no record that the limits keep goes, and no whole segment stays that none
// of them keeps.
func TestRetained(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		w := newWorld(t)
		for range 6 {
			w.append(1 + r.IntN(9))
			w.now += meta.Micros(r.IntN(30))
			w.archive()
		}
		if r.IntN(2) == 0 {
			w.trim(meta.Offset(r.IntN(int(w.next))))
			w.mark(nil)
			w.write()
		}
		keep := Retention{}
		switch r.IntN(3) {
		case 0:
			keep.Age = time.Duration(r.IntN(100)) * time.Microsecond
		case 1:
			keep.Records = uint64(r.IntN(60))
		case 2:
			_, all := w.manifest.Count()
			keep.Bytes = uint64(r.IntN(int(all) + 1000))
		}
		got, err := w.s.Retained(t.Context(), w.manifest, keep, w.now)
		if err != nil || got < w.start || got > w.manifest.NextOffset {
			t.Fatalf("seed %d: %d %v", seed, got, err)
		}
		for _, e := range w.archived(0) {
			young := keep.Age > 0 && w.now-e.Time <= meta.Micros(keep.Age.Microseconds())
			last := keep.Records > 0 && uint64(w.next-e.Offset) <= keep.Records
			if (young || last) && max(e.Offset, w.start) < got {
				t.Fatalf("seed %d: %+v takes offset %d away, start %d", seed, keep, e.Offset, got)
			}
		}
		left, first := uint64(0), true
		for ref, err := range w.s.Segments(t.Context(), w.manifest, got) {
			if err != nil {
				t.Fatal(err)
			}
			if first && keep.Age > 0 && ref.LastTime < w.now-meta.Micros(keep.Age.Microseconds()) {
				t.Fatalf("seed %d: a segment older than the limit stays", seed)
			}
			first = false
			left += uint64(ref.Size)
		}
		if keep.Bytes > 0 && got > w.start && left < keep.Bytes {
			t.Fatalf("seed %d: %d bytes are left of %d to keep", seed, left, keep.Bytes)
		}
		if keep == (Retention{}) && got != w.start {
			t.Fatalf("seed %d: no limit moved the start", seed)
		}
	}
}

// Rows: T7
// A hibernating shard: unnamed and of the row's epoch or a lower one goes.
func TestT7_HibernatingShard(t *testing.T) {
	w := newWorld(t)
	w.append(4)
	w.archive()
	for epoch := range meta.Epoch(3) {
		k := SegmentKey{w.shard, w.lin, epoch, 3, uuid.UUID{9}}
		if _, err := w.b.Put(t.Context(), k.String(), bucket.Body{}, bucket.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	res, err := w.s.Sweep(t.Context(), SweepRequest{Shard: w.shard, Lineage: w.lin, Authority: func(context.Context) (Authority, error) {
		return Authority{Through: w.epoch, Manifest: w.manifest}, nil
	}})
	if err != nil || res.Deleted != 2 || len(w.keys("streams/")) != 2 {
		t.Fatalf("%+v %v", res, err)
	}
	w.checkAll()
}

// Retention's part; pins of snapshots belong to the whole.
// B62: bytes below the start offset, which an index object still counts, are not
// counted twice against what is to be kept; and no limit is too large to mean "all".
func TestRetainedCountsOnlyWhatCanBeRead(t *testing.T) {
	w := newWorld(t)
	const size = 5000
	for n := 9; n < 80; n += 7 { // trees of index objects of up to two levels
		for dead := range n {
			start := func(i int) meta.Offset { // moved by the last mark, into a list
				if i < n-1 {
					return 0
				}
				return meta.Offset(8 * dead)
			}
			m := chain(t, n, 4, start, func(st *Step) {
				if err := w.s.PutManifest(t.Context(), st); err != nil {
					t.Fatal(err)
				}
			})
			w.s.cache.forget(func(string) bool { return true }) // the same keys, other content
			left := n - dead
			for keep := 1; keep <= left+1; keep += 3 {
				want := meta.Offset(8 * (dead + max(0, left-keep)))
				for _, r := range []Retention{{Bytes: uint64(keep * size)}, {Records: uint64(keep * 8)}} {
					if got, err := w.s.Retained(t.Context(), m, r, 0); err != nil || got != want {
						t.Fatalf("%d segments, %d below the start, %+v: start %d, want %d (%v)", n, dead, r, got, want, err)
					}
				}
			}
			for _, r := range []Retention{{Bytes: ^uint64(0)}, {Records: ^uint64(0)}, {Bytes: ^uint64(0) - size/2}} {
				if got, err := w.s.Retained(t.Context(), m, r, 0); err != nil || got != m.StartOffset {
					t.Fatalf("%+v: start %d, want %d (%v)", r, got, m.StartOffset, err)
				}
			}
			if err := w.b.Delete(t.Context(), w.keys("manifests/")); err != nil {
				t.Fatal(err)
			}
		}
	}
}
