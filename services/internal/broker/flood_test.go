package broker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket"
)

// However many fences and trims come in while the log is full, they leave room for
// the mark that makes some: archiving goes on at once when the bucket is back.
//
// Rows: W4
func TestW4_FencesOnAFullLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := servicetest.Start(t, servicetest.Options{FileSize: 256 << 10, Budget: 6 * 256 << 10})
		id := n.Create("logs/app")
		n.Faults.Outage(bucket.ErrUnavailable)
		stored := fill(n, id)
		for i := 0; ; i++ {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := n.Broker.Fence(ctx, id, "", false)
			cancel()
			if err != nil {
				break
			}
			if i == 1000 {
				t.Fatal("fences never fill the log")
			}
		}
		n.Faults.Outage(nil)
		time.Sleep(10 * time.Second) // less than a checkpoint takes to come by itself
		synctest.Wait()
		if m := n.Keys("manifests/"); len(m) == 0 {
			t.Fatal("nothing is archived: the fences took the room of the mark")
		}
		eventuallyAppends(n, id, "after")
		want(t, n.Read(id, 0), append(stored, "after")...)
	})
}
