package sdk

import (
	"context"
	"errors"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// ReadOption says where a read starts, and where it stops.
type ReadOption func(*reading)

// reading is what the options ask for.
type reading struct {
	stream      string
	shard       *uint32
	incarnation uint64
	lineage     uint64
	start       func(*varvev1.ReadRequest)
	offset      bool    // start is an offset
	last        *uint64 // start is so many before the tail
	count       uint64
	counted     bool
	bytes       uint64
	until       time.Time
	wait        time.Duration
	giveUp      time.Duration
	follow      bool
	clamp       bool
	bad         error
}

// FromStart reads from the first record that there is.
func FromStart() ReadOption {
	return func(r *reading) {
		r.from(func(q *varvev1.ReadRequest) { q.Start = &varvev1.ReadRequest_FromStart{FromStart: true} })
	}
}

// FromTail reads what is appended from now on. This is the default.
func FromTail() ReadOption {
	return func(r *reading) {
		r.from(func(q *varvev1.ReadRequest) { q.Start = &varvev1.ReadRequest_FromTail{FromTail: true} })
	}
}

// FromOffset reads from an offset of one shard.
func FromOffset(offset uint64) ReadOption {
	return func(r *reading) {
		r.from(func(q *varvev1.ReadRequest) { q.Start = &varvev1.ReadRequest_Offset{Offset: offset} })
		r.offset = true
	}
}

// FromPosition reads from a position, that record included, and only in the
// incarnation and the lineage that the position belongs to.
func FromPosition(at Position) ReadOption {
	return func(r *reading) {
		FromOffset(at.Offset)(r)
		r.shard, r.incarnation, r.lineage = &at.Shard, at.Incarnation, at.Lineage
	}
}

// FromTime reads from the first record whose append time is not before t.
func FromTime(t time.Time) ReadOption {
	return func(r *reading) {
		r.from(func(q *varvev1.ReadRequest) { q.Start = &varvev1.ReadRequest_Time{Time: timestamppb.New(t)} })
	}
}

// FromLast reads the last n records of each shard, and on from there.
func FromLast(n uint64) ReadOption {
	return func(r *reading) {
		r.from(func(q *varvev1.ReadRequest) { q.Start = &varvev1.ReadRequest_BeforeTail{BeforeTail: n} })
		r.last = &n
	}
}

// InShard reads one shard; without it, all are read, each in its order.
func InShard(shard uint32) ReadOption { return func(r *reading) { r.shard = &shard } }

// InIncarnation reads only that incarnation of the stream.
func InIncarnation(incarnation uint64) ReadOption {
	return func(r *reading) { r.incarnation = incarnation }
}

// Limit stops after n records.
func Limit(n uint64) ReadOption { return func(r *reading) { r.count, r.counted = n, true } }

// LimitBytes stops after about n bytes, as stored, of each shard.
func LimitBytes(n uint64) ReadOption { return func(r *reading) { r.bytes = max(1, n) } }

// Until stops before the first record whose append time is not before t.
func Until(t time.Time) ReadOption { return func(r *reading) { r.until = t } }

// GiveUpAfter ends the read with the last error once so long has passed without an
// answer from the server, heartbeats included. Without it a read goes through
// everything that may pass, for ever.
func GiveUpAfter(d time.Duration) ReadOption {
	return func(r *reading) {
		if r.giveUp = d; d <= 0 {
			r.bad = invalidf("read", "giving up after %s: must be above 0", d)
		}
	}
}

// Wait stays at the tail for so long after the last record before it stops.
func Wait(d time.Duration) ReadOption {
	return func(r *reading) {
		if r.wait = d; d < 0 {
			r.bad = invalidf("read", "wait is %s: below 0", d)
		}
	}
}

// Follow stays at the tail for ever.
func Follow() ReadOption { return func(r *reading) { r.follow = true } }

// Clamp takes the tail for a start beyond it, and the start for one below it,
// instead of [ErrOffsetOutOfRange].
func Clamp() ReadOption { return func(r *reading) { r.clamp = true } }

func (r *reading) from(start func(*varvev1.ReadRequest)) {
	if r.start != nil {
		r.bad = invalidf("read", "two places to start from")
	}
	r.start = start
}

// Read yields the records of a stream in order, shard by shard or, while it follows,
// as they come. It starts at the tail and stops at the tail unless told otherwise.
//
// Restarts, broken and half-open connections are gone through: it goes on behind the
// last record that was yielded. It stays with the incarnation that it found: when
// that is deleted or recreated the read ends with [ErrStreamDeleted], when its history
// is cut with [ErrRewound], when what comes next was trimmed with
// [ErrOffsetOutOfRange]. After an error the iteration ends. Records may be kept; their
// bytes are shared with the others of their batch.
func (c *Client) Read(ctx context.Context, stream string, options ...ReadOption) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		o := reading{stream: stream}
		for _, option := range options {
			option(&o)
		}
		if o.bad != nil {
			yield(Record{}, o.bad)
			return
		}
		if o.counted && o.count == 0 {
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })()
		m := &merge{client: c, ctx: ctx, o: &o, yield: yield}
		if err := m.run(); err != nil {
			yield(Record{}, err)
		}
	}
}

// Tail yields what is appended from now on, for ever.
func (c *Client) Tail(ctx context.Context, stream string, options ...ReadOption) iter.Seq2[Record, error] {
	return c.Read(ctx, stream, append([]ReadOption{FromTail(), Follow()}, options...)...)
}

// errStop ends a read without an error.
var errStop = errors.New("stop")

// merge yields the records of one shard or of all.
type merge struct {
	client *Client
	ctx    context.Context
	o      *reading
	yield  func(Record, error) bool
	left   uint64 // records, when counted
}

func (m *merge) run() error {
	m.left = m.o.count
	first := &reader{client: m.client, o: m.o, each: m.batch}
	if m.o.shard != nil {
		first.shard = *m.o.shard
		return stopped(first.run(m.ctx))
	}
	if m.o.offset {
		s, err := m.client.GetStream(m.ctx, m.o.stream)
		switch {
		case errors.Is(err, ErrNotFound): // the read may create it
		case err != nil:
			return err
		case s.GetShards() > 1:
			return invalidf("read "+m.o.stream, "an offset belongs to one shard, and there are %d: name one", s.GetShards())
		}
	}
	// The first page says how many shards there are.
	var shards uint32
	first.opened = func(page *varvev1.ReadResponse) error {
		if shards = page.GetShards(); shards == 0 { // a server that doesn't say
			s, err := m.client.GetStream(m.ctx, m.o.stream)
			if err != nil {
				return err
			}
			shards = max(1, s.GetShards())
		}
		if shards > 1 {
			return errStop
		}
		return nil
	}
	if err := first.run(m.ctx); shards < 2 || err != nil && !errors.Is(err, errStop) {
		return stopped(err)
	}
	return m.all(min(shards, 64), first)
}

func stopped(err error) error {
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// batch yields the records of one batch; errStop when the caller has enough.
func (m *merge) batch(records []Record) error {
	for i := range records {
		if !m.yield(records[i], nil) {
			return errStop
		}
		if m.o.counted {
			if m.left--; m.left == 0 {
				return errStop
			}
		}
	}
	return nil
}

// all reads every shard with a goroutine of its own; each holds one batch at a time.
func (m *merge) all(shards uint32, first *reader) error {
	ctx, cancel := context.WithCancelCause(m.ctx)
	type end struct{ err error }
	batches, ends := make(chan []Record), make(chan end, shards)
	running := 0
	for i := range shards {
		r := &reader{client: m.client, o: m.o, shard: i, each: func(records []Record) error {
			select {
			case batches <- records:
				return nil
			case <-ctx.Done():
				return errStop
			}
		}}
		if i == 0 {
			r.resolved, r.next, r.incarnation, r.lineage = true, first.next, first.incarnation, first.lineage
		}
		r.incarnation = first.incarnation // all of one incarnation
		if m.client.start(func() { ends <- end{r.run(ctx)} }) {
			running++
		} else {
			cancel(ErrClosed)
		}
	}
	var failed error
	for running > 0 {
		select {
		case records := <-batches:
			if failed == nil {
				if failed = m.batch(records); failed != nil {
					cancel(failed)
				}
			}
		case e := <-ends:
			running--
			if e.err != nil && failed == nil {
				failed = e.err
				cancel(failed)
			}
		}
	}
	if failed == nil {
		failed = context.Cause(ctx)
	}
	cancel(nil)
	return stopped(failed)
}
