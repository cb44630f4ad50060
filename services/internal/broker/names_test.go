package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

// zeroes makes every object id the same, so that two creations of a name differ in
// their incarnation alone.
type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// recreated runs a stream's whole life, deletes it, creates it again and says what
// of the old one shows in the new one.
func recreated(t *testing.T, o servicetest.Options, stop func(*servicetest.Node)) error {
	n := servicetest.Start(t, o)
	old := n.Create("logs/app")
	p := producer(5)
	first := p.next("old 0", "old 1", "old 2")
	mustSend(t, n, old, first)
	if _, err := n.Broker.Fence(n.Context(), old, "mine", false); err != nil {
		t.Fatal(err)
	}
	n.Archive(old, "old 3")
	want(t, n.Read(old, 0), "old 0", "old 1", "old 2", "old 3") // from the bucket: every cache is warm
	mustSend(t, n, old, p.next("old 4"))
	if _, err := n.Broker.Trim(n.Context(), old, 1); err != nil {
		t.Fatal(err)
	}
	n.Delete(old)
	id := n.Create("logs/app")
	stop(n)

	if values := n.Read(id, 0); len(values) > 0 {
		return fmt.Errorf("the new stream begins with %q", values)
	}
	ends, err := n.Broker.CheckTail(n.Context(), id)
	if err != nil || ends.Start != 0 || ends.Tail != 0 {
		return fmt.Errorf("the new stream has ends %+v, %w", ends, err)
	}
	// The old producer's first batch again: it is new here, and no token is asked for.
	r, err := send(n, id, first)
	if err != nil || r.Duplicate || r.First != 0 {
		return fmt.Errorf("the producer's first batch: %+v, %w", r, err)
	}
	n.Archive(id, "new 3")
	if got := fmt.Sprint(n.Read(id, 0)); got != "[old 0 old 1 old 2 new 3]" {
		return fmt.Errorf("the new stream reads %s", got)
	}
	if _, err := n.TryRead(n.Context(), old, 0); !errors.Is(err, meta.ErrDeleted) {
		return fmt.Errorf("the old stream: %w", err)
	}
	return nil
}

// Rows: N1, B33
func TestN1_RecreatedStreamIsEmpty(t *testing.T) {
	if err := recreated(t, servicetest.Options{}, func(*servicetest.Node) {}); err != nil {
		t.Fatal(err)
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			if err := recreated(t, servicetest.Options{}, func(n *servicetest.Node) { n.Restart(stop(n)) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Rows: N1, N13, B38
func TestN1_TwinCacheByName(t *testing.T) {
	with := func(twin bool) error {
		return recreated(t, servicetest.Options{Tiering: func(o *tiering.Options) {
			o.Rand, o.Twins.CacheByName = zeroes{}, twin
		}}, func(*servicetest.Node) {})
	}
	if err := with(false); err != nil {
		t.Fatal(err)
	}
	if err := with(true); err == nil {
		t.Fatal("a cache that is keyed by name was not caught")
	}
}

// Rows: N3, N9
func TestN3_NeverALowerIncarnationNorADeletedOne(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{KV: kv}})
	lower := n.Create("logs/app")
	older := kv.Backup()
	n.Delete(lower)
	if _, err := n.Broker.Lead(n.Context(), lower); !errors.Is(err, meta.ErrDeleted) {
		t.Fatalf("a deleted incarnation is opened: %v", err)
	}
	higher := n.Create("logs/app")
	n.Append(higher, "kept")
	// An older catalog offers the lower one to a broker that holds the higher one.
	kv.Rewind(older)
	if _, err := n.Catalog.Shard(n.Context(), lower); err != nil {
		t.Fatalf("the older catalog does not offer it: %v", err)
	}
	if _, err := send(n, lower, servicetest.Batch(batch.NoProducer(), "x")); err == nil {
		t.Fatal("the lower incarnation was taken")
	}
	d := n.Keys("streams/")
	if len(d) != 0 {
		t.Fatalf("objects %v", d)
	}
}

// Rows: N4, B111
func TestN4_WhatTheCatalogOmitsStaysAndIsReported(t *testing.T) {
	kv, j := memkv.New(memkv.Options{}), &journal{}
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{KV: kv}, Logger: j.logger()})
	n.Create("logs/other")
	empty := kv.Backup()
	id := n.Create("logs/app")
	n.Append(id, "kept")
	full := kv.Backup()

	kv.Rewind(empty)
	n.Eventually("a report while it runs", func() bool { return j.has("does not know this shard") })
	n.Kill()
	j2 := &journal{}
	n.Logger = j2.logger()
	n.Restart(nil)
	if !j2.has("does not know this shard") {
		t.Fatal("the start did not report it")
	}
	if _, err := n.TryRead(n.Context(), id, 0); !errors.Is(err, meta.ErrNotFound) || errors.Is(err, meta.ErrDeleted) {
		t.Fatalf("read of a stream that the catalog does not know: %v", err)
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	n.Restart(nil) // the checkpoint at the stop has it still
	kv.Rewind(full)
	want(t, n.Read(id, 0), "kept")
}

func TestN4_NamesInsideEachOther(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	a := n.Create("logs/a")
	n.Archive(a, "a")
	inner := n.Create("logs/a/" + meta.Hex(a.Incarnation))
	deeper := n.Create("logs/a/b")
	for _, id := range []meta.ShardID{inner, deeper} {
		n.Archive(id, id.Stream.Name)
		n.Append(id, "tail")
	}
	n.Delete(a)
	n.Eventually("the purge", func() bool {
		left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 10)
		return err == nil && len(left) == 0
	})
	n.Restart(stops["killed"](n))
	for _, id := range []meta.ShardID{inner, deeper} {
		want(t, n.Read(id, 0), id.Stream.Name, "tail")
	}
	for _, key := range append(n.Keys("streams/"), n.Keys("manifests/")...) {
		if strings.Contains(key, "/"+a.Key()+"/") {
			t.Errorf("%s is left", key)
		}
	}
}

// Rows: N5, B34
func TestN5_DeleteInterruptedAnywhereIsFinished(t *testing.T) {
	r := newRecorder(t)
	n := servicetest.Start(t, servicetest.Options{World: r.world(), FileSize: 64 << 10, Budget: 1 << 20})
	old := n.Create("logs/app")
	n.Archive(old, "old 0")
	n.Archive(old, "old 1")
	n.Append(old, "old 2")
	r.record(true)
	n.Delete(old)
	n.Eventually("the purge", func() bool {
		left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 10)
		return err == nil && len(left) == 0
	})
	pictures := r.pictures()
	if len(pictures) < 6 {
		t.Fatalf("only %d moments", len(pictures))
	}
	n.Kill()
	for _, p := range pictures {
		n := servicetest.Start(t, servicetest.Options{World: p.world(), FileSize: 64 << 10, Budget: 1 << 20})
		if _, err := n.Catalog.Stream(n.Context(), old.Stream); err == nil { // the delete had not begun
			want(t, n.Read(old, 0), "old 0", "old 1", "old 2")
			n.Delete(old)
		}
		id := n.Create("logs/app")
		n.Archive(id, "new 0")
		n.Append(id, "new 1")
		n.Eventually("the purge after a crash before "+p.before, func() bool {
			left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 10)
			return err == nil && len(left) == 0
		})
		for _, key := range append(n.Keys("streams/"), n.Keys("manifests/")...) {
			if strings.Contains(key, old.Key()) {
				t.Errorf("crash before %s: %s is left", p.before, key)
			}
		}
		n.Restart(stops["clean stop"](n))
		want(t, n.Read(id, 0), "new 0", "new 1")
		if _, err := n.TryRead(n.Context(), old, 0); !errors.Is(err, meta.ErrDeleted) {
			t.Errorf("crash before %s: the old stream: %v", p.before, err)
		}
		n.Kill()
	}
}

// sleeper runs a node over a delete and a recreate that happen while it is down,
// and reports whether it began to serve the old incarnation again.
func sleeper(t *testing.T, twins broker.Twins) error {
	n := servicetest.Start(t, servicetest.Options{})
	old := n.Create("logs/app")
	n.Append(old, "old")
	n.Restart(stops["killed"](n)) // the entries are replayed
	cat := n.Catalog
	n.Kill()
	if _, err := cat.Delete(context.Background(), old.Stream, 0); err != nil {
		t.Fatal(err)
	}
	id := n.Create("logs/app")
	n.Twins = twins
	n.Restart(nil)
	if d := n.Broker.Held(old.Stream); len(d) != 0 {
		return fmt.Errorf("it holds %v", d)
	}
	want(t, n.Read(id, 0))
	n.Append(id, "new")
	n.Restart(stops["killed"](n))
	want(t, n.Read(id, 0), "new")
	return nil
}

func TestN6_TombstonesBeforeShards(t *testing.T) {
	if err := sleeper(t, broker.Twins{}); err != nil {
		t.Fatal(err)
	}
}

func TestN6_TwinOpenFirst(t *testing.T) {
	if err := sleeper(t, broker.Twins{OpenFirst: true}); err == nil {
		t.Fatal("shards that open before tombstones are applied were not caught")
	}
}

func TestN7_FiveDeletesSleptThrough(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	n.Append(n.Create("logs/app"), "old")
	disk := n.Disk().KillClone()
	n.Kill()
	// The others go on with another disk, as another broker would.
	mine := n.FS
	_ = mine
	for range 5 {
		if _, err := n.Catalog.Delete(n.Context(), meta.StreamName{Namespace: "logs", Name: "app"}, 0); err != nil {
			t.Fatal(err)
		}
		n.Create("logs/app")
	}
	n.Restart(disk)
	row, err := n.Catalog.Stream(n.Context(), meta.StreamName{Namespace: "logs", Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	id := meta.ShardID{Stream: row.Name, Incarnation: row.Incarnation}
	want(t, n.Read(id, 0))
	n.Append(id, "new")
	want(t, n.Read(id, 0), "new")
	if held := n.Broker.Held(row.Name); len(held) != 1 {
		t.Fatalf("holds %v", held)
	}
	stones, _, err := n.Catalog.Tombstones(n.Context(), "logs", "", 10)
	if err != nil || len(stones) != 1 {
		t.Fatalf("tombstones %v, %v: want one row for the name", stones, err)
	}
}

// Rows: N8, B39, B168
func TestN8_HolderSeesADeleteItWasNotAskedFor(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Append(id, "old")
	r, err := n.Broker.Reader(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended := make(chan error, 1)
	go func() { ended <- r.Wait(context.Background(), 1) }()
	// Somebody else deletes it and creates it again: only the watch can tell.
	if _, err := n.Catalog.Delete(n.Context(), id.Stream, 0); err != nil {
		t.Fatal(err)
	}
	again := n.Create("logs/app")
	select {
	case err := <-ended:
		isErr(t, err, meta.ErrDeleted)
	case <-time.After(servicetest.Patience):
		t.Fatal("a waiting reader was not told")
	}
	_, err = r.Read(n.Context(), 0, 1<<20)
	isErr(t, err, meta.ErrDeleted)
	n.Append(again, "new")
	row, err := n.Catalog.Shard(n.Context(), again)
	if err != nil || row.Epoch != 1 {
		t.Fatalf("row %+v, %v: want the first epoch of the new stream", row, err)
	}
	want(t, n.Read(again, 0), "new")
}

// Rows: N13, B45
func TestN13_DeleteWhileAnUploadIsBetweenItsParts(t *testing.T) {
	for _, folder := range []string{"streams/", "manifests/"} {
		t.Run(folder, func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{})
			old := n.Create("logs/app")
			hold := n.Faults.Hold(fault.Fault{Op: fault.Put, Key: folder})
			t.Cleanup(hold.Release)
			answered := make(chan error, 1)
			err := n.Broker.Append(n.Context(), old, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "old"), Level: replica.Archive},
				func(_ broker.Result, err error) { answered <- err })
			if err != nil {
				t.Fatal(err)
			}
			<-hold.Arrived()
			n.Delete(old)
			isErr(t, <-answered, meta.ErrDeleted)
			id := n.Create("logs/app")
			n.Append(id, "new")
			hold.Release()
			n.Archive(id, "new too")
			n.Eventually("the purge", func() bool {
				left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 10)
				return err == nil && len(left) == 0
			})
			for _, key := range append(n.Keys("streams/"), n.Keys("manifests/")...) {
				if strings.Contains(key, old.Key()) {
					t.Errorf("%s is left", key)
				}
			}
			n.Restart(stops["killed"](n))
			want(t, n.Read(id, 0), "new", "new too")
		})
	}
}

// Rows: B36, B37, N1
func TestB37_AppendsInFlightWhenTheStreamIsDeleted(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	for round := range 5 {
		id := n.Create("logs/app")
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			acked []string
		)
		for i := range 50 {
			wg.Go(func() {
				v := fmt.Sprintf("%d-%d", round, i)
				_, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), v)})
				switch {
				case err == nil:
					mu.Lock()
					acked = append(acked, v)
					mu.Unlock()
				case !errors.Is(err, meta.ErrDeleted):
					t.Errorf("append: %v, want an answer or a deleted stream", err)
				}
			})
		}
		n.Delete(id)
		wg.Wait()
		if _, err := n.TryRead(n.Context(), id, 0); !errors.Is(err, meta.ErrDeleted) {
			t.Fatalf("%d acknowledged; read: %v", len(acked), err)
		}
		if held := n.Broker.Held(id.Stream); len(held) != 0 {
			t.Fatalf("holds %v of a deleted stream", held)
		}
	}
}

// A delete that comes between an append's look at the catalog and its place in the
// broker's maps leaves nothing behind.
//
// Rows: B37, N8
func TestB37_DeleteWhileAShardIsOpened(t *testing.T) {
	kv := &hookedKV{KV: memkv.New(memkv.Options{}), after: func(string) {}}
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{KV: kv}})
	id := n.Create("logs/app")
	var once sync.Once
	kv.after = func(key string) {
		if strings.HasPrefix(key, "shards/") {
			once.Do(func() { n.Delete(id) })
		}
	}
	_, err := send(n, id, servicetest.Batch(batch.NoProducer(), "x"))
	isErr(t, err, meta.ErrDeleted)
	if held := n.Broker.Held(id.Stream); len(held) != 0 {
		t.Fatalf("holds %v of a deleted stream", held)
	}
}

// Rows: B45
func TestB45_ManyStreamsLeaveOnlyTombstones(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	for i := range 60 {
		id := n.Create(fmt.Sprintf("logs/s%d", i))
		switch i % 3 {
		case 0:
			n.Append(id, "x")
		case 1:
			n.Archive(id, "x")
		case 2: // while it is uploading
			err := n.Broker.Append(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "x"), Level: replica.Archive}, func(broker.Result, error) {})
			if err != nil {
				t.Fatal(err)
			}
		}
		n.Delete(id)
	}
	n.Eventually("all purges", func() bool {
		left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 100)
		return err == nil && len(left) == 0
	})
	for _, key := range n.Keys("") {
		if !strings.HasPrefix(key, "tombstones/") && !strings.HasPrefix(key, "claims/") {
			t.Errorf("%s is left", key)
		}
	}
	if shards := n.Broker.Shards(); shards != 0 {
		t.Errorf("%d shards are held", shards)
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	n.Restart(nil)
	if shards := n.Broker.Shards(); shards != 0 {
		t.Errorf("%d shards are held after a restart", shards)
	}
}
