package catalog_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

// A grant is on its way while an older catalog is put in place, where another write
// gets the very revision that the grant was computed from. It must not land there.
// Rows: E25
func TestE25_LateGrantAfterARewind(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	c := setUp(t, kv, catalog.Options{})
	s := create(t, c, "a")
	row := grant(t, c, s, "b1", "b2", "b3")
	old := kv.Backup()
	change := func(newcomer string) catalog.ShardRow {
		next, err := c.ChangeMembers(t.Context(), row, member("b1"), 7, []meta.Member{member("b1"), member("b2"), member(newcomer)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	before := change("b4")
	kv.Inject(memkv.LandLate)
	if _, err := c.Grant(t.Context(), before, member("b4"), 9, nil); err == nil {
		t.Fatal("the answer was not lost")
	}
	kv.Rewind(old)
	after := change("b5")
	if before.Revision != after.Revision {
		t.Fatalf("revisions %d and %d: the test shows nothing", before.Revision, after.Revision)
	}
	if kv.Land() != 0 {
		t.Error("it landed")
	}
	if d := cmp.Diff(after, shardOf(t, c, s)); d != "" {
		t.Error(d)
	}
}
