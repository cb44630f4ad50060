package catalog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

// Rows: N2
func TestN2_IncarnationsOnlyGoUp(t *testing.T) {
	run := func(t *testing.T, twins catalog.Twins) []meta.Incarnation {
		ck, kv := newClock(), memkv.New(memkv.Options{})
		opt := catalog.Options{Now: ck.Now, Twins: twins}
		c := setUp(t, kv, opt)
		var got []meta.Incarnation
		next := func() { got = append(got, create(t, c, "a").Incarnation); remove(t, c, "a") }
		next()
		old := kv.Backup()
		next()
		ck.add(-time.Hour) // the clock is set back
		next()
		ck.add(2 * time.Hour)
		next()
		kv.Rewind(old) // an older catalog is put in place
		c = reopen(t, kv, opt)
		ck.add(time.Second)
		next()
		kv.Rewind(old) // both at once: then the floor comes from the bucket
		ck.add(-24 * time.Hour)
		c = reopen(t, kv, opt)
		if err := c.RaiseFloor(t.Context(), got[len(got)-1]+1); err != nil {
			t.Fatal(err)
		}
		next()
		return got
	}
	up := func(got []meta.Incarnation) bool {
		for i := 1; i < len(got); i++ {
			if got[i] <= got[i-1] {
				return false
			}
		}
		return true
	}
	if got := run(t, catalog.Twins{}); !up(got) {
		t.Errorf("incarnations went back: %d", got)
	}
	t.Run("twin", func(t *testing.T) {
		if got := run(t, catalog.Twins{RevisionNotClock: true}); up(got) {
			t.Errorf("revisions instead of the clock went unnoticed: %d", got)
		}
	})
}

// Rows: N2. Many writers create and delete the same few names.
func TestN2_RacingCreatesAndDeletes(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{Now: newClock().Now}) // the clock stands still
		var mu sync.Mutex
		seen := make(map[meta.StreamName]map[meta.Incarnation]int)
		last := make(map[meta.StreamName]meta.Incarnation)
		var wg sync.WaitGroup
		for w := range 4 {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			wg.Go(func() {
				for range 130 {
					n := name(fmt.Sprint("s", rng.IntN(2)))
					if rng.IntN(2) == 0 {
						row, created, err := c.Create(t.Context(), catalog.CreateStream{Name: n})
						if err != nil && !errors.Is(err, meta.ErrExists) {
							t.Error(err)
						}
						if !created {
							continue
						}
						mu.Lock()
						if seen[n] == nil {
							seen[n] = make(map[meta.Incarnation]int)
						}
						seen[n][row.Incarnation]++
						last[n] = max(last[n], row.Incarnation)
						mu.Unlock()
						continue
					}
					d, err := c.Delete(t.Context(), n, 0)
					if err != nil && !errors.Is(err, meta.ErrNotFound) {
						t.Error(err)
					}
					if err == nil && d.Tombstone.Through < d.Stream.Incarnation {
						t.Errorf("deleted %d, tombstone %d", d.Stream.Incarnation, d.Tombstone.Through)
					}
				}
			})
		}
		wg.Wait()
		for n, is := range seen {
			if len(is) < 10 {
				t.Errorf("%s was created only %d times: the race raced nothing", n, len(is))
			}
			for i, times := range is {
				if times > 1 {
					t.Errorf("%s: incarnation %d was handed out %d times", n, i, times)
				}
			}
			if _, err := c.Delete(t.Context(), n, 0); err != nil && !errors.Is(err, meta.ErrNotFound) {
				t.Error(err)
			}
			if stone, err := c.Tombstone(t.Context(), n); err != nil || stone.Through < last[n] {
				t.Errorf("%s: tombstone %d, newest incarnation %d, %v", n, stone.Through, last[n], err)
			}
		}
		for _, dir := range []string{"shards/", "by-broker/", "streams/"} {
			if p, err := kv.Range(t.Context(), catalog.RangeRequest{Prefix: dir}); err != nil || len(p.Items) != 0 {
				t.Errorf("%d keys left under %s, %v", len(p.Items), dir, err)
			}
		}
	})
}

// Rows: N4. A stream named like another's incarnation is another stream.
func TestN4_PrefixesDoNotReachEachOther(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		a := create(t, c, "a")
		names := []string{"a/" + meta.Hex(a.Incarnation), "a/" + meta.Hex(a.Incarnation) + "/0000000000000000", "ab", "a.b"}
		var rows []catalog.StreamRow
		for _, n := range names {
			rows = append(rows, create(t, c, n))
		}
		remove(t, c, "a")
		for _, r := range rows {
			if got := shardOf(t, c, r); got.State != catalog.ShardCreated {
				t.Errorf("%s: %+v", r.Name, got)
			}
		}
	})
}

// Rows: N7
func TestN7_OneTombstoneForever(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		var last meta.Incarnation
		for range 5 {
			last = create(t, c, "a/b").Incarnation
			remove(t, c, "a/b")
		}
		stones, next, err := c.Tombstones(t.Context(), "logs", "", 0)
		want := []meta.Tombstone{{Stream: name("a/b"), Through: last}}
		if err != nil || next != "" || cmp.Diff(want, stones) != "" {
			t.Errorf("tombstones %v, want %v (%v)", stones, want, err)
		}
		if _, err := c.Stream(t.Context(), name("a/b")); !errors.Is(err, meta.ErrDeleted) || !errors.Is(err, meta.ErrNotFound) {
			t.Errorf("reading a deleted stream: %v", err)
		}
	})
}

func TestCreateIsIdempotent(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		req := catalog.CreateStream{Name: name("a"), Shards: 3, Request: "r1"}
		first, created, err := c.Create(t.Context(), req)
		if err != nil || !created {
			t.Fatal(created, err)
		}
		again, created, err := c.Create(t.Context(), req)
		if err != nil || created || cmp.Diff(first, again) != "" {
			t.Errorf("repeated: created %v, %v\n%s", created, err, cmp.Diff(first, again))
		}
		req.Request = "r2"
		if _, _, err := c.Create(t.Context(), req); !errors.Is(err, meta.ErrExists) {
			t.Errorf("another request: %v", err)
		}
		if _, _, err := c.Create(t.Context(), catalog.CreateStream{Name: meta.StreamName{Namespace: "none", Name: "a"}}); !errors.Is(err, meta.ErrNotFound) {
			t.Errorf("no namespace: %v", err)
		}
		if _, err := c.Delete(t.Context(), name("a"), first.Incarnation+1); !errors.Is(err, meta.ErrDeleted) {
			t.Errorf("deleting another incarnation: %v", err)
		}
	})
}

// The largest stream is created, assigned and deleted in one transaction each.
func TestSixtyFourShards(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		row, _, err := c.Create(t.Context(), catalog.CreateStream{Name: name("a"), Shards: meta.MaxShards})
		if err != nil {
			t.Fatal(err)
		}
		shards, err := c.Shards(t.Context(), row)
		if err != nil || len(shards) != meta.MaxShards {
			t.Fatal(len(shards), err)
		}
		var ms []meta.Member
		for i := range catalog.MaxMembers {
			ms = append(ms, member(fmt.Sprint("b", i)))
		}
		for _, s := range shards {
			if s.Lineage.Generation() != clusterRow.Generation {
				t.Errorf("lineage %x is not of the cluster's generation", s.Lineage)
			}
			if _, err := c.Grant(t.Context(), s, ms[0], 1, ms); err != nil {
				t.Fatal(err)
			}
		}
		d := remove(t, c, "a")
		if len(d.Shards) != meta.MaxShards || len(d.Shards[63].Members) != catalog.MaxMembers {
			t.Errorf("deleted %d shards", len(d.Shards))
		}
		if p, _ := kv.Range(t.Context(), catalog.RangeRequest{Prefix: "by-broker/"}); len(p.Items) != 0 {
			t.Errorf("%d assignments outlived the stream", len(p.Items))
		}
		if _, _, err := c.Create(t.Context(), catalog.CreateStream{Name: name("b"), Shards: meta.MaxShards + 1}); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("65 shards: %v", err)
		}
	})
}

// Answers are lost after the commit, requests before it, and some land late.
func TestLostAnswersOfCreateAndDelete(t *testing.T) {
	for _, f := range []memkv.Fault{memkv.LoseAnswer, memkv.LoseRequest, memkv.LandLate} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			kv := memkv.New(memkv.Options{})
			c := setUp(t, kv, catalog.Options{})
			kv.Inject(f)
			row, created, err := c.Create(t.Context(), catalog.CreateStream{Name: name("a")})
			if err != nil || !created {
				t.Fatalf("create: %v, %v", created, err)
			}
			if n := kv.Land(); n != 0 {
				t.Error("a create landed twice")
			}
			kv.Inject(f)
			d, err := c.Delete(t.Context(), name("a"), 0)
			if err != nil || d.Tombstone.Through != row.Incarnation {
				t.Fatalf("delete: %+v, %v", d, err)
			}
			again := create(t, c, "a")
			if n := kv.Land(); n != 0 {
				t.Error("a late delete reached the next creation")
			}
			if now, err := c.Stream(t.Context(), name("a")); err != nil || now.Incarnation != again.Incarnation {
				t.Errorf("%+v, %v", now, err)
			}
		})
	}
}

// A create whose answer is lost and that lands only after the name was created and
// deleted by others does not bring it back.
func TestLateCreateAfterDelete(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	c := setUp(t, kv, catalog.Options{})
	kv.Inject(memkv.LandLate)
	impatient := reopen(t, kv, catalog.Options{Retry: time.Nanosecond})
	if _, _, err := impatient.Create(t.Context(), catalog.CreateStream{Name: name("a")}); !errors.Is(err, meta.ErrUnknown) {
		t.Fatalf("%v, want ErrUnknown", err)
	}
	create(t, c, "a")
	remove(t, c, "a")
	if kv.Land() != 0 {
		t.Error("it landed")
	}
	if _, err := c.Stream(t.Context(), name("a")); !errors.Is(err, meta.ErrDeleted) {
		t.Errorf("%v", err)
	}
}

func TestListAndUpdate(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		var want []string
		for i := range 25 {
			n := fmt.Sprintf("app/%02d", i)
			create(t, c, n)
			want = append(want, n)
		}
		create(t, c, "zoo")
		var got []string
		for cursor := ""; ; {
			rows, next, err := c.Streams(t.Context(), "logs", "app/", cursor, 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				got = append(got, r.Name.Name)
			}
			if cursor = next; next == "" {
				break
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		row, _ := c.Stream(t.Context(), name("zoo"))
		cfg := catalog.StreamConfig{SegmentBytes: 2 << 20, SegmentAge: time.Minute}
		next, err := c.UpdateStream(t.Context(), name("zoo"), cfg, row.Revision)
		if err != nil || next.Config != cfg || next.Incarnation != row.Incarnation {
			t.Errorf("update: %+v, %v", next, err)
		}
		if _, err := c.UpdateStream(t.Context(), name("zoo"), catalog.StreamConfig{}, row.Revision); !errors.Is(err, meta.ErrConflict) {
			t.Errorf("an update of an old reading: %v", err)
		}
		if _, err := c.UpdateStream(t.Context(), name("zoo"), catalog.StreamConfig{SegmentBytes: 5}, 0); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("a segment of 5 bytes: %v", err)
		}
	})
}

// A namespace goes only when it is empty, also when a stream is created between
// the look and the delete.
func TestNamespaceDeleteRacesCreate(t *testing.T) {
	try := func(t *testing.T, twins catalog.Twins) (deleteErr error, orphan bool) {
		kv := memkv.New(memkv.Options{})
		c := setUp(t, kv, catalog.Options{})
		d := reopen(t, &between{KV: kv, do: func() { create(t, c, "late") }}, catalog.Options{Twins: twins})
		deleteErr = d.DeleteNamespace(t.Context(), "logs")
		_, streamErr := c.Stream(t.Context(), name("late"))
		_, nsErr := c.Namespace(t.Context(), "logs")
		return deleteErr, streamErr == nil && nsErr != nil
	}
	if err, orphan := try(t, catalog.Twins{}); orphan || !errors.Is(err, meta.ErrInvalid) {
		t.Errorf("orphan %v, %v", orphan, err)
	}
	t.Run("twin", func(t *testing.T) {
		if _, orphan := try(t, catalog.Twins{NamespaceDeleteUnguarded: true}); !orphan {
			t.Error("a delete without the guard went unnoticed")
		}
	})
	onBoth(t, func(t *testing.T, kv compactor) {
		c := setUp(t, kv, catalog.Options{})
		create(t, c, "a")
		if err := c.DeleteNamespace(t.Context(), "logs"); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("with a stream: %v", err)
		}
		remove(t, c, "a")
		if err := c.DeleteNamespace(t.Context(), "logs"); err != nil {
			t.Error(err)
		}
		if err := c.DeleteNamespace(t.Context(), "logs"); !errors.Is(err, meta.ErrNotFound) {
			t.Errorf("again: %v", err)
		}
	})
}
