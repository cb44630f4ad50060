package broker_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/wal/vfs"
)

// What an idle stream may keep on the heap, in bytes, catalog and disk aside: it
// is a matter of counting, not of time. Figures are some 20 % above what was
// measured with ten thousand streams; small numbers of them pay more for maps.
const (
	mostHeld = 2200 // held since a start, and not asked for anything
	mostOpen = 3600 // led, and one record appended by a producer session
)

// heap is what is reachable now, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// populate makes streams and appends one record to each.
func populate(t testing.TB, n *servicetest.Node, streams int) []meta.ShardID {
	ids := make([]meta.ShardID, streams)
	if _, err := n.Catalog.CreateNamespace(t.Context(), "idle", catalog.NamespaceConfig{}, ""); err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		name := meta.StreamName{Namespace: "idle", Name: fmt.Sprintf("stream-%06d", i)}
		row, _, err := n.Catalog.Create(t.Context(), catalog.CreateStream{Name: name, Shards: 1})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = row.Shard(0)
	}
	appendEach(t, n, ids, batch.Producer{ID: 7, Epoch: 0, Sequence: 0})
	return ids
}

// appendEach appends one record to each shard, many at once.
func appendEach(t testing.TB, n *servicetest.Node, ids []meta.ShardID, p batch.Producer) {
	const parallel = 64
	var wg sync.WaitGroup
	next := make(chan meta.ShardID)
	for range parallel {
		wg.Go(func() {
			for id := range next {
				if _, err := n.Send(context.Background(), id, broker.Append{Batch: servicetest.Batch(p, "x"), Level: replica.Quorum}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, id := range ids {
		next <- id
	}
	close(next)
	wg.Wait()
}

// idleBytes measures what a stream costs that is held, and one that is open.
func idleBytes(t testing.TB, streams int) (held, open int64) {
	n := servicetest.Start(t, servicetest.Options{Budget: 64 << 20, FileSize: 8 << 20})
	ids := populate(t, n, streams)
	goroutines := runtime.NumGoroutine()
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	n.Restart(nil)
	with := heap()
	n.Kill() // writes nothing, so that the disk in memory stays as it is
	held = (with - heap()) / int64(streams)

	n.Restart(nil)
	appendEach(t, n, ids, batch.Producer{ID: 7, Epoch: 0, Sequence: 1})
	n.Broker.Rest()
	n.Eventually("the log's spare files", func() bool { // their pages are no stream's
		bytes, names := n.Disk().Unsynced()
		return bytes+names == 0
	})
	with = heap()
	if g := runtime.NumGoroutine(); g > goroutines+8 {
		t.Errorf("%d goroutines with %d idle streams", g, streams)
	}
	n.Kill()
	return held, (with - heap()) / int64(streams)
}

func TestIdleStreamsAreSmall(t *testing.T) {
	held, open := idleBytes(t, 400)
	t.Logf("%d bytes a stream that is held, %d open", held, open)
	if held > mostHeld || open > mostOpen {
		t.Errorf("a stream that is held keeps %d bytes (at most %d), an open one %d (at most %d)", held, mostHeld, open, mostOpen)
	}
}

func BenchmarkIdleStream(b *testing.B) {
	for b.Loop() {
		held, open := idleBytes(b, 10_000)
		b.ReportMetric(float64(held), "heldB/stream")
		b.ReportMetric(float64(open), "openB/stream")
	}
	b.ReportMetric(0, "ns/op")
}

// idleFor is longer than any period of a broker.
const idleFor = 15 * time.Minute

// countedKV counts what is asked of the catalog's store.
type countedKV struct {
	catalog.KV
	commits, ranges atomic.Int64
}

func (c *countedKV) Commit(ctx context.Context, t catalog.Transaction) (catalog.Result, error) {
	c.commits.Add(1)
	return c.KV.Commit(ctx, t)
}

func (c *countedKV) Range(ctx context.Context, r catalog.RangeRequest) (catalog.Page, error) {
	c.ranges.Add(1)
	return c.KV.Range(ctx, r)
}

// A broker with many streams that nobody uses touches no disk and writes nothing
// to the catalog, whatever was done before: not after its last write has been
// vouched for, checkpointed, archived and reported, and not after a restart.
func TestIdleBrokerDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewFault(vfs.NewMem(1))
		kv := &countedKV{KV: memkv.New(memkv.Options{})}
		n := servicetest.Start(t, servicetest.Options{
			World: servicetest.World{FS: disk, KV: kv}, Budget: 4 << 20, FileSize: 256 << 10,
			Defaults: catalog.StreamConfig{SegmentAge: time.Minute},
		})
		// during counts what happens to disk and catalog.
		during := func(what func()) (changes, commits, ranges int64) {
			var n atomic.Int64
			disk.Hook(nil, func(o vfs.Op, _ error) {
				if o.Kind.Changes() {
					n.Add(1)
				}
			})
			defer disk.Hook(nil, nil)
			commits, ranges = kv.commits.Load(), kv.ranges.Load()
			what()
			time.Sleep(idleFor)
			synctest.Wait()
			return n.Load(), kv.commits.Load() - commits, kv.ranges.Load() - ranges
		}
		quiet := func(when string) {
			t.Helper()
			time.Sleep(idleFor) // until the tails are old enough for the bucket, and all that follows
			synctest.Wait()
			changes, commits, ranges := during(func() {})
			if changes > 0 || commits > 0 {
				t.Errorf("%s: a while without use changed the disk %d times, and wrote to the catalog %d times", when, changes, commits)
			}
			// The view's audit, and the purge of deleted streams: none of them by stream.
			if ranges > 100 {
				t.Errorf("%s: a while without use listed the catalog %d times", when, ranges)
			}
		}
		ids := populate(t, n, 100)
		quiet("after appends")
		if err := n.Stop(); err != nil {
			t.Fatal(err)
		}
		n.Restart(nil)
		quiet("after a restart")
		appendEach(t, n, ids[:5], batch.NoProducer())
		quiet("after a few more")
		n.Kill()
		n.Restart(nil)
		quiet("after a crash")
		if changes, commits, _ := during(func() { appendEach(t, n, ids[:1], batch.NoProducer()) }); changes == 0 || commits == 0 {
			t.Errorf("one append: %d changes of the disk, %d of the catalog were counted", changes, commits)
		}
	})
}
