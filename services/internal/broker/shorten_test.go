package broker_test

import (
	"strings"
	"testing"

	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket"
)

// What came in during an outage leaves as segments of the size that was asked for,
// not as one of any size, and each mark's state is the fold to its own end: a
// producer's retries are still known after a restart from the bucket's word.
// Rows: T12
func TestTheBacklogOfAnOutageIsCutIntoSegments(t *testing.T) {
	const size = 1 << 20
	n := servicetest.Start(t, servicetest.Options{FileSize: 4 << 20, Defaults: catalog.StreamConfig{SegmentBytes: size}})
	id := n.Create("logs/app")
	n.Archive(id, "before") // the marks below continue one
	n.Faults.Outage(bucket.ErrUnavailable)
	p := batch.Producer{ID: 7, Epoch: 0, Sequence: 0}
	var want []string
	want = append(want, "before")
	for range 60 {
		v := strings.Repeat("x", 100<<10)
		if _, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(p, v)}); err != nil {
			t.Fatal(err)
		}
		want = append(want, v)
		p.Sequence++
	}
	n.Faults.Outage(nil)
	n.Archive(id, "after") // answered once all before it is in the bucket, too
	want = append(want, "after")

	d, err := n.Broker.Describe(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Archive.Segments) < 5 {
		t.Fatalf("6 MB went into %d segments", len(d.Archive.Segments))
	}
	for _, s := range d.Archive.Segments {
		if s.Size > 2*size {
			t.Errorf("segment %s has %d bytes: asked for were %d", s.Key, s.Size, size)
		}
	}
	n.Kill()
	n.Restart(nil)
	got := n.Read(id, 0)
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("record %d differs", i)
		}
	}
	p.Sequence = 59
	r, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(p, strings.Repeat("x", 100<<10))})
	if err != nil || !r.Duplicate || r.First != 60 {
		t.Fatalf("the last batch again: %+v, %v", r, err)
	}
}
