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
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/wal/vfs"
)

// fill appends to a stream until the log has no room, and returns what was stored.
func fill(n *servicetest.Node, id meta.ShardID) (stored []string) {
	n.T.Helper()
	for i := range 1000 {
		v := fmt.Sprintf("%d %s", i, strings.Repeat("x", 8<<10))
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		_, err := n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), v)})
		cancel()
		if throttled := (*meta.Throttled)(nil); errors.As(err, &throttled) {
			if throttled.RetryAfter <= 0 || throttled.Why == "" {
				n.T.Fatalf("throttled without a word: %+v", throttled)
			}
			return stored
		}
		if err != nil {
			n.T.Fatalf("append %d: %v, want an answer or a throttle at its deadline", i, err)
		}
		stored = append(stored, v)
	}
	n.T.Fatal("the log never filled")
	return nil
}

// eventuallyAppends waits until appends to a stream go through again.
func eventuallyAppends(n *servicetest.Node, id meta.ShardID, value string) {
	n.T.Helper()
	n.Eventually("room for an append", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), value)})
		return err == nil
	})
}

// Rows: W4, B62, B108, B115
func TestW4_BucketOutLogFull(t *testing.T) {
	n := servicetest.Start(t, small(servicetest.World{}))
	hot, quiet := n.Create("logs/hot"), n.Create("logs/quiet")
	n.Append(quiet, "quiet")
	n.Faults.Outage(bucket.ErrUnavailable)
	stored := fill(n, hot)
	if st := n.Broker.Log().Status(); st.Bytes > st.Budget {
		t.Fatalf("the log's files take %d bytes of %d", st.Bytes, st.Budget)
	}
	// What is small and makes room, or says how things are, works still; also for a
	// shard that was never used.
	if _, err := n.Broker.Trim(n.Context(), hot, 5); err != nil {
		t.Fatalf("trim: %v", err)
	}
	if _, err := n.Broker.Fence(n.Context(), quiet, "token", false); err != nil {
		t.Fatalf("fence: %v", err)
	}
	if e, err := n.Broker.CheckTail(n.Context(), hot); err != nil || int(e.Tail) != len(stored) || e.Start != 5 {
		t.Fatalf("tail %+v, %v", e, err)
	}
	if _, err := n.Broker.Lead(n.Context(), n.Create("logs/unused")); err != nil {
		t.Fatalf("leading a new shard: %v", err)
	}
	want(t, n.Read(hot, 5), stored[5:]...)
	// The bucket is back: marks go through, and with them everything else.
	n.Faults.Outage(nil)
	eventuallyAppends(n, hot, "after")
	want(t, n.Read(hot, 5), append(stored[5:], "after")...)
	want(t, n.Read(quiet, 0), "quiet")
}

// A log that is full of one stream's past makes room for the others after a
// restart, although nobody asks for that stream.
//
// Rows: W4, B108
func TestW4_FullLogIsArchivedAfterARestart(t *testing.T) {
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			n := servicetest.Start(t, small(servicetest.World{}))
			hot, quiet := n.Create("logs/hot"), n.Create("logs/quiet")
			n.Append(quiet, "quiet")
			n.Faults.Outage(bucket.ErrUnavailable)
			stored := fill(n, hot)
			disk := stop(n)
			n.Faults.Outage(nil)
			n.Restart(disk)
			eventuallyAppends(n, quiet, "after")
			want(t, n.Read(hot, 0), stored...)
		})
	}
}

// Many shards that are opened while the log is full get room or an answer; none
// takes the room of another's promise, and the broker lives.
func TestW4_OpeningManyShardsOnAFullLog(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{FileSize: 256 << 10, Budget: 4 << 20})
	hot := n.Create("logs/hot")
	ids := make([]meta.ShardID, 100)
	for i := range ids {
		ids[i] = n.Create(fmt.Sprintf("logs/s%d", i))
	}
	n.Faults.Outage(bucket.ErrUnavailable)
	stored := fill(n, hot)
	refused := 0
	for _, id := range ids {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if _, err := n.Broker.Lead(ctx, id); err != nil {
			refused++
		}
		cancel()
	}
	n.Faults.Outage(nil)
	for _, id := range ids {
		n.Eventually("a leader", func() bool { _, err := n.Broker.Lead(n.Context(), id); return err == nil })
	}
	t.Logf("%d of %d had to wait", refused, len(ids))
	n.Append(ids[0], "x")
	want(t, n.Read(hot, 0), stored...)
}

// Rows: B115, W4
func TestB115_DeleteMakesRoomWithoutTheBucket(t *testing.T) {
	n := servicetest.Start(t, small(servicetest.World{}))
	hot, quiet := n.Create("logs/hot"), n.Create("logs/quiet")
	n.Append(quiet, "quiet")
	n.Faults.Outage(bucket.ErrUnavailable)
	fill(n, hot)
	if _, err := n.Catalog.Delete(n.Context(), hot.Stream, 0); err != nil {
		t.Fatal(err)
	}
	eventuallyAppends(n, quiet, "after")
	want(t, n.Read(quiet, 0), "quiet", "after")
}

// Rows: W4, B110
func TestW4_FullDiskRefusesAndLosesNothing(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{FileSize: 64 << 10, Budget: 4 << 20})
	id := n.Create("logs/app")
	n.Append(id, "first")
	disk := n.Disk()
	disk.SetCapacity(1) // no more files
	n.Faults.Outage(bucket.ErrUnavailable)
	stored := []string{"first"}
	for i := 0; ; i++ {
		v := fmt.Sprintf("%d %s", i, strings.Repeat("x", 8<<10))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), v)})
		cancel()
		if err != nil {
			isErr(t, err, meta.ErrExhausted)
			break
		}
		if stored = append(stored, v); i > 1000 {
			t.Fatal("the disk never filled")
		}
	}
	if _, err := n.Broker.Trim(n.Context(), id, 1); err != nil {
		t.Fatalf("trim: %v", err)
	}
	if err := n.Broker.Err(); err != nil {
		t.Fatalf("the log failed: %v", err)
	}
	disk.SetCapacity(0)
	n.Faults.Outage(nil)
	eventuallyAppends(n, id, "after")
	want(t, n.Read(id, 1), append(stored[1:], "after")...)
}

// Rows: W13, E3, B13, B15
func TestW13_FailedSyncStopsTheBroker(t *testing.T) {
	disk := vfs.NewMem(1)
	faults := vfs.NewFault(disk)
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{FS: faults}})
	id, idle := n.Create("logs/app"), n.Create("logs/idle")
	n.Append(id, "stored")
	n.Append(idle, "stored")
	faults.Fail(vfs.Rule{Kind: vfs.OpSync, Match: func(o vfs.Op) bool { return strings.Contains(o.Path, "/wal/") }})
	_, err := send(n, id, servicetest.Batch(batch.NoProducer(), "doubtful"))
	var failure *broker.Failure
	if !errors.As(err, &failure) || !failure.Unknown {
		t.Fatalf("append over a failed sync: %v, want an unknown outcome", err)
	}
	// Nothing is acknowledged any more, on any shard, whatever the disk does now.
	for range 3 {
		for _, id := range []meta.ShardID{id, idle} {
			if _, err := send(n, id, servicetest.Batch(batch.NoProducer(), "never")); err == nil {
				t.Fatal("acknowledged after a failed sync")
			}
		}
	}
	err = n.Wait()
	isErr(t, err, meta.ErrPoisoned)
	if code := run.ExitCode(err); code != run.ExitStorage {
		t.Fatalf("exit code %d", code)
	}
	left := disk.CrashClone(vfs.CrashOptions{})
	n.Kill()
	n.Restart(left)
	got := n.Read(id, 0)
	if len(got) < 1 || len(got) > 2 || got[0] != "stored" || len(got) == 2 && got[1] != "doubtful" {
		t.Fatalf("read %q", got)
	}
	if r := n.Append(id, "next"); int(r.First) != len(got) {
		t.Fatalf("next offset %d, want %d", r.First, len(got))
	}
	want(t, n.Read(idle, 0), "stored")
}

// Ten streams and a bucket that fails now and then: nothing is lost, and every
// stream gets through.
//
// Rows: B62, T6
func TestB62_ManyStreamsOverAFlakyBucket(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{FileSize: 256 << 10, Budget: 4 << 20})
	const streams, batches = 10, 60
	ids := make([]meta.ShardID, streams)
	for i := range ids {
		ids[i] = n.Create(fmt.Sprintf("logs/s%d", i))
	}
	flaky := make(chan struct{})
	var wg, outages sync.WaitGroup
	outages.Go(func() {
		for down := true; ; down = !down {
			select {
			case <-flaky:
				n.Faults.Outage(nil)
				return
			case <-time.After(20 * time.Millisecond):
			}
			if down {
				n.Faults.Outage(bucket.ErrUnavailable)
			} else {
				n.Faults.Outage(nil)
			}
		}
	})
	stored := make([][]string, streams)
	for i, id := range ids {
		wg.Go(func() {
			for j := range batches {
				v := fmt.Sprintf("%d %d %s", i, j, strings.Repeat("y", 8<<10))
				for {
					ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
					_, err := n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), v)})
					cancel()
					if err == nil {
						break
					}
					t.Errorf("append: %v", err)
					return
				}
				stored[i] = append(stored[i], v)
			}
		})
	}
	wg.Wait()
	close(flaky)
	outages.Wait()
	for i, id := range ids {
		want(t, n.Read(id, 0), stored[i]...)
	}
}
