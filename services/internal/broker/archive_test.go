package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
	"github.com/varve-io/varve/wal/vfs"
)

// small is a log of sixteen little files.
func small(w servicetest.World) servicetest.Options {
	return servicetest.Options{World: w, FileSize: 64 << 10, Budget: 1 << 20}
}

// acked is what was acknowledged at a moment.
type acked struct{ stored, archived []string }

func contains(t *testing.T, moment string, got, values []string) {
	t.Helper()
	for _, v := range values {
		if !slices.Contains(got, v) {
			t.Errorf("crash before %s: %q was acknowledged and is gone: %q", moment, v, got)
		}
	}
}

// Rows: T1, T3, B58, B74
func TestT1_CrashAtEveryStepOfArchiving(t *testing.T) {
	r := newRecorder(t)
	var mu sync.Mutex
	var now acked
	r.note = func() any {
		mu.Lock()
		defer mu.Unlock()
		return acked{slices.Clone(now.stored), slices.Clone(now.archived)}
	}
	n := servicetest.Start(t, small(r.world()))
	id := n.Create("logs/app")
	n.Append(id, "first")
	now.stored = []string{"first"}
	r.record(true)
	for i := range 3 {
		a, b := fmt.Sprintf("stored %d", i), fmt.Sprintf("archived %d", i)
		n.Append(id, a)
		mu.Lock()
		now.stored = append(now.stored, a)
		mu.Unlock()
		n.Archive(id, b)
		mu.Lock()
		now.stored = append(now.stored, b)
		now.archived = slices.Clone(now.stored)
		mu.Unlock()
	}
	if err := n.Broker.Checkpoint(n.Context()); err != nil { // what was dropped is recycled
		t.Fatal(err)
	}
	pictures := r.pictures()
	t.Logf("%d moments", len(pictures))
	if len(pictures) < 20 {
		t.Fatalf("only %d moments", len(pictures))
	}
	n.Kill()
	for _, p := range pictures {
		was := p.note.(acked)
		// Every disk is lost: the bucket alone has what was acknowledged with archive.
		w := p.world()
		w.FS, w.Bucket = vfs.NewMem(3), copyBucket(t, p.bucket)
		m := servicetest.Start(t, small(w))
		row, err := m.Catalog.Shard(m.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Broker.Abandon(m.Context(), id, []meta.StorageID{row.Members[0].Storage}, false); err != nil {
			t.Fatalf("crash before %s, all disks lost: %v", p.before, err)
		}
		contains(t, p.before+", all disks lost", m.Read(id, 0), was.archived)
		m.Append(id, "after")
		m.Kill()
		// The disk is there: nothing acknowledged is missing, before anything more
		// reaches the bucket and after.
		m = servicetest.Start(t, small(p.world()))
		stop := m.Faults.Inject(fault.Fault{Op: fault.Put, Times: -1, Before: bucket.ErrUnavailable})
		contains(t, p.before, m.Read(id, 0), was.stored)
		stop()
		m.Archive(id, "after")
		got := m.Read(id, 0)
		contains(t, p.before, got, was.stored)
		if len(got) != int(tail(m, id)) || got[len(got)-1] != "after" {
			t.Errorf("crash before %s: %d records, tail %d", p.before, len(got), tail(m, id))
		}
		m.Kill()
	}
}

func tail(n *servicetest.Node, id meta.ShardID) meta.Offset {
	n.T.Helper()
	e, err := n.Broker.CheckTail(n.Context(), id)
	if err != nil {
		n.T.Fatal(err)
	}
	return e.Tail
}

// begin sends a batch at level archive without waiting; the channel gets its outcome.
func begin(n *servicetest.Node, id meta.ShardID, b []byte) <-chan error {
	n.T.Helper()
	answered := make(chan error, 1)
	err := n.Broker.Append(n.Context(), id, broker.Append{Batch: b, Level: replica.Archive}, func(_ broker.Result, err error) { answered <- err })
	if err != nil {
		n.T.Fatal(err)
	}
	return answered
}

// betweenMarkAndManifest reads everything while the manifest of a committed mark is
// on its way.
func betweenMarkAndManifest(t *testing.T, twins broker.Twins) error {
	n := servicetest.Start(t, servicetest.Options{Twins: twins})
	id := n.Create("logs/app")
	hold := n.Faults.Hold(fault.Fault{Op: fault.Put, Key: "manifests/"})
	defer hold.Release()
	answered := begin(n, id, servicetest.Batch(batch.NoProducer(), "a", "b"))
	<-hold.Arrived()
	select {
	case err := <-answered:
		return fmt.Errorf("answered before its manifest is written: %v", err)
	default:
	}
	values, err := n.TryRead(n.Context(), id, 0)
	if err != nil {
		return err
	}
	want(t, values, "a", "b")
	hold.Release()
	if err := <-answered; err != nil {
		return err
	}
	want(t, n.Read(id, 0), "a", "b")
	return nil
}

// Rows: T1, B58
func TestT1_InTheLogUntilTheManifestIsConfirmed(t *testing.T) {
	if err := betweenMarkAndManifest(t, broker.Twins{}); err != nil {
		t.Fatal(err)
	}
}

func TestT1_TwinDropAtMark(t *testing.T) {
	if err := betweenMarkAndManifest(t, broker.Twins{DropAtMark: true}); err == nil {
		t.Fatal("a log that drops at the mark was not caught")
	}
}

// Rows: B70, T7
func TestB70_IdleStreamIsPublishedAfterACrash(t *testing.T) {
	for _, folder := range []string{"streams/", "manifests/"} {
		t.Run("before "+folder, func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{Defaults: catalog.StreamConfig{SegmentAge: time.Second}})
			id := n.Create("logs/app")
			hold := n.Faults.Hold(fault.Fault{Op: fault.Put, Key: folder})
			begin(n, id, servicetest.Batch(batch.NoProducer(), "a"))
			<-hold.Arrived()
			disk := n.Disk().CrashClone(vfs.CrashOptions{})
			n.Kill()
			hold.Release()
			n.Restart(disk) // and nobody asks for anything
			n.Eventually("the record in a manifest", func() bool {
				d, err := n.Broker.Describe(n.Context(), id)
				return err == nil && d.Archive != nil && d.Archive.NextOffset == 1
			})
			lost := lost(n, id)
			if _, err := n.Broker.Abandon(n.Context(), id, lost, false); err != nil {
				t.Fatal(err)
			}
			want(t, n.Read(id, 0), "a")
		})
	}
}

// What is archived already costs an idle stream nothing after a restart.
func TestIdleArchivedStreamIsNotLedAfterARestart(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{Defaults: catalog.StreamConfig{SegmentAge: time.Second}})
	idle, busy := n.Create("logs/idle"), n.Create("logs/busy")
	n.Archive(idle, "a")
	n.Append(busy, "b")
	n.Restart(stops["clean stop"](n))
	before, err := n.Catalog.Shard(n.Context(), idle)
	if err != nil {
		t.Fatal(err)
	}
	// The scheduler comes by both at the same time: when one is archived, the other
	// was looked at.
	n.Eventually("the busy stream's manifest", func() bool { return len(n.Keys("manifests/"+busy.Key())) > 0 })
	if after, _ := n.Catalog.Shard(n.Context(), idle); after.Epoch != before.Epoch {
		t.Fatalf("epoch %d after %d", after.Epoch, before.Epoch)
	}
	want(t, n.Read(idle, 0), "a")
}

// What the log dropped before a crash is dropped again after it, without waiting
// for somebody to use the shard.
//
// Rows: W5
func TestW5_DroppedBeforeACrashIsDroppedAfterIt(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Archive(id, strings.Repeat("a", 500<<10))
	for range 1100 { // the commit mark goes into the log every 1024 commits
		n.Append(id, "b")
	}
	n.Restart(stops["killed"](n))
	for _, tail := range n.Broker.Log().Tails() {
		if tail.ID == id && tail.Bytes > 400<<10 {
			t.Errorf("the log keeps %d bytes, what is archived included", tail.Bytes)
		}
	}
}

// A failed upload is not skipped by a later one.
func TestB74_FailedUploadIsNotSkipped(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Archive(id, "a")
	stop := n.Faults.Inject(fault.Fault{Op: fault.Put, Key: "streams/", Times: -1, After: bucket.ErrUnknown}) // each may be there
	begin(n, id, servicetest.Batch(batch.NoProducer(), "b"))
	n.Append(id, "c")
	n.Eventually("an upload given up", func() bool { return len(n.Keys("streams/")) > 2 })
	disk := n.Disk().CrashClone(vfs.CrashOptions{})
	n.Kill()
	stop()
	n.Restart(disk)
	n.Archive(id, "d")
	want(t, n.Read(id, 0), "a", "b", "c", "d")
	if _, err := n.Broker.Abandon(n.Context(), id, lost(n, id), false); err != nil {
		t.Fatal(err)
	}
	want(t, n.Read(id, 0), "a", "b", "c", "d")
}

// Rows: T7
func TestT7_SweepBetweenEveryTwoSteps(t *testing.T) {
	r := newRecorder(t)
	n := servicetest.Start(t, small(r.world()))
	id := n.Create("logs/app")
	n.Archive(id, "a")
	r.record(true)
	n.Archive(id, "b")
	pictures := r.pictures()
	n.Kill()
	for _, p := range pictures {
		m := servicetest.Start(t, small(p.world()))
		// The new leader sweeps before it settles, while it does, and after.
		hold := m.Faults.Hold(fault.Fault{Op: fault.Put, Key: "manifests/"})
		if _, err := m.Broker.Lead(m.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := m.Broker.Sweep(m.Context(), id); err != nil {
			t.Fatalf("crash before %s: %v", p.before, err)
		}
		answered := begin(m, id, servicetest.Batch(batch.NoProducer(), "c"))
		<-hold.Arrived()
		if err := m.Broker.Sweep(m.Context(), id); err != nil {
			t.Fatalf("crash before %s: %v", p.before, err)
		}
		hold.Release()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
		if err := m.Broker.Sweep(m.Context(), id); err != nil {
			t.Fatalf("crash before %s: %v", p.before, err)
		}
		got := m.Read(id, 0)
		if _, err := m.Broker.Abandon(m.Context(), id, lost(m, id), false); err != nil {
			t.Fatal(err)
		}
		want(t, m.Read(id, 0), got...)
		contains(t, p.before, got, []string{"a", "c"})
		// Nothing is left that no manifest names.
		segments := m.Keys("streams/")
		if len(segments) > len(got) {
			t.Errorf("crash before %s: %d segments for %q", p.before, len(segments), got)
		}
		m.Kill()
	}
}

// Rows: T12
func TestT12_ManifestHoldsTheStateOfItsEnd(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	p := producer(8)
	hold := n.Faults.Hold(fault.Fault{Op: fault.Put, Key: "streams/"})
	first := p.next("a")
	answered := begin(n, id, slices.Clone(first))
	<-hold.Arrived() // sealed
	second := p.next("b")
	mustSend(t, n, id, second)
	hold.Release()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if _, err := n.Broker.Abandon(n.Context(), id, lost(n, id), false); err != nil {
		t.Fatal(err)
	}
	want(t, n.Read(id, 0), "a")
	if r := mustSend(t, n, id, first); !r.Duplicate || r.First != 0 {
		t.Fatalf("the archived batch again: %+v", r)
	}
	if r := mustSend(t, n, id, second); r.Duplicate || r.First != 1 {
		t.Fatalf("the lost batch again: %+v: a ghost", r)
	}
	want(t, n.Read(id, 0), "a", "b")
}

// Rows: T5
func TestT5_MissingObjectIsNamedAndTheRestReads(t *testing.T) {
	for _, damage := range []string{"missing", "corrupt"} {
		t.Run(damage, func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{})
			id := n.Create("logs/app")
			for _, v := range []string{"a", "b", "c"} {
				n.Archive(id, v)
			}
			key := ""
			for _, k := range n.Keys("streams/") {
				if s, err := tiering.ParseSegmentKey(k); err != nil {
					t.Fatal(err)
				} else if key == "" || s.Base > 1 && len(key) > 0 {
					key = k
					if s.Base > 1 {
						break // the second in the order of keys
					}
				}
			}
			if damage == "missing" {
				if err := n.Bucket.Delete(n.Context(), []string{key}); err != nil {
					t.Fatal(err)
				}
			} else {
				n.Faults.Inject(fault.Fault{Op: fault.Get, Key: key, Times: -1, Corrupt: true})
			}
			r, err := n.Broker.Reader(n.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var bad *tiering.DamagedError
			at, read := meta.Offset(0), 0
			for at < 3 {
				p, err := r.Read(n.Context(), at, 1)
				switch {
				case err == nil:
					at, read = p.Next, read+len(p.Entries)
				case errors.As(err, &bad) && bad.Next > at:
					isErr(t, err, meta.ErrCorrupt)
					if !strings.Contains(err.Error(), key) {
						t.Fatalf("%v does not name %s", err, key)
					}
					at = bad.Next
				default:
					t.Fatalf("read from %d: %v", at, err)
				}
			}
			if bad == nil || read != 2 {
				t.Fatalf("read %d of 2 whole batches; damage: %v", read, bad)
			}
			n.Append(id, "d")
			want(t, n.Read(id, 3), "d")
		})
	}
}

// Rows: T11
func TestT11_ColdReadAsksTwice(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	for i := range 5 {
		n.Archive(id, fmt.Sprint(i))
	}
	lost(n, id) // no disk, no leader, no cache
	n.Faults.ResetCounts()
	r, err := n.Broker.Reader(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if lists, loads := n.Faults.Count(fault.List), n.Faults.Count(fault.Load); lists > 1 || loads > 1 {
		t.Errorf("%d listings and %d manifests to open a reader", lists, loads)
	}
	n.Faults.ResetCounts()
	p, err := r.Read(n.Context(), 2, 1)
	if err != nil || len(p.Entries) != 1 || !p.Cold || p.Entries[0].Offset != 2 {
		t.Fatalf("page %+v, %v", p, err)
	}
	if all := n.Faults.Count(fault.Any); all > 2 {
		t.Errorf("%d requests to the first byte, want at most 2", all)
	}
}

// Settings that change reach the archiver of a running stream, and the marks.
func TestChangedSettingsReachTheArchiver(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Append(id, "a")
	if _, err := n.Catalog.UpdateStream(n.Context(), id.Stream, catalog.StreamConfig{SegmentAge: time.Second}, 0); err != nil {
		t.Fatal(err)
	}
	n.Broker.Forget(id.Stream)
	if _, err := n.Broker.Stream(n.Context(), id.Stream, 0); err != nil {
		t.Fatal(err)
	}
	n.Eventually("a manifest", func() bool { return len(n.Keys("manifests/")) > 0 })
	d, err := n.Broker.Describe(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	row, err := n.Catalog.Stream(n.Context(), id.Stream)
	if err != nil || string(d.Archive.Row) != string(catalog.EncodeStream(row)) {
		t.Fatalf("the manifest carries the row %s, want %s, %v", d.Archive.Row, catalog.EncodeStream(row), err)
	}
}

// Appends that change nothing leave no manifests behind.
func TestDuplicatesAndRefusalsAreNotArchived(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{Defaults: catalog.StreamConfig{SegmentAge: time.Second}})
	id, other := n.Create("logs/app"), n.Create("logs/other")
	p := producer(3)
	first := p.next("a")
	if err := <-begin(n, id, slices.Clone(first)); err != nil {
		t.Fatal(err)
	}
	count := len(n.Keys("manifests/" + id.Key()))
	for range 10 {
		if err := <-begin(n, id, slices.Clone(first)); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "x"), ExpectedOffset: new(meta.Offset), Level: replica.Archive}); err == nil {
			t.Fatal("a wrong expected offset was taken")
		}
	}
	n.Append(other, "b") // archived by age: the scheduler came by both
	n.Eventually("the other's manifest", func() bool { return len(n.Keys("manifests/"+other.Key())) > 0 })
	if got := len(n.Keys("manifests/" + id.Key())); got != count {
		t.Fatalf("%d manifests, want %d", got, count)
	}
}

// One append at level archive among many others has its past archived, once, and
// not everything that comes after it, batch by batch.
func TestOneArchivedAppendSealsOnce(t *testing.T) {
	faults := vfs.NewFault(vfs.NewMem(1))
	faults.Hook(func(o vfs.Op) {
		if o.Kind == vfs.OpSync {
			time.Sleep(time.Millisecond) // as disks do, so that something is always on its way
		}
	}, nil)
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{FS: faults}})
	id := n.Create("logs/app")
	var producers sync.WaitGroup
	for i := range 16 {
		producers.Go(func() {
			for j := range 40 {
				if _, err := send(n, id, servicetest.Batch(batch.NoProducer(), fmt.Sprint(i, j))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	n.Eventually("some records", func() bool { return tail(n, id) > 50 })
	n.Archive(id, "archived")
	producers.Wait()
	n.Append(id, "last")
	if got := len(n.Keys("manifests/")); got > 3 {
		t.Fatalf("%d manifests for one append at level archive", got)
	}
	if got := len(n.Read(id, 0)); got != 16*40+2 {
		t.Fatalf("%d records", got)
	}
}
