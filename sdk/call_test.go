package sdk

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// An append by one call is sent again only where nothing can be stored twice (B147).
func TestAppendOnceRule(t *testing.T) {
	zero := uint64(0)
	for name, c2 := range map[string]struct {
		fault   fault
		options AppendOptions
		calls   int64
		stored  int
		applied Applied // of the error
		ok      bool
		want    error
	}{
		"refused, try later":                    {notLeader, AppendOptions{}, 2, 1, 0, true, nil},
		"refused":                               {refused, AppendOptions{}, 1, 0, AppliedNo, false, ErrInvalid},
		"answer lost":                           {breakAfter, AppendOptions{}, 1, 1, AppliedUnknown, false, nil},
		"request lost":                          {breakBefore, AppendOptions{}, 1, 0, AppliedUnknown, false, nil},
		"unknown":                               {unsure, AppendOptions{}, 1, 1, AppliedUnknown, false, ErrUnavailable},
		"unknown, conditional":                  {unsure, AppendOptions{ExpectedOffset: &zero}, 1, 1, AppliedUnknown, false, ErrUnavailable},
		"answer lost, idempotent":               {breakAfter, AppendOptions{Idempotent: true}, 3, 1, 0, true, nil},
		"request lost, idempotent":              {breakBefore, AppendOptions{Idempotent: true}, 3, 1, 0, true, nil},
		"answer lost, idempotent, conditional":  {breakAfter, AppendOptions{Idempotent: true, ExpectedOffset: &zero}, 3, 1, 0, true, nil},
		"request lost, idempotent, conditional": {breakBefore, AppendOptions{Idempotent: true, ExpectedOffset: &zero}, 3, 1, 0, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.make("ns/s", 1)
			f.fault = func(batch.Info) fault { f.fault = nil; return c2.fault }
			c := dial(t, f, quick())
			a, err := c.Append(within(t), "ns/s", []Record{{Value: []byte("a")}, {Value: []byte("b")}}, c2.options)
			if (err == nil) != c2.ok || err != nil && (AppliedOf(err) != c2.applied || c2.want != nil && !errors.Is(err, c2.want)) {
				t.Fatal(err)
			}
			if c2.ok && (a.Offset != 0 || a.Next != 2 || a.Tail != 2 || a.Incarnation != 101) {
				t.Fatalf("%+v", a)
			}
			if got := len(f.values("ns/s", 0)); got != 2*c2.stored || f.calls.Load() != c2.calls {
				t.Fatalf("%d records, %d calls", got, f.calls.Load())
			}
		})
	}
}

// Where no connection can be made, nothing was sent: that is tried again.
func TestAppendWaitsForServer(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.kill()
	o := quick()
	started := false
	o.Events.Retry = func(error, time.Duration) {
		if !started {
			started = true
			f.start()
		}
	}
	c := dial(t, f, o)
	if _, err := c.Append(within(t), "ns/s", []Record{{Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if got := f.values("ns/s", 0); len(got) != 1 {
		t.Fatal(got)
	}
	f.kill()
	o.Events.Retry = nil
	c2 := dial(t, f, o)
	short, cancel := context.WithTimeout(within(t), 50*time.Millisecond)
	defer cancel()
	if _, err := c2.Append(short, "ns/s", []Record{{}}); !errors.Is(err, context.DeadlineExceeded) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
}

func TestConditions(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	one := uint64(1)
	_, err := c.Append(ctx, "ns/s", []Record{{}}, AppendOptions{ExpectedOffset: &one})
	var e *Error
	if !errors.Is(err, ErrConditionFailed) || AppliedOf(err) != AppliedNo || !errors.As(err, &e) || e.Detail.GetConditionFailed().GetActual() != 0 || e.Retryable {
		t.Fatal(err)
	}
	if _, err = c.Append(ctx, "ns/s", []Record{{Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if a, err := c.Append(ctx, "ns/s", []Record{{Value: []byte("y")}}, AppendOptions{ExpectedOffset: &one}); err != nil || a.Offset != 1 {
		t.Fatal(a, err)
	}
	if next, err := c.Fence(ctx, Shard{Stream: "ns/s"}, "me", true); err != nil || next != 2 {
		t.Fatal(next, err)
	}
	me, you := "me", "you"
	for _, token := range []*string{nil, &you} {
		if _, err = c.Append(ctx, "ns/s", []Record{{}}, AppendOptions{FenceToken: token}); !errors.Is(err, ErrFenceToken) {
			t.Fatal(err)
		}
	}
	if _, err = c.Append(ctx, "ns/s", []Record{{}}, AppendOptions{FenceToken: &me}); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Append(ctx, "ns/s", nil); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	for _, o := range []AppendOptions{{Ack: AckLeader, ExpectedOffset: &one}, {Ack: AckNone, Idempotent: true}} {
		if _, err = c.Append(ctx, "ns/s", []Record{{}}, o); !errors.Is(err, ErrInvalid) || AppliedOf(err) != AppliedNo {
			t.Fatal(err)
		}
	}
	if _, err = c.Append(ctx, "ns/s", []Record{{}}, AppendOptions{Incarnation: 5}); !errors.Is(err, ErrStreamDeleted) {
		t.Fatal(err)
	}
}

func TestIdempotentAppendChoosesTheShard(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 4)
	c := dial(t, f, quick())
	ctx := within(t)
	a, err := c.Append(ctx, "ns/s", []Record{{Key: []byte("abc")}}, AppendOptions{Idempotent: true})
	if err != nil || a.Shard != batch.ShardOf([]byte("abc"), 4) {
		t.Fatal(a, err)
	}
	if _, err := c.Append(ctx, "ns/s", []Record{{Key: []byte("abc")}, {Key: []byte("foobar")}, {Key: []byte("21")}}, AppendOptions{Idempotent: true}); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	three := uint32(3)
	if a, err = c.Append(ctx, "ns/s", []Record{{Value: []byte("x")}}, AppendOptions{Idempotent: true, Shard: &three, Compression: Zstd}); err != nil || a.Shard != 3 {
		t.Fatal(a, err)
	}
}

func TestTailTrimFence(t *testing.T) {
	f := newFake(t)
	s := f.make("ns/s", 2)
	f.fill("ns/s", 1, 10, 3)
	c := dial(t, f, quick())
	ctx := within(t)
	at := Shard{Stream: "ns/s", Number: 1, Incarnation: s.incarnation}
	tail, err := c.CheckTail(ctx, at)
	if err != nil || tail.Start != 0 || tail.Next != 10 || tail.Shards != 2 || tail.Lineage != 7 || !tail.LastAppend.IsZero() {
		t.Fatal(tail, err)
	}
	// Trims and questions that were lost are repeated, fences are not.
	lost := func() {
		f.set(func() { f.unary = func(string) error { f.unary = nil; return errBroken } })
	}
	lost()
	if tail, err = c.Trim(ctx, at, 4); err != nil || tail.Start != 4 {
		t.Fatal(tail, err)
	}
	lost()
	if tail, err = c.CheckTail(ctx, at); err != nil || tail.Start != 4 {
		t.Fatal(tail, err)
	}
	lost()
	calls := f.calls.Load()
	if _, err = c.Fence(ctx, at, "x", false); err == nil || AppliedOf(err) != AppliedUnknown || f.calls.Load() != calls+1 {
		t.Fatal(err)
	}
	lost()
	if _, err = c.Trim(ctx, Shard{Stream: "ns/s", Number: 1}, 5); AppliedOf(err) != AppliedUnknown || err == nil {
		t.Fatal("a trim by name was repeated after an unknown outcome:", err)
	}
	at.Incarnation = 9
	if _, err = c.CheckTail(ctx, at); !errors.Is(err, ErrStreamDeleted) {
		t.Fatal(err)
	}
}

func TestCatalog(t *testing.T) {
	f := newFake(t)
	for _, name := range []string{"ns/b", "ns/a", "ns/a/b", "ns/ab", "ns/c", "other/a"} {
		f.make(name, 1)
	}
	c := dial(t, f, quick())
	ctx := within(t)
	var names []string
	for s, err := range c.Streams(ctx, "ns", "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, s.GetName())
	}
	if !slices.Equal(names, []string{"ns/a", "ns/a/b", "ns/ab", "ns/b", "ns/c"}) {
		t.Fatal(names)
	}
	for range c.Streams(ctx, "ns", "a") {
		break
	}
	// A delete whose answer was lost: with the incarnation it is repeated and told as
	// done, by name it is unknown.
	lost := func() {
		f.set(func() {
			f.unary = func(string) error {
				f.unary = nil
				return fail(detail(varvev1.Reason_REASON_UNAVAILABLE, true, unknown))
			}
		})
	}
	lost()
	if n, err := c.DeleteStream(ctx, "ns/a", 102); err != nil || n.Incarnation != 102 {
		t.Fatal(n, err)
	}
	lost()
	if _, err := c.DeleteStream(ctx, "ns/b", 0); err == nil || AppliedOf(err) != AppliedUnknown {
		t.Fatal(err)
	}
	if _, err := c.DeleteStream(ctx, "ns/c", 1); !errors.Is(err, ErrStreamDeleted) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	if _, err := c.GetStream(ctx, "ns/none"); !errors.Is(err, ErrNotFound) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	f.set(func() { f.unary = func(string) error { return errBroken } })
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	for _, err := range c.Streams(short, "ns", "") {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
}
