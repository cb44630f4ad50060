package catalog_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
)

// Rows: N2. Any sequence of creates, deletes, lost answers, late landings, clocks
// that jump, and restores of an older catalog whose floor comes from the bucket.
func TestN2_AnySequence(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ck, kv := newClock(), memkv.New(memkv.Options{})
		defer kv.Close()
		opt := catalog.Options{Now: ck.Now}
		c := setUp(t, kv, opt)
		backups := []memkv.Backup{kv.Backup()}
		n := name("a")
		var highest, tombstone meta.Incarnation
		rewound := false
		r.Repeat(map[string]func(*rapid.T){
			"create": func(r *rapid.T) {
				row, created, err := c.Create(t.Context(), catalog.CreateStream{Name: n})
				if err != nil && !errors.Is(err, meta.ErrExists) {
					r.Fatal(err)
				}
				if created && row.Incarnation <= highest {
					r.Fatalf("incarnation %d after %d", row.Incarnation, highest)
				}
				if created {
					highest = row.Incarnation
				}
			},
			"delete": func(r *rapid.T) {
				d, err := c.Delete(t.Context(), n, 0)
				if err != nil && !errors.Is(err, meta.ErrNotFound) {
					r.Fatal(err)
				}
				if err == nil && d.Tombstone.Through < d.Stream.Incarnation {
					r.Fatalf("tombstone %d over incarnation %d", d.Tombstone.Through, d.Stream.Incarnation)
				}
			},
			"fault": func(r *rapid.T) {
				kv.Inject(rapid.SampledFrom([]memkv.Fault{memkv.LoseAnswer, memkv.LoseRequest, memkv.LandLate, memkv.Pass}).Draw(r, "fault"))
			},
			"land": func(*rapid.T) { kv.Land() },
			"clock": func(r *rapid.T) {
				ck.add(time.Duration(rapid.IntRange(-3600, 3600).Draw(r, "seconds")) * time.Second)
			},
			"backup": func(*rapid.T) { backups = append(backups, kv.Backup()) },
			"restore": func(r *rapid.T) {
				kv.Rewind(rapid.SampledFrom(backups).Draw(r, "backup"))
				c = reopen(t, kv, opt)
				if err := c.RaiseFloor(t.Context(), highest+1); err != nil {
					r.Fatal(err)
				}
				tombstone, rewound = 0, true
			},
			"": func(r *rapid.T) {
				stone, err := c.Tombstone(t.Context(), n)
				if err != nil {
					r.Fatal(err)
				}
				if stone.Through < tombstone && !rewound {
					r.Fatalf("the tombstone went back from %d to %d", tombstone, stone.Through)
				}
				tombstone, rewound = stone.Through, false
			},
		})
	})
}

// Rows: N2. Tombstones found in the bucket arrive late and in any order.
func TestN2_LateTombstones(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		ck := newClock()
		c := setUp(t, kv, catalog.Options{Now: ck.Now})
		now := meta.Incarnation(meta.MicrosOf(ck.Now()))
		for _, through := range []meta.Incarnation{now + 500, now + 100, now + 900, now + 200} {
			if err := c.RaiseTombstone(t.Context(), meta.Tombstone{Stream: name("a"), Through: through}); err != nil {
				t.Fatal(err)
			}
		}
		if row := create(t, c, "a"); row.Incarnation != now+901 {
			t.Errorf("incarnation %d, want %d", row.Incarnation, now+901)
		}
	})
}
