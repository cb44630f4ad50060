package tiering

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

func TestReadBack(t *testing.T) {
	w := newWorld(t)
	for range 6 {
		w.append(7)
		w.archive()
	}
	w.checkAll()
	// Any offset, of any block or batch, and just past the end.
	for from := range w.next {
		got, err := readAll(t.Context(), w.reader(), from, 1)
		if err != nil {
			t.Fatal(err)
		}
		sameEntries(t, got, w.archived(from))
	}
	p, err := w.reader().Read(t.Context(), w.next, 100)
	if err != nil || !p.End || len(p.Entries) != 0 || p.Next != w.next {
		t.Fatalf("past the end: %+v %v", p, err)
	}
}

// Rows: T11
func TestT11_TwoRequestsToTheFirstByte(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.append(50)
		w.archive()
	}
	s := w.open(func(o *Options) { o.ReadAhead = -1 })
	before := s.Stats().Gets // for the claim
	w.b.ResetCounts()
	r := s.NewReader(w.manifest, w.refetch)
	defer r.Close()
	p, err := r.Read(t.Context(), 137, 1)
	if err != nil || len(p.Entries) != 1 || p.Entries[0].Offset != 136 {
		t.Fatalf("%+v %v", p, err)
	}
	if n := w.b.Count(fault.Any); n != 2 {
		t.Fatalf("%d requests to the first byte", n)
	}
	// The second read of the same block costs nothing.
	if _, err := r.Read(t.Context(), p.Next, 1); err != nil || w.b.Count(fault.Any) != 2 {
		t.Fatalf("%v, %d requests", err, w.b.Count(fault.Any))
	}
	if st := s.Stats(); st.Gets-before != 2 || st.CacheMisses != 2 {
		t.Fatalf("%+v", st)
	}
}

// Rows: T5
// B52, B101: every kind of damage to one object is an error that names it and the
// offsets lost, and the rest reads.
func TestT5_DamageIsNamedAndTheRestReads(t *testing.T) {
	for name, change := range map[string]func(w *world, ref *meta.SegmentRef){
		"missing": func(w *world, ref *meta.SegmentRef) { w.b.Delete(t.Context(), []string{ref.Key}) },
		"truncated": func(w *world, ref *meta.SegmentRef) {
			w.overwrite(ref.Key, func(b []byte) []byte { return b[:len(b)/2] })
		},
		"emptied": func(w *world, ref *meta.SegmentRef) { w.overwrite(ref.Key, func(b []byte) []byte { return nil }) },
		"rot, block": func(w *world, ref *meta.SegmentRef) {
			w.overwrite(ref.Key, func(b []byte) []byte { b[400] ^= 1; return b })
		},
		"rot, index": func(w *world, ref *meta.SegmentRef) {
			w.overwrite(ref.Key, func(b []byte) []byte { b[ref.IndexAt+20] ^= 1; return b })
		},
		"another object": func(w *world, ref *meta.SegmentRef) {
			other, _, _ := w.b.Load(t.Context(), w.manifest.Segments[2].Key, 1<<20)
			w.overwrite(ref.Key, func([]byte) []byte { return other })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for range 4 {
				w.append(9)
				w.archive()
			}
			ref := w.manifest.Segments[1]
			change(w, &ref)
			r := w.reader()
			got, err := readAll(t.Context(), r, 0, 500)
			var d *DamagedError
			if !errors.As(err, &d) || d.Key != ref.Key || !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%v", err)
			}
			if d.First < ref.FirstOffset || d.Next > ref.NextOffset || d.Next <= d.First {
				t.Fatalf("offsets [%d, %d) of a segment of [%d, %d)", d.First, d.Next, ref.FirstOffset, ref.NextOffset)
			}
			// What lies before the damage was given; go on behind it, as told.
			from := d.Next
			for err != nil {
				var more []entry.Entry
				more, err = readAll(t.Context(), r, from, 500)
				got = append(got, more...)
				if errors.As(err, &d) {
					from = d.Next
				}
			}
			seen := make(map[meta.Offset]bool)
			for _, e := range got {
				seen[e.Offset] = true
			}
			for _, e := range w.archived(0) {
				inside := e.Offset >= ref.FirstOffset && e.Offset < ref.NextOffset
				if !inside && !seen[e.Offset] {
					t.Fatalf("offset %d outside the damaged object was not read", e.Offset)
				}
			}
		})
	}
}

// Rows: T5
// A whole, valid segment of another shard or lineage with the same ranges and size
// lies under a key: no checksum tells, so whose it is must be looked at.
func TestT5_AnothersSegmentIsNamed(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(o *world){
		"shard":       func(o *world) { o.shard.Shard++ },
		"incarnation": func(o *world) { o.shard.Incarnation++ },
		"lineage":     func(o *world) { o.lin++ },
	} {
		w.shard.Stream.Name = "app-" + name
		mine := &world{t: t, b: w.b, s: w.s, clock: w.clock, shard: w.shard, lin: w.lin, now: 1}
		other := &world{t: t, b: w.b, s: w.s, clock: w.clock, shard: w.shard, lin: w.lin, now: 1}
		change(other)
		for _, o := range []*world{mine, other} {
			o.elect()
			o.append(5)
			o.archive()
		}
		ref := mine.manifest.Segments[0]
		theirs, _, err := w.b.Load(t.Context(), other.manifest.Segments[0].Key, 1<<20)
		if err != nil || int64(len(theirs)) != ref.Size {
			t.Fatalf("%s: %d bytes, want %d (%v)", name, len(theirs), ref.Size, err)
		}
		w.overwrite(ref.Key, func([]byte) []byte { return theirs })
		_, err = mine.reader().Read(t.Context(), 0, 1<<20)
		var d *DamagedError
		if !errors.As(err, &d) || d.Key != ref.Key || d.First != 0 || d.Next != 10 {
			t.Errorf("%s: %v", name, err)
		}
		other.checkAll()
	}
}

// Rows: T5
func TestT5_DamagedManifestIsNamed(t *testing.T) {
	w := newWorld(t)
	w.append(3)
	w.archive()
	key := w.manifest.Key()
	w.overwrite(key, func(b []byte) []byte { b[len(b)/2] ^= 2; return b })
	_, err := w.refetch(t.Context())
	var d *DamagedError
	if !errors.As(err, &d) || d.Key != key {
		t.Fatalf("%v", err)
	}
}

// Rows: T5
// A missing or rotten index object takes only the records below it.
func TestT5_DamagedIndexObject(t *testing.T) {
	for _, gone := range []bool{true, false} {
		w := newWorld(t)
		var key string
		w.shard = shardNamed("a/b", 77)
		w.manifest = chain(t, 7, 4, fromZero, func(st *Step) {
			if err := w.s.PutManifest(t.Context(), st); err != nil {
				t.Fatal(err)
			}
			if len(st.objects) > 1 {
				key = st.objects[0].key
			}
		})
		if gone {
			if err := w.b.Delete(t.Context(), []string{key}); err != nil {
				t.Fatal(err)
			}
		} else {
			w.overwrite(key, func(b []byte) []byte { b[100] ^= 1; return b })
		}
		_, err := w.reader().Read(t.Context(), 3, 1)
		var d *DamagedError
		if !errors.As(err, &d) || d.Key != key || d.First != 0 || d.Next != 32 {
			t.Fatalf("%v", err)
		}
		if ref, err := w.s.find(t.Context(), w.manifest, aboveOffset(d.Next)); err != nil || ref.FirstOffset != 32 {
			t.Fatalf("%v", err)
		}
	}
}

// A flipped bit or a short answer on the way is fetched once more, and not cached.
func TestBadAnswerIsRefetchedOnce(t *testing.T) {
	for name, f := range map[string]fault.Fault{"flipped": {Op: fault.Get, Corrupt: true}, "short": {Op: fault.Get, Short: 3}, "empty": {Op: fault.Get, Short: 1 << 30}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *Options) { o.ReadAhead = -1 })
			w.append(9)
			w.archive()
			w.b.Inject(f)
			f.Skip = 1 // and the block after the index
			w.b.Inject(f)
			w.b.ResetCounts()
			p, err := w.reader().Read(t.Context(), 0, 1)
			if err != nil || len(p.Entries) != 1 || w.b.Count(fault.Get) != 4 {
				t.Fatalf("%v, %d requests", err, w.b.Count(fault.Get))
			}
			w.checkAll()
		})
	}
}

func TestPassingErrorsAreRetried(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.archive()
	w.b.Inject(fault.Fault{Op: fault.Get, Times: 5, Before: bucket.ErrUnavailable})
	w.checkAll()
	if w.s.Stats().GetRetries == 0 {
		t.Fatal("no retry counted")
	}
}

// Rows: N13
// B38: a recreated stream never meets a block of the one before. The twin keys the
// cache by name and is caught.
func TestN13_CacheIsPerIncarnation(t *testing.T) {
	run := func(t *testing.T, twins Twins) (stale bool) {
		old := newWorld(t, func(o *Options) { o.Twins = twins })
		old.append(9)
		old.archive()
		old.checkAll() // warm
		again := &world{t: t, b: old.b, s: old.s, clock: old.clock, shard: shardNamed("app", 78), lin: old.lin, now: 1000}
		again.elect()
		again.append(9)
		again.archive()
		got, err := readAll(t.Context(), again.reader(), 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range again.archived(0) {
			stale = stale || string(got[i].Payload) != string(e.Payload)
		}
		return stale
	}
	if run(t, Twins{}) {
		t.Fatal("the new stream was answered from the old one's blocks")
	}
	if !run(t, Twins{CacheByName: true}) {
		t.Fatal("the twin that keys the cache by name was not caught")
	}
}

// B88: a cache smaller than a block, and one slightly larger; many readers at
// different places. Each goes through, and fetches each block once.
func TestTinyCacheProgress(t *testing.T) {
	for _, size := range []int64{-1, 900, 1300, 5000} {
		w := newWorld(t, func(o *Options) { o.CacheBytes = size; o.Downloads = 2; o.ReadAhead = -1 })
		for range 3 {
			w.append(30)
			w.archive()
		}
		var wg sync.WaitGroup
		const readers = 20
		errs := make([]error, readers)
		for i := range readers {
			wg.Go(func() {
				from := meta.Offset(i * 8)
				got, err := readAll(t.Context(), w.reader(), from, 1)
				if err == nil && len(got) != len(w.archived(from)) {
					err = errors.New("batches are missing")
				}
				errs[i] = err
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		// 30 batches of 356 bytes a segment in blocks of 1,000: 15 blocks and an index.
		st := w.s.Stats()
		if most := uint64(readers * 3 * (15 + 1)); size < 1300 && st.Gets > most {
			t.Fatalf("cache of %d: %d requests, at most %d are needed", size, st.Gets, most)
		}
		if st.CacheBytes > max(0, size) {
			t.Fatalf("cache of %d holds %d", size, st.CacheBytes)
		}
	}
}

// B87: permits come back on every way out.
func TestPermitsComeBack(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Downloads = 2; o.CacheBytes = -1; o.ReadAhead = -1 })
	for range 3 {
		w.append(30)
		w.archive()
	}
	hold := w.b.Hold(fault.Fault{Op: fault.Get, Times: 2})
	w.b.Inject(fault.Fault{Op: fault.Get, Times: 30, Before: bucket.ErrUnavailable})
	w.b.Inject(fault.Fault{Op: fault.Get, Times: 10, Before: bucket.ErrInvalid})
	w.b.Inject(fault.Fault{Op: fault.Get, Times: 10, Corrupt: true})
	var wg sync.WaitGroup
	for i := range 40 {
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			defer cancel()
			w.reader().Read(ctx, meta.Offset(i*4), 1)
		})
		if i%2 == 0 {
			cancel()
		}
	}
	<-hold.Arrived()
	hold.Release()
	wg.Wait()
	w.b.Clear()
	w.checkAll()
	if len(w.s.permits) != 0 {
		t.Fatalf("%d permits are still out", len(w.s.permits))
	}
}

// B93: a client that waits less than a download takes does not end it, and gets
// its answer in the end, for one request.
func TestShortWaitsDontEndDownloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.ReadAhead = -1; o.Now = nil })
		w.append(9)
		w.archive()
		w.b.Inject(fault.Fault{Op: fault.Get, Times: -1, Delay: 2 * time.Second})
		w.b.ResetCounts()
		r := w.reader()
		for polls := 1; ; polls++ {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			p, err := r.Read(ctx, 0, 1)
			cancel()
			if err == nil && len(p.Entries) == 1 {
				break
			}
			if !errors.Is(err, meta.ErrUnavailable) || polls > 20 {
				t.Fatalf("poll %d: %v", polls, err)
			}
		}
		if n := w.b.Count(fault.Get); n != 2 {
			t.Fatalf("%d requests", n)
		}
		w.s.Close()
	})
}

// Everyone who wants the same block waits for one download.
func TestSingleFlight(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.ReadAhead = -1 })
	w.append(3)
	w.archive()
	w.b.ResetCounts()
	hold := w.b.Hold(fault.Fault{Op: fault.Get})
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if p, err := w.reader().Read(t.Context(), 0, 1); err != nil || len(p.Entries) != 1 {
				t.Error(err)
			}
		})
	}
	<-hold.Arrived()
	hold.Release()
	wg.Wait()
	if n := w.b.Count(fault.Get); n != 2 {
		t.Fatalf("%d requests", n)
	}
}

func TestScanReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(o *Options) { o.Now = nil })
		w.append(60)
		w.archive()
		for from, want := range map[meta.Offset]int64{0: 1 + 1 + 4, 60: 2} { // a scan from the start, and a place at random
			s := w.open(func(o *Options) { o.Now = nil })
			w.b.ResetCounts()
			r := s.NewReader(w.manifest, w.refetch)
			if _, err := r.Read(t.Context(), from, 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := w.b.Count(fault.Get); n != want {
				t.Fatalf("read from %d: %d requests, want %d", from, n, want)
			}
			r.Close()
			s.Close()
		}
		w.s.Close()
	})
}

// B85: a segment is replaced under a reader. Below the start it is told so, and
// where a merge put the records elsewhere it goes on there.
func TestObjectGoneUnderAReader(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.append(9)
		w.archive()
	}
	r := w.reader()
	first := w.manifest.Segments[0]
	w.trim(20)
	w.mark(nil)
	w.write()
	if err := w.b.Delete(t.Context(), []string{first.Key}); err != nil {
		t.Fatal(err)
	}
	var out *meta.OffsetOutOfRange
	if _, err := r.Read(t.Context(), 0, 1); !errors.As(err, &out) || out.Start != 20 {
		t.Fatalf("%v", err)
	}
	if p, err := r.Read(t.Context(), 20, 1); err != nil || len(p.Entries) != 1 {
		t.Fatalf("%v", err)
	}

	// A manifest in which another object holds the same records.
	second := w.manifest.Segments[0]
	data, _, err := w.b.Load(t.Context(), second.Key, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	k, _ := ParseSegmentKey(second.Key)
	k.ID[0] ^= 1
	merged := *w.manifest
	merged.Segments = append([]meta.SegmentRef(nil), merged.Segments...)
	merged.Segments[0].Key = k.String()
	if _, err := w.b.Put(t.Context(), k.String(), bucket.Bytes(data), bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.b.Delete(t.Context(), []string{second.Key}); err != nil {
		t.Fatal(err)
	}
	s := w.open()
	fetched := 0
	r = s.NewReader(w.manifest, func(context.Context) (*Manifest, error) { fetched++; return &merged, nil })
	defer r.Close()
	got, err := readAll(t.Context(), r, 20, 1)
	if err != nil || fetched != 1 {
		t.Fatalf("%v, manifest fetched %d times", err, fetched)
	}
	sameEntries(t, got, w.archived(20))
}

// B95: overlapping and repeated segments give each record once, whatever the page.
func TestOverlappingSegments(t *testing.T) {
	w := newWorld(t)
	w.append(40)
	var refs []meta.SegmentRef
	for _, span := range [][2]meta.LSN{{1, 20}, {1, 20}, {10, 30}, {15, 42}} {
		sealed := w.sealed()
		sealed.Identity.FirstLSN, sealed.Identity.NextLSN = span[0], span[1]
		sealed.Entries = walk(w.log[span[0]-1 : span[1]-1])
		ref, err := w.s.UploadSegment(t.Context(), sealed)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	w.mark(&meta.SegmentRef{FirstLSN: 1, NextLSN: 42})
	w.manifest = &Manifest{Shard: w.shard, Lineage: w.lin, Mark: 42, Epoch: 1, Level: 1, ArchivedEnd: 42, NextOffset: 80, Segments: refs}
	b, err := w.manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeManifest(b); err != nil {
		t.Fatal(err)
	}
	w.checkAll()
}

// A reader that is closed or shut down with the store ends.
func TestCloseEndsReads(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.archive()
	hold := w.b.Hold(fault.Fault{Op: fault.Get})
	defer hold.Release()
	done := make(chan error)
	go func() {
		_, err := w.reader().Read(t.Context(), 0, 1)
		done <- err
	}()
	<-hold.Arrived()
	w.s.Close()
	if err := <-done; !errors.Is(err, meta.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := w.reader().Read(t.Context(), 0, 1); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatal(err)
	}
}

// B189, B190, B193, B194: look-ups by time give what a full scan gives, for every
// time there is, one before and one after; with a trim in the middle of a batch,
// and with long silences.
func TestTimeAgainstScan(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t)
		w.now = -500
		for range 4 {
			for range 1 + r.IntN(12) {
				w.append(1)
				if w.now += meta.Micros(r.IntN(3) - 1); r.IntN(8) == 0 {
					w.now += 40 * 24 * 3600 * 1_000_000
				}
			}
			w.archive()
		}
		if r.IntN(2) == 0 {
			w.trim(meta.Offset(1 + r.IntN(int(w.next))))
			w.mark(nil)
			w.write()
		}
		rd := w.reader()
		for _, e := range w.log {
			for _, q := range []meta.Micros{e.Time - 1, e.Time, e.Time + 1} {
				at, found, err := rd.FindTime(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				want, ok := meta.Offset(0), false
				for _, b := range w.archived(0) {
					if b.Time >= q {
						want, ok = max(b.Offset, w.start), true
						break
					}
				}
				if found != ok || at != want {
					t.Fatalf("seed %d, time %d: offset %d (%v), a scan says %d (%v)", seed, q, at, found, want, ok)
				}
				if found {
					if _, err := rd.Read(t.Context(), at, 1); err != nil {
						t.Fatalf("reading from the answer: %v", err)
					}
				}
			}
		}
	}
}

func TestBelowTheStart(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.archive()
	w.trim(7)
	w.mark(nil)
	w.write()
	var out *meta.OffsetOutOfRange
	if _, err := w.reader().Read(t.Context(), 6, 1); !errors.As(err, &out) || *out != (meta.OffsetOutOfRange{Asked: 6, Start: 7, End: 18}) {
		t.Fatalf("%v", err)
	}
	p, err := w.reader().Read(t.Context(), 7, 1)
	if err != nil || p.Entries[0].Offset != 6 || p.From != 7 || p.Next != 8 {
		t.Fatalf("%+v %v", p, err)
	}
}

// B88: many scans at once, in a cache too small for what they read ahead, cost about
// as many downloads as without reading ahead; when they are gone, a scan of one reads
// ahead as before.
func TestReadAheadOfManyScans(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.CacheBytes, o.BlockSize = 40_000, 1000 })
	const scans, blocks = 60, 20
	for range scans {
		w.append(2 * blocks)
		w.archive()
	}
	var readers [scans]*Reader
	var at [scans]meta.Offset
	for i := range readers {
		readers[i], at[i] = w.reader(), w.manifest.Segments[i].FirstOffset
	}
	before := w.s.Stats().Gets
	for range blocks {
		for i, r := range readers {
			p, err := r.Read(t.Context(), at[i], 1000)
			if err != nil || len(p.Entries) != 2 {
				t.Fatalf("%d batches, %v", len(p.Entries), err)
			}
			at[i] = p.Next
		}
	}
	if n := w.s.Stats().Gets - before; n > scans*blocks*13/10+scans {
		t.Fatalf("%d downloads of %d blocks", n, scans*blocks)
	}
	got, err := readAll(t.Context(), w.reader(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	sameEntries(t, got, w.archived(0))
	w.s.cache.mu.Lock()
	defer w.s.cache.mu.Unlock()
	c := w.s.cache
	if c.credit+c.ahead > c.limit/2 || c.credit < c.limit/4 || c.ahead < 0 {
		t.Fatalf("credit %d, ahead %d of %d", c.credit, c.ahead, c.limit)
	}
}

// Rows: C5 (the part of cold readers)
// A thousand readers, each in a block of its own, keep no more than a few together.
func TestC5_IdleReadersKeepBoundedMemory(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.CacheBytes = -1 })
	w.append(200)
	w.archive()
	var readers []*Reader
	for i := range 1000 {
		r := w.reader()
		for range 2 {
			if _, err := r.Read(t.Context(), meta.Offset(2*(i%200)), 1); err != nil {
				t.Fatal(err)
			}
		}
		readers = append(readers, r)
	}
	if n := w.s.held.Load(); n > 64*1000 || n < 32*1000 {
		t.Fatalf("%d bytes are kept", n)
	}
	for _, r := range readers {
		r.Close()
		r.Close()
	}
	if n := w.s.held.Load(); n != 0 {
		t.Fatalf("%d bytes are kept by closed readers", n)
	}
}
