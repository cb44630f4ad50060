package broker_test

import (
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/wal/vfs"
)

// One sync is shared by all streams: whatever comes while the disk is busy goes
// with the next one.
func TestOneSyncForAllStreams(t *testing.T) {
	disk := vfs.NewFault(vfs.NewMem(1))
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{FS: disk}, Budget: 256 << 20, FileSize: 16 << 20})
	const streams = 64
	ids := make([]meta.ShardID, streams)
	for i := range ids {
		ids[i] = n.Create("many/" + string(rune('a'+i%26)) + string(rune('a'+i/26)))
		n.Append(ids[i], "first") // led from here on
	}
	var syncs atomic.Int64
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	disk.Hook(func(o vfs.Op) {
		if o.Kind == vfs.OpSync && strings.HasSuffix(o.Path, ".log") {
			syncs.Add(1)
			once.Do(func() { close(held); <-hold })
		}
	}, nil)
	var answers sync.WaitGroup
	appendTo := func(id meta.ShardID) {
		answers.Add(1)
		err := n.Broker.Append(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "x"), Level: replica.Quorum}, func(_ broker.Result, err error) {
			if err != nil {
				t.Error(err)
			}
			answers.Done()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	appendTo(ids[0])
	<-held // the disk is busy now, and stays so
	for _, id := range ids {
		appendTo(id)
	}
	close(hold)
	answers.Wait()
	if got := syncs.Load(); got > 3 { // the one that was held, one for all, perhaps one that vouches
		t.Errorf("%d syncs for %d appends that came while the disk was busy", got, streams)
	}
}

// An append copies its bytes once, into the group that goes to the disk, and
// allocates nothing that grows with them.
func TestAppendDoesNotCopyTheBatch(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{
		World:  servicetest.World{FS: vfs.OS(), Dir: filepath.Join(t.TempDir(), "varve")},
		Budget: 256 << 20, FileSize: 32 << 20,
	})
	id := n.Create("logs/app")
	const appends = 40
	batches := make([][]byte, 2*appends)
	for i := range batches {
		batches[i] = sized(256 << 10)
	}
	send := func(list [][]byte) {
		for _, b := range list {
			if _, err := n.Send(t.Context(), id, broker.Append{Batch: b, Level: replica.Quorum}); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(batches[:appends]) // buffers grow to their size
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	send(batches[appends:])
	runtime.ReadMemStats(&after)
	bytes, allocs := (after.TotalAlloc-before.TotalAlloc)/appends, (after.Mallocs-before.Mallocs)/appends
	t.Logf("%d bytes in %d allocations for a batch of %d bytes", bytes, allocs, len(batches[0]))
	if bytes > 8<<10 || allocs > 20 {
		t.Errorf("%d bytes in %d allocations for a batch of %d bytes", bytes, allocs, len(batches[0]))
	}
}
