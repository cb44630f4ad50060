package etcdkv_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Rewrites far more than the quota holds: history makes room, at the latest with one
// call of maintenance.
func TestHistoryNeverFillsTheQuota(t *testing.T) {
	opt := options(t.TempDir())
	opt.Quota, opt.MaintainEvery = 4<<20, time.Hour
	s := open(t, opt)
	ctx := t.Context()
	overwrite := catalog.Transaction{Then: []catalog.Op{{Key: "history", Value: bytes.Repeat([]byte("x"), 1<<20)}}}
	for range 60 {
		_, err := s.Commit(ctx, overwrite)
		if errors.Is(err, meta.ErrExhausted) {
			if err := s.Maintain(ctx); err != nil {
				t.Fatal(err)
			}
			_, err = s.Commit(ctx, overwrite)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// With live data near the quota new keys are refused, while what exists can still
// be rewritten and deleted, and then there is room again.
func TestNearlyFullStillDeletes(t *testing.T) {
	opt := options(t.TempDir())
	opt.Quota, opt.MaintainEvery = 4<<20, time.Hour
	s := open(t, opt)
	ctx := t.Context()
	big := bytes.Repeat([]byte("x"), 100<<10)
	make1 := func(i int) error {
		key := fmt.Sprint("k", i)
		_, err := s.Commit(ctx, catalog.Transaction{
			If:   []catalog.Compare{{Kind: catalog.CompareMod, Key: key}},
			Then: []catalog.Op{{Key: key, Value: big}},
		})
		return err
	}
	n := 0
	for ; n < 1000; n++ {
		if err := make1(n); err != nil {
			if !errors.Is(err, meta.ErrExhausted) {
				t.Fatal(err)
			}
			break
		}
	}
	if n < 10 || n == 1000 {
		t.Fatalf("%d keys fit", n)
	}
	if _, err := s.Commit(ctx, catalog.Transaction{Then: []catalog.Op{{Key: "k0", Value: []byte("small")}}}); err != nil {
		t.Errorf("rewriting: %v", err)
	}
	for i := range n {
		if _, err := s.Commit(ctx, catalog.Transaction{Then: []catalog.Op{{Key: fmt.Sprint("k", i), Delete: true}, {Key: "tombstone", Value: []byte("x")}}}); err != nil {
			t.Fatalf("delete %d of %d: %v", i, n, err)
		}
	}
	if err := s.Maintain(ctx); err != nil {
		t.Fatal(err)
	}
	if err := make1(n); err != nil {
		t.Errorf("after the deletes: %v", err)
	}
}

// What was acknowledged is there after the store was opened again.
func TestReopen(t *testing.T) {
	opt := options(t.TempDir())
	s := open(t, opt)
	r, err := s.Commit(t.Context(), catalog.Transaction{Then: []catalog.Op{{Key: "k", Value: []byte("v")}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, opt)
	kv, found, at, err := s.Get(t.Context(), "k")
	if err != nil || !found || string(kv.Value) != "v" || kv.Mod != r.Revision || at < r.Revision {
		t.Errorf("%+v at %d, %v", kv, at, err)
	}
}
