package sdk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

func TestAppendAndReadBack(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	p := c.Producer("ns/s", ProducerOptions{Compression: Zstd})
	ctx := within(t)
	for i := range 3 {
		at, err := p.Append(ctx, Record{Value: []byte(value(i)), Headers: []Header{{Key: "h", Value: nil}, {Key: "h", Value: []byte{}}}})
		if err != nil || at.Offset != uint64(i) || at.Incarnation != 101 || at.Lineage != 7 || at.AppendTime.IsZero() || at.Unknown {
			t.Fatal(at, err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Append(ctx, Record{}); !errors.Is(err, ErrClosed) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	n := 0
	for r, err := range c.Read(ctx, "ns/s", FromStart()) {
		if err != nil {
			t.Fatal(err)
		}
		if string(r.Value) != value(n) || r.Key != nil || r.Offset != uint64(n) || len(r.Headers) != 2 || r.Headers[0].Value != nil || r.Headers[1].Value == nil {
			t.Fatalf("%+v", r)
		}
		n++
	}
	if n != 3 {
		t.Fatal(n, "records")
	}
}

// Without idempotence nothing is sent twice: what was on its way fails as unknown,
// what was not is stored (B147, B155).
func TestNotIdempotentIsSentOnce(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.trusting = true
	c := dial(t, f, quick())
	f.fault = storm(5, breakBefore, breakAfter, refused)
	p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10, NotIdempotent: true})
	at, errs := appendAll(within(t), t, p, 2000)
	seen := map[string]int{}
	for _, v := range f.values("ns/s", 0) {
		seen[v]++
	}
	failed := 0
	for i, err := range errs {
		n := seen[value(i)]
		switch {
		case n > 1:
			t.Fatalf("record %d is there %d times", i, n)
		case err == nil && (n != 1 || f.values("ns/s", 0)[at[i].Offset] != value(i)):
			t.Fatalf("record %d was acknowledged and is not at its place", i)
		case err != nil && AppliedOf(err) == AppliedNo && n != 0:
			t.Fatalf("record %d is stored, but: %v", i, err)
		case err != nil:
			failed++
		}
	}
	if failed == 0 || failed == len(errs) {
		t.Fatal(failed, "failed")
	}
}

// At most 32 batches are on their way, or fewer where the server says so.
func TestInFlightIsBounded(t *testing.T) {
	for _, window := range []uint32{0, 3} {
		f := newFake(t)
		f.make("ns/s", 1)
		f.window = window
		c := dial(t, f, quick())
		p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10, Linger: time.Nanosecond})
		appendAll(within(t), t, p, 20000)
		most := int64(maxInFlight)
		if window > 0 {
			most = int64(window)
		}
		if got := f.mostInFlight.Load(); got > most || got < 2 {
			t.Errorf("%d batches in flight, want at most %d", got, most)
		}
	}
}

// Room for records is bounded over all shards together; beyond it an append waits
// for its context and was certainly not applied (B173).
func TestC5_BufferIsBoundedOverAllShards(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 64)
	c := dial(t, f, quick())
	ctx := within(t)
	f.set(func() { f.fault = func(batch.Info) fault { return stall } })
	p := c.Producer("ns/s", ProducerOptions{MaxBuffered: minBuffered})
	accepted, big := 0, make([]byte, 100<<10)
	var failed atomic.Int64
	var err error
	for {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		err = p.AppendAsync(short, Record{Key: fmt.Append(nil, accepted), Value: big}, func(_ Position, err error) {
			if err != nil {
				failed.Add(1)
			}
		})
		cancel()
		if err != nil {
			break
		}
		accepted++
	}
	if !errors.Is(err, context.DeadlineExceeded) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	if n := accepted * len(big); n > minBuffered || n < minBuffered*9/10 {
		t.Fatalf("%d bytes accepted, room for %d", n, minBuffered)
	}
	// Close within its context, everything answered, all room given back.
	gone, cancel2 := context.WithCancel(ctx)
	cancel2()
	if err := p.Close(gone); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if failed.Load() != int64(accepted) {
		t.Fatalf("%d of %d answered", failed.Load(), accepted)
	}
	if !p.credit.TryAcquire(minBuffered) {
		t.Fatal("room is missing")
	}
}

// Appends to a stream that is deleted under way end soon, with an error of their
// own, and Close returns (B43, B37).
func TestDeletedStreamEndsAppends(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10})
	if _, err := p.Append(ctx, Record{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	f.remove("ns/s")
	at, errs := appendAll(ctx, t, p, 50)
	for i, err := range errs {
		if !errors.Is(err, ErrStreamDeleted) && !errors.Is(err, ErrNotFound) {
			t.Fatal(at[i], err)
		}
	}
	if !p.credit.TryAcquire(p.o.MaxBuffered) {
		t.Fatal("room is missing")
	}
}

// A producer that means the name goes on with the stream that has it now, and each
// record lands there once; one that means the incarnation never does (row N12's
// client side).
func TestN12_RecreatedStream(t *testing.T) {
	ctx := within(t)
	f := newFake(t)
	old := f.make("ns/s", 1)
	c := dial(t, f, quick())
	byName := c.Producer("ns/s")
	pinned := c.Producer("ns/s", ProducerOptions{Incarnation: old.incarnation})
	for _, p := range []*Producer{byName, pinned} {
		if at, err := p.Append(ctx, Record{Value: []byte("old")}); err != nil || at.Incarnation != old.incarnation {
			t.Fatal(at, err)
		}
	}
	f.remove("ns/s")
	recreated := f.make("ns/s", 1)
	at, err := byName.Append(ctx, Record{Value: []byte("new")})
	if err != nil || at.Incarnation != recreated.incarnation || at.Offset != 0 {
		t.Fatal(at, err)
	}
	if _, err := pinned.Append(ctx, Record{Value: []byte("wrong")}); !errors.Is(err, ErrStreamDeleted) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	// With another number of shards the keys go elsewhere: one clear error, then on.
	f.remove("ns/s")
	f.make("ns/s", 8)
	if _, err := byName.Append(ctx, Record{Value: []byte("between")}); !errors.Is(err, ErrStreamDeleted) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	if at, err := byName.Append(ctx, Record{Key: []byte("abc"), Value: []byte("newer")}); err != nil || at.Shard != batch.ShardOf([]byte("abc"), 8) {
		t.Fatal(at, err)
	}
	for _, p := range []*Producer{byName, pinned} {
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Records in doubt when their stream is deleted are not moved to its successor.
func TestN12_RecordsInDoubtAreNotMoved(t *testing.T) {
	ctx := within(t)
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	p := c.Producer("ns/s")
	f.set(func() {
		f.fault = func(batch.Info) fault {
			f.fault = nil
			return breakAfter
		}
		f.opening = func() error {
			if len(f.streams["ns/s"].shards[0].batches) > 0 {
				f.opening = nil
				f.makeLocked("ns/s", 1)
			}
			return nil
		}
	})
	if _, err := p.Append(ctx, Record{Value: []byte("x")}); !errors.Is(err, ErrStreamDeleted) || AppliedOf(err) != AppliedUnknown {
		t.Fatal(err)
	}
	if got := f.values("ns/s", 0); len(got) != 0 {
		t.Fatal(got)
	}
	if at, err := p.Append(ctx, Record{Value: []byte("y")}); err != nil || at.Incarnation != 102 {
		t.Fatal(at, err)
	}
}

func TestDeliveryTimeout(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s", ProducerOptions{DeliveryTimeout: 200 * time.Millisecond})
	f.set(func() { f.fault = func(batch.Info) fault { return throttled } })
	if _, err := p.Append(ctx, Record{Value: []byte("no")}); !errors.Is(err, ErrDeliveryTimeout) || !errors.Is(err, ErrThrottled) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	f.set(func() { f.fault = func(batch.Info) fault { return stall } })
	if _, err := p.Append(ctx, Record{Value: []byte("maybe")}); !errors.Is(err, ErrDeliveryTimeout) || AppliedOf(err) != AppliedUnknown {
		t.Fatal(err)
	}
	f.set(func() { f.fault = nil })
	if at, err := p.Append(ctx, Record{Value: []byte("yes")}); err != nil || at.Offset != 1 {
		t.Fatal(at, err)
	}
	f.kill()
	if _, err := p.Append(ctx, Record{Value: []byte("down")}); !errors.Is(err, ErrDeliveryTimeout) || AppliedOf(err) == AppliedNo && !errors.Is(err, ErrDeliveryTimeout) {
		t.Fatal(err)
	}
	if _, err := c.Producer("ns/s", ProducerOptions{DeliveryTimeout: 100 * time.Millisecond}).Append(ctx, Record{}); !errors.Is(err, ErrDeliveryTimeout) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
}

// The server may be down at first; the number of shards is asked once for all.
func TestServerComesLater(t *testing.T) {
	f := newFake(t)
	f.create = 2
	f.kill()
	tries := make(chan struct{}, 100)
	o := quick()
	o.Events.Retry = func(error, time.Duration) {
		select {
		case tries <- struct{}{}:
		default:
		}
	}
	c := dial(t, f, o)
	p := c.Producer("new/stream")
	var appends sync.WaitGroup
	for range 10 {
		appends.Go(func() {
			if _, err := p.Append(within(t), Record{Value: []byte("x")}); err != nil {
				t.Error(err)
			}
		})
	}
	<-tries
	<-tries
	f.start()
	appends.Wait()
	if n := len(f.values("new/stream", 0)) + len(f.values("new/stream", 1)); n != 10 {
		t.Fatal(n)
	}
}

// Flush sends what lingers and reports what nobody heard.
func TestFlush(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s", ProducerOptions{Linger: time.Hour})
	for range 3 {
		if err := p.AppendAsync(ctx, Record{Value: []byte("x")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if n := len(f.values("ns/s", 0)); n != 3 {
		t.Fatal(n, "records after Flush")
	}
	f.set(func() { f.fault = func(batch.Info) fault { f.fault = nil; return refused } })
	if err := p.AppendAsync(ctx, Record{Value: []byte("x")}, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(ctx); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	// Client.Close ends a producer that was not closed.
	f.set(func() { f.fault = func(batch.Info) fault { return stall } })
	got := make(chan error, 1)
	if err := p.AppendAsync(ctx, Record{Value: []byte("x")}, func(_ Position, err error) { got <- err }); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := p.AppendAsync(ctx, Record{}, nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

// Sizes at the limits: what is accepted is stored, the rest is refused at once.
func TestRecordSizes(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s", ProducerOptions{MaxBuffered: minBuffered})
	for _, n := range []int{0, 1, batch.MaxRecord - 1, batch.MaxRecord} {
		if _, err := p.Append(ctx, Record{Value: make([]byte, n)}); err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := p.Append(ctx, Record{Value: make([]byte, batch.MaxRecord+1)}); !errors.Is(err, ErrInvalid) || AppliedOf(err) != AppliedNo {
		t.Fatal(err)
	}
	sessions := f.sessions.Load()
	for _, n := range []int{batch.MaxBatch, 16 << 20} {
		if _, err := p.Append(ctx, Record{Value: make([]byte, n)}); !errors.Is(err, ErrInvalid) || AppliedOf(err) != AppliedNo {
			t.Fatal(n, err)
		}
	}
	if f.sessions.Load() != sessions {
		t.Fatal("a record that can't fit was sent")
	}
	if _, err := p.Append(ctx, Record{Value: []byte("after")}); err != nil {
		t.Fatal(err)
	}
}

func TestProducerOptionsAreChecked(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	for _, o := range []ProducerOptions{
		{BatchBytes: 1}, {BatchBytes: batch.MaxBatch + 1}, {MaxBuffered: 1}, {MaxInFlight: 33}, {MaxInFlight: -1},
		{Compression: batch.LZ4}, {Linger: -1}, {DeliveryTimeout: -1},
	} {
		if _, err := c.Producer("ns/s", o).Append(within(t), Record{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A fenced-off producer fails and says why; the token lets another one through.
func TestFenceToken(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	if _, err := c.Fence(ctx, Shard{Stream: "ns/s"}, "new", true); err != nil {
		t.Fatal(err)
	}
	stale, good := "old", "new"
	for _, token := range []*string{nil, &stale} {
		if _, err := c.Producer("ns/s", ProducerOptions{FenceToken: token}).Append(ctx, Record{}); !errors.Is(err, ErrFenceToken) || AppliedOf(err) != AppliedNo {
			t.Fatal(err)
		}
	}
	if _, err := c.Producer("ns/s", ProducerOptions{FenceToken: &good}).Append(ctx, Record{}); err != nil {
		t.Fatal(err)
	}
}

// Pauses are spread from the first one on, so that clients don't come back in step
// (B166).
func TestPausesAreSpreadFromTheFirstTry(t *testing.T) {
	c, err := Dial("localhost:1", Options{MinBackoff: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var tenth [20]int
	for range 2000 {
		tenth[int(c.newRoute().pause.NextBackOff()/(100*time.Millisecond))]++
	}
	for i, n := range tenth[1:19] {
		if n < 20 || n > 400 {
			t.Errorf("%d of 2000 clients come back in tenth %d of a second", n, i+1)
		}
	}
}

// A leader that an error names is tried next.
func TestFollowsTheLeader(t *testing.T) {
	leader, other := newFake(t), newFake(t)
	leader.make("ns/s", 1)
	other.opening = func() error {
		d := detail(varvev1.Reason_REASON_NOT_LEADER, true, no)
		d.Figures = &varvev1.ErrorDetail_NotLeader{NotLeader: &varvev1.NotLeader{Leader: "b", Address: leader.addr}}
		return fail(d)
	}
	c := dial(t, other, quick())
	if _, err := c.Producer("ns/s").Append(within(t), Record{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	// Of several servers, those that are down are passed over.
	down := newFake(t)
	down.kill()
	c2, err := Dial(down.addr+", "+leader.addr, quick())
	if err != nil {
		t.Fatal(err)
	}
	defer c2.Close()
	if _, err := c2.Producer("ns/s").Append(within(t), Record{Value: []byte("y")}); err != nil {
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) {
	for r := range varvev1.Reason_name {
		if r != 0 && sentinelOf(varvev1.Reason(r)) == nil {
			t.Errorf("%s has no error", varvev1.Reason(r))
		}
	}
	e := errorOf("op", fail(detail(varvev1.Reason_REASON_THROTTLED, true, no)))
	if !errors.Is(e, ErrThrottled) || errors.Is(e, ErrInvalid) || !e.Retryable || e.Applied != AppliedNo {
		t.Fatalf("%+v", e)
	}
	for code, retryable := range map[connect.Code]bool{
		connect.CodeUnavailable: true, connect.CodeUnknown: true, connect.CodeInternal: true,
		connect.CodeInvalidArgument: false, connect.CodeResourceExhausted: false, connect.CodeUnimplemented: false,
	} {
		if e := errorOf("op", connect.NewError(code, errors.New("x"))); e.Retryable != retryable {
			t.Errorf("%s: %+v", code, e)
		}
	}
	for _, bad := range []string{"", "http://", "ftp://x", "http://x/path", "http://u@x", "a b"} {
		if _, err := Dial(bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("Dial(%q): %v", bad, err)
		}
	}
}

// While a batch is on its way the next one fills; when none is, nothing waits.
func TestBatchesFillWhileOthersAreOnTheirWay(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s", ProducerOptions{Linger: time.Hour})
	here, release := make(chan struct{}), make(chan struct{})
	f.set(func() {
		f.fault = func(batch.Info) fault {
			f.fault = nil
			close(here)
			<-release
			return none
		}
	})
	answered := make(chan error, 1001)
	done := func(_ Position, err error) { answered <- err }
	for i := range 1001 {
		if err := p.AppendAsync(ctx, Record{Value: []byte(value(i))}, done); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-here
		}
	}
	close(release)
	for range 1001 {
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
	f.set(func() {
		if n := len(f.streams["ns/s"].shards[0].batches); n != 2 {
			t.Errorf("%d batches, want 2", n)
		}
	})
}
