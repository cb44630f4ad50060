package catalog_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

// Rows: N3, N9
func TestN9_N3_RoutesOnlyGoForward(t *testing.T) {
	r := func(i, l, e uint64) catalog.Route {
		return catalog.Route{Incarnation: meta.Incarnation(i), Lineage: meta.Lineage(l), Epoch: meta.Epoch(e)}
	}
	for _, c := range []struct {
		holds, offered catalog.Route
		dead           meta.Incarnation
		want           bool
	}{
		{r(1, 1, 9), r(2, 1, 1), 0, true},
		{r(2, 1, 1), r(1, 1, 10), 0, false},
		{r(7, 1, 1), r(5, 1, 99), 0, false},
		{r(7, 1, 1), r(8, 1, 1), 8, false}, // a tombstone covers it
		{r(7, 1, 1), r(8, 1, 1), 7, true},
		{r(1, 1, 9), r(1, 2, 1), 0, true}, // the lineage stands before the epoch
		{r(1, 2, 1), r(1, 1, 9), 0, false},
		{r(1, 1, 9), r(1, 1, 9), 0, true}, // the same again
		{r(1, 1, 9), r(1, 1, 8), 0, false},
		{catalog.Route{}, r(5, 1, 1), 5, false},
	} {
		if got := c.holds.Takes(c.offered, c.dead); got != c.want {
			t.Errorf("holding %v, offered %v, deleted to %d: %v, want %v", c.holds, c.offered, c.dead, got, c.want)
		}
	}
}

// Rows: N4
func TestN4_OnlyALaterRowLetsACopyBeForgotten(t *testing.T) {
	row := catalog.ShardRow{State: catalog.ShardHibernating, Lineage: 2, Epoch: 5, End: 100}
	for _, c := range []struct {
		lineage meta.Lineage
		promise meta.Epoch
		mark    meta.LSN
		want    bool
	}{
		{2, 5, 100, true}, {2, 4, 100, true}, {1, 5, 90, true},
		{2, 6, 100, false}, {2, 5, 101, false}, {3, 5, 100, false},
	} {
		if got := row.MayForget(c.lineage, c.promise, c.mark); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if (catalog.ShardRow{State: catalog.ShardCreated, Lineage: 2}).MayForget(1, 0, 0) {
		t.Error("a row without any epoch lets a copy be forgotten")
	}
}

// Rows: E25
func TestE25_GrantCopiesMembersVerbatim(t *testing.T) {
	// A broker registered anew under another storage id while it is a member.
	run := func(t *testing.T, kv catalog.KV, twins catalog.Twins) (catalog.ShardRow, catalog.ShardRow) {
		c := setUp(t, kv, catalog.Options{})
		before := grant(t, c, create(t, c, "a"), "b1", "b2", "b3")
		other := member("other")
		if _, err := c.Register(t.Context(), catalog.BrokerRow{ID: "b2", Storage: other.Storage, Boot: 9, Level: 1}, ttl); err != nil {
			t.Fatal(err)
		}
		d := reopen(t, kv, catalog.Options{Twins: twins})
		after, err := d.Grant(t.Context(), before, member("b3"), 8, nil)
		if err != nil {
			t.Fatal(err)
		}
		return before, after
	}
	onBoth(t, func(t *testing.T, kv compactor) {
		before, after := run(t, kv, catalog.Twins{})
		if d := cmp.Diff(before.Members, after.Members); d != "" {
			t.Error(d)
		}
		if after.Epoch != before.Epoch+1 || after.Leader != member("b3") || after.Boot != 8 || after.Lineage != before.Lineage {
			t.Errorf("granted %+v", after)
		}
	})
	t.Run("twin registrations", func(t *testing.T) {
		before, after := run(t, memkv.New(memkv.Options{}), catalog.Twins{GrantFromRegistrations: true})
		if cmp.Diff(before.Members, after.Members) == "" {
			t.Error("ids from registrations went unnoticed")
		}
	})
}

// Rows: E25. A controller that acts on an old reading.
func TestE25_GrantComparesTheRevision(t *testing.T) {
	run := func(t *testing.T, kv catalog.KV, twins catalog.Twins) (error, catalog.ShardRow) {
		c := setUp(t, kv, catalog.Options{Twins: twins})
		s := create(t, c, "a")
		old := grant(t, c, s, "b1", "b2", "b3")
		members := []meta.Member{member("b1"), member("b2"), member("b4")}
		if _, err := c.ChangeMembers(t.Context(), old, member("b1"), 7, members, 10); err != nil {
			t.Fatal(err)
		}
		_, err := c.Grant(t.Context(), old, member("b3"), 9, nil)
		return err, shardOf(t, c, s)
	}
	onBoth(t, func(t *testing.T, kv compactor) {
		err, now := run(t, kv, catalog.Twins{})
		if _, in := now.Member("b4"); !errors.Is(err, meta.ErrConflict) || !in || now.Committed != 10 {
			t.Errorf("%v; row %+v", err, now)
		}
	})
	t.Run("twin", func(t *testing.T) {
		if err, now := run(t, memkv.New(memkv.Options{}), catalog.Twins{GrantUnguarded: true}); err != nil || now.Leader != member("b3") {
			t.Errorf("a grant without a guard went unnoticed: %v, %+v", err, now)
		}
	})
}

// Rows: E24. Each boot needs a grant of its own; what an older one asks is refused.
func TestE24_AnEpochBelongsToOneBoot(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		s := create(t, c, "a")
		old := grant(t, c, s, "b1")
		row, err := c.Grant(t.Context(), old, member("b1"), 8, nil) // restarted: a new boot
		if err != nil || row.Epoch != old.Epoch+1 {
			t.Fatalf("%+v, %v", row, err)
		}
		if _, err := c.ChangeMembers(t.Context(), row, member("b1"), 7, []meta.Member{member("b1"), member("b2")}, 0); !errors.Is(err, meta.ErrConflict) {
			t.Errorf("the older boot changed the members: %v", err)
		}
		if _, err := c.Hibernate(t.Context(), row, member("b1"), 7, catalog.Base{}, 5, 0); !errors.Is(err, meta.ErrConflict) {
			t.Errorf("the older boot hibernated the shard: %v", err)
		}
		if _, err := c.Grant(t.Context(), row, member("b1"), 0, nil); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("a grant without a boot: %v", err)
		}
		if _, err := c.Grant(t.Context(), row, member("b9"), 1, nil); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("a grant to a broker that is no member: %v", err)
		}
		stranger := member("b1")
		stranger.Storage[0]++
		if _, err := c.Grant(t.Context(), row, stranger, 1, nil); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("a grant to a stranger's storage id: %v", err)
		}
	})
}

// Rows: E26
func TestE26_UnknownIsSettledByMovingTheRevision(t *testing.T) {
	// The grant's answer is lost; it lands only after the asker has settled it.
	late := func(t *testing.T, twins catalog.Twins) (said catalog.Outcome, landed bool) {
		kv := memkv.New(memkv.Options{})
		c := setUp(t, kv, catalog.Options{Twins: twins})
		s := create(t, c, "a")
		row := grant(t, c, s, "b1", "b2", "b3")
		kv.Inject(memkv.LandLate)
		next, err := c.Grant(t.Context(), row, member("b2"), 8, nil)
		if !errors.Is(err, meta.ErrUnknown) {
			t.Fatalf("%v, want ErrUnknown", err)
		}
		said, _, err = c.Settle(t.Context(), row, next)
		if err != nil {
			t.Fatal(err)
		}
		kv.Land()
		return said, shardOf(t, c, s).Epoch == next.Epoch
	}
	if said, landed := late(t, catalog.Twins{}); said != catalog.Failed || landed {
		t.Errorf("settled as %v, landed %v", said, landed)
	}
	t.Run("twin", func(t *testing.T) {
		if said, landed := late(t, catalog.Twins{AbortOnRead: true}); said != catalog.Failed || !landed {
			t.Errorf("abort on read went unnoticed: %v, %v", said, landed)
		}
	})
	for _, c := range []struct {
		name   string
		faults []memkv.Fault
		want   catalog.Outcome
	}{
		{"answer lost", []memkv.Fault{memkv.LoseAnswer}, catalog.Landed},
		{"request lost", []memkv.Fault{memkv.LoseRequest}, catalog.Failed},
		{"the move's answer lost too", []memkv.Fault{memkv.LoseRequest, memkv.LoseAnswer}, catalog.Failed},
		{"the move lost too", []memkv.Fault{memkv.LoseRequest, memkv.LoseRequest}, catalog.Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			kv := memkv.New(memkv.Options{})
			cat := setUp(t, kv, catalog.Options{})
			row := grant(t, cat, create(t, cat, "a"), "b1", "b2", "b3")
			kv.Inject(c.faults...)
			next, err := cat.Grant(t.Context(), row, member("b2"), 8, nil)
			if !errors.Is(err, meta.ErrUnknown) {
				t.Fatal(err)
			}
			got, now, err := cat.Settle(t.Context(), row, next)
			if err != nil || got != c.want {
				t.Errorf("settled as %v, want %v (%v)", got, c.want, err)
			}
			if stored := shardOf(t, cat, catalog.StreamRow{Name: row.ID.Stream, Incarnation: row.ID.Incarnation}); cmp.Diff(stored, now) != "" {
				t.Error("the row returned is not the row stored:", cmp.Diff(stored, now))
			}
		})
	}
	t.Run("replaced meanwhile", func(t *testing.T) {
		kv := memkv.New(memkv.Options{})
		cat := setUp(t, kv, catalog.Options{})
		row := grant(t, cat, create(t, cat, "a"), "b1", "b2", "b3")
		kv.Inject(memkv.LoseRequest)
		next, _ := cat.Grant(t.Context(), row, member("b2"), 8, nil)
		if _, err := cat.Grant(t.Context(), row, member("b3"), 9, nil); err != nil {
			t.Fatal(err)
		}
		if got, now, err := cat.Settle(t.Context(), row, next); err != nil || got != catalog.Superseded || now.Leader != member("b3") {
			t.Errorf("settled as %v (%v): %+v", got, err, now)
		}
	})
}

func TestHibernateAndActivate(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		s := create(t, c, "a")
		row := grant(t, c, s, "b1", "b2", "b3")
		base := catalog.Base{Through: 40, Lineage: row.Lineage, Mark: 41}
		asleep, err := c.Hibernate(t.Context(), row, member("b1"), 7, base, 42, 99)
		if err != nil || asleep.State != catalog.ShardHibernating || asleep.End != 42 || asleep.Epoch != row.Epoch || asleep.NextExpiry != 99 {
			t.Fatalf("%+v, %v", asleep, err)
		}
		if p, _ := kv.Range(t.Context(), catalog.RangeRequest{Prefix: "by-broker/"}); len(p.Items) != 0 {
			t.Errorf("%d brokers are still assigned a hibernating shard", len(p.Items))
		}
		if d := cmp.Diff(asleep, shardOf(t, c, s)); d != "" {
			t.Error(d)
		}
		awake := grant(t, c, s, "b4", "b5")
		if awake.Epoch != row.Epoch+1 || awake.Base != base || awake.Committed != 42 || awake.End != 0 || len(awake.Members) != 2 {
			t.Errorf("activated as %+v", awake)
		}
	})
}

func TestAbandon(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		s := create(t, c, "a")
		row := grant(t, c, s, "b1", "b2", "b3")
		a := catalog.Abandonment{Survivor: member("b3"), Boot: 4, CanServe: true, Why: "b1 and b2 answer"}
		if _, err := c.Abandon(t.Context(), row, a); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("with a quorum there: %v", err)
		}
		a.CanServe = false
		a.Survivor.Storage[0]++ // it came back under a new id
		got, err := c.Abandon(t.Context(), row, a)
		if err != nil || got.Lineage != row.Lineage+1 || got.Epoch != row.Epoch+1 || len(got.Members) != 1 || got.Leader != a.Survivor {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := c.Abandon(t.Context(), row, a); !errors.Is(err, meta.ErrConflict) {
			t.Errorf("on an old reading: %v", err)
		}
		if p, _ := kv.Range(t.Context(), catalog.RangeRequest{Prefix: "by-broker/"}); len(p.Items) != 1 {
			t.Errorf("%d assignments, want 1", len(p.Items))
		}
	})
}
