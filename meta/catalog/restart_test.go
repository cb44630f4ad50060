package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
)

// A name is created, deleted and created again, and the catalog restarts: the new
// stream is there, the old one is not. Public failure report B33.
func TestRecreateSurvivesARestart(t *testing.T) {
	opt := etcdkv.Options{Dir: t.TempDir(), NoSync: true, SegmentBytes: 256 << 10, Tick: 10 * time.Millisecond}
	kv, err := etcdkv.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	c := setUp(t, kv, catalog.Options{})
	old := create(t, c, "a")
	grant(t, c, old, "b1")
	remove(t, c, "a")
	s := create(t, c, "a")
	row := grant(t, c, s, "b1", "b2")
	if err := kv.Close(); err != nil {
		t.Fatal(err)
	}
	if kv, err = etcdkv.Open(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	c = reopen(t, kv, catalog.Options{})
	if got, err := c.Stream(t.Context(), name("a")); err != nil || cmp.Diff(s, got) != "" {
		t.Error(err, cmp.Diff(s, got))
	}
	if d := cmp.Diff(row, shardOf(t, c, s)); d != "" {
		t.Error(d)
	}
	if _, err := c.Shard(t.Context(), old.Shard(0)); !errors.Is(err, meta.ErrDeleted) {
		t.Errorf("the old shard: %v", err)
	}
}
