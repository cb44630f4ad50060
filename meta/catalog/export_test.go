package catalog_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

func TestExportAndImport(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		ctx := t.Context()
		c := setUp(t, kv, catalog.Options{})
		for _, n := range []string{"a", "b/c", "dead"} {
			grant(t, c, create(t, c, n), "b1", "b2")
		}
		remove(t, c, "dead")
		e, err := c.Export(ctx)
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.Export(ctx)
		if err != nil || !bytes.Equal(e.Encode(), again.Encode()) {
			t.Errorf("the same catalog gave other bytes (%v)", err)
		}
		e, err = catalog.DecodeExport(e.Encode())
		if err != nil {
			t.Fatal(err)
		}
		for i := range e.Shards { // as a restore prepares them
			r := &e.Shards[i]
			r.State, r.Lineage, r.Leader, r.Boot, r.Members = catalog.ShardHibernating, meta.NewLineage(4, 0), meta.Member{}, 0, nil
		}

		other := memkv.New(memkv.Options{})
		cl := clusterRow
		cl.Generation = 4
		if _, err := catalog.Initialize(ctx, other, cl); err != nil {
			t.Fatal(err)
		}
		d := reopen(t, other, catalog.Options{})
		other.Inject(memkv.Pass, memkv.Pass, memkv.FailCommit) // interrupted on the way
		if err := d.Import(ctx, e); !errors.Is(err, meta.ErrUnavailable) {
			t.Fatalf("%v", err)
		}
		if err := d.Import(ctx, e); err != nil { // resumed
			t.Fatal(err)
		}
		got, err := d.Export(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got.Revision, got.Cluster = e.Revision, e.Cluster
		if !bytes.Equal(got.Encode(), e.Encode()) {
			t.Error(cmp.Diff(e, got))
		}
		if row := grant(t, d, e.Streams[0], "n1"); row.Epoch != 2 || row.Lineage != meta.NewLineage(4, 0) {
			t.Errorf("activated as %+v", row)
		}
		e.Streams[0].Config.ProducersMax = 9
		if err := d.Import(ctx, e); !errors.Is(err, meta.ErrExists) {
			t.Errorf("over something else: %v", err)
		}
		if err := d.RaiseTombstone(ctx, meta.Tombstone{Stream: e.Streams[0].Name, Through: e.Streams[0].Incarnation}); !errors.Is(err, meta.ErrExists) {
			t.Errorf("a tombstone over a living stream: %v", err)
		}
	})
}

func TestInitialize(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		ctx := t.Context()
		if _, err := catalog.Open(ctx, kv, catalog.Options{}); !errors.Is(err, meta.ErrNotFound) {
			t.Errorf("an empty store: %v", err)
		}
		first, err := catalog.Initialize(ctx, kv, clusterRow)
		if err != nil || first != clusterRow {
			t.Fatal(first, err)
		}
		other := clusterRow
		other.ID[0]++
		if got, err := catalog.Initialize(ctx, kv, other); err != nil || got.ID != clusterRow.ID {
			t.Errorf("a second cluster: %v, %v", got, err)
		}
		c := reopen(t, kv, catalog.Options{})
		for want := uint64(1); want < 4; want++ {
			if n, err := c.NextSnapshot(ctx); err != nil || n != want {
				t.Errorf("snapshot number %d, want %d, %v", n, want, err)
			}
		}
	})
}
