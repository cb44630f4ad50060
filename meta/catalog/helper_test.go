package catalog_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
	"github.com/varve-io/varve/meta/memkv"
)

// clock is a wall clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.UnixMicro(1_700_000_000_000_000)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

var clusterRow = catalog.Cluster{ID: meta.ClusterID{1, 2, 3}, Generation: 3, Level: catalog.Level}

// setUp initializes a store and opens its catalog, with namespace "logs" in it.
func setUp(t *testing.T, kv catalog.KV, opt catalog.Options) *catalog.Catalog {
	t.Helper()
	if _, err := catalog.Initialize(t.Context(), kv, clusterRow); err != nil {
		t.Fatal(err)
	}
	c := reopen(t, kv, opt)
	if _, err := c.CreateNamespace(t.Context(), "logs", catalog.NamespaceConfig{}, "first"); err != nil {
		t.Fatal(err)
	}
	return c
}

func reopen(t *testing.T, kv catalog.KV, opt catalog.Options) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Open(t.Context(), kv, opt)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// compactor is what both stores can do besides the port.
type compactor interface {
	catalog.KV
	compact(catalog.Revision)
}

type memStore struct{ *memkv.Store }

func (s memStore) compact(r catalog.Revision) { s.Compact(r) }

type etcdStore struct{ *etcdkv.Store }

func (s etcdStore) compact(r catalog.Revision) { _ = s.Compact(context.Background(), r) }

// onBoth runs a test on the store in memory and on the real one.
func onBoth(t *testing.T, run func(t *testing.T, kv compactor)) {
	t.Run("memkv", func(t *testing.T) {
		s := memkv.New(memkv.Options{})
		t.Cleanup(func() { s.Close() })
		run(t, memStore{s})
	})
	t.Run("etcdkv", func(t *testing.T) {
		s, err := etcdkv.Open(t.Context(), etcdkv.Options{
			Dir: t.TempDir(), NoSync: true, SegmentBytes: 256 << 10, Tick: 10 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		run(t, etcdStore{s})
	})
}

func name(s string) meta.StreamName { return meta.StreamName{Namespace: "logs", Name: s} }

func create(t *testing.T, c *catalog.Catalog, n string) catalog.StreamRow {
	t.Helper()
	row, _, err := c.Create(t.Context(), catalog.CreateStream{Name: name(n)})
	if err != nil {
		t.Fatalf("create %s: %v", n, err)
	}
	return row
}

func remove(t *testing.T, c *catalog.Catalog, n string) catalog.Deleted {
	t.Helper()
	d, err := c.Delete(t.Context(), name(n), 0)
	if err != nil {
		t.Fatalf("delete %s: %v", n, err)
	}
	return d
}

func member(b string) meta.Member {
	m := meta.Member{Broker: meta.BrokerID(b)}
	copy(m.Storage[:], "storage of "+b)
	return m
}

func shardOf(t *testing.T, c *catalog.Catalog, s catalog.StreamRow) catalog.ShardRow {
	t.Helper()
	row, err := c.Shard(t.Context(), s.Shard(0))
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// grant gives a just created or hibernating shard to members, led by the first.
func grant(t *testing.T, c *catalog.Catalog, s catalog.StreamRow, brokers ...string) catalog.ShardRow {
	t.Helper()
	var ms []meta.Member
	for _, b := range brokers {
		ms = append(ms, member(b))
	}
	row, err := c.Grant(t.Context(), shardOf(t, c, s), ms[0], 7, ms)
	if err != nil {
		t.Fatal(err)
	}
	return row
}
