package sdk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// reader reads one shard, session after session.
//
//	opening --(first page)--> reading --(stopped)--> over
//	   ^                        |
//	   +--(broke: pause)--------+--(refused)--> over, with an error
//
// Once a first page came, each session asks for the next offset within the
// incarnation and the lineage of that page.
type reader struct {
	client *Client
	o      *reading
	shard  uint32
	opened func(*varvev1.ReadResponse) error // on the first page, if not nil
	each   func([]Record) error              // may keep the slice

	resolved    bool // by a first page
	next        uint64
	incarnation uint64
	lineage     uint64
	count       uint64 // records so far
	bytes       uint64 // of batches so far
	waits       time.Time
	heard       time.Time // when the server last answered
}

func (r *reader) op() string {
	return "read " + Shard{Stream: r.o.stream, Number: r.shard}.String()
}

// run reads until there is a reason to stop. The error is nil at the tail or at a
// limit; each's and opened's errors come back as they are.
func (r *reader) run(ctx context.Context) error {
	route := r.client.newRoute()
	r.heard = time.Now()
	for {
		done, err := r.session(ctx, route)
		if done || errors.Is(err, errStop) {
			return err
		}
		if ctx.Err() != nil {
			return &Error{Op: r.op(), Applied: AppliedNo, Err: context.Cause(ctx)}
		}
		e := errorOf(r.op(), err)
		e.Applied = AppliedNo // reading changes nothing
		if !e.Retryable || r.o.giveUp > 0 && time.Since(r.heard) >= r.o.giveUp {
			return e
		}
		if cause := route.failed(ctx, e); cause != nil {
			return &Error{Op: r.op(), Applied: AppliedNo, Err: cause}
		}
	}
}

func (r *reader) request() *varvev1.ReadSessionRequest {
	q := &varvev1.ReadRequest{
		Stream: r.o.stream, Shard: r.shard, Follow: r.o.follow, Clamp: r.o.clamp,
		Incarnation: optional(r.o.incarnation), Lineage: optional(r.o.lineage), Format: varvev1.Format_FORMAT_BATCHES,
	}
	if r.incarnation != 0 {
		q.Incarnation = &r.incarnation
	}
	switch {
	case r.resolved:
		// Clamping again would skip, or repeat, in silence.
		q.Start, q.Lineage, q.Clamp = &varvev1.ReadRequest_Offset{Offset: r.next}, &r.lineage, false
	case r.o.start != nil:
		r.o.start(q)
	}
	if r.o.counted {
		n := r.o.count - min(r.o.count, r.count)
		q.MaxRecords = &n
	}
	if r.o.bytes > 0 {
		n := r.o.bytes - min(r.o.bytes, r.bytes)
		q.MaxBytes = &n
	}
	if !r.o.until.IsZero() {
		q.Until = timestamppb.New(r.o.until)
	}
	if r.o.wait > 0 {
		q.Wait = durationpb.New(r.o.wait)
	}
	return &varvev1.ReadSessionRequest{Read: q, Heartbeat: durationpb.New(r.client.options.Heartbeat)}
}

var errSilent = errors.New("no sign of life from the server: the connection is taken for broken")

// session reads one session. done says that reading is over, well or not.
func (r *reader) session(ctx context.Context, route *route) (done bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The watch runs only while we wait for the server, not while the caller is slow.
	silence := max(3*r.client.options.Heartbeat, r.client.options.ConnectTimeout)
	watch := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watch.Stop()
	stream, err := route.server().streams.ReadSession(ctx, r.request())
	if err != nil {
		return false, r.why(ctx, err)
	}
	defer func() {
		cancel(nil)
		_ = stream.Close()
	}()
	for first := true; ; first = false {
		watch.Reset(silence)
		ok := stream.Receive()
		watch.Stop()
		if !ok {
			break
		}
		silence = 3 * r.client.options.Heartbeat
		route.worked()
		if !first || len(stream.Msg().GetPage().GetBatches()) > 0 { // each try may begin with a page that only says where the shard stands
			r.heard = time.Now()
		}
		if done, err := r.page(stream.Msg().GetPage()); done || err != nil {
			return done, err
		}
	}
	switch err = stream.Err(); {
	case err != nil:
		return false, r.why(ctx, err)
	case r.o.follow && r.o.until.IsZero(): // limits of count and size end it above
		return false, &Error{Op: r.op(), Retryable: true, Err: errors.New("the server ended the session")}
	case !r.resolved:
		return false, &Error{Op: r.op(), Retryable: true, Err: errors.New("the server ended the session before its first page")}
	}
	return true, nil
}

// why prefers our own reason for a cancelled session.
func (r *reader) why(ctx context.Context, err error) error {
	e := errorOf(r.op(), err)
	if errors.Is(context.Cause(ctx), errSilent) {
		return &Error{Op: r.op(), Retryable: true, Err: errSilent}
	}
	if e.Detail == nil && ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		e.Retryable = true
	}
	return e
}

// page takes one page. The first one binds the reader.
func (r *reader) page(p *varvev1.ReadResponse) (done bool, err error) {
	if p == nil {
		return false, nil
	}
	if !r.resolved {
		r.incarnation, r.lineage, r.next, r.resolved = p.GetIncarnation(), p.GetLineage(), r.firstOf(p), true
		if r.opened != nil {
			if err := r.opened(p); err != nil {
				return true, err
			}
		}
	}
	if p.GetIncarnation() != r.incarnation || p.GetLineage() != r.lineage {
		return true, &Error{Op: r.op(), Applied: AppliedNo, Err: fmt.Errorf("%w: pages of incarnation %d lineage %d came instead of %d and %d",
			ErrStreamDeleted, p.GetIncarnation(), p.GetLineage(), r.incarnation, r.lineage)}
	}
	for _, b := range p.GetBatches() {
		if done, err := r.batch(b); done || err != nil {
			return done, err
		}
	}
	// Batches that were asked for may have no record for us; commands take no offset.
	r.next = max(r.next, p.GetNextOffset())
	return false, nil
}

// firstOf is where a first page begins: within or at its first batch, and not below
// what was asked for, also where the server doesn't say.
func (r *reader) firstOf(p *varvev1.ReadResponse) uint64 {
	if len(p.GetBatches()) == 0 {
		return p.GetNextOffset()
	}
	at := max(p.GetOffset(), p.GetBatches()[0].GetBaseOffset(), p.GetStartOffset())
	switch {
	case r.o.offset && !r.o.clamp:
		at = max(at, r.request().GetRead().GetOffset())
	case r.o.last != nil && p.GetOffset() < p.GetBatches()[0].GetBaseOffset():
		at = max(at, p.GetTail()-min(p.GetTail(), *r.o.last))
	}
	return at
}

// batch checks one batch, and hands on the records that were asked for.
func (r *reader) batch(b *varvev1.StoredBatch) (done bool, err error) {
	info, err := batch.Check(b.GetData())
	if err != nil {
		return true, &Error{Op: r.op(), Applied: AppliedNo, Err: fmt.Errorf("batch at offset %d: %w: %w", b.GetBaseOffset(), ErrCorrupt, err)}
	}
	base, end := uint64(info.BaseOffset), uint64(info.NextOffset())
	if base > r.next || base != b.GetBaseOffset() {
		return true, &Error{Op: r.op(), Applied: AppliedNo, Err: fmt.Errorf("%w: the server went from offset %d to a batch at %d", ErrCorrupt, r.next, base)}
	}
	at := b.GetAppendTime().AsTime()
	if !r.o.until.IsZero() && !at.Before(r.o.until) {
		return true, nil
	}
	if end <= r.next {
		return false, nil // all of it came before
	}
	records := make([]Record, 0, end-r.next)
	for rec, err := range r.client.codec.Records(b.GetData()) {
		if err != nil {
			return true, &Error{Op: r.op(), Applied: AppliedNo, Err: fmt.Errorf("batch at offset %d: %w: %w", base, ErrCorrupt, err)}
		}
		if uint64(rec.Offset) < r.next {
			continue
		}
		records = append(records, Record{
			Key: rec.Key, Value: rec.Value, Headers: rec.Headers, Time: time.UnixMilli(rec.Time),
			Shard: r.shard, Offset: uint64(rec.Offset), AppendTime: at, Incarnation: r.incarnation, Lineage: r.lineage,
		})
	}
	r.next, r.count, r.bytes = end, r.count+uint64(len(records)), r.bytes+uint64(len(b.GetData()))
	if err := r.each(records); err != nil {
		return true, err
	}
	if r.o.counted && r.count >= r.o.count || r.o.bytes > 0 && r.bytes >= r.o.bytes {
		return true, nil
	}
	return false, nil
}
