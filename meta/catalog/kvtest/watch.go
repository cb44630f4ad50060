package kvtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// collect reads n events and checks that revisions arrive in order and whole.
func collect(t *testing.T, w catalog.Watch, n int) []catalog.Event {
	t.Helper()
	var got []catalog.Event
	last := catalog.Revision(0)
	for len(got) < n {
		ch, open := <-w.C()
		if !open {
			t.Fatalf("the watch ended after %d of %d events: %v", len(got), n, w.Err())
		}
		for _, e := range ch.Events {
			if e.KV.Mod <= last && last != 0 && e.KV.Mod < last {
				t.Errorf("event of revision %d after %d", e.KV.Mod, last)
			}
			last = e.KV.Mod
			if e.KV.Mod > ch.Revision {
				t.Errorf("event of revision %d in changes up to %d", e.KV.Mod, ch.Revision)
			}
			got = append(got, e)
		}
	}
	if len(got) != n {
		t.Fatalf("%d events, want %d", len(got), n)
	}
	return got
}

func watchOrder(t *testing.T, h Harness) {
	r := commit(t, h, put("w/0", "before"))
	w := h.KV.Watch(t.Context(), "w/", r+1)
	defer w.Close()
	commit(t, h, put("w/1", "a"), put("other", "x"), put("w/2", "b"))
	commit(t, h, del("w/0"), put("w/1", "c"))
	got := collect(t, w, 4)
	want := []string{"w/1=a", "w/2=b", "w/0 gone", "w/1=c"}
	for i, e := range got {
		s := e.KV.Key + "=" + string(e.KV.Value)
		if e.Deleted {
			s = e.KV.Key + " gone"
		}
		if s != want[i] {
			t.Errorf("event %d is %s, want %s", i, s, want[i])
		}
	}
}

func watchPast(t *testing.T, h Harness) {
	first := commit(t, h, put("w/0", "x"))
	for i := 1; i < 50; i++ {
		commit(t, h, put(fmt.Sprint("w/", i), "x"))
	}
	w := h.KV.Watch(t.Context(), "w/", first)
	defer w.Close()
	for i, e := range collect(t, w, 50) {
		if e.KV.Key != fmt.Sprint("w/", i) {
			t.Fatalf("event %d is of %s", i, e.KV.Key)
		}
	}
}

func watchCompacted(t *testing.T, h Harness) {
	r := commit(t, h, put("w", "1"))
	h.Compact(commit(t, h, put("w", "2")))
	w := h.KV.Watch(t.Context(), "w", r)
	defer w.Close()
	if ch, open := <-w.C(); open {
		t.Fatalf("got %+v from a compacted revision", ch)
	}
	if !errors.Is(w.Err(), catalog.ErrCompacted) {
		t.Errorf("ended with %v", w.Err())
	}
}

func watchFuture(t *testing.T, h Harness) {
	r := commit(t, h, put("w", "1"))
	w := h.KV.Watch(t.Context(), "w", r+10)
	defer w.Close()
	if ch, open := <-w.C(); open {
		t.Fatalf("got %+v from a revision not reached", ch)
	}
	if !errors.Is(w.Err(), catalog.ErrFuture) {
		t.Errorf("ended with %v", w.Err())
	}
}

func watchEnds(t *testing.T, h Harness) {
	r := commit(t, h, put("w", "1"))
	ctx, cancel := context.WithCancel(t.Context())
	w := h.KV.Watch(ctx, "w", r+1)
	cancel()
	for range w.C() {
		t.Error("an event after the end")
	}
	if !errors.Is(w.Err(), context.Canceled) {
		t.Errorf("ended with %v", w.Err())
	}
	w.Close()
	w = h.KV.Watch(t.Context(), "w", r+1)
	commit(t, h, put("w", "2")) // nobody takes it
	w.Close()
	w.Close()
}

func leases(t *testing.T, h Harness) {
	ctx := t.Context()
	if _, err := h.KV.Lease(ctx, time.Millisecond); !errors.Is(err, meta.ErrInvalid) {
		t.Errorf("a lease of 1 ms: %v", err)
	}
	short, err := h.KV.Lease(ctx, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	long, err := h.KV.Lease(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r := commit(t, h,
		catalog.Op{Key: "l/short", Value: []byte("x"), Lease: short},
		catalog.Op{Key: "l/taken", Value: []byte("x"), Lease: short},
		catalog.Op{Key: "l/long", Value: []byte("x"), Lease: long})
	commit(t, h, catalog.Op{Key: "l/taken", Value: []byte("y"), Lease: long})
	if kv, _, _, _ := h.KV.Get(ctx, "l/short"); kv.Lease != short {
		t.Errorf("key says lease %d, want %d", kv.Lease, short)
	}
	if err := h.KV.KeepAlive(ctx, short); err != nil {
		t.Errorf("keep alive: %v", err)
	}
	w := h.KV.Watch(ctx, "l/", r+2)
	defer w.Close()
	h.Lapse(3 * time.Second)
	if e := collect(t, w, 1)[0]; !e.Deleted || e.KV.Key != "l/short" {
		t.Errorf("at the lease's end: %+v", e)
	}
	if err := h.KV.KeepAlive(ctx, short); !errors.Is(err, catalog.ErrLease) {
		t.Errorf("keeping a dead lease alive: %v", err)
	}
	if err := h.KV.Revoke(ctx, short); !errors.Is(err, catalog.ErrLease) {
		t.Errorf("revoking a dead lease: %v", err)
	}
	if _, err := h.KV.Commit(ctx, catalog.Transaction{Then: []catalog.Op{{Key: "l/late", Lease: short}}}); !errors.Is(err, catalog.ErrLease) {
		t.Errorf("a key on a dead lease: %v", err)
	}
	if err := h.KV.Revoke(ctx, long); err != nil {
		t.Errorf("revoke: %v", err)
	}
	if p, _ := h.KV.Range(ctx, catalog.RangeRequest{Prefix: "l/"}); len(p.Items) != 0 {
		t.Errorf("%d keys outlived their lease", len(p.Items))
	}
}
