package kvtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Harness is one implementation under test.
type Harness struct {
	KV catalog.KV
	// Compact drops the history below a revision.
	Compact func(catalog.Revision)
	// Lapse lets at least d pass for leases.
	Lapse func(d time.Duration)
}

// Run runs every case on stores that open makes.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	cases := []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"get and put", getPut},
		{"compares", compares},
		{"refusals", refusals},
		{"pages at one revision", pages},
		{"prefixes do not overlap", prefixes},
		{"compacted and future reads", pastAndFuture},
		{"big transaction", bigTransaction},
		{"watch in order", watchOrder},
		{"watch from the past", watchPast},
		{"watch compacted", watchCompacted},
		{"watch future", watchFuture},
		{"watch ends", watchEnds},
		{"lease", leases},
		{"races have one winner", races},
		{"closed", closed},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, open(t))
		})
	}
}

func put(key, value string) catalog.Op { return catalog.Op{Key: key, Value: []byte(value)} }
func del(key string) catalog.Op        { return catalog.Op{Key: key, Delete: true} }
func mod(key string, at catalog.Revision) catalog.Compare {
	return catalog.Compare{Kind: catalog.CompareMod, Key: key, Revision: at}
}

func commit(t *testing.T, h Harness, ops ...catalog.Op) catalog.Revision {
	t.Helper()
	r, err := h.KV.Commit(t.Context(), catalog.Transaction{Then: ops})
	if err != nil || !r.Applied {
		t.Fatalf("commit: applied %v, error %v", r.Applied, err)
	}
	return r.Revision
}

func getPut(t *testing.T, h Harness) {
	ctx := t.Context()
	_, found, at, err := h.KV.Get(ctx, "a")
	if err != nil || found || at < 1 {
		t.Fatalf("empty store: found %v at %d, %v", found, at, err)
	}
	r1 := commit(t, h, put("a", "1"), put("b", ""))
	if r1 != at+1 {
		t.Errorf("one transaction moved the revision from %d to %d", at, r1)
	}
	r2 := commit(t, h, put("a", "2"))
	kv, found, now, err := h.KV.Get(ctx, "a")
	want := catalog.KeyValue{Key: "a", Value: []byte("2"), Created: r1, Mod: r2}
	if err != nil || !found || now != r2 || cmp.Diff(want, kv) != "" {
		t.Errorf("get a: %+v at %d (%v), want %+v", kv, now, err, want)
	}
	kv, found, _, err = h.KV.Get(ctx, "b")
	if err != nil || !found || len(kv.Value) != 0 {
		t.Errorf("an empty value came back as %v, %q, %v", found, kv.Value, err)
	}
	r3 := commit(t, h, del("a"), del("never"))
	if r3 != r2+1 {
		t.Errorf("a delete moved the revision from %d to %d", r2, r3)
	}
	if r := commit(t, h, del("never")); r != r3 {
		t.Errorf("deleting nothing moved the revision from %d to %d", r3, r)
	}
	r4 := commit(t, h, put("a", "3"))
	if kv, _, _, _ := h.KV.Get(ctx, "a"); kv.Created != r4 {
		t.Errorf("a key made anew says it was created at %d, want %d", kv.Created, r4)
	}
}

func compares(t *testing.T, h Harness) {
	r := commit(t, h, put("k", "v"), put("dir/x", "1"))
	for _, c := range []struct {
		name string
		c    catalog.Compare
		want bool
	}{
		{"mod equal", mod("k", r), true},
		{"mod older", mod("k", r-1), false},
		{"absent, but there", mod("k", 0), false},
		{"absent", mod("none", 0), true},
		{"mod of an absent key", mod("none", r), false},
		{"value equal", catalog.Compare{Kind: catalog.CompareValue, Key: "k", Value: []byte("v")}, true},
		{"value differs", catalog.Compare{Kind: catalog.CompareValue, Key: "k", Value: []byte("w")}, false},
		{"value of an absent key", catalog.Compare{Kind: catalog.CompareValue, Key: "none", Value: nil}, false},
		{"present", catalog.Compare{Kind: catalog.ComparePresent, Key: "k"}, true},
		{"not present", catalog.Compare{Kind: catalog.ComparePresent, Key: "none"}, false},
		{"empty", catalog.Compare{Kind: catalog.CompareEmpty, Key: "di/"}, true},
		{"not empty", catalog.Compare{Kind: catalog.CompareEmpty, Key: "dir/"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, before, _ := h.KV.Get(t.Context(), "k")
			res, err := h.KV.Commit(t.Context(), catalog.Transaction{If: []catalog.Compare{c.c}, Then: []catalog.Op{put("out", c.name)}})
			if err != nil || res.Applied != c.want {
				t.Fatalf("applied %v, error %v; want %v", res.Applied, err, c.want)
			}
			_, _, after, _ := h.KV.Get(t.Context(), "k")
			if (after > before) != c.want {
				t.Errorf("revision went from %d to %d", before, after)
			}
			if _, found := res.Found["k"]; !c.want && c.c.Key == "k" && !found {
				t.Error("a refused comparison did not say what it found")
			}
		})
	}
}

func refusals(t *testing.T, h Harness) {
	many := make([]catalog.Op, catalog.MaxOps+1)
	for i := range many {
		many[i] = put(fmt.Sprint("k", i), "")
	}
	for name, ops := range map[string][]catalog.Op{
		"too many":  many,
		"too big":   {{Key: "k", Value: make([]byte, catalog.MaxRequestBytes+1)}},
		"twice":     {put("k", "1"), del("k")},
		"empty key": {put("", "1")},
	} {
		if _, err := h.KV.Commit(t.Context(), catalog.Transaction{Then: ops}); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, found, _, _ := h.KV.Get(t.Context(), "k"); found {
		t.Error("a refused transaction left something behind")
	}
}

func pages(t *testing.T, h Harness) {
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("p/%02d", i)
		commit(t, h, put(key, "old"))
		want = append(want, key)
	}
	var got []string
	req := catalog.RangeRequest{Prefix: "p/", Limit: 10}
	for {
		p, err := h.KV.Range(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range p.Items {
			if string(kv.Value) != "old" {
				t.Errorf("%s shows a later write: %q", kv.Key, kv.Value)
			}
			got = append(got, kv.Key)
		}
		if !p.More {
			break
		}
		// Writers between the pages must not show.
		commit(t, h, put("p/00", "new"), put("p/99", "new"), del("p/24"))
		req.Revision, req.After = p.Revision, p.Items[len(p.Items)-1].Key
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func prefixes(t *testing.T, h Harness) {
	commit(t, h, put("s/a", ""), put("s/a~b", ""), put("s/a/", ""), put("s/a/1", ""), put("s/a0", ""), put("t", ""))
	for prefix, want := range map[string]int{"s/a/": 2, "s/a": 5, "s/a~": 1, "s/": 5, "": 6, "s/b": 0} {
		p, err := h.KV.Range(t.Context(), catalog.RangeRequest{Prefix: prefix})
		if err != nil || len(p.Items) != want {
			t.Errorf("prefix %q: %d keys, want %d (%v)", prefix, len(p.Items), want, err)
		}
	}
	p, err := h.KV.Range(t.Context(), catalog.RangeRequest{Prefix: "s/a~", After: "s/a"})
	if err != nil || len(p.Items) != 1 {
		t.Errorf("a cursor before the prefix: %d keys, want 1 (%v)", len(p.Items), err)
	}
}

func pastAndFuture(t *testing.T, h Harness) {
	r1 := commit(t, h, put("k", "1"))
	r2 := commit(t, h, put("k", "2"))
	p, err := h.KV.Range(t.Context(), catalog.RangeRequest{Prefix: "k", Revision: r1})
	if err != nil || string(p.Items[0].Value) != "1" || p.Revision != r1 {
		t.Fatalf("the past: %+v, %v", p, err)
	}
	h.Compact(r2)
	if _, err := h.KV.Range(t.Context(), catalog.RangeRequest{Prefix: "k", Revision: r1}); !errors.Is(err, catalog.ErrCompacted) {
		t.Errorf("a compacted revision: %v", err)
	}
	if p, err := h.KV.Range(t.Context(), catalog.RangeRequest{Prefix: "k", Revision: r2}); err != nil || string(p.Items[0].Value) != "2" {
		t.Errorf("the compaction's own revision: %+v, %v", p, err)
	}
	if _, err := h.KV.Range(t.Context(), catalog.RangeRequest{Prefix: "k", Revision: r2 + 10}); !errors.Is(err, catalog.ErrFuture) {
		t.Errorf("a revision not reached: %v", err)
	}
}

func bigTransaction(t *testing.T, h Harness) {
	var tx catalog.Transaction
	for i := range catalog.MaxOps {
		key := fmt.Sprintf("big/%04d", i)
		tx.If = append(tx.If, mod(key, 0))
		tx.Then = append(tx.Then, put(key, "x"))
	}
	res, err := h.KV.Commit(t.Context(), tx)
	if err != nil || !res.Applied {
		t.Fatalf("%d operations: %v, %v", catalog.MaxOps, res.Applied, err)
	}
	if res, err = h.KV.Commit(t.Context(), tx); err != nil || res.Applied || len(res.Found) != catalog.MaxOps {
		t.Errorf("the same again: applied %v, found %d, %v", res.Applied, len(res.Found), err)
	}
}

func races(t *testing.T, h Harness) {
	const writers = 8
	wins := make(chan bool, writers)
	for i := range writers {
		go func() {
			r, err := h.KV.Commit(context.WithoutCancel(t.Context()), catalog.Transaction{
				If: []catalog.Compare{mod("one", 0)}, Then: []catalog.Op{put("one", fmt.Sprint(i))},
			})
			if err != nil {
				t.Error(err)
			}
			wins <- r.Applied
		}()
	}
	won := 0
	for range writers {
		if <-wins {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d of %d writers won", won, writers)
	}
}

func closed(t *testing.T, h Harness) {
	w := h.KV.Watch(t.Context(), "", 1)
	if err := h.KV.Close(); err != nil {
		t.Fatal(err)
	}
	if _, open := <-w.C(); open {
		t.Error("a watch outlived the store")
	}
	if err := w.Err(); !errors.Is(err, catalog.ErrClosed) {
		t.Errorf("the watch ended with %v", err)
	}
	if _, _, _, err := h.KV.Get(t.Context(), "k"); !errors.Is(err, catalog.ErrClosed) || !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("get: %v", err)
	}
	if _, err := h.KV.Commit(t.Context(), catalog.Transaction{Then: []catalog.Op{put("k", "")}}); !errors.Is(err, catalog.ErrClosed) {
		t.Errorf("commit: %v", err)
	}
	if err := h.KV.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}
