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

	"github.com/varve-io/varve/sdk/batch"
)

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
			if f.faults.Load() == 0 {
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
