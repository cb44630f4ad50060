package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

const ttl = time.Minute

// Rows: D1
func TestD1_VerdictOnADirectory(t *testing.T) {
	id := member("b1").Storage
	report := func(start uint64, boot meta.BootNonce, synced uint64) catalog.CopyRow {
		return catalog.CopyRow{Storage: id, Broker: "b1", Start: start, Boot: boot, Synced: synced}
	}
	for _, c := range []struct {
		name string
		seen []catalog.CopyRow
		now  catalog.CopyRow
		want catalog.Verdict
	}{
		{"never heard of", nil, report(1, 10, 0), catalog.Fresh},
		{"a retried registration", []catalog.CopyRow{report(3, 10, 50)}, report(3, 10, 50), catalog.SameStart},
		{"a report that was overtaken", []catalog.CopyRow{report(3, 10, 50), report(3, 10, 90)}, report(3, 10, 60), catalog.SameStart},
		{"a clean restart", []catalog.CopyRow{report(3, 10, 50)}, report(4, 11, 50), catalog.Advanced},
		{"a crash that kept more", []catalog.CopyRow{report(3, 10, 50)}, report(4, 11, 70), catalog.Advanced},
		{"rolled back within a start", []catalog.CopyRow{report(3, 10, 50), report(3, 10, 90)}, report(4, 11, 60), catalog.Stranger},
		{"rolled back to an earlier start", []catalog.CopyRow{report(3, 10, 50), report(5, 12, 90)}, report(4, 13, 95), catalog.Stranger},
		{"a live clone", []catalog.CopyRow{report(3, 10, 50)}, report(3, 99, 50), catalog.Stranger},
		{"the original after its clone", []catalog.CopyRow{report(3, 10, 50), report(4, 99, 50)}, report(4, 11, 70), catalog.Stranger},
	} {
		t.Run(c.name, func(t *testing.T) {
			cat := setUp(t, memkv.New(memkv.Options{}), catalog.Options{})
			for _, s := range c.seen {
				if v, why, err := cat.RegisterCopy(t.Context(), s); err != nil || v == catalog.Stranger {
					t.Fatal(v, why, err)
				}
			}
			before, _ := cat.Copy(t.Context(), id)
			v, why, err := cat.RegisterCopy(t.Context(), c.now)
			if err != nil || v != c.want || (why != "") != (v == catalog.Stranger) {
				t.Errorf("%v (%q), %v; want %v", v, why, err, c.want)
			}
			after, _ := cat.Copy(t.Context(), id)
			if v == catalog.Stranger && after != before {
				t.Error("a stranger's report was recorded")
			}
			if after.Synced < before.Synced {
				t.Errorf("the position seen went back from %d to %d", before.Synced, after.Synced)
			}
		})
	}
}

// Rows: D1. The running original of a cloned directory is told, and a lost answer
// makes nobody a stranger.
func TestD1_OriginalIsToldAndRetriesAreNot(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		original := catalog.CopyRow{Storage: member("b1").Storage, Broker: "b1", Start: 3, Boot: 10, Synced: 50}
		if _, _, err := c.RegisterCopy(t.Context(), original); err != nil {
			t.Fatal(err)
		}
		clone := original
		clone.Start, clone.Boot = 4, 99
		if v, _, err := c.RegisterCopy(t.Context(), clone); err != nil || v != catalog.Advanced {
			t.Fatal(v, err)
		}
		original.Synced = 60
		if err := c.NoteSynced(t.Context(), original); !errors.Is(err, meta.ErrStranger) {
			t.Errorf("the original went on: %v", err)
		}
	})
	for _, f := range []memkv.Fault{memkv.LoseAnswer, memkv.LoseRequest, memkv.LandLate} {
		kv := memkv.New(memkv.Options{})
		c := setUp(t, kv, catalog.Options{})
		kv.Inject(f)
		r := catalog.CopyRow{Storage: member("b1").Storage, Broker: "b1", Start: 1, Boot: 10}
		if v, why, err := c.RegisterCopy(t.Context(), r); err != nil || v != catalog.Fresh {
			t.Errorf("fault %d: %v (%q), %v", f, v, why, err)
		}
	}
}

func broker(id string, start uint64, level uint16, features ...string) catalog.BrokerRow {
	return catalog.BrokerRow{
		ID: meta.BrokerID(id), Addresses: []string{"127.0.0.1:1"}, Storage: member(id).Storage,
		Start: start, Boot: meta.BootNonce(start), Level: level, Features: features,
	}
}

func TestRegistration(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		ctx := t.Context()
		first, err := c.Register(ctx, broker("b1", 1, 1), ttl)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Renew(ctx); err != nil {
			t.Error(err)
		}
		second, err := c.Register(ctx, broker("b1", 2, 1), ttl)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Renew(ctx); !errors.Is(err, catalog.ErrLease) {
			t.Errorf("the replaced process was not told: %v", err)
		}
		if err := first.End(ctx); err != nil {
			t.Error(err)
		}
		if rows, err := c.Brokers(ctx); err != nil || len(rows) != 1 || rows[0].Start != 2 {
			t.Errorf("its end took the new registration away: %+v, %v", rows, err)
		}
		if _, err := c.Register(ctx, broker("b1", 1, 1), ttl); !errors.Is(err, meta.ErrStranger) {
			t.Errorf("an earlier start: %v", err)
		}
		row := second.Row
		row.Draining = true
		if err := second.Update(ctx, row); err != nil {
			t.Error(err)
		}
		if rows, _ := c.Brokers(ctx); len(rows) != 1 || !rows[0].Draining {
			t.Errorf("%+v", rows)
		}
		if err := second.End(ctx); err != nil {
			t.Error(err)
		}
		if rows, _ := c.Brokers(ctx); len(rows) != 0 {
			t.Errorf("%d brokers after the end", len(rows))
		}
	})
}

// Rows: U1
func TestU1_FinalizeOnlyWhatAllCan(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{MaxLevel: 2})
		ctx := t.Context()
		old, err := c.Register(ctx, broker("old", 1, 1), ttl)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Register(ctx, broker("new", 1, 2, "merge"), ttl); err != nil {
			t.Fatal(err)
		}
		if err := c.FinalizeFeature(ctx, "merge"); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("with a broker that lacks it: %v", err)
		}
		if err := c.RaiseLevel(ctx, 2); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("with a broker of level 1: %v", err)
		}
		if err := old.End(ctx); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.FinalizeFeature(ctx, "merge"), c.RaiseLevel(ctx, 2)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Register(ctx, broker("old", 2, 2), ttl); !errors.Is(err, meta.ErrFormatLevel) {
			t.Errorf("a broker without the feature registered: %v", err)
		}
		if _, err := c.Register(ctx, broker("old", 2, 1, "merge"), ttl); !errors.Is(err, meta.ErrFormatLevel) {
			t.Errorf("a broker of level 1 registered: %v", err)
		}
		if _, err := catalog.Open(ctx, kv, catalog.Options{MaxLevel: 1}); !errors.Is(err, meta.ErrFormatLevel) {
			t.Errorf("an old program opened the catalog: %v", err)
		}
	})
	t.Run("registered between the look and the finalize", func(t *testing.T) {
		kv := memkv.New(memkv.Options{})
		c := setUp(t, kv, catalog.Options{})
		d := reopen(t, &between{KV: kv, do: func() {
			if _, err := c.Register(t.Context(), broker("old", 1, 1), ttl); err != nil {
				t.Error(err)
			}
		}}, catalog.Options{})
		if err := d.FinalizeFeature(t.Context(), "merge"); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("%v", err)
		}
	})
}

// Rows: U2. An old writer goes on after the level was raised, in every transaction
// it has.
func TestU2_OutdatedWritersFail(t *testing.T) {
	run := func(t *testing.T, kv catalog.KV, twins catalog.Twins) map[string]error {
		ctx := t.Context()
		old := setUp(t, kv, catalog.Options{Twins: twins})
		row := grant(t, old, create(t, old, "a"), "b1")
		s, err := old.Register(ctx, broker("b9", 1, 2), ttl)
		if err != nil {
			t.Fatal(err)
		}
		created := shardOf(t, old, create(t, old, "b"))
		if err := reopen(t, kv, catalog.Options{MaxLevel: 2}).RaiseLevel(ctx, 2); err != nil {
			t.Fatal(err)
		}
		errs := make(map[string]error)
		_, errs["namespace"] = old.CreateNamespace(ctx, "x", catalog.NamespaceConfig{}, "")
		_, errs["update namespace"] = old.UpdateNamespace(ctx, "logs", catalog.NamespaceConfig{Shards: 2}, 0)
		_, _, errs["create"] = old.Create(ctx, catalog.CreateStream{Name: name("c")})
		_, errs["update"] = old.UpdateStream(ctx, name("a"), catalog.StreamConfig{ProducersMax: 5}, 0)
		_, errs["first grant"] = old.Grant(ctx, created, member("b1"), 1, []meta.Member{member("b1")})
		_, errs["grant"] = old.Grant(ctx, row, member("b1"), 8, nil)
		_, _, errs["copy"] = old.RegisterCopy(ctx, catalog.CopyRow{Storage: member("b1").Storage, Broker: "b1", Start: 1, Boot: 1})
		_, _, _, errs["campaign"] = old.Campaign(ctx, s)
		errs["floor"] = old.RaiseFloor(ctx, 1<<60)
		_, errs["snapshot"] = old.NextSnapshot(ctx)
		errs["tombstone"] = old.RaiseTombstone(ctx, meta.Tombstone{Stream: name("z"), Through: 1})
		_, errs["register"] = old.Register(ctx, broker("b8", 1, 2), ttl)
		errs["update registration"] = s.Update(ctx, s.Row)
		_, errs["delete"] = old.Delete(ctx, name("b"), 0)
		return errs
	}
	onBoth(t, func(t *testing.T, kv compactor) {
		for what, err := range run(t, kv, catalog.Twins{}) {
			if !errors.Is(err, meta.ErrFormatLevel) {
				t.Errorf("%s: %v, want ErrFormatLevel", what, err)
			}
		}
	})
	t.Run("twin", func(t *testing.T) {
		for what, err := range run(t, memkv.New(memkv.Options{}), catalog.Twins{NoLevelGuard: true}) {
			if errors.Is(err, meta.ErrFormatLevel) {
				t.Errorf("%s was refused without the guard: %v", what, err)
			}
		}
	})
}

// A controller that lost its election writes nothing more.
func TestElectionFencesTheController(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		ctx := t.Context()
		c := setUp(t, kv, catalog.Options{})
		s1, err := c.Register(ctx, broker("b1", 1, 1), ttl)
		if err != nil {
			t.Fatal(err)
		}
		s2, err := c.Register(ctx, broker("b2", 1, 1), ttl)
		if err != nil {
			t.Fatal(err)
		}
		e1, _, won, err := c.Campaign(ctx, s1)
		if err != nil || !won {
			t.Fatal(won, err)
		}
		if _, holder, won, err := c.Campaign(ctx, s2); err != nil || won || holder != "b1" {
			t.Errorf("two controllers: %v, %v, %v", holder, won, err)
		}
		row := shardOf(t, c, create(t, c, "a"))
		if err := s1.End(ctx); err != nil { // its lease is lost
			t.Fatal(err)
		}
		e2, _, won, err := c.Campaign(ctx, s2)
		if err != nil || !won {
			t.Fatal(won, err)
		}
		form := []meta.Member{member("b1")}
		if _, err := c.Fenced(e1).Grant(ctx, row, form[0], 1, form); !errors.Is(err, catalog.ErrDeposed) {
			t.Errorf("the deposed controller's grant: %v", err)
		}
		if _, err := c.Fenced(e2).Grant(ctx, row, form[0], 1, form); err != nil {
			t.Errorf("the controller's grant: %v", err)
		}
	})
}
