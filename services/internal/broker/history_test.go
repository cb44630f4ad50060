package broker_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

// history runs producers against a node that dies again and again, and holds what
// they were told against what can be read.
type history struct {
	t      *testing.T
	n      *servicetest.Node
	ids    []meta.ShardID
	broker atomic.Pointer[broker.Broker]
	over   atomic.Bool

	mu    sync.Mutex
	acked map[meta.ShardID]map[meta.Offset]string
	count atomic.Int64
}

// produce sends numbered records, each until it is acknowledged, and notes what it
// was told. A batch whose outcome is unknown is sent again as it is.
func (h *history) produce(id meta.ShardID, number int, r *rand.Rand) {
	p := producer(int64(number))
	for next := 0; !h.over.Load(); {
		values := make([]string, 1+r.IntN(3))
		for i := range values {
			values[i] = fmt.Sprintf("%d:%d %s", number, next+i, strings.Repeat("v", r.IntN(600)))
		}
		next += len(values)
		a := broker.Append{Batch: p.next(values...)}
		if r.IntN(8) == 0 {
			a.Level = replica.Archive
		}
		for try := 0; ; try++ {
			again := a
			again.Batch = slices.Clone(a.Batch)
			ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
			res, err := servicetest.SendTo(ctx, h.broker.Load(), id, again)
			cancel()
			if err == nil {
				h.note(id, res, values)
				break
			}
			if h.over.Load() {
				return
			}
			time.Sleep(time.Millisecond) // until there is a broker again
		}
	}
}

func (h *history) note(id meta.ShardID, res broker.Result, values []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if int(res.Next-res.First) != len(values) {
		h.t.Errorf("%d records got offsets %d to %d", len(values), res.First, res.Next)
	}
	for i, v := range values {
		at := res.First + meta.Offset(i)
		if was, ok := h.acked[id][at]; ok && was != v {
			h.t.Errorf("offset %d was given to %.20q and to %.20q", at, was, v)
		}
		h.acked[id][at] = v
	}
	h.count.Add(int64(len(values)))
}

// check reads everything: each acknowledged record at its offset, each record at
// most once, every producer's in order and without a hole.
func (h *history) check() {
	h.t.Helper()
	for _, id := range h.ids {
		h.mu.Lock()
		acked := maps.Clone(h.acked[id]) // before the read: producers go on
		h.mu.Unlock()
		values := h.n.Read(id, 0)
		for at, v := range acked {
			if int(at) >= len(values) || values[at] != v {
				h.t.Errorf("shard %s: %.20q was acknowledged at offset %d: it is not there", id, v, at)
			}
		}
		next := map[int]int{}
		for at, v := range values {
			var number, seq int
			if _, err := fmt.Sscanf(v, "%d:%d", &number, &seq); err != nil || seq != next[number] {
				h.t.Fatalf("shard %s, offset %d: %.20q, want producer %d's record %d", id, at, v, number, next[number])
			}
			next[number]++
		}
	}
}

// Rows: C1, C2, C3, B10, B12, B153
func TestC1_HistoryUnderKills(t *testing.T) {
	type ending struct {
		name string
		left func(*servicetest.Node) vfs.FS
	}
	crash := func(o vfs.CrashOptions) func(*servicetest.Node) vfs.FS {
		return func(n *servicetest.Node) vfs.FS { n.Kill(); return n.Disk().CrashClone(o) }
	}
	kill := ending{"killed", func(n *servicetest.Node) vfs.FS { n.Kill(); return n.Disk().KillClone() }}
	clean := ending{"stopped", stops["clean stop"]}
	for _, c := range []struct {
		mode wal.Mode
		ends []ending
	}{
		{wal.Commit, []ending{
			kill, clean, {"power cut", crash(vfs.CrashOptions{})},
			{"power cut, sectors", crash(vfs.CrashOptions{Data: vfs.KeepSectors, Names: vfs.KeepSectors})},
			{"power cut, bytes", crash(vfs.CrashOptions{Data: vfs.KeepBytes, Names: vfs.KeepBytes})},
		}},
		{wal.Periodic, []ending{kill, clean}},
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%s, seed %d", c.mode, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				n := servicetest.Start(t, servicetest.Options{Mode: c.mode, FileSize: 64 << 10, Budget: 4 << 20})
				h := &history{t: t, n: n, acked: map[meta.ShardID]map[meta.Offset]string{}}
				var producers sync.WaitGroup
				h.broker.Store(n.Broker)
				for i := range 3 {
					id := n.Create(fmt.Sprintf("logs/s%d", i))
					h.ids = append(h.ids, id)
					h.acked[id] = map[meta.Offset]string{}
				}
				for i := range 9 {
					source := rand.New(rand.NewPCG(seed, uint64(i+2)))
					producers.Go(func() { h.produce(h.ids[i%3], i, source) })
				}
				for range 6 {
					goal := h.count.Load() + int64(40+r.IntN(120))
					n.Eventually("more acknowledgements", func() bool { return h.count.Load() >= goal })
					if r.IntN(2) == 0 {
						if err := n.Broker.Checkpoint(n.Context()); err != nil {
							t.Fatal(err)
						}
					}
					e := c.ends[r.IntN(len(c.ends))]
					n.Restart(e.left(n))
					h.broker.Store(n.Broker)
					h.check()
				}
				h.over.Store(true)
				producers.Wait()
				h.check()
				t.Logf("%d records acknowledged", h.count.Load())
			})
		}
	}
}
