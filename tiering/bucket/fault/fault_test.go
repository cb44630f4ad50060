package fault

import (
	"context"
	"errors"
	"testing"

	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/buckettest"
	"github.com/varve-io/varve/tiering/bucket/dir"
	"github.com/varve-io/varve/tiering/bucket/mem"
)

// Without faults it is the bucket below it.
func TestConformance(t *testing.T) {
	buckettest.Run(t, buckettest.Options{}, func(t *testing.T) bucket.Bucket {
		inner, err := dir.OpenPath(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		b := New(inner)
		t.Cleanup(func() { b.Close() })
		return b
	})
}

func put(b *Bucket, key string) error {
	_, err := b.Put(context.Background(), key, bucket.Bytes([]byte("0123456789")), bucket.PutOptions{})
	return err
}

func TestFaults(t *testing.T) {
	ctx := t.Context()
	b := New(mem.New("m"))
	defer b.Close()

	// Before the effect, once, after one that goes well.
	b.Inject(Fault{Op: Put, Key: "a", Skip: 1, Before: bucket.ErrUnavailable})
	if err := errors.Join(put(b, "a1"), put(b, "b")); err != nil {
		t.Fatal(err)
	}
	if err := put(b, "a2"); !errors.Is(err, bucket.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := b.Head(ctx, "a2"); !errors.Is(err, bucket.ErrNotExist) {
		t.Fatal(err)
	}
	if err := put(b, "a2"); err != nil {
		t.Fatal(err)
	}
	// After the effect: the lost acknowledgement.
	b.Inject(Fault{Op: Put, After: bucket.ErrUnknown})
	if err := put(b, "lost"); !errors.Is(err, bucket.ErrUnknown) {
		t.Fatal(err)
	}
	if _, err := b.Head(ctx, "lost"); err != nil {
		t.Fatal(err)
	}
	// Short and corrupt answers.
	b.Inject(Fault{Op: Get, Short: 3})
	if p, err := b.Get(ctx, "lost", 0, 10); err != nil || len(p) != 7 {
		t.Fatal(len(p), err)
	}
	b.Inject(Fault{Op: Load, Corrupt: true})
	if p, _, err := b.Load(ctx, "lost", 10); err != nil || string(p) == "0123456789" {
		t.Fatal(string(p), err)
	}
	// Refused deletes.
	b.Inject(Fault{Op: Delete, Refuse: []string{"b"}})
	if err := b.Delete(ctx, []string{"a1", "b"}); len(bucket.Remaining(err)) != 1 || !errors.Is(err, bucket.ErrDenied) {
		t.Fatal(err)
	}
	if _, err := b.Head(ctx, "a1"); !errors.Is(err, bucket.ErrNotExist) {
		t.Fatal(err)
	}
	// An outage.
	b.Outage(bucket.ErrUnavailable)
	if err := b.Delete(ctx, []string{"b", "lost"}); len(bucket.Remaining(err)) != 2 {
		t.Fatal(err)
	}
	for _, err := range b.List(ctx, "", "") {
		if !errors.Is(err, bucket.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	b.Outage(nil)
	b.ResetCounts()
	if err := put(b, "c"); err != nil || b.Count(Put) != 1 || b.Count(Any) != 1 {
		t.Fatal(err, b.Count(Put), b.Count(Any))
	}
}

func TestHold(t *testing.T) {
	b := New(mem.New("m"))
	hold := b.Hold(Fault{Op: Put, Key: "held"})
	done := make(chan error, 1)
	go func() { done <- put(b, "held/1") }()
	<-hold.Arrived()
	if err := put(b, "free"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Head(t.Context(), "held/1"); !errors.Is(err, bucket.ErrNotExist) {
		t.Fatal(err)
	}
	hold.Release()
	hold.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := put(b, "held/2"); err != nil {
		t.Fatal(err)
	}

	// A request under way lands after its caller has gone.
	late := b.Hold(Fault{Op: Put, Key: "late", Late: true})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := b.Put(ctx, "late/1", bucket.Bytes([]byte("x")), bucket.PutOptions{})
		done <- err
	}()
	<-late.Arrived()
	cancel()
	if err := <-done; !errors.Is(err, bucket.ErrUnknown) {
		t.Fatal(err)
	}
	if _, err := b.Head(t.Context(), "late/1"); !errors.Is(err, bucket.ErrNotExist) {
		t.Fatal(err)
	}
	late.Release()
	b.late.Wait()
	if _, err := b.Head(t.Context(), "late/1"); err != nil {
		t.Fatal("it never landed:", err)
	}
}
