package broker_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket/mem"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

var walkCodec batch.Codec

// walk is a random walk over a whole node: clients, mishaps and restarts.
type walk struct {
	t               *testing.T
	n               *servicetest.Node
	r               *rand.Rand // of the walk's own goroutine
	disk            *vfs.Mem
	fs              *vfs.Fault
	kv              *memkv.Store
	store           *mem.Bucket
	ops             sync.WaitGroup
	boots           int
	big             int // one in so many records is big
	restarts, wipes int
	log             []string

	mu       sync.Mutex
	shards   map[meta.ShardID]*known
	stamp    uint64
	count    int
	cold     int
	troubled bool // faults are on: a shard may wait
	sick     bool // the disk fails
	spoilt   bool // the bucket's answers may be spoilt
	ending   bool // the process is being ended
	failed   int
}

// fault reports one. w.mu is held.
func (w *walk) fault(format string, args ...any) {
	w.t.Helper()
	if w.failed++; w.failed <= 12 {
		w.t.Errorf(format, args...)
	}
}

func (w *walk) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func newWalk(t *testing.T, seed uint64) *walk {
	w := &walk{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), disk: vfs.NewMem(seed | 1), kv: memkv.New(memkv.Options{}),
		store: mem.New("test"), shards: map[meta.ShardID]*known{},
	}
	w.big = 1 + w.r.IntN(20)
	w.fs = vfs.NewFault(w.disk)
	o := servicetest.Options{
		World: servicetest.World{FS: w.fs, KV: w.kv, Bucket: w.store}, BootID: "boot 0",
		FileSize: 256 << 10, Budget: int64(6+w.r.IntN(8)) * 256 << 10,
		Purge:    time.Duration(1+w.r.IntN(60)) * time.Second,
		Defaults: catalog.StreamConfig{SegmentBytes: 1 << 20, SegmentAge: time.Duration(1+w.r.IntN(60)) * time.Second},
		Tiering:  func(o *tiering.Options) { o.FetchFor, o.RetryMax = 2*time.Second, 2*time.Second },
	}
	if seed%2 == 1 {
		o.Mode = wal.Periodic
	}
	w.n = servicetest.Start(t, o)
	return w
}

// step does one thing.
func (w *walk) step() {
	w.mu.Lock()
	k := w.pick()
	what := w.r.IntN(100)
	switch {
	case k == nil || what < 4:
		w.opCreate()
	case what < 60:
		w.opAppend(k)
	case what < 75:
		w.opRead(k)
	case what < 80:
		w.opTail(k)
	case what < 83:
		w.opTrim(k)
	case what < 86:
		w.opFence(k)
	case what < 87:
		w.opUnknownProducer(k)
	case what < 88:
		w.opDescribe(k)
	case what < 90:
		w.opDelete(k)
	}
	w.mu.Unlock()
	switch {
	case what >= 98:
		if w.restarts++; w.restarts%12 == 0 {
			w.wipe()
		} else {
			w.restart()
		}
	case what >= 90:
		w.mishap()
	}
	if st := w.n.Broker.Log().Status(); st.Bytes > st.Budget {
		w.t.Errorf("the log's files take %d bytes of %d", st.Bytes, st.Budget)
	}
	switch w.r.IntN(6) {
	case 0:
		synctest.Wait()
	case 1:
		time.Sleep(time.Duration(w.r.IntN(200)) * time.Millisecond)
	case 2:
		if w.r.IntN(6) == 0 {
			time.Sleep(time.Duration(w.r.IntN(40)) * time.Second)
		}
	}
	if w.r.IntN(40) == 0 {
		w.checkAll(false)
	}
	if w.r.IntN(40) == 0 { // a burst
		w.mu.Lock()
		for k, n := w.pick(), w.r.IntN(60); k != nil && n > 0; n-- {
			w.opAppend(k)
		}
		w.mu.Unlock()
	}
	if w.r.IntN(200) == 0 {
		time.Sleep(time.Duration(w.r.IntN(30)) * time.Minute)
	}
}

var (
	firstNodeWalk = flag.Uint64("first-node-walk", 1, "seed of the first random walk over a node; odd seeds walk in periodic mode")
	nodeWalks     = flag.Uint64("node-walks", 6, "how many random walks over a node to take")
	nodeSteps     = flag.Int("node-steps", 400, "steps of each")
)

// Clients of all kinds, every mishap and every way to end a process, at random. A
// failing walk names its seed.
//
// Rows: C1, C2, C3, C9, N1, N5, T1, T6, W4, W5, D2
func TestC1_NodeWalk(t *testing.T) {
	for seed := *firstNodeWalk; seed < *firstNodeWalk+*nodeWalks; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			walkNode(t, seed, *nodeSteps)
		})
	}
}

// walkNode takes one walk.
func walkNode(t *testing.T, seed uint64, steps int) {
	synctest.Test(t, func(t *testing.T) {
		w := newWalk(t, seed)
		for i := 0; i < steps && !t.Failed(); i++ {
			w.step()
			if i%150 == 149 {
				w.settle()
			}
		}
		if !t.Failed() {
			w.settle()
		}
		if t.Failed() {
			t.Logf("what happened:\n%s", strings.Join(w.log, "\n"))
		}
		t.Logf("seed %d: %d incarnations, %d appends, %d cold pages, %d restarts, %d wipes", seed, len(w.shards), w.count, w.cold, w.restarts, w.wipes)
		w.ops.Wait()
	})
}

// A directory whose storage id was rotated, and whose log had named a shard and
// held nothing else of it, is no stranger to that shard: it would wait for an
// operator for ever, with nothing that anybody could lose. The walk poisons the
// log in periodic mode between the two; goroutines decide whether just there.
// Rows: D2, D13
func TestD2_AnEmptyCopyIsNoStranger(t *testing.T) {
	for i := range 8 {
		t.Run(fmt.Sprint("try ", i), func(t *testing.T) { walkNode(t, 9101, 60) })
	}
}
