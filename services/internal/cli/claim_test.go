package cli

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
	"github.com/varve-io/varve/tiering/bucket/mem"
)

// joining is a node that has come as far as its bucket.
func joining(t *testing.T, b bucket.Bucket) *node {
	t.Helper()
	n := &node{cfg: &run.Config{Data: "data"}, logger: slog.New(slog.DiscardHandler), gate: &gate{Bucket: b}, group: run.NewGroup(t.Context()), registry: run.Registry()}
	return n
}

// What the bucket's part calls an alarm is counted, so that somebody is woken.
func TestStoreAlarmsAreCounted(t *testing.T) {
	n := joining(t, mem.New("m"))
	e := n.storeEvents()
	e.Damaged("streams/x", meta.ErrCorrupt)
	e.ClaimLost(meta.ErrForeign)
	counted := 0.0
	families, err := n.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "varve_store_alarms_total" {
			counted = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted != 2 {
		t.Errorf("%v alarms are counted, want 2", counted)
	}
	if err := n.part(t); err != nil {
		t.Error(err)
	}
}

func (n *node) part(t *testing.T) error {
	n.group.Stop()
	err := n.group.Wait()
	if n.store != nil {
		if err := n.store.Close(); err != nil {
			t.Error(err)
		}
	}
	return err
}

func write(t *testing.T, n *node) error {
	_, err := n.gate.Put(t.Context(), "streams/x", bucket.Bytes([]byte("x")), bucket.PutOptions{})
	return err
}

// A new cluster needs its bucket; a known one starts without it, writes nothing
// there meanwhile, and claims once it is back.
func TestStartWithoutTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv, b := memkv.New(memkv.Options{}), fault.New(mem.New("test"))
		b.Outage(bucket.ErrUnavailable)
		n := joining(t, b)
		if err := n.join(t.Context(), kv); !errors.Is(err, meta.ErrUnavailable) {
			t.Fatalf("a new cluster without a bucket: %v", err)
		}
		_ = n.part(t)
		b.Outage(nil)
		n = joining(t, b)
		if err := n.join(t.Context(), kv); err != nil || n.catalog == nil {
			t.Fatal(err)
		}
		if err := write(t, n); err != nil {
			t.Fatal(err)
		}
		_ = n.part(t)

		b.Outage(bucket.ErrUnavailable)
		n = joining(t, b)
		if err := n.join(t.Context(), kv); err != nil || n.catalog == nil {
			t.Fatalf("a known cluster without a bucket: %v", err)
		}
		b.Outage(nil)
		if err := write(t, n); !errors.Is(err, meta.ErrUnavailable) {
			t.Errorf("written before the claim was looked at: %v", err)
		}
		if err := n.gate.Delete(t.Context(), []string{"streams/x"}); !errors.Is(err, meta.ErrUnavailable) {
			t.Errorf("deleted before the claim was looked at: %v", err)
		}
		time.Sleep(2 * claimRetry)
		synctest.Wait()
		if err := write(t, n); err != nil {
			t.Errorf("the bucket is back: %v", err)
		}
		if err := n.part(t); err != nil {
			t.Error(err)
		}
	})
}

// The bucket comes back and belongs to somebody else: the server stops.
func TestBucketComesBackForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv, b := memkv.New(memkv.Options{}), fault.New(mem.New("test"))
		n := joining(t, b)
		if err := n.join(t.Context(), kv); err != nil {
			t.Fatal(err)
		}
		_ = n.part(t)
		other := joining(t, b)
		if err := other.join(t.Context(), memkv.New(memkv.Options{})); !errors.Is(err, meta.ErrForeign) {
			t.Fatalf("two clusters on one prefix: %v", err)
		}
		_ = other.part(t)

		// Another bucket lies there meanwhile, with another cluster's claim.
		elsewhere := fault.New(mem.New("test"))
		other = joining(t, elsewhere)
		if err := other.join(t.Context(), memkv.New(memkv.Options{})); err != nil {
			t.Fatal(err)
		}
		_ = other.part(t)
		elsewhere.Outage(bucket.ErrUnavailable)
		n = joining(t, elsewhere)
		if err := n.join(t.Context(), kv); err != nil {
			t.Fatal(err)
		}
		elsewhere.Outage(nil)
		time.Sleep(2 * claimRetry)
		<-n.group.Context().Done()
		if err := n.part(t); !errors.Is(err, meta.ErrForeign) {
			t.Errorf("the server goes on: %v", err)
		}
		if err := write(t, n); !errors.Is(err, meta.ErrUnavailable) {
			t.Errorf("written to a foreign bucket: %v", err)
		}
	})
}
