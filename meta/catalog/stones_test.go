package catalog_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// rangeCounter counts listings.
type rangeCounter struct {
	catalog.KV
	calls int
}

func (r *rangeCounter) Range(ctx context.Context, q catalog.RangeRequest) (catalog.Page, error) {
	r.calls++
	return r.KV.Range(ctx, q)
}

// A broker that holds many names starts with a few listings, and hears of every
// tombstone of its own names and of no other: names that are prefixes of each
// other, and with slashes, too.
func TestManyHeldNamesCostFewListings(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		setUp(t, kv, catalog.Options{})
		counted := &rangeCounter{KV: kv}
		c, err := catalog.Open(t.Context(), counted, catalog.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var held []meta.StreamName
		want := map[meta.StreamName]meta.Incarnation{}
		for i := range 60 {
			n := fmt.Sprintf("%da/%d", i%7, i)
			if i%3 == 0 {
				n = fmt.Sprintf("%d", i)
			}
			s := create(t, c, n)
			if i%4 != 0 {
				held = append(held, s.Name)
			}
			if i%2 == 0 {
				remove(t, c, n)
				if i%4 != 0 {
					want[s.Name] = s.Incarnation
				}
			}
		}
		h := newHolder(t, c, "b1", catalog.ViewOptions{Held: func() []meta.StreamName { return held }})
		counted.calls = 0
		h.take(t)
		if d := cmp.Diff(want, h.deleted); d != "" {
			t.Error(d)
		}
		if counted.calls > 4 {
			t.Errorf("%d listings for %d names", counted.calls, len(held))
		}
	})
}
