package broker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

// follow reads a shard from the start until it has seen so many records, waiting
// at the tail, with pages of about a size.
func follow(ctx context.Context, n *servicetest.Node, id meta.ShardID, page, records int) (offsets []meta.Offset, cold int, err error) {
	r, err := n.Broker.Reader(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	for at := meta.Offset(0); len(offsets) < records; {
		p, err := r.Read(ctx, at, page)
		if err != nil {
			return offsets, cold, err
		}
		if len(p.Entries) == 0 {
			if err := r.Wait(ctx, at); err != nil {
				return offsets, cold, err
			}
			if ctx.Err() != nil {
				return offsets, cold, fmt.Errorf("after %d records: %w", len(offsets), ctx.Err())
			}
			continue
		}
		if p.Cold {
			cold++
		}
		for at < p.Next {
			offsets = append(offsets, at)
			at++
		}
	}
	return offsets, cold, nil
}

// Readers go on over the border between log and bucket while it moves under them.
//
// Rows: B91, B92, C2
func TestB91_ReadersCrossTheBorderWhileItMoves(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{FileSize: 64 << 10, Budget: 2 << 20})
	id := n.Create("logs/app")
	const rounds, each = 12, 20
	var wg sync.WaitGroup
	var colds atomic.Int64
	for reader := range 4 {
		wg.Go(func() {
			offsets, cold, err := follow(n.Context(), n, id, 1<<(reader*4), rounds*each)
			colds.Add(int64(cold))
			if err != nil {
				t.Errorf("reader %d: %v", reader, err)
			}
			for i, o := range offsets {
				if o != meta.Offset(i) {
					t.Errorf("reader %d: offset %d at place %d", reader, o, i)
					return
				}
			}
		})
	}
	for round := range rounds {
		for i := range each - 1 {
			n.Append(id, fmt.Sprintf("%d-%d %s", round, i, strings.Repeat("z", 512)))
		}
		n.Archive(id, fmt.Sprint(round))
		if err := n.Broker.Checkpoint(n.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	offsets, cold, err := follow(n.Context(), n, id, 1<<16, rounds*each)
	if err != nil || len(offsets) != rounds*each || cold == 0 {
		t.Fatalf("%d records, %d cold pages, %v", len(offsets), cold, err)
	}
}

// Rows: B190, B193
func TestB190_TimeIsFoundOnBothSidesOfTheBorder(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	clock := func() time.Time { return time.UnixMicro(now.Load()) }
	n := servicetest.Start(t, servicetest.Options{Now: clock})
	id := n.Create("logs/app")
	type stamp struct {
		at   meta.Offset
		time meta.Micros
	}
	var stamps []stamp
	check := func(start meta.Offset) {
		t.Helper()
		r, err := n.Broker.Reader(n.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var end meta.Offset
		if len(stamps) > 0 {
			end = stamps[len(stamps)-1].at + 2
		}
		for _, s := range stamps {
			for d := meta.Micros(-1); d <= 1; d++ {
				expect := end
				for _, o := range stamps {
					if o.time >= s.time+d {
						expect = o.at
						break
					}
				}
				got, err := r.FindTime(n.Context(), s.time+d)
				if err != nil || got != max(expect, start) {
					t.Fatalf("time of offset %d%+d: found %d, want %d, %v", s.at, d, got, max(expect, start), err)
				}
			}
		}
		if got, err := r.FindTime(n.Context(), 0); err != nil || got != start {
			t.Fatalf("the oldest time: %d, %v", got, err)
		}
	}
	for i := range 12 {
		now.Add(int64(i%3) * 1000) // some share a time
		store := n.Append
		if i%5 == 4 {
			store = n.Archive
		}
		r := store(id, "x", "y")
		stamps = append(stamps, stamp{r.First, r.Time})
		check(0)
	}
	if _, err := n.Broker.Trim(n.Context(), id, 5); err != nil { // inside a batch, in the bucket
		t.Fatal(err)
	}
	check(5)
	n.Restart(stops["killed"](n))
	check(5)
}

// Rows: B93
func TestB93_ShortWaitsMakeProgressOnASlowBucket(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Archive(id, "cold")
	n.Restart(stops["clean stop"](n)) // nothing is cached
	n.Faults.Inject(fault.Fault{Op: fault.Get, Times: -1, Delay: 200 * time.Millisecond})
	r, err := n.Broker.Reader(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n.Faults.ResetCounts()
	tries := 0
	n.Eventually("the record", func() bool {
		tries++
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		p, err := r.Read(ctx, 0, 1<<20)
		return err == nil && len(p.Entries) == 1
	})
	if gets := n.Faults.Count(fault.Get); gets > 4 || tries < 2 {
		t.Fatalf("%d requests in %d tries: the download did not survive the wait", gets, tries)
	}
}

// Every waiting reader is woken by every append: none sleeps through one.
func TestWaitIsNeverSleptThrough(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	const records = 200
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, _, err := follow(n.Context(), n, id, 1, records); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range records {
		n.Append(id, fmt.Sprint(i))
	}
	wg.Wait()
}

// A drain ends every wait at once, and new calls are told so.
func TestDrainEndsWaitsAndRefuses(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Append(id, "a")
	r, err := n.Broker.Reader(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended := make(chan error, 1)
	go func() { ended <- r.Wait(context.Background(), 1) }()
	n.Broker.Drain()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	_, err = send(n, id, servicetest.Batch(batch.NoProducer(), "late"))
	isErr(t, err, meta.ErrUnavailable)
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(context.Background(), 0, 1); err == nil {
		t.Fatal("a reader reads on after the stop")
	}
	n.Restart(nil)
	want(t, n.Read(id, 0), "a")
}

// Cancelling a wait for an answer does not cancel the append, and says so.
func TestCancelledCommandMayStillBeCarriedOut(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	hold := n.Faults.Hold(fault.Fault{Op: fault.Put, Key: "streams/"})
	defer hold.Release()
	answered := begin(n, id, servicetest.Batch(batch.NoProducer(), "a"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "b"), Level: replica.Archive})
	if err == nil {
		t.Fatal("a cancelled append at level archive was answered")
	}
	hold.Release()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if got := n.Read(id, 0); got[0] != "a" || len(got) > 2 {
		t.Fatalf("read %q", got)
	}
}
