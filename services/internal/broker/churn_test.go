package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
)

// churn does everything that a broker can be asked, on a few names, from many sides.
type churn struct {
	t *testing.T
	n *servicetest.Node

	mu      sync.Mutex
	living  map[string]meta.ShardID
	trimmed map[meta.ShardID]meta.Offset
	acked   map[meta.ShardID]map[meta.Offset]string
}

// expected are the errors of a stream that is deleted or trimmed meanwhile.
func (c *churn) expected(what string, err error) {
	if err != nil && !errors.Is(err, meta.ErrNotFound) && !errors.Is(err, meta.ErrDeleted) && !errors.As(err, new(*meta.OffsetOutOfRange)) {
		c.t.Errorf("%s: %v", what, err)
	}
}

func (c *churn) pick(r *rand.Rand) (name string, id meta.ShardID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, 0, len(c.living))
	for name := range c.living {
		names = append(names, name)
	}
	slices.Sort(names)
	name = names[r.IntN(len(names))]
	return name, c.living[name]
}

func (c *churn) do(r *rand.Rand, value string) {
	name, id := c.pick(r)
	ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
	defer cancel()
	b := c.n.Broker
	switch r.IntN(20) {
	case 0: // delete and create again
		if _, _, err := b.Delete(ctx, id.Stream, id.Incarnation); err != nil {
			c.expected("delete", err)
			return
		}
		row, _, err := c.n.Catalog.Create(ctx, catalog.CreateStream{Name: id.Stream, Shards: 1})
		if err != nil {
			c.t.Errorf("create: %v", err)
			return
		}
		c.mu.Lock()
		c.living[name] = meta.ShardID{Stream: id.Stream, Incarnation: row.Incarnation}
		c.mu.Unlock()
	case 1:
		tail, err := b.CheckTail(ctx, id)
		c.expected("check tail", err)
		if at := tail.Tail / 2; err == nil && at > 0 {
			c.mu.Lock()
			c.trimmed[id] = max(c.trimmed[id], at)
			c.mu.Unlock()
			_, err = b.Trim(ctx, id, at)
			c.expected("trim", err)
		}
	case 2:
		c.expected("checkpoint", b.Checkpoint(ctx))
	case 3:
		_, err := b.Fence(ctx, id, value, false)
		c.expected("fence", err)
	case 4:
		_, err := b.Describe(ctx, id)
		c.expected("describe", err)
	case 5, 6, 7:
		rd, err := b.Reader(ctx, id)
		c.expected("reader", err)
		if err != nil {
			return
		}
		defer rd.Close()
		_, err = rd.FindTime(ctx, meta.MicrosOf(time.Now())-meta.Micros(r.IntN(1e6)))
		c.expected("find time", err)
		short, stop := context.WithTimeout(ctx, time.Millisecond)
		c.expected("wait", rd.Wait(short, 1<<40))
		stop()
		fallthrough
	case 8, 9:
		_, err := c.n.TryRead(ctx, id, 0)
		c.expected("read", err)
	default:
		a := broker.Append{Batch: servicetest.Batch(batch.NoProducer(), value)}
		if r.IntN(4) == 0 {
			a.Level = replica.Archive
		}
		res, err := servicetest.SendTo(ctx, b, id, a)
		c.expected("append", err)
		if err == nil {
			c.mu.Lock()
			if c.acked[id] == nil {
				c.acked[id] = map[meta.Offset]string{}
			}
			c.acked[id][res.First] = value
			c.mu.Unlock()
		}
	}
}

func (c *churn) check() {
	c.t.Helper()
	for _, id := range c.living {
		start, err := c.n.Broker.CheckTail(c.n.Context(), id)
		if err != nil {
			c.t.Fatal(err)
		}
		if start.Start > c.trimmed[id] {
			c.t.Errorf("shard %s starts at %d, trimmed to %d", id, start.Start, c.trimmed[id])
		}
		values := c.n.Read(id, start.Start)
		for at, v := range c.acked[id] {
			if i := int(at) - int(start.Start); i >= 0 && (i >= len(values) || values[i] != v) {
				c.t.Errorf("shard %s: %q was acknowledged at offset %d: it is not there", id, v, at)
			}
		}
	}
}

// Rows: N1, N5, N13, T1, C1
func TestC1_EverythingAtOnce(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{FileSize: 64 << 10, Budget: 4 << 20, Purge: 50 * time.Millisecond})
	c := &churn{
		t: t, n: n, living: map[string]meta.ShardID{}, trimmed: map[meta.ShardID]meta.Offset{}, acked: map[meta.ShardID]map[meta.Offset]string{},
	}
	for i := range 5 {
		name := fmt.Sprintf("logs/s%d", i)
		c.living[name] = n.Create(name)
	}
	for _, name := range []string{"clean stop", "power cut", "killed"} {
		var wg sync.WaitGroup
		for i := range 12 {
			r := rand.New(rand.NewPCG(uint64(i), 5))
			wg.Go(func() {
				for j := range 60 {
					c.do(r, fmt.Sprint(name, i, " ", j))
				}
			})
		}
		wg.Wait()
		c.check()
		n.Restart(stops[name](n))
		c.check()
	}
	n.Eventually("the purges", func() bool {
		left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 10)
		return err == nil && len(left) == 0
	})
	if got := n.Broker.Shards(); got != len(c.living) {
		t.Errorf("%d shards are held for %d streams", got, len(c.living))
	}
}
