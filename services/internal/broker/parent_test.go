package broker_test

import (
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

// After an abandon, the first mark of the new lineage may get the very LSN of the
// mark that the lineage is based on. Stopped after its manifest was put, and before
// that was confirmed, it must still find the other one as its parent.
// Rows: T13, D13
func TestT13_AMarkNeverContinuesItself(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	// Two batches come in during the upload: the mark stands three entries above what
	// it archives, as the new lineage's first will.
	hold := n.Faults.Hold(fault.Fault{Op: fault.Put, Key: "streams/"})
	archived := make(chan error, 1)
	go func() {
		_, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "archived"), Level: replica.Archive})
		archived <- err
	}()
	<-hold.Arrived()
	n.Append(id, "lost 1")
	n.Append(id, "lost 2")
	hold.Release()
	if err := <-archived; err != nil {
		t.Fatal(err)
	}
	before, err := n.Broker.Describe(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	based := before.Archive.Mark

	gone := lost(n, id)
	if a, err := n.Broker.Abandon(n.Context(), id, gone, false); err != nil || a.Source != broker.FromBucket {
		t.Fatalf("%+v, %v", a, err)
	}
	n.Faults.Inject(fault.Fault{Op: fault.Put, Key: "manifests/", Times: -1, After: bucket.ErrUnavailable})
	ctx := n.Context()
	go func() {
		_, _ = n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "new"), Level: replica.Archive})
	}()
	own := ""
	n.Eventually("the new lineage's manifest is put", func() bool {
		d, err := n.Broker.Describe(n.Context(), id)
		if err == nil && d.Archive != nil && d.Archive.Lineage != before.Archive.Lineage {
			own = d.Archive.Key()
			if d.Archive.Mark != based {
				t.Fatalf("the first mark of the new lineage stands at LSN %d, the one it continues at %d: the test's point is that they are the same", d.Archive.Mark, based)
			}
		}
		return own != ""
	})
	n.Kill()
	n.Faults.Clear()
	n.Restart(nil)
	n.Archive(id, "more") // is never answered if the mark takes itself for its parent
	want(t, n.Read(id, 0), "archived", "new", "more")
}

// A cluster that lost its prefix stops writing manifests: nothing is acknowledged
// with archive that nobody will believe.
// A part of what two clusters on one prefix need.
func TestALostClaimEndsArchiving(t *testing.T) {
	noticed := make(chan error, 1)
	n := servicetest.Start(t, servicetest.Options{Tiering: func(o *tiering.Options) {
		o.Events.ClaimLost = func(err error) {
			select {
			case noticed <- err:
			default:
			}
		}
	}})
	id := n.Create("logs/app")
	other, err := tiering.New(tiering.Options{Bucket: n.Bucket, Cluster: meta.ClusterID{9}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Claim(n.Context(), tiering.ClaimOptions{Level: 1, Takeover: true}); err != nil {
		t.Fatal(err)
	}
	n.Append(id, "a")
	ctx := n.Context()
	go func() {
		_, _ = n.Send(ctx, id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "b"), Level: replica.Archive})
	}()
	select {
	case <-noticed:
	case <-ctx.Done():
		t.Fatal("nobody noticed")
	}
	if keys := n.Keys("manifests/"); len(keys) > 0 {
		t.Fatalf("manifests under another's claim: %q", keys)
	}
	want(t, n.Read(id, 0), "a", "b")
}
