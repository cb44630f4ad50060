package sdk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// Compression is how batches are packed.
type Compression = batch.Compression

// What producers write.
const (
	NoCompression = batch.None
	Zstd          = batch.Zstd
)

// ProducerOptions say how a producer batches and retries. The zero value is good
// for most.
type ProducerOptions struct {
	// Incarnation, unless 0, is the only incarnation of the stream to append to; when
	// it is deleted, appends fail with [ErrStreamDeleted]. With 0 the stream's name is
	// meant: records that the deleted incarnation certainly did not take go to the one
	// that has its name then.
	Incarnation uint64
	// Compression of batches. Default none.
	Compression Compression
	// BatchBytes is the size, uncompressed, at which a batch is sent: 1 KiB to 4 MiB.
	// Default 256 KiB. A larger record makes a batch of its own.
	BatchBytes int
	// Linger is how long a batch may wait for more records while others are on their
	// way. When none are, it is sent at once. Default 5 ms.
	Linger time.Duration
	// MaxBuffered bounds the bytes of records, over all shards, that were accepted and
	// not yet acknowledged; above it Append waits. At least 8 MiB, default 64 MiB.
	MaxBuffered int64
	// MaxInFlight bounds the batches on their way to a shard, 1 to 32. Default 32.
	MaxInFlight int
	// DeliveryTimeout bounds the time from accepting a record to its answer. Default
	// none: tries for ever.
	DeliveryTimeout time.Duration
	// Ack is what to wait for. Default quorum.
	Ack Ack
	// NotIdempotent sends batches without a producer id, and each only once: when a
	// connection breaks, what was on its way fails with an unknown outcome. It is
	// implied by [AckNone] and [AckLeader].
	NotIdempotent bool
	// FenceToken goes with each append, unless nil.
	FenceToken *string
	// IdleTimeout is how long a session without records is kept open. Default 1 min.
	IdleTimeout time.Duration
}

func (o ProducerOptions) withDefaults() ProducerOptions {
	if o.BatchBytes == 0 {
		o.BatchBytes = 256 << 10
	}
	if o.Linger == 0 {
		o.Linger = 5 * time.Millisecond
	}
	if o.MaxBuffered == 0 {
		o.MaxBuffered = 64 << 20
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = maxInFlight
	}
	if o.IdleTimeout <= 0 {
		o.IdleTimeout = time.Minute
	}
	if o.Ack == AckNone || o.Ack == AckLeader {
		o.NotIdempotent = true
	}
	return o
}

func (o ProducerOptions) validate() error {
	const op = "producer options"
	switch {
	case o.BatchBytes < 1<<10 || o.BatchBytes > batch.MaxBatch:
		return invalidf(op, "batch bytes are %d: want %d to %d", o.BatchBytes, 1<<10, batch.MaxBatch)
	case o.MaxBuffered < minBuffered:
		return invalidf(op, "max buffered is %d bytes: want at least %d", o.MaxBuffered, minBuffered)
	case o.MaxInFlight < 1 || o.MaxInFlight > maxInFlight:
		return invalidf(op, "max in flight is %d: want 1 to %d", o.MaxInFlight, maxInFlight)
	case o.Compression != NoCompression && o.Compression != Zstd:
		return invalidf(op, "compression is %s: want none or zstd", o.Compression)
	case o.Linger < 0 || o.DeliveryTimeout < 0:
		return invalidf(op, "a time is below 0")
	}
	return nil
}

const (
	maxInFlight = 32      // batches that a shard remembers of a producer
	minBuffered = 8 << 20 // room for the largest batch and the next
	perRecord   = 64      // what a record costs beside its bytes
)

// Producer appends records to a stream, batched and pipelined. Records of one
// shard are stored in the order in which Append was called.
//
// When an append fails for good, those accepted after it for the same shard and
// not yet acknowledged fail too, with [ErrAborted]: nothing is stored behind a gap
// that the caller does not know of. Appends after that start afresh.
type Producer struct {
	client *Client
	stream string
	o      ProducerOptions
	bad    error // what is wrong with the options
	credit *semaphore.Weighted
	ctx    context.Context // ends when Close gives up, or with the client
	cancel context.CancelCauseFunc
	done   sync.WaitGroup // lanes

	mu       sync.Mutex
	closed   bool
	lanes    []*lane // by shard; nil until the number of shards is known
	opening  chan struct{}
	all      []*lane // of this and of earlier numbers of shards
	unheard  error   // the first failure of a record appended without a callback
	sticky   uint32  // shard of records without keys
	stickied int     // records it got
}

// Producer makes a producer for a stream. At most one ProducerOptions is looked at;
// options that are out of range are reported by the first append.
func (c *Client) Producer(stream string, options ...ProducerOptions) *Producer {
	var o ProducerOptions
	if len(options) > 0 {
		o = options[0]
	}
	o = o.withDefaults()
	p := &Producer{client: c, stream: stream, o: o, bad: o.validate(), credit: semaphore.NewWeighted(o.MaxBuffered)}
	p.ctx, p.cancel = context.WithCancelCause(c.ctx)
	return p
}

func (p *Producer) op() string { return "append to " + p.stream }

// Append stores one record and returns its place once it is acknowledged. ctx bounds
// the wait only: a record that was accepted is delivered even when ctx ends, and the
// error says [AppliedUnknown] then.
func (p *Producer) Append(ctx context.Context, r Record) (Position, error) {
	type answer struct {
		at  Position
		err error
	}
	answers := make(chan answer, 1)
	err := p.AppendAsync(ctx, r, func(at Position, err error) { answers <- answer{at, err} })
	if err != nil {
		return Position{}, err
	}
	select {
	case a := <-answers:
		return a.at, a.err
	case <-ctx.Done():
		return Position{}, &Error{Op: p.op(), Err: fmt.Errorf("stopped waiting for the answer: %w", context.Cause(ctx))}
	}
}

// AppendAsync accepts one record and calls done with its place or an error, once.
// The record's bytes are copied. It waits while [ProducerOptions.MaxBuffered] is
// reached; when ctx ends meanwhile, nothing is accepted and done is not called.
//
// Calls of done come from the producer's goroutines, for each shard in order; they
// must neither block nor append. With a nil done, a failure is reported by the next
// Flush or Close.
func (p *Producer) AppendAsync(ctx context.Context, r Record, done func(Position, error)) error {
	if p.bad != nil {
		return p.bad
	}
	e := encodable(&r)
	cost := int64(batchSize(&e)) + perRecord
	if len(r.Value) > batch.MaxBatch || cost > batch.MaxBatch {
		return invalidf(p.op(), "record has %d bytes: a batch holds at most %d", cost-perRecord, batch.MaxBatch)
	}
	if err := p.credit.Acquire(ctx, cost); err != nil {
		return &Error{Op: p.op(), Applied: AppliedNo, Err: fmt.Errorf("no room for more records: %w", context.Cause(ctx))}
	}
	for {
		lanes, err := p.open(ctx)
		if err == nil {
			if err = p.choose(lanes, &r).add(&e, cost, done); err == nil {
				return nil
			}
		}
		if !errors.Is(err, errRetired) {
			p.credit.Release(cost)
			return err
		}
	}
}

func batchSize(r *batch.Record) int {
	var b batch.Builder
	return b.SizeWith(r)
}

// choose finds the shard of a record. Records without a key stay with one shard
// for a while, so that batches fill.
func (p *Producer) choose(lanes []*lane, r *Record) *lane {
	if len(lanes) == 1 {
		return lanes[0]
	}
	if r.Key != nil {
		return lanes[batch.ShardOf(r.Key, len(lanes))]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stickied++; p.stickied > 1000 || int(p.sticky) >= len(lanes) {
		p.sticky, p.stickied = rand.Uint32N(uint32(len(lanes))), 0
	}
	return lanes[p.sticky]
}

// open returns the lanes, and asks for the number of shards first if need be. One
// caller asks, the others wait for it.
func (p *Producer) open(ctx context.Context) ([]*lane, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, &Error{Op: p.op(), Applied: AppliedNo, Err: ErrClosed}
		}
		if p.lanes != nil {
			lanes := p.lanes
			p.mu.Unlock()
			return lanes, nil
		}
		wait := p.opening
		if wait == nil {
			p.opening = make(chan struct{})
		}
		p.mu.Unlock()
		if wait == nil {
			opened, err := p.ask(ctx)
			p.mu.Lock()
			close(p.opening)
			p.opening = nil
			if err == nil && !p.closed {
				p.makeLanes(opened)
			}
			p.mu.Unlock()
			if err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, &Error{Op: p.op(), Applied: AppliedNo, Err: context.Cause(ctx)}
		}
	}
}

func (p *Producer) makeLanes(opened *varvev1.AppendSessionOpened) {
	n := min(max(1, opened.GetShards()), 64)
	for i := range n {
		l := newLane(p, i, opened)
		p.done.Add(1)
		if p.client.start(func() { defer p.done.Done(); l.run(p.ctx) }) {
			p.lanes = append(p.lanes, l)
		} else {
			p.done.Done()
			p.closed = true // so is the client
		}
	}
	p.all = append(p.all, p.lanes...)
	p.sticky = rand.Uint32N(n)
}

// ask opens a session for nothing but to learn the number of shards.
func (p *Producer) ask(ctx context.Context) (*varvev1.AppendSessionOpened, error) {
	if p.o.DeliveryTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.o.DeliveryTimeout, ErrDeliveryTimeout)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(ErrClosed) })()
	r := p.client.newRoute()
	for {
		s, err := p.dial(ctx, r.server(), 0, p.o.Incarnation)
		if err == nil {
			s.close()
			return s.opened, nil
		}
		err.Applied = AppliedNo // no record was sent
		if ctx.Err() != nil {
			return nil, &Error{Op: p.op(), Applied: AppliedNo, Err: fmt.Errorf("%w; last try: %w", context.Cause(ctx), err)}
		}
		if !err.Retryable {
			return nil, err
		}
		if cause := r.failed(ctx, err); cause != nil {
			return nil, &Error{Op: p.op(), Applied: AppliedNo, Err: fmt.Errorf("%w; last try: %w", cause, err)}
		}
	}
}

// forget makes the next append ask for the number of shards again.
func (p *Producer) forget(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(l.shard) < len(p.lanes) && p.lanes[l.shard] == l {
		for _, other := range p.lanes {
			other.retire()
		}
		p.lanes = nil
	}
}

// shut refuses further appends.
func (p *Producer) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// failed keeps the first failure that nobody was told.
func (p *Producer) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unheard == nil {
		p.unheard = err
	}
}

// Flush sends what waits for more records, and returns when each record that was
// accepted before the call has its answer. The error is the first failure since the
// last Flush of a record appended without a callback, or that ctx ended.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	lanes := append([]*lane(nil), p.all...)
	p.mu.Unlock()
	for _, l := range lanes {
		l.flush()
	}
	for _, l := range lanes {
		if err := l.flushed(ctx); err != nil {
			return &Error{Op: p.op(), Err: fmt.Errorf("flush: %w", err)}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.unheard
	p.unheard = nil
	return err
}

// Close refuses further appends, flushes, and ends the producer. When ctx ends
// first, what has no answer yet fails with [ErrClosed], each with what is known of
// its outcome. Close returns Flush's error, and only after all goroutines ended.
func (p *Producer) Close(ctx context.Context) error {
	p.shut()
	err := p.Flush(ctx)
	p.cancel(ErrClosed)
	p.done.Wait()
	if err == nil {
		p.mu.Lock()
		err, p.unheard = p.unheard, nil
		p.mu.Unlock()
	}
	return err
}
