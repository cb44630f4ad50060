package replica

import (
	"fmt"
	"testing"
)

// One member and three go the same way: promise, fence, majority, opening entry,
// durable, commit.
// Rows: C2, W12
func TestOneAndThreeMembers(t *testing.T) {
	for _, members := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			w := newWorld(t, members, Twins{})
			w.grant(0)
			w.run()
			n := w.nodes[0]
			if s := n.r.Status(); !s.Serving {
				t.Fatalf("does not serve: %+v", s)
			}
			var ids []uint64
			for i := range 10 {
				ids = append(ids, n.append(plain(fmt.Sprint("a", i), "b")))
			}
			w.run()
			for i, id := range ids {
				a := n.good(id)
				if int(a.First) != 2*i || int(a.Next) != 2*i+2 || int(a.LSN) != i+2 {
					t.Fatalf("append %d: %+v", i, a)
				}
			}
			w.tick()
			w.run()
			for _, f := range w.nodes {
				if v := f.r.Status(); v.Commit != 11 || v.Committed != 20 {
					t.Fatalf("node %d: %+v", f.id, v)
				}
			}
			w.same()
		})
	}
}
