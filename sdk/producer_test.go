package sdk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

// appendAll appends n records without waiting for each, and returns what came back.
func appendAll(ctx context.Context, t testing.TB, p *Producer, n int) (at []Position, errs []error) {
	t.Helper()
	at, errs = make([]Position, n), make([]error, n)
	calls := make([]atomic.Int32, n)
	for i := range n {
		if err := p.AppendAsync(ctx, Record{Value: []byte(value(i))}, func(a Position, err error) {
			at[i], errs[i] = a, err
			calls[i].Add(1)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		if calls[i].Load() != 1 {
			t.Fatalf("record %d: %d answers", i, calls[i].Load())
		}
	}
	return at, errs
}

// once checks that a shard holds each value once and in order, where its position says.
func once(t testing.TB, got []string, at []Position) {
	t.Helper()
	if len(got) != len(at) {
		t.Errorf("%d records stored, %d appended", len(got), len(at))
	}
	for i, a := range at {
		if a.Offset >= uint64(len(got)) || got[a.Offset] != value(i) {
			t.Fatalf("record %d is not at its offset %d", i, a.Offset)
		}
		if i > 0 && a.Offset <= at[i-1].Offset {
			t.Fatalf("record %d is out of order", i)
		}
	}
}

// storm is a fault for some batches, drawn from a seed.
func storm(seed uint64, kinds ...fault) func(batch.Info) fault {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(batch.Info) fault {
		if r.IntN(5) > 0 {
			return none
		}
		return kinds[r.IntN(len(kinds))]
	}
}

// Whatever breaks, each record is stored once, in order.
func TestC3_ExactlyOnceThroughFaults(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := newFake(t)
			f.make("ns/s", 1)
			c := dial(t, f, quick())
			f.fault = storm(seed, breakBefore, breakAfter, notLeader, throttled, unsure)
			p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10, Linger: time.Microsecond, MaxInFlight: int(1 + seed*31/11)})
			at, errs := appendAll(within(t), t, p, 3000)
			if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
				t.Fatal(i, errs[i])
			}
			once(t, f.values("ns/s", 0), at)
			if f.dropped.Load() == 0 {
				t.Fatal("no fault hit")
			}
		})
	}
}

// The harness above does see duplicates: a server that doesn't look for them has some.
func TestC3_HarnessSeesDuplicates(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.trusting = true
	c := dial(t, f, quick())
	f.fault = storm(3, breakAfter, breakBefore)
	appendAll(within(t), t, c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10}), 3000)
	if n := len(f.values("ns/s", 0)); n <= 3000 {
		t.Fatalf("%d records: the faults do not make duplicates", n)
	}
}

// The server is killed and started again while appends are in flight.
func TestC3_ExactlyOnceThroughRestarts(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 4)
	c := dial(t, f, quick())
	p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10, Linger: time.Microsecond})
	ctx := within(t)
	const n = 20000
	var answered atomic.Int64
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for i := int64(1); i <= 4; i++ {
			for answered.Load() < i*n/6 {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
			f.kill()
			f.start()
		}
	})
	at, errs := make([]Position, n), make([]error, n)
	for i := range n {
		r := Record{Key: []byte(fmt.Sprint(i % 50)), Value: []byte(value(i))}
		if err := p.AppendAsync(ctx, r, func(a Position, err error) {
			at[i], errs[i] = a, err
			answered.Add(1)
		}); err != nil {
			t.Fatal(err)
		}
	}
	err := p.Close(ctx)
	close(stop)
	killer.Wait()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	byShard := map[uint32][]string{}
	for s := range 4 {
		byShard[uint32(s)] = f.values("ns/s", s)
		total += len(byShard[uint32(s)])
	}
	if total != n {
		t.Fatalf("%d records stored, %d appended", total, n)
	}
	for i := range n {
		want := batch.ShardOf([]byte(fmt.Sprint(i%50)), 4)
		if errs[i] != nil || at[i].Shard != want || byShard[want][at[i].Offset] != value(i) {
			t.Fatalf("record %d: %+v, %v", i, at[i], errs[i])
		}
	}
	if f.sessions.Load() < 8 {
		t.Fatal("the kills broke no session")
	}
}

// A cancelled append may be stored; the next record never gets its sequence. The
// fake refuses a sequence that comes back with other content (B146).
func TestC3_CancelledAppendKeepsItsSequence(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	p := c.Producer("ns/s")
	ctx := within(t)
	stored := make(chan struct{})
	f.set(func() {
		f.fault = func(batch.Info) fault {
			f.fault = nil
			close(stored)
			return stall
		}
	})
	cancelled, cancel := context.WithCancel(ctx)
	go func() { <-stored; cancel() }()
	_, err := p.Append(cancelled, Record{Value: []byte("one")})
	if !errors.Is(err, context.Canceled) || AppliedOf(err) != AppliedUnknown {
		t.Fatal(err)
	}
	f.kill() // the answer is lost
	f.start()
	at, err := p.Append(ctx, Record{Value: []byte("two")})
	if err != nil || at.Offset != 1 {
		t.Fatal(at, err)
	}
	if got := f.values("ns/s", 0); !slices.Equal(got, []string{"one", "two"}) {
		t.Fatal(got)
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// A batch that is refused for good takes those behind it along; each error says
// that nothing was stored; the producer goes on. First, middle and last (B155).
func TestC3_RefusedBatchFailsWhatFollows(t *testing.T) {
	for _, bad := range []int{0, 40, 79} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			f := newFake(t)
			f.make("ns/s", 1)
			c := dial(t, f, quick())
			ctx := within(t)
			p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10, MaxInFlight: 8})
			hold := make(chan struct{})
			f.opening = func() error { <-hold; return nil }
			n := 0
			f.fault = func(batch.Info) fault {
				if n++; n == bad+1 {
					return refused
				}
				return none
			}
			big := make([]byte, 1000) // a batch each
			errs := make([]error, 80)
			at := make([]Position, 80)
			close(hold)
			for i := range errs {
				if err := p.AppendAsync(ctx, Record{Value: fmt.Appendf(big[:0:0], "%4d%s", i, big)}, func(a Position, err error) { at[i], errs[i] = a, err }); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			stored := f.values("ns/s", 0)
			first := slices.IndexFunc(errs, func(err error) bool { return err != nil })
			if first != bad || !errors.Is(errs[bad], ErrInvalid) || errors.Is(errs[bad], ErrAborted) {
				t.Fatalf("record %d failed first, want %d: %v", first, bad, errs[max(first, 0)])
			}
			gone := 0
			for i, err := range errs {
				var e *Error
				switch {
				case err == nil:
					if stored[at[i].Offset][:4] != fmt.Sprintf("%4d", i) {
						t.Fatalf("record %d is not at %d", i, at[i].Offset)
					}
				case AppliedOf(err) != AppliedNo || !errors.As(err, &e):
					t.Fatal(i, err)
				case i > bad && (!errors.Is(err, ErrAborted) || !errors.Is(err, ErrInvalid)):
					t.Fatal(i, err)
				default:
					gone++
				}
			}
			if gone == 0 || len(stored) != len(errs)-gone {
				t.Fatalf("%d stored, %d failed of %d", len(stored), gone, len(errs))
			}
			if a, err := p.Append(ctx, Record{Value: []byte("after")}); err != nil || a.Offset != uint64(len(stored)) {
				t.Fatal(a, err)
			}
			if err := p.Close(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// An outcome that the server itself doesn't know, for good: the error says unknown,
// and nothing else is stored twice.
func TestC3_UnknownOutcomeIsTold(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s")
	f.set(func() { f.fault = func(batch.Info) fault { f.fault = nil; return unsureBad } })
	if _, err := p.Append(ctx, Record{Value: []byte("perhaps")}); !errors.Is(err, ErrInternal) || AppliedOf(err) != AppliedUnknown {
		t.Fatal(err)
	}
	if _, err := p.Append(ctx, Record{Value: []byte("surely")}); err != nil {
		t.Fatal(err)
	}
	if got := f.values("ns/s", 0); !slices.Equal(got, []string{"perhaps", "surely"}) {
		t.Fatal(got)
	}
}

// The shard forgot a producer that was idle: it goes on by itself (B151).
func TestC3_ForgottenProducerGoesOn(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s")
	for i := range 3 {
		if at, err := p.Append(ctx, Record{Value: []byte(value(i))}); err != nil || at.Offset != uint64(i) {
			t.Fatal(at, err)
		}
		f.forget("ns/s")
	}
	if got := f.values("ns/s", 0); len(got) != 3 {
		t.Fatal(got)
	}
}

// The shard forgot a producer between a lost answer and the retry: whether the batch
// is stored can't be known, and that is what the error says (row C9's client side).
func TestC3_ForgottenInDoubtIsUnknown(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s")
	if _, err := p.Append(ctx, Record{Value: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	f.set(func() {
		f.fault = func(batch.Info) fault {
			f.fault = func(batch.Info) fault {
				f.fault = nil
				clear(f.streams["ns/s"].shards[0].producers)
				return none
			}
			return breakAfter
		}
	})
	if _, err := p.Append(ctx, Record{Value: []byte("b")}); !errors.Is(err, ErrUnknownProducer) || AppliedOf(err) != AppliedUnknown {
		t.Fatal(err)
	}
	if _, err := p.Append(ctx, Record{Value: []byte("c")}); err != nil {
		t.Fatal(err)
	}
	if got := f.values("ns/s", 0); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Fatal(got)
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

// Sequences wrap from 2^31-1 to 0, within a batch too, and retries still fit.
func TestC3_SequencesWrap(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	c := dial(t, f, quick())
	ctx := within(t)
	p := c.Producer("ns/s", ProducerOptions{BatchBytes: 1 << 10})
	if _, err := p.Append(ctx, Record{Value: []byte(value(0))}); err != nil {
		t.Fatal(err)
	}
	// Nothing is in flight, so the lane's goroutine leaves its numbers alone; the shard
	// is told the same.
	l := p.lanes[0]
	f.set(func() {
		l.sequence = math.MaxInt32 - 100
		last := &f.streams["ns/s"].shards[0].producers[l.id].stored[0].info
		last.Producer.Sequence, last.Count = l.sequence-1, 1
		f.fault = storm(2, breakAfter, breakBefore)
	})
	for i := 1; i < 500; i++ {
		if err := p.AppendAsync(ctx, Record{Value: []byte(value(i))}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	got := f.values("ns/s", 0)
	for i, v := range got {
		if v != value(i) {
			t.Fatalf("offset %d holds %q", i, v)
		}
	}
	if len(got) != 500 || l.sequence > 1000 {
		t.Fatal(len(got), l.sequence)
	}
}
