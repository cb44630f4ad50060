package tiering

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

// Rows: T7
// Between upload and mark, and between mark and manifest, a quorum is lost for
// longer than any grace. Sweeps run all the while; then it heals and all is read.
// The twin that goes by age deletes what a mark names in the end, and is caught.
func TestT7_GarbageByLogNotByAge(t *testing.T) {
	run := func(t *testing.T, twins Twins) error {
		w := newWorld(t, func(o *Options) { o.Twins = twins })
		w.append(9)
		w.archive()
		w.append(9)
		ref := w.upload()
		age := func() {
			for range 3 {
				w.sweep()
				w.clock.advance(1000 * time.Hour)
			}
		}
		age() // uploaded, not marked
		w.mark(&ref)
		age() // marked, no manifest
		// The next leader finds the mark in its log and puts the manifest.
		w.elect()
		w.s = w.open(func(o *Options) { o.Twins = twins })
		age()
		w.write()
		age()
		got, err := readAll(t.Context(), w.reader(), 0, 1<<20)
		if err == nil {
			sameEntries(t, got, w.archived(0))
		}
		return err
	}
	if err := run(t, Twins{}); err != nil {
		t.Fatal(err)
	}
	var d *DamagedError
	if err := run(t, Twins{GarbageByAge: time.Hour}); !errors.As(err, &d) {
		t.Fatalf("the twin that sweeps by age was not caught: %v", err)
	}
}

// Rows: T7
// Thousands of unnamed objects of an epoch that is over go, in bounded steps that
// can be taken up anywhere; nothing else does.
func TestT7_ThousandsOfObjects(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.archive()
	live := w.manifest.Segments[0].Key
	var garbage, keep []string
	put := func(k SegmentKey) string {
		if _, err := w.b.Put(t.Context(), k.String(), bucket.Bytes([]byte("x")), bucket.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		return k.String()
	}
	for i := range 2501 {
		garbage = append(garbage, put(SegmentKey{w.shard, w.lin, w.epoch, meta.LSN(i + 1), uuid.UUID{1, byte(i), byte(i >> 8)}}))
	}
	w.elect()
	// Of the running epoch, of another lineage, of another shard and stream.
	keep = append(keep, live,
		put(SegmentKey{w.shard, w.lin, w.epoch, 5, uuid.UUID{2}}),
		put(SegmentKey{w.shard, w.lin - 1, 1, 5, uuid.UUID{3}}),
		put(SegmentKey{w.shard, w.lin + 1, 1, 5, uuid.UUID{4}}),
		put(SegmentKey{shardNamed("app", 78), w.lin, 1, 5, uuid.UUID{5}}),
		put(SegmentKey{shardNamed("app/"+meta.Hex(w.shard.Incarnation), 77), w.lin, 1, 5, uuid.UUID{6}}))
	strange := segmentPrefix(w.shard) + "notes.txt"
	if _, err := w.b.Put(t.Context(), strange, bucket.Body{}, bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	w.b.Inject(fault.Fault{Op: fault.Delete, Skip: 1, Refuse: garbage[600:603]}) // B102
	total, unknown, failed := 0, 0, 0
	after, rounds := "", 0
	for {
		res, err := w.s.Sweep(t.Context(), SweepRequest{
			Shard: w.shard, Lineage: w.lin, Limit: 700, After: after,
			Authority: func(context.Context) (Authority, error) { return w.authority(), nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		total, unknown, failed, rounds = total+res.Deleted, unknown+res.Unknown, failed+res.Failed, rounds+1
		if res.Listed > 700+10 {
			t.Fatalf("%d objects listed in one step", res.Listed)
		}
		if after = res.After; after == "" {
			break
		}
	}
	if total != 2498 || failed != 3 || unknown != 1 || rounds < 4 {
		t.Fatalf("%d deleted, %d failed, %d unknown, in %d rounds", total, failed, unknown, rounds)
	}
	if res := w.sweep(); res.Deleted != 3 || res.OtherLineages != 2 || !slices.Equal(res.UnknownKeys, []string{strange}) {
		t.Fatalf("%+v", res)
	}
	for _, key := range append(keep, strange) {
		if !w.has(key) {
			t.Errorf("%s is gone", key)
		}
	}
	w.checkAll()
}

// B46, B47, B69, B74: an attempt of which the outcome is unknown leaves an object.
// It is swept once nothing can name it; if that fails, by a later sweep, or after a
// restart by the next epoch.
func TestUnknownUploadIsGivenUpAndSwept(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.b.Inject(fault.Fault{Op: fault.Put, Key: "streams/", Times: 2, After: bucket.ErrUnknown})
	ref := w.upload()
	if keys := w.keys("streams/"); len(keys) != 3 || w.s.Stats().UploadsGivenUp != 2 {
		t.Fatalf("%d objects, %+v", len(keys), w.s.Stats())
	}
	w.mark(&ref)
	w.write()
	w.b.Inject(fault.Fault{Op: fault.Delete, Before: bucket.ErrUnavailable})
	if res := w.sweep(); res.Failed != 2 || res.Deleted != 0 {
		t.Fatalf("%+v", res)
	}
	if res := w.sweep(); res.Deleted != 2 {
		t.Fatalf("%+v", res)
	}
	if keys := w.keys("streams/"); !slices.Equal(keys, []string{ref.Key}) || len(w.s.givenUp) != 0 {
		t.Fatal(keys, w.s.givenUp)
	}

	// The same, but the broker dies: a new process, a new epoch.
	w.append(9)
	w.b.Inject(fault.Fault{Op: fault.Put, Key: "streams/", After: bucket.ErrUnknown})
	w.archive()
	w.s = w.open()
	if res := w.sweep(); res.Deleted != 0 {
		t.Fatalf("an object of the running epoch was swept by a process that knows nothing of it: %+v", res)
	}
	w.elect()
	if res := w.sweep(); res.Deleted != 1 {
		t.Fatalf("%+v", res)
	}
	w.checkAll()
}

// B49: an upload of a range that is archived already makes a mark that does not
// apply; its object is garbage and the range stays whole.
func TestSecondMarkOfARangeIsGarbage(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	twice := w.upload()
	w.archive()
	w.s.GiveUp(twice.Key)
	if res := w.sweep(); res.Deleted != 1 || w.has(twice.Key) {
		t.Fatalf("%+v", res)
	}
	w.checkAll()
	if _, err := Next(w.shard, w.manifest, w.put(5, nil), &w.marks[0].payload, w.vector); err == nil {
		t.Fatal("the same mark twice made a manifest")
	}
}

// Retention: what a committed mark retired goes once the manifest that omits it is
// written, and no earlier; running readers keep it; superseded manifests go after it.
func TestRetiredObjects(t *testing.T) {
	w := newWorld(t)
	for range 4 {
		w.append(9)
		w.archive()
	}
	segs := slices.Clone(w.manifest.Segments)
	r := w.s.NewReader(w.manifest, w.refetch)
	w.trim(40)
	w.mark(nil)
	if res := w.sweep(); !w.has(segs[0].Key) || res.Pinned != 0 {
		t.Fatalf("retired before the manifest was written: %+v", res)
	}
	w.write()
	res := w.sweep()
	if res.Pinned == 0 || !w.has(segs[0].Key) {
		t.Fatalf("a running read lost its objects: %+v", res)
	}
	if _, err := readAll(t.Context(), r, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.sweep()
	for i, s := range segs {
		if w.has(s.Key) != (i >= 2) {
			t.Errorf("segment %d [%d, %d): there %v", i, s.FirstOffset, s.NextOffset, w.has(s.Key))
		}
	}
	if n := len(w.keys("manifests/")); n != 2 {
		t.Fatalf("%d manifests are kept", n)
	}
	w.checkAll()
}

func TestGraceForReadsElsewhere(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Grace = time.Minute })
	w.append(9)
	w.archive()
	key := w.manifest.Segments[0].Key
	w.trim(18)
	w.mark(nil)
	w.write()
	w.append(9)
	w.archive()
	for range 2 {
		if res := w.sweep(); res.Waiting == 0 || !w.has(key) {
			t.Fatalf("%+v", res)
		}
		w.clock.advance(40 * time.Second)
	}
	if w.sweep(); w.has(key) {
		t.Fatal("kept after the grace")
	}
	if n := len(w.keys("manifests/")); n != 2 {
		t.Fatalf("%d manifests", n)
	}
}

// B51: a sweep that dies after any delete leaves a stream that reads whole, and the
// next one finishes.
func TestSweepDiesAnywhere(t *testing.T) {
	for stop := range 20 {
		w := newWorld(t)
		for range 5 {
			w.append(9)
			w.archive()
		}
		w.trim(60)
		w.mark(nil)
		w.write()
		w.b.ResetCounts()
		died := fault.Fault{Skip: stop / 2, Times: -1, Before: bucket.ErrInvalid} // any request from then on
		if stop%2 == 0 {
			died = fault.Fault{Op: fault.Delete, Skip: stop / 4, Times: -1, After: bucket.ErrUnavailable}
		}
		w.b.Inject(died)
		if res, err := w.trySweep(); err == nil && res.Failed == 0 {
			t.Fatalf("stop %d: nothing failed in %d requests", stop, w.b.Count(fault.Any))
		}
		w.b.Clear()
		w.checkAll()
		w.s = w.open()
		w.sweep()
		if n, m := len(w.keys("streams/")), len(w.keys("manifests/")); n != 2 || m != 2 {
			t.Fatalf("stop %d: %d segments, %d manifests", stop, n, m)
		}
		w.checkAll()
	}
}

// B100: nothing is removed by a listing that ended with an error.
func TestNoSweepByAPartialListing(t *testing.T) {
	w := newWorld(t)
	w.append(5)
	w.archive()
	w.append(5)
	w.s.GiveUp(w.upload().Key)
	for _, folder := range []string{"streams/", "manifests/", "claims/"} {
		w.b.Inject(fault.Fault{Op: fault.List, Key: folder, After: bucket.ErrInvalid})
		if res, err := w.trySweep(); err == nil || res.Deleted != 0 {
			t.Fatalf("%s: %+v %v", folder, res, err)
		}
	}
	if res := w.sweep(); res.Deleted != 1 {
		t.Fatalf("%+v", res)
	}
}

// B54: a leader that is deposed while it sweeps, or a cluster that lost the
// prefix, deletes nothing.
func TestNoLeaderNoClaimNoSweep(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.s.GiveUp(w.upload().Key)
	deposed := errors.New("no longer the leader")
	_, err := w.s.Sweep(t.Context(), SweepRequest{Shard: w.shard, Lineage: w.lin, Authority: func(context.Context) (Authority, error) { return Authority{}, deposed }})
	if !errors.Is(err, deposed) || len(w.keys("streams/")) != 1 {
		t.Fatalf("%v", err)
	}
	other, err := New(Options{Bucket: w.b, Cluster: meta.ClusterID{2}, RetryMax: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Claim(t.Context(), ClaimOptions{Takeover: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.trySweep(); !errors.Is(err, meta.ErrForeign) || len(w.keys("streams/")) != 1 {
		t.Fatalf("%v", err)
	}
}

func TestCheckIsNoOlderThanTheDeleteWindow(t *testing.T) {
	w := newWorld(t)
	var last time.Time
	w.b.Watch(func(c fault.Call) {
		switch {
		case c.Op == fault.List && c.Key == claimFolder:
			last = w.clock.now()
		case c.Op == fault.Delete:
			if w.clock.now().Sub(last) > 5*time.Second {
				t.Errorf("a delete was sent %s after the check", w.clock.now().Sub(last))
			}
			w.clock.advance(3 * time.Second)
		}
	})
	for i := range 2000 {
		k := SegmentKey{w.shard, w.lin, w.epoch, meta.LSN(i + 1), uuid.UUID{1}}
		if _, err := w.b.Put(t.Context(), k.String(), bucket.Body{}, bucket.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.elect()
	w.clock.advance(time.Hour)
	if res := w.sweep(); res.Deleted != 2000 {
		t.Fatalf("%+v", res)
	}
}

// Rows: T7
// A leader whose view of the manifest is older than the bucket loses nothing: what
// a written manifest names stays, though its mark is confirmed and forgotten.
func TestT7_StaleViewOfTheManifest(t *testing.T) {
	for known := range 3 { // manifests the new leader knows of
		w := newWorld(t)
		var view *Manifest
		for i := range 3 {
			if i == known {
				view = w.manifest
			}
			w.append(5)
			w.archive()
		}
		w.append(2)
		stray := w.upload()
		w.elect()
		w.s = w.open()
		for range 2 {
			_, err := w.s.Sweep(t.Context(), SweepRequest{Shard: w.shard, Lineage: w.lin, Authority: func(context.Context) (Authority, error) {
				return Authority{Through: w.epoch - 1, Manifest: view}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if w.has(stray.Key) {
			t.Error("the garbage beside it stays")
		}
		w.checkAll()
		if m, err := w.refetch(t.Context()); err != nil || m.ID() != w.manifest.ID() {
			t.Fatalf("%v", err)
		}
	}
}

// A shard that has no manifest of its own lineage yet is swept by its base, which
// protects what it names.
func TestSweepInANewLineage(t *testing.T) {
	w := newWorld(t)
	w.append(5)
	w.archive()
	w.lin = meta.NewLineage(1, 2)
	w.append(5)
	stray := w.upload()
	w.elect()
	if res := w.sweep(); res.Deleted != 1 || w.has(stray.Key) {
		t.Fatalf("%+v", res)
	}
	w.checkAll()
}

// Rows: N5, N13
// A deleted incarnation goes to the last object, from whatever point the sweep
// died at; never before its tombstone object is there; never one of its neighbours.
func TestN5_DeletedIncarnation(t *testing.T) {
	for stop := range 10 {
		w := newWorld(t)
		for range 3 {
			w.append(9)
			w.archive()
		}
		newer := &world{t: t, b: w.b, s: w.s, clock: w.clock, shard: shardNamed("app", 78), lin: w.lin, now: 1}
		inner := &world{t: t, b: w.b, s: w.s, clock: w.clock, shard: shardNamed("app/"+meta.Hex(w.shard.Incarnation), 77), lin: w.lin, now: 1}
		for _, o := range []*world{newer, inner} {
			o.elect()
			o.append(5)
			o.archive()
		}
		req := IncarnationRequest{Stream: w.shard.Stream, Incarnation: 77, Limit: 2}
		if _, err := w.s.SweepIncarnation(t.Context(), req); !errors.Is(err, meta.ErrConflict) || len(w.keys("streams/")) != 5 {
			t.Fatalf("without a tombstone: %v", err)
		}
		tomb := meta.Tombstone{Stream: w.shard.Stream, Through: 77}
		for range 2 { // twice is harmless
			if err := w.s.PutTombstone(t.Context(), tomb); err != nil {
				t.Fatal(err)
			}
		}
		w.b.Inject(fault.Fault{Op: fault.Delete, Skip: stop / 2, Times: 1, After: bucket.ErrUnavailable})
		for range stop {
			res, _ := w.s.SweepIncarnation(t.Context(), req)
			req.After = res.After
		}
		w.b.Clear()
		w.s = w.open()
		for req.After = ""; ; {
			res, err := w.s.SweepIncarnation(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if req.After = res.After; res.After == "" {
				break
			}
		}
		for _, folder := range []string{"streams/", "manifests/"} {
			if keys := w.keys(folder + "logs/app/" + meta.Hex(meta.Incarnation(77))); len(keys) > 0 {
				t.Fatalf("left: %q", keys)
			}
		}
		newer.checkAll()
		inner.checkAll()
		var tombs []meta.Tombstone
		for tb, err := range w.s.Tombstones(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			tombs = append(tombs, tb)
		}
		if !slices.Equal(tombs, []meta.Tombstone{tomb}) {
			t.Fatal(tombs)
		}
	}
}

// Rows: N13
// A delete comes while an upload is on its way, and the name is created again. The
// upload ends; what it may have stored never becomes readable and is collected.
func TestN13_DeleteDuringUpload(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	hold := w.b.Hold(fault.Fault{Op: fault.Put, Key: "streams/", Late: true})
	done := make(chan error)
	sealed := w.sealed()
	go func() {
		_, err := w.s.UploadSegment(t.Context(), sealed)
		done <- err
	}()
	<-hold.Arrived()
	if err := w.s.PutTombstone(t.Context(), meta.Tombstone{Stream: w.shard.Stream, Through: 77}); err != nil {
		t.Fatal(err)
	}
	req := IncarnationRequest{Stream: w.shard.Stream, Incarnation: 77}
	if _, err := w.s.SweepIncarnation(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, meta.ErrDeleted) {
		t.Fatalf("%v", err)
	}
	again := &world{t: t, b: w.b, s: w.s, clock: w.clock, shard: shardNamed("app", 78), lin: w.lin, now: 1}
	again.elect()
	again.append(4)
	hold.Release() // only now does the old one's request land
	again.archive()
	again.checkAll()
	again.elect()
	again.sweep()
	if err := w.b.Close(); err != nil { // waits until it has landed; the objects stay
		t.Fatal(err)
	}
	if res, err := w.s.SweepIncarnation(t.Context(), req); err != nil || res.Deleted != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	again.checkAll()
}

// Snapshot pins keep what a sweep would remove, also of a deleted incarnation.
func TestPinsKeep(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	w.archive()
	seg, man := w.manifest.Segments[0].Key, w.manifest.Key()
	pins := func(key string) bool { return key == seg || key == man }
	w.trim(18)
	for range 3 {
		w.mark(nil)
		w.write()
	}
	sweep := func() (SweepResult, error) {
		return w.s.Sweep(t.Context(), SweepRequest{Shard: w.shard, Lineage: w.lin, Authority: func(context.Context) (Authority, error) {
			a := w.authority()
			a.Pinned = pins
			return a, nil
		}})
	}
	if res, err := sweep(); err != nil || !w.has(seg) || !w.has(man) || res.Pinned != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	if err := w.s.PutTombstone(t.Context(), meta.Tombstone{Stream: w.shard.Stream, Through: 99}); err != nil {
		t.Fatal(err)
	}
	res, err := w.s.SweepIncarnation(t.Context(), IncarnationRequest{
		Stream: w.shard.Stream, Incarnation: 77,
		Pins: func(context.Context) (func(string) bool, error) { return pins, nil },
	})
	if err != nil || res.Pinned != 2 || !w.has(seg) || !w.has(man) || len(w.keys("manifests/")) != 1 {
		t.Fatalf("%+v %v", res, err)
	}
}

// A backlog of superseded manifests longer than what one sweep holds in memory: a
// retired object has its grace all the same, though the manifest that names it was
// not read yet, and then all of it goes in one sweep.
func TestBacklogOfManifests(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Grace = time.Minute })
	for range 3 * maxOld {
		w.append(2)
		w.archive()
	}
	w.trim(w.next - 1) // retires all but the last
	w.mark(nil)
	w.write()
	w.elect()
	segs := len(w.keys("streams/"))
	if res := w.sweep(); res.Deleted != 0 || res.Waiting == 0 || len(w.keys("streams/")) != segs {
		t.Fatalf("without its grace: %+v", res)
	}
	w.clock.advance(time.Hour)
	for range 2 {
		w.sweep()
	}
	if n, m := len(w.keys("streams/")), len(w.keys("manifests/")); n != 1 || m != 2 {
		t.Fatalf("%d segments, %d manifests", n, m)
	}
	w.checkAll()
}

// The same by a leader whose view is older than the bucket: what lies between the
// two manifests was not read, so nothing is taken for an upload that failed.
func TestGraceWithAStaleView(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Grace = time.Minute })
	var view *Manifest
	for i := range 4 {
		w.append(2)
		w.archive()
		if i == 0 {
			view = w.manifest
		}
	}
	w.trim(w.next - 1)
	w.mark(nil)
	w.write()
	w.elect()
	for _, m := range []*Manifest{view, nil} {
		res, err := w.s.Sweep(t.Context(), SweepRequest{Shard: w.shard, Lineage: w.lin, Authority: func(context.Context) (Authority, error) {
			return Authority{Through: w.epoch - 1, Manifest: m}, nil
		}})
		if err != nil || res.Deleted != 0 || res.Waiting == 0 {
			t.Fatalf("%+v %v", res, err)
		}
	}
}

// Snapshots pin many manifests and what they name, for as long as they like: what
// came and went since is garbage as ever, and when they are given up, so is the rest.
func TestManyPinsHoldNothingElse(t *testing.T) {
	w := newWorld(t)
	pins := make(map[string]bool)
	for range 2 * maxOld {
		w.append(2)
		w.archive()
		pins[w.manifest.Key()] = true
		for _, s := range w.manifest.Segments {
			pins[s.Key] = true
		}
		w.mark(nil) // names what the pinned one does, and is not pinned
		w.write()
	}
	for range 2 * maxOld {
		w.append(2)
		w.archive()
	}
	w.trim(w.next - 1)
	w.mark(nil)
	w.write()
	sweep := func() {
		_, err := w.s.Sweep(t.Context(), SweepRequest{Shard: w.shard, Lineage: w.lin, Authority: func(context.Context) (Authority, error) {
			a := w.authority()
			a.Pinned = func(key string) bool { return pins[key] }
			return a, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if n, m := len(w.keys("streams/")), len(w.keys("manifests/")); n != 2*maxOld+1 || m != 2*maxOld+2 {
		t.Fatalf("%d segments, %d manifests", n, m)
	}
	for key := range pins {
		if !w.has(key) {
			t.Fatalf("%s is pinned and gone", key)
		}
	}
	clear(pins)
	sweep()
	if n, m := len(w.keys("streams/")), len(w.keys("manifests/")); n != 1 || m != 2 {
		t.Fatalf("given up: %d segments, %d manifests", n, m)
	}
	w.checkAll()
}

// Others archive, and sweep what they superseded, between the listing that finds the
// newest manifest and its download: the one after it is what counts.
func TestNewestWhileOthersSweep(t *testing.T) {
	w := newWorld(t)
	w.append(5)
	w.archive()
	hold := w.b.Hold(fault.Fault{Op: fault.Load, Key: w.manifest.Key(), Times: 1})
	found := make(chan *Manifest)
	go func() {
		m, err := w.s.Newest(t.Context(), w.shard, w.lin, ManifestID{})
		if err != nil {
			t.Error(err)
		}
		found <- m
	}()
	<-hold.Arrived()
	for range 3 {
		w.append(5)
		w.archive()
		w.sweep()
	}
	hold.Release()
	if m := <-found; m == nil || m.ID() != w.manifest.ID() {
		t.Fatalf("%+v", m)
	}
	// One that a row names as its base and that is nowhere is an error all the same.
	base := ManifestID{w.lin - 1, 7}
	if m, err := w.s.Newest(t.Context(), w.shard, w.lin+1, base); m != nil || !errors.Is(err, bucket.ErrNotExist) {
		t.Fatalf("%+v %v", m, err)
	}
}

// foreign lists a key that no bucket.Bucket could have put.
type foreign struct {
	bucket.Bucket
	key string
}

func (f *foreign) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		for info, err := range f.Bucket.List(ctx, prefix, after) {
			if !yield(info, err) {
				return
			}
		}
		if within(f.key, prefix) && f.key > after {
			yield(bucket.Info{Key: f.key, Size: 1}, nil)
		}
	}
}

// Rows: N5
// A stranger's object below a deleted incarnation is reported and doesn't keep the
// purge from ending.
func TestN5_ForeignKeyInADeletedIncarnation(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Bucket = &foreign{o.Bucket, "streams/logs/app/" + meta.Hex(meta.Incarnation(77)) + "/my notes.txt"}
	})
	w.append(5)
	w.archive()
	if err := w.s.PutTombstone(t.Context(), meta.Tombstone{Stream: w.shard.Stream, Through: 77}); err != nil {
		t.Fatal(err)
	}
	res, err := w.s.SweepIncarnation(t.Context(), IncarnationRequest{Stream: w.shard.Stream, Incarnation: 77})
	if err != nil || res.Deleted != 2 || res.Failed != 0 || res.Unknown != 1 || len(res.UnknownKeys) != 1 {
		t.Fatalf("%+v %v", res, err)
	}
}

// Whatever the ranges of a manifest's segments look like (one entry only, the same
// range twice, one inside another), a sweep finds each of them, and only those.
func TestNamedWhateverTheRanges(t *testing.T) {
	w := newWorld(t)
	m := &Manifest{Shard: w.shard, Lineage: w.lin, Mark: 60, ArchivedEnd: 51, NextOffset: 50, StartOffset: 9}
	key := func(i int, base meta.LSN) string {
		return SegmentKey{w.shard, w.lin, 1, base, uuid.UUID{15: byte(i)}}.String()
	}
	for i, span := range [][2]meta.LSN{{1, 9}, {1, 10}, {1, 20}, {1, 20}, {15, 20}, {20, 21}, {21, 50}, {30, 50}, {50, 51}} {
		m.Segments = append(m.Segments, meta.SegmentRef{
			Key: key(i, span[0]), Size: 9, IndexLen: 1, FirstLSN: span[0], NextLSN: span[1],
			FirstOffset: meta.Offset(span[0] - 1), NextOffset: meta.Offset(span[1] - 1),
		})
	}
	if err := m.validate(); err != nil {
		t.Fatal(err)
	}
	for i := range m.Segments {
		r := &m.Segments[i]
		got, err := w.s.names(t.Context(), m, r.Key, r.FirstLSN)
		if want := r.NextOffset > m.StartOffset; err != nil || got != want {
			t.Errorf("segment %d of [%d, %d): named %v (%v)", i, r.FirstLSN, r.NextLSN, got, err)
		}
	}
	for base := meta.LSN(1); base < 60; base++ {
		if got, err := w.s.names(t.Context(), m, key(99, base), base); got || err != nil {
			t.Errorf("one from LSN %d on that it does not list is named (%v)", base, err)
		}
	}
}

// A trim into the middle of an index object: what it retires there has its grace, and
// goes after it though the running epoch wrote it and newer manifests name the same
// index object.
func TestTrimInsideAnIndexObject(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Grace = time.Minute })
	w.width = 8
	for range 10 {
		w.append(2)
		w.archive()
	}
	for range 2 { // leaves the newest two, which both name it
		w.sweep()
		w.clock.advance(time.Hour)
	}
	list := w.manifest.Older[0].Key
	w.trim(13) // three and a bit of the eight below the index object
	for range 3 {
		w.mark(nil)
		w.write()
		if res := w.sweep(); res.Waiting == 0 || len(w.keys("streams/")) != 10 {
			t.Fatalf("%+v, %d segments", res, len(w.keys("streams/")))
		}
	}
	w.clock.advance(time.Hour)
	w.sweep()
	if n, m := len(w.keys("streams/")), len(w.keys("manifests/")); n != 7 || m != 3 || !w.has(list) {
		t.Fatalf("%d segments, %d manifests and lists", n, m)
	}
	if a := w.audit(); len(a.faults) > 0 || len(a.unnamed()) > 0 {
		t.Fatal(a.faults, a.unnamed())
	}
	w.checkAll()
}
