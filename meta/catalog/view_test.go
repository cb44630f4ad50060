package catalog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

// holder adds a view's updates up, as a broker does.
type holder struct {
	view    *catalog.View
	rows    map[meta.ShardID]catalog.ShardRow
	deleted map[meta.StreamName]meta.Incarnation
	rewound bool
}

func newHolder(t *testing.T, c *catalog.Catalog, broker string, opt catalog.ViewOptions) *holder {
	h := &holder{
		view: c.View(meta.BrokerID(broker), opt),
		rows: make(map[meta.ShardID]catalog.ShardRow), deleted: make(map[meta.StreamName]meta.Incarnation),
	}
	t.Cleanup(h.view.Close)
	return h
}

func (h *holder) take(t *testing.T) catalog.Update {
	t.Helper()
	u, err := h.view.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.add(u)
	return u
}

func (h *holder) add(u catalog.Update) {
	for _, r := range u.Assigned {
		h.rows[r.ID] = r
	}
	for _, id := range u.Removed {
		delete(h.rows, id)
	}
	for _, s := range u.Deleted {
		h.deleted[s.Stream] = max(h.deleted[s.Stream], s.Through)
	}
	h.rewound = h.rewound || u.Rewound
}

// full is what a full read says.
func full(t *testing.T, c *catalog.Catalog, broker string) map[meta.ShardID]catalog.ShardRow {
	t.Helper()
	rows, _, _, err := c.AllShards(t.Context(), nil, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	mine := make(map[meta.ShardID]catalog.ShardRow)
	for _, r := range rows {
		if _, member := r.Member(meta.BrokerID(broker)); member {
			mine[r.ID] = r
		}
	}
	return mine
}

// until takes updates until the view equals a full read, which it must reach.
func (h *holder) until(t *testing.T, c *catalog.Catalog, broker string) {
	t.Helper()
	want := full(t, c, broker)
	for cmp.Diff(want, h.rows) != "" {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		u, err := h.view.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("the view never reaches what a full read says: %v\n%s", err, cmp.Diff(want, h.rows))
		}
		h.add(u)
	}
}

// Rows: N8
func TestN8_EveryHolderSeesTheDelete(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		s := create(t, c, "a")
		grant(t, c, s, "b1", "b2")
		holders := []*holder{newHolder(t, c, "b1", catalog.ViewOptions{}), newHolder(t, c, "b2", catalog.ViewOptions{})}
		for _, h := range holders {
			if u := h.take(t); !u.Full || len(u.Assigned) != 1 {
				t.Fatalf("first update %+v", u)
			}
		}
		remove(t, c, "a")
		for i, h := range holders {
			u := h.take(t)
			if d := cmp.Diff([]meta.ShardID{s.Shard(0)}, u.Removed); d != "" {
				t.Errorf("holder %d: %s", i, d)
			}
			if h.deleted[s.Name] != s.Incarnation {
				t.Errorf("holder %d was not told why: %+v", i, u)
			}
		}
		again := create(t, c, "a")
		grant(t, c, again, "b1")
		if u := holders[0].take(t); len(u.Assigned) != 1 || u.Assigned[0].ID != again.Shard(0) || u.Assigned[0].Epoch != 1 {
			t.Errorf("the new stream's first epoch: %+v", u)
		}
	})
	t.Run("twin", func(t *testing.T) {
		kv := memkv.New(memkv.Options{})
		c := setUp(t, kv, catalog.Options{Twins: catalog.Twins{DropSilently: true}})
		s := create(t, c, "a")
		grant(t, c, s, "b1")
		h := newHolder(t, c, "b1", catalog.ViewOptions{})
		h.take(t)
		remove(t, c, "a")
		h.view.Close()
		h.take(t) // a full read
		if _, still := h.rows[s.Shard(0)]; !still || cmp.Diff(full(t, c, "b1"), h.rows) == "" {
			t.Error("a silent drop went unnoticed")
		}
	})
}

// A former holder, no longer a member, hears of the tombstone of a name it still
// holds data of, live and after it slept through it.
func TestTombstonesOfHeldNames(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		a, b := create(t, c, "a"), create(t, c, "b")
		create(t, c, "other")
		remove(t, c, "a") // asleep
		held := []meta.StreamName{a.Name, b.Name}
		h := newHolder(t, c, "b1", catalog.ViewOptions{
			Held:  func() []meta.StreamName { return held },
			Holds: func(n meta.StreamName) bool { return n == a.Name || n == b.Name },
		})
		h.take(t)
		if d := cmp.Diff(map[meta.StreamName]meta.Incarnation{a.Name: a.Incarnation}, h.deleted); d != "" {
			t.Error(d)
		}
		remove(t, c, "other")
		remove(t, c, "b")
		h.take(t)
		want := map[meta.StreamName]meta.Incarnation{a.Name: a.Incarnation, b.Name: b.Incarnation}
		if d := cmp.Diff(want, h.deleted); d != "" {
			t.Error(d)
		}
	})
}

// churn makes, assigns, moves and deletes a few streams at random.
func churn(t *testing.T, c *catalog.Catalog, rng *rand.Rand, steps int) {
	t.Helper()
	for range steps {
		n := fmt.Sprint("s", rng.IntN(6))
		s, err := c.Stream(t.Context(), name(n))
		switch {
		case errors.Is(err, meta.ErrNotFound):
			s = create(t, c, n)
			grant(t, c, s, []string{"b1", "b2"}[rng.IntN(2)], "b3")
		case err != nil:
			t.Fatal(err)
		case rng.IntN(3) == 0:
			remove(t, c, n)
		default:
			row := shardOf(t, c, s)
			if _, err := c.ChangeMembers(t.Context(), row, row.Leader, row.Boot, []meta.Member{row.Leader, member(fmt.Sprint("c", rng.IntN(3)))}, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Compactions and dropped watches, with a consumer that is slow: nothing is missed.
// Public failure reports B120 and B127.
func TestViewSurvivesGaps(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		rng := rand.New(rand.NewPCG(7, 7))
		h := newHolder(t, c, "b1", catalog.ViewOptions{})
		h.take(t)
		for round := range 25 {
			churn(t, c, rng, 8) // nobody takes updates meanwhile
			_, at, _, err := c.AllShards(t.Context(), nil, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			if round%2 == 0 {
				kv.compact(at)
			}
			if m, ok := kv.(memStore); ok && round%3 == 0 {
				m.DropWatches()
			}
			h.until(t, c, "b1")
		}
		if h.rewound {
			t.Error("a gap was taken for a rewind")
		}
	})
}

// The twin of the above: going on from the present after a gap.
func TestViewTwinThatSkipsTheGapIsCaught(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	c := setUp(t, kv, catalog.Options{Twins: catalog.Twins{ResumeAfterGap: true}})
	h := newHolder(t, c, "b1", catalog.ViewOptions{})
	h.take(t)
	kv.DropWatches()
	grant(t, c, create(t, c, "a"), "b1")
	h.take(t)
	if cmp.Diff(full(t, c, "b1"), h.rows) == "" {
		t.Error("the gap went unnoticed")
	}
}

// An older catalog is put in place while a broker watches. Public failure report B126.
func TestViewNoticesARewind(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	c := setUp(t, kv, catalog.Options{})
	a := create(t, c, "a")
	grant(t, c, a, "b1")
	old := kv.Backup()
	b := create(t, c, "b")
	grant(t, c, b, "b1")
	h := newHolder(t, c, "b1", catalog.ViewOptions{})
	h.take(t)
	kv.Rewind(old)
	u := h.take(t)
	if !u.Rewound || !u.Full || len(u.Deleted) != 0 {
		t.Errorf("%+v", u)
	}
	if d := cmp.Diff(full(t, c, "b1"), h.rows); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]meta.ShardID{b.Shard(0)}, u.Removed); d != "" {
		t.Error(d) // without a tombstone: its data stays
	}
}

// A watch that goes deaf without ending is found out by the audit.
func TestViewAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kv := memkv.New(memkv.Options{})
		defer kv.Close()
		c := setUp(t, kv, catalog.Options{})
		deaf := reopen(t, deafKV{kv}, catalog.Options{})
		h := newHolder(t, deaf, "b1", catalog.ViewOptions{Audit: time.Minute})
		h.take(t)
		grant(t, c, create(t, c, "a"), "b1")
		if u := h.take(t); !u.Full || len(u.Assigned) != 1 {
			t.Errorf("%+v", u)
		}
	})
}

// deafKV's watches never deliver.
type deafKV struct{ catalog.KV }

func (k deafKV) Watch(context.Context, string, catalog.Revision) catalog.Watch { return deafWatch{} }

type deafWatch struct{}

func (deafWatch) C() <-chan catalog.Changes { return nil }
func (deafWatch) Err() error                { return nil }
func (deafWatch) Close()                    {}

// A failed read loses nothing, and a cancelled wait ends.
func TestViewErrors(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	c := setUp(t, kv, catalog.Options{})
	s := create(t, c, "a")
	grant(t, c, s, "b1")
	h := newHolder(t, c, "b1", catalog.ViewOptions{})
	kv.Inject(memkv.FailRead)
	if _, err := h.view.Next(t.Context()); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatalf("%v", err)
	}
	h.take(t)
	remove(t, c, "a")
	kv.Inject(memkv.FailRead) // the tombstone cannot be read
	if _, err := h.view.Next(t.Context()); !errors.Is(err, meta.ErrUnavailable) {
		t.Fatalf("%v", err)
	}
	h.take(t)
	if len(h.rows) != 0 || h.deleted[s.Name] != s.Incarnation {
		t.Errorf("%v, %v", h.rows, h.deleted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.view.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
