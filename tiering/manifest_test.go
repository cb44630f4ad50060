package tiering

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

var update = flag.Bool("update", false, "write golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got) {
		t.Fatalf("%s: the format changed:\n%s", name, cmp.Diff(string(want), string(got)))
	}
}

func sampleRef(i int) meta.SegmentRef {
	n := uint64(i)
	k := SegmentKey{Shard: shardNamed("a/b", 77), Lineage: meta.NewLineage(1, 1), Epoch: 3, Base: meta.LSN(1 + 10*n), ID: uuid.UUID{15: byte(i), 14: byte(i >> 8), 6: 0x40, 8: 0x80}}
	return meta.SegmentRef{
		Key: k.String(), Size: 5000, CRC: 0xdeadbeef, IndexAt: 4000, IndexLen: 1000,
		FirstLSN: meta.LSN(1 + 10*n), NextLSN: meta.LSN(11 + 10*n),
		FirstOffset: meta.Offset(8 * n), NextOffset: meta.Offset(8 + 8*n),
		FirstTime: meta.Micros(1_700_000_000_000_000 + 100*n), LastTime: meta.Micros(1_700_000_000_000_099 + 100*n),
		FirstEpoch: 3, LastEpoch: 3,
	}
}

// chain builds n manifests, each with one more segment; marks stand between them.
func chain(t testing.TB, n, width int, start func(i int) meta.Offset, visit func(*Step)) *Manifest {
	t.Helper()
	var m *Manifest
	shard := shardNamed("a/b", 77)
	for i := range n {
		ref := sampleRef(i)
		p := entry.MarkPayload{Start: ref.FirstLSN, End: ref.NextLSN, Level: 1, Row: []byte(`{"shards":1}`), State: []byte{0, 1, 255, byte(i)}, Segment: &ref, StartOffset: start(i)}
		if m != nil {
			p.Parent = m.Mark
		}
		h := entry.Header{Kind: entry.Mark, Level: 1, Lineage: meta.NewLineage(1, 1), Epoch: 4, LSN: ref.NextLSN + 5}
		st, err := next(shard, m, h, &p, meta.Vector{{Epoch: 3, LSN: 1}}, width)
		if err != nil {
			t.Fatalf("manifest %d: %v", i, err)
		}
		if visit != nil {
			visit(st)
		}
		m = st.Manifest
	}
	return m
}

func fromZero(int) meta.Offset { return 0 }

func TestGoldenObjects(t *testing.T) {
	var index, manifest []byte
	chain(t, 9, 4, func(i int) meta.Offset { return meta.Offset(min(i, 3)) }, func(st *Step) {
		if len(st.objects) > 1 {
			index = st.objects[0].data
		}
		manifest = st.objects[len(st.objects)-1].data
	})
	golden(t, "manifest.json", manifest)
	golden(t, "index.json", index)
	tomb, err := encodeTombstone(meta.Tombstone{Stream: meta.StreamName{Namespace: "logs", Name: "a/b"}, Through: 77})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "tombstone.json", tomb)
	claim, err := encodeClaim(Claim{Generation: 2, Cluster: cluster, Level: 1, Window: 5e9, Released: true})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "claim.json", claim)
	var out []string
	chain(t, 1, 4, fromZero, func(st *Step) { out = append(out, st.Key()) })
	out = append(out, sampleRef(1).Key, indexKey(shardNamed("a/b", 77), ManifestID{1, 2}, 1), claimKey(2, cluster), tombstoneKey(meta.StreamName{Namespace: "logs", Name: "a/b"}, 77))
	for _, key := range out {
		if err := bucket.CheckKey(key); err != nil {
			t.Error(err)
		}
	}
	golden(t, "keys.txt", []byte(strings.Join(out, "\n")+"\n"))
}

// Every object's bytes are the only spelling of what they say, and any flipped bit
// is found.
func TestDocumentsAreStrict(t *testing.T) {
	var b []byte
	chain(t, 3, 4, fromZero, func(st *Step) { b = st.objects[len(st.objects)-1].data })
	if m, err := DecodeManifest(b); err != nil {
		t.Fatal(err)
	} else if again, err := m.Encode(); err != nil || !bytes.Equal(again, b) {
		t.Fatal("encode(decode(x)) != x")
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x10
		if _, err := DecodeManifest(bad); err == nil {
			t.Fatalf("byte %d flipped: nothing noticed", i)
		}
		if _, err := DecodeManifest(b[:i]); err == nil {
			t.Fatalf("cut to %d bytes: nothing noticed", i)
		}
	}
	if _, err := DecodeManifest(append(bytes.Clone(b), ' ')); err == nil {
		t.Fatal("a space at the end was taken")
	}
	later := bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1)
	if _, err := DecodeManifest(later); !errors.Is(err, meta.ErrFormatLevel) {
		t.Fatalf("a later version: %v", err)
	}
	if _, err := decodeTombstone(b); !errors.Is(err, meta.ErrCorrupt) {
		t.Fatalf("a manifest as a tombstone: %v", err)
	}
}

// Rows: T12, T13
// A manifest is a pure function of parent and mark: whoever builds it, from
// whatever vector covers it, however late, gets the same bytes; its state is the
// mark's, and a mark that does not continue its parent makes none.
func TestT12_T13_ManifestIsAPureFunction(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.append(3)
		w.archive()
	}
	w.elect()
	w.append(3)
	ref := w.upload()
	m := w.mark(&ref)
	one := w.step()
	// Later on: more entries and epochs in the log, older pairs dropped.
	w.elect()
	w.append(20)
	w.vector = w.vector[1:]
	decoded, err := entry.DecodeMark(m.payload.Encode())
	if err != nil {
		t.Fatal(err)
	}
	parent, err := w.s.LoadManifest(t.Context(), w.shard, w.manifest.ID())
	if err != nil {
		t.Fatal(err)
	}
	two, err := Next(w.shard, parent, m.head, &decoded, w.vector)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(one.objects, two.objects, cmp.AllowUnexported(object{})); d != "" {
		t.Fatal(d)
	}
	if got := two.Manifest; string(got.State) != fmt.Sprintf("state to %d", got.ArchivedEnd-1) || got.Parent != parent.ID() ||
		got.ArchivedEnd != ref.NextLSN || len(got.Vector) != 1 || got.Vector[0].Epoch != 2 {
		t.Fatalf("%+v", got)
	}
	for range 2 { // and twice is harmless, from two stores
		if err := w.open().PutManifest(t.Context(), two); err != nil {
			t.Fatal(err)
		}
	}
	sameElse := *two.Manifest
	sameElse.Row = []byte("other")
	b, err := sameElse.Encode()
	if err != nil {
		t.Fatal(err)
	}
	err = w.s.PutManifest(t.Context(), &Step{Manifest: &sameElse, objects: []object{{sameElse.Key(), b}}})
	if !errors.Is(err, meta.ErrConflict) {
		t.Fatalf("other content under the key of a manifest: %v", err)
	}

	bad := func(name string, change func(h *entry.Header, p *entry.MarkPayload), parent *Manifest) {
		t.Helper()
		h, p := m.head, m.payload
		change(&h, &p)
		if _, err := Next(w.shard, parent, h, &p, w.vector); err == nil {
			t.Errorf("%s: a manifest was made", name)
		}
	}
	bad("start is not the archived end", func(_ *entry.Header, p *entry.MarkPayload) { p.Start-- }, parent)
	bad("another parent", func(_ *entry.Header, p *entry.MarkPayload) { p.Parent++ }, parent)
	bad("no parent given", func(*entry.Header, *entry.MarkPayload) {}, nil)
	bad("a parent of a later lineage", func(h *entry.Header, _ *entry.MarkPayload) { h.Lineage-- }, parent)
	bad("start offset going back", func(_ *entry.Header, p *entry.MarkPayload) { p.StartOffset = 0 }, &Manifest{Shard: w.shard, Lineage: w.lin, Mark: parent.Mark, ArchivedEnd: parent.ArchivedEnd, StartOffset: 5, NextOffset: 9})
	bad("a vector that doesn't cover it", func(_ *entry.Header, p *entry.MarkPayload) { w.vector = nil }, parent)
}

// A first manifest of a lineage names the one it continues, and only the own
// lineage is believed, however high another one's marks are.
func TestOnlyTheOwnLineageIsBelieved(t *testing.T) {
	w := newWorld(t)
	w.append(5)
	w.archive()
	old := w.manifest
	base := old.ID()
	w.lin = meta.NewLineage(2, 1)
	m, err := w.s.Newest(t.Context(), w.shard, w.lin, base)
	if err != nil || m.ID() != base {
		t.Fatalf("%v %v", m, err)
	}
	w.elect()
	w.append(5)
	w.archive()
	if w.manifest.Parent != base || w.manifest.Lineage == base.Lineage {
		t.Fatalf("parent %+v", w.manifest.Parent)
	}
	// The old cluster still runs and goes on.
	ghost := *old
	ghost.Mark += 1000
	b, err := ghost.Encode()
	if err == nil {
		_, err = w.b.Put(t.Context(), ghost.Key(), bucket.Bytes(b), bucket.PutOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if m, err := w.s.Newest(t.Context(), w.shard, w.lin, base); err != nil || m.ID() != w.manifest.ID() {
		t.Fatalf("%v %v", m, err)
	}
	w.checkAll()
	// What it retires of the old lineage waits for an operator.
	w.trim(10)
	w.mark(nil)
	w.write()
	w.elect()
	w.s = w.open() // no reader holds it
	if res := w.sweep(); res.Deleted != 0 || res.OtherLineages != 1 {
		t.Fatalf("%+v", res)
	}
	_, err = w.s.Sweep(t.Context(), SweepRequest{
		Shard: w.shard, Lineage: w.lin, OtherLineages: true,
		Authority: func(context.Context) (Authority, error) { return w.authority(), nil },
	})
	if err != nil || w.has(old.Segments[0].Key) {
		t.Fatalf("%v", err)
	}
	if n, err := w.s.Newest(t.Context(), shardNamed("nobody", 1), 1, ManifestID{}); n != nil || err != nil {
		t.Fatal(n, err)
	}
}

// Rows: T1, T13
// A segment that leaves records out, or whose key a sweep would not find by what
// the manifest says, makes no manifest, so the log keeps what it holds.
func TestT13_SegmentThatDoesNotGoOn(t *testing.T) {
	m := chain(t, 2, 4, fromZero, nil)
	for name, change := range map[string]func(*entry.MarkPayload, *SegmentKey){
		"gap":             func(p *entry.MarkPayload, _ *SegmentKey) { p.Segment.FirstOffset++ },
		"overlap":         func(p *entry.MarkPayload, _ *SegmentKey) { p.Segment.FirstOffset-- },
		"other shard":     func(_ *entry.MarkPayload, k *SegmentKey) { k.Shard.Shard++ },
		"other life":      func(_ *entry.MarkPayload, k *SegmentKey) { k.Shard.Incarnation++ },
		"later lineage":   func(_ *entry.MarkPayload, k *SegmentKey) { k.Lineage++ },
		"base of another": func(_ *entry.MarkPayload, k *SegmentKey) { k.Base++ },
		"no key":          func(p *entry.MarkPayload, k *SegmentKey) { k.Shard.Stream.Name = "" },
		"":                func(*entry.MarkPayload, *SegmentKey) {},
		"gap below start": func(p *entry.MarkPayload, _ *SegmentKey) {
			p.Segment.FirstOffset += 2
			p.StartOffset = p.Segment.FirstOffset
		},
	} {
		ref := sampleRef(2)
		key, err := ParseSegmentKey(ref.Key)
		if err != nil {
			t.Fatal(err)
		}
		p := entry.MarkPayload{Start: ref.FirstLSN, End: ref.NextLSN, Parent: m.Mark, Level: 1, Segment: &ref}
		change(&p, &key)
		ref.Key = key.String()
		h := entry.Header{Kind: entry.Mark, Level: 1, Lineage: m.Lineage, Epoch: 4, LSN: ref.NextLSN + 5}
		_, err = Next(m.Shard, m, h, &p, meta.Vector{{Epoch: 3, LSN: 1}})
		if fine := name == "" || name == "gap below start"; (err == nil) != fine || err != nil && !errors.Is(err, meta.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The size of a manifest does not grow with history; every segment is found by
// offset, time and LSN through the tree, as by walking all of them; and what is
// trimmed leaves it.
func TestIndexObjectsTree(t *testing.T) {
	const n, width = 300, 4
	w := newWorld(t)
	most := 0
	start := func(i int) meta.Offset { return meta.Offset(max(0, i-200) * 8) }
	m := chain(t, n, width, start, func(st *Step) {
		if err := w.s.PutManifest(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		most = max(most, len(st.Manifest.Older)+len(st.Manifest.Segments))
	})
	if most > width+(width-1)*(maxDepth+1)+n/width/width/width/width {
		t.Fatalf("a manifest held %d references", most)
	}
	first := 99 // below it, all is trimmed
	for i := first; i < n; i++ {
		want := sampleRef(i)
		for what, pass := range map[string]func(ends) bool{
			"first offset": aboveOffset(want.FirstOffset), "last offset": aboveOffset(want.NextOffset - 1),
			"LSN": aboveLSN(want.FirstLSN + 3), "time": notBefore(want.LastTime), "time between": notBefore(want.FirstTime),
		} {
			got, err := w.s.find(t.Context(), m, pass)
			if err != nil || got == nil || *got != want {
				t.Fatalf("segment %d by %s: %+v %v", i, what, got, err)
			}
		}
		if named, err := w.s.names(t.Context(), m, want.Key, want.FirstLSN); err != nil || !named {
			t.Fatalf("segment %d is not named: %v", i, err)
		}
	}
	for _, i := range []int{0, first - 1, n} {
		ref := sampleRef(i)
		if named, err := w.s.names(t.Context(), m, ref.Key, ref.FirstLSN); err != nil || named {
			t.Fatalf("segment %d is named: %v", i, err)
		}
	}
	if got, err := w.s.find(t.Context(), m, aboveOffset(m.NextOffset)); got != nil || err != nil {
		t.Fatal(got, err)
	}
}

// The same at full width: 1,024 inline, and one more sends them to an index object.
func TestManifestHolds1024Segments(t *testing.T) {
	m := chain(t, 1, width, fromZero, nil)
	for i := 1; i < width-1; i++ {
		ref := sampleRef(i)
		m.Segments = append(m.Segments, ref)
		m.ArchivedEnd, m.NextOffset, m.Mark = ref.NextLSN, ref.NextOffset, ref.NextLSN+5
	}
	for i := width - 1; i < width+2; i++ {
		ref := sampleRef(i)
		p := entry.MarkPayload{Start: ref.FirstLSN, End: ref.NextLSN, Parent: m.Mark, Level: 1, Segment: &ref}
		h := entry.Header{Kind: entry.Mark, Level: 1, Lineage: m.Lineage, Epoch: 4, LSN: ref.NextLSN + 5}
		st, err := Next(m.Shard, m, h, &p, meta.Vector{{Epoch: 3, LSN: 1}})
		if err != nil {
			t.Fatal(err)
		}
		m = st.Manifest
		wantInline, wantObjects := i+1, 1
		if i >= width {
			wantInline = i + 1 - width
		}
		if i == width {
			wantObjects = 2
		}
		if segs, bytes := m.Count(); segs != uint64(i+1) || bytes != uint64(i+1)*5000 || len(m.Segments) != wantInline || len(st.objects) != wantObjects {
			t.Fatalf("with %d segments: %d inline, %d older, %d objects", i+1, len(m.Segments), len(m.Older), len(st.objects))
		}
	}
}

// Index objects are swept with the manifests that named them, and a sweep of a
// shard with many keeps what is named.
func TestIndexObjectsAreSwept(t *testing.T) {
	w := newWorld(t)
	start := func(i int) meta.Offset { return meta.Offset(max(0, i-10) * 8) }
	w.shard = shardNamed("a/b", 77)
	w.manifest = chain(t, 60, 4, start, func(st *Step) {
		if err := w.s.PutManifest(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		ref := st.Manifest.Segments[len(st.Manifest.Segments)-1]
		if _, err := w.b.Put(t.Context(), ref.Key, bucket.Body{}, bucket.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	w.epoch = 3 // the segments' own: nothing is garbage by epoch
	for range 10 {
		w.sweep()
	}
	if got := w.keys("streams/"); len(got) != 11 {
		t.Fatalf("%d segments are left", len(got))
	}
	manifests, indexes := 0, 0
	for _, key := range w.keys("manifests/") {
		if strings.HasSuffix(key, indexSuffix) {
			indexes++
		} else {
			manifests++
		}
	}
	if manifests != 2 || indexes > 6 {
		t.Fatalf("%d manifests, %d index objects", manifests, indexes)
	}
	for i := 49; i < 60; i++ {
		want := sampleRef(i)
		s := w.open()
		if got, err := s.find(t.Context(), w.manifest, aboveOffset(want.FirstOffset)); err != nil || *got != want {
			t.Fatalf("segment %d: %v", i, err)
		}
	}
}

func TestKeysRoundTrip(t *testing.T) {
	ref := sampleRef(5)
	k, err := ParseSegmentKey(ref.Key)
	if err != nil || k.String() != ref.Key || k.Base != 51 {
		t.Fatal(k, err)
	}
	for _, bad := range []string{"", "streams/", ref.Key + "x", strings.ToUpper(ref.Key), strings.Replace(ref.Key, "~", "/", 1), strings.Replace(ref.Key, "streams", "manifests", 1), ref.Key[:len(ref.Key)-5]} {
		if _, err := ParseSegmentKey(bad); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
		if _, err := parseManifestKey(bad); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add(sampleRef(1).Key)
	f.Add(ManifestKey(shardNamed("a", 1), ManifestID{1, 2}))
	f.Add(indexKey(shardNamed("a", 1), ManifestID{1, 2}, 2))
	f.Add(claimKey(3, cluster))
	f.Add(tombstoneKey(meta.StreamName{Namespace: "n", Name: "a/b"}, 4))
	f.Fuzz(func(t *testing.T, key string) {
		if k, err := ParseSegmentKey(key); err == nil && k.String() != key {
			t.Fatal("segment key")
		}
		if m, err := parseManifestKey(key); err == nil && m.Depth < 0 && ManifestKey(m.Shard, m.ID) != key {
			t.Fatal("manifest key")
		}
		if g, c, err := parseClaimKey(key); err == nil && claimKey(g, c) != key {
			t.Fatal("claim key")
		}
		if tb, err := parseTombstoneKey(key); err == nil && tombstoneKey(tb.Stream, tb.Through) != key {
			t.Fatal("tombstone key")
		}
	})
}

// FuzzDocuments feeds bodies behind a right checksum to every decoder.
func FuzzDocuments(f *testing.F) {
	for _, name := range []string{"manifest.json", "index.json", "tombstone.json", "claim.json"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		_, body, _ := bytes.Cut(b, []byte(`"body":`))
		f.Add(bytes.TrimSuffix(body, []byte("}\n")))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		wrap := func(magic string) []byte {
			return fmt.Appendf(nil, `{"magic":"%s","version":1,"crc32c":"%s","body":%s}`+"\n", magic, hex32(bucket.Checksum(body)), body)
		}
		if m, err := DecodeManifest(wrap(manifestMagic)); err == nil {
			if again, err := m.Encode(); err != nil || !bytes.Equal(again, wrap(manifestMagic)) {
				t.Fatal("manifest")
			}
		}
		if x, err := decodeIndexObject(wrap(indexMagic)); err == nil {
			if again, err := x.encode(); err != nil || !bytes.Equal(again, wrap(indexMagic)) {
				t.Fatal("index object")
			}
		}
		if x, err := decodeTombstone(wrap(tombstoneMagic)); err == nil {
			if again, err := encodeTombstone(x); err != nil || !bytes.Equal(again, wrap(tombstoneMagic)) {
				t.Fatal("tombstone")
			}
		}
		if x, err := decodeClaim(wrap(claimMagic)); err == nil {
			if again, err := encodeClaim(x); err != nil || !bytes.Equal(again, wrap(claimMagic)) {
				t.Fatal("claim")
			}
		}
	})
}

// B46, B70: the bucket dies between any two requests of upload and manifest; a
// restart with no more traffic finishes, nothing is lost and nothing is left over.
func TestCrashBetweenAnySteps(t *testing.T) {
	for skip := range 8 {
		for _, lost := range []bool{false, true} {
			w := newWorld(t)
			w.append(9)
			w.archive()
			w.append(9)
			f := fault.Fault{Op: fault.Put, Skip: skip % 4, Times: -1, Before: bucket.ErrUnavailable}
			if lost {
				f.Before, f.After = nil, bucket.ErrUnknown // done, but the answer is lost
			}
			w.b.Inject(f)
			// The process dies in the middle: its waits end.
			ctx, cancel := context.WithCancel(t.Context())
			w.b.Watch(func(c fault.Call) {
				if c.Op == fault.Put && w.b.Count(fault.Put) > int64(skip) {
					cancel()
				}
			})
			w.b.ResetCounts()
			ref, err := w.s.UploadSegment(ctx, w.sealed())
			if err == nil {
				w.mark(&ref)
				err = w.s.PutManifest(ctx, w.step())
			}
			cancel()
			w.b.Watch(nil)
			w.b.Clear()

			w.s = w.open()
			w.elect()
			if err != nil && len(w.marks) < 2 {
				ref := w.upload()
				w.mark(&ref)
			}
			w.write()
			w.sweep()
			w.checkAll()
			if n := len(w.keys("streams/")); n != len(w.manifest.Segments) {
				t.Fatalf("skip %d, lost %v: %d objects for %d segments", skip, lost, n, len(w.manifest.Segments))
			}
			for _, s := range w.manifest.Segments {
				if b, _, err := w.b.Load(t.Context(), s.Key, 1<<20); err != nil || bucket.Checksum(b) != s.CRC || int64(len(b)) != s.Size {
					t.Fatalf("%s: %v", s.Key, err)
				}
			}
		}
	}
}

// Rows: T13
// Marks that only move the start offset, and what no mark may do with it.
func TestT13_TrimOnlyMarks(t *testing.T) {
	shard, lin := shardNamed("a/b", 77), meta.NewLineage(1, 1)
	build := func(parent *Manifest, h entry.Header, p entry.MarkPayload) (*Step, error) {
		p.Level, h.Kind, h.Level, h.Epoch = 1, entry.Mark, 1, 4
		return Next(shard, parent, h, &p, meta.Vector{{Epoch: 3, LSN: 1}})
	}
	// All that was committed lies below the start: nothing to upload, reading begins there.
	first, err := build(nil, entry.Header{Lineage: lin, LSN: 30}, entry.MarkPayload{Start: 1, End: 25, StartOffset: 40})
	if err != nil || first.Manifest.NextOffset != 40 || first.Manifest.StartOffset != 40 {
		t.Fatalf("%+v %v", first, err)
	}
	m := chain(t, 3, 4, fromZero, nil)
	ahead := *m
	ahead.Lineage++
	for name, c := range map[string]struct {
		parent *Manifest
		start  meta.Offset
		want   error
	}{
		"the same start": {m, 0, nil},
		"back":           {first.Manifest, 39, meta.ErrCorrupt},
		"later parent":   {&ahead, 0, meta.ErrForeign},
	} {
		p := entry.MarkPayload{Start: c.parent.ArchivedEnd, End: c.parent.ArchivedEnd, Parent: c.parent.Mark, StartOffset: c.start}
		if st, err := build(c.parent, entry.Header{Lineage: lin, LSN: 90}, p); !errors.Is(err, c.want) || err == nil && st.Manifest.NextOffset != c.parent.NextOffset {
			t.Errorf("%s: %v", name, err)
		}
	}
}
