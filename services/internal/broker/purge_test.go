package broker_test

import (
	"fmt"
	"testing"

	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

// Many deleted streams that can't be purged hold up none of the others.
// Rows: N5
func TestN5_APurgeThatFailsHoldsNoOtherUp(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	n.Faults.Inject(fault.Fault{Key: "/bad-", Times: -1, Before: bucket.ErrInvalid})
	for i := range 120 {
		n.Delete(n.Create(fmt.Sprintf("logs/bad-%03d", i)))
	}
	id := n.Create("logs/good")
	n.Archive(id, "a")
	n.Delete(id)
	n.Eventually("the good one is purged", func() bool {
		left, err := n.Catalog.Purges(n.Context(), catalog.Purge{}, 1000)
		for _, p := range left {
			if p.Stream.Name == "good" {
				return false
			}
		}
		return err == nil && len(left) == 120
	})
	if keys := n.Keys("streams/logs/good"); len(keys) > 0 {
		t.Fatalf("left in the bucket: %q", keys)
	}
}
