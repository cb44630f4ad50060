package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// run is the lane's goroutine. It ends with ctx, or when the lane is retired and
// empty, and then leaves no record without its answer.
func (l *lane) run(ctx context.Context) {
	defer l.stop(ctx)
	route := l.p.client.newRoute()
	for l.waiting(ctx) {
		e := l.attempt(ctx, route)
		if e == nil || ctx.Err() != nil {
			continue
		}
		l.judge(ctx, route, e)
	}
}

func (l *lane) stop(ctx context.Context) {
	cause := ErrClosed
	if ctx.Err() != nil {
		if c := context.Cause(ctx); !errors.Is(c, context.Canceled) {
			cause = c
		}
		l.p.shut() // before retiring, or an append would look for other lanes for ever
	}
	l.retire()
	l.failAll(&Error{Op: l.p.op(), Err: cause})
}

// waiting waits for something to deliver.
func (l *lane) waiting(ctx context.Context) bool {
	for ctx.Err() == nil {
		if !l.empty() {
			return true
		}
		if l.isRetired() {
			return false
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
		}
	}
	return false
}

func (l *lane) isRetired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retired
}

// attempt opens a session and delivers until there is nothing more to do (nil) or
// it fails.
func (l *lane) attempt(ctx context.Context, route *route) *Error {
	if e := l.overdue(); e != nil {
		return e
	}
	incarnation := l.p.o.Incarnation
	if incarnation == 0 {
		incarnation = l.known
	}
	s, e := l.p.dial(ctx, route.server(), l.shard, incarnation)
	if e != nil {
		return e
	}
	defer s.close()
	l.known = s.opened.GetIncarnation()
	if n := max(1, s.opened.GetShards()); n != l.shards {
		// Recreated with another number of shards: our keys go elsewhere now.
		l.p.forget(l)
		l.failAll(&Error{Op: l.p.op(), Err: fmt.Errorf("%w: it had %d shards and has %d now", ErrStreamDeleted, l.shards, n)})
		return nil
	}
	if e = l.pump(ctx, s, route); e != nil {
		l.unsend(e)
	}
	return e
}

// overdue is the delivery timeout's error once the first record has waited so long.
func (l *lane) overdue() *Error {
	if since, ok := l.oldest(); ok && l.p.o.DeliveryTimeout > 0 && time.Since(since) >= l.p.o.DeliveryTimeout {
		return &Error{Op: l.p.op(), Applied: AppliedNo, Err: ErrDeliveryTimeout}
	}
	return nil
}

// pump sends and takes answers until there is nothing more to do (nil) or the
// session fails.
func (l *lane) pump(ctx context.Context, s *session, route *route) *Error {
	limit := l.p.o.MaxInFlight
	if n := s.opened.GetMaxInFlight(); n > 0 {
		limit = min(limit, int(n))
	}
	idle := time.NewTimer(l.p.o.IdleTimeout)
	defer idle.Stop()
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	// The delivery timeout cancels the session, as Send may be what waits.
	overdue := time.AfterFunc(time.Hour, s.cancel)
	defer overdue.Stop()
	for {
		if since, ok := l.oldest(); ok && l.p.o.DeliveryTimeout > 0 {
			overdue.Reset(l.p.o.DeliveryTimeout - time.Since(since))
		} else {
			overdue.Stop()
		}
		select {
		case a, ok := <-s.answers:
			if e := l.answer(ctx, s, a, ok, route); e != nil {
				return e
			}
			idle.Reset(l.p.o.IdleTimeout)
			continue
		default:
		}
		c, waits := l.next(limit)
		if c != nil {
			if e := l.send(ctx, s, c, route); e != nil {
				return e
			}
			idle.Reset(l.p.o.IdleTimeout)
			continue
		}
		if waits > 0 {
			linger.Reset(waits)
		}
		select {
		case a, ok := <-s.answers:
			if e := l.answer(ctx, s, a, ok, route); e != nil {
				return e
			}
		case <-linger.C:
		case <-l.wake:
			if l.isRetired() && l.empty() {
				return nil
			}
		case <-idle.C:
			if l.empty() {
				return nil
			}
		}
		idle.Reset(l.p.o.IdleTimeout)
	}
}

// send seals a batch and sends it. When the session turns out to be over, the
// answers that had come before still count.
func (l *lane) send(ctx context.Context, s *session, c *chunk, route *route) *Error {
	if err := l.seal(c); err != nil {
		return &Error{Op: l.p.op(), Applied: AppliedNo, Err: err}
	}
	err := s.stream.Send(&varvev1.AppendSessionRequest{Batch: c.data})
	if err == nil {
		return nil
	}
	if !errors.Is(err, io.EOF) {
		s.cancel()
	}
	for a := range s.answers {
		if e := l.answer(ctx, s, a, true, route); e != nil {
			return e
		}
	}
	return l.ended(ctx, s)
}

// ended says why a session is over.
func (l *lane) ended(ctx context.Context, s *session) *Error {
	e := s.end(l.p.op())
	if ctx.Err() == nil && e.Detail == nil && (errors.Is(e, context.Canceled) || errors.Is(e, context.DeadlineExceeded)) {
		e.Retryable = true // the session's end, not ours
	}
	e.Applied = AppliedUnknown // for the batches in flight
	return e
}

// answer takes the answer to the first batch in flight.
func (l *lane) answer(ctx context.Context, s *session, a *varvev1.AppendSessionResponse, ok bool, route *route) *Error {
	if !ok {
		return l.ended(ctx, s)
	}
	head := l.head()
	if head == nil {
		return &Error{Op: l.p.op(), Retryable: true, Err: errors.New("the server answered a batch that was not sent")}
	}
	if d := a.GetError(); d != nil {
		e := ofDetail(l.p.op(), d, nil)
		if l.p.o.NotIdempotent {
			l.finish(l.pop(), Position{}, e)
			return nil
		}
		return e
	}
	r := a.GetResult()
	hint := l.p.o.Ack == AckNone || r.GetOffsetUnknown()
	if r == nil || !hint && r.GetNextOffset()-r.GetFirstOffset() != uint64(head.count) {
		return &Error{Op: l.p.op(), Retryable: true, Err: fmt.Errorf("the server's answer does not fit a batch of %d records: %v", head.count, a)}
	}
	route.worked()
	l.last = nil
	l.finish(l.pop(), positionOf(r, hint), nil)
	return nil
}

func positionOf(r *varvev1.AppendResponse, unknown bool) Position {
	at := Position{Shard: r.GetShard(), Incarnation: r.GetIncarnation(), Lineage: r.GetLineage(), Unknown: unknown}
	if !unknown {
		at.Offset = r.GetFirstOffset()
	}
	if t := r.GetAppendTime(); t != nil {
		at.AppendTime = t.AsTime()
	}
	return at
}

// unsend puts what is in flight back into the queue, or, if batches may be sent
// once only, fails it. It decides what is in doubt.
//
// An answer that refuses the first batch for certain tells about all after it: they
// don't follow what the shard has, so they were refused as well. Unless that first
// batch was in doubt before: then an earlier session may have stored it, and what
// comes after it may have been stored in this one.
func (l *lane) unsend(e *Error) {
	if l.p.o.NotIdempotent {
		for l.head() != nil {
			l.finish(l.pop(), Position{}, &Error{Op: e.Op, Detail: e.Detail, Retryable: e.Retryable, Err: e.Err})
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	refused := e.Applied == AppliedNo || e.numbering()
	doubt := !refused || l.sent > 0 && l.queue[0].doubt
	for _, c := range l.queue[:l.sent] {
		c.doubt = c.doubt || doubt
	}
	l.sent = 0
}

// first returns the batch to deliver next and whether it may be stored already.
func (l *lane) first() (c *chunk, doubt bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil, false
	}
	return l.queue[0], l.queue[0].doubt
}

// judge decides what follows from a failure: try again, go on under another name,
// or give up what is queued.
func (l *lane) judge(ctx context.Context, route *route, e *Error) {
	if o := l.overdue(); o != nil {
		if last := l.lastOf(e); last != nil {
			o.Err = fmt.Errorf("%w; last try: %w", ErrDeliveryTimeout, last)
		}
		l.failAll(o)
		l.rename(false)
		return
	}
	c, doubt := l.first()
	byName := l.p.o.Incarnation == 0
	switch {
	case e.Is(ErrUnknownProducer) && c != nil && c.data != nil && c.first != 0 && !doubt:
		// The shard has forgotten us, as we were silent for long. All before this batch
		// was acknowledged, this one and those after it were refused.
		l.rename(false)
	case e.Is(ErrStreamDeleted) && byName && l.known != 0 && !doubt:
		// Our name is meant, not the incarnation, and this one certainly took nothing
		// of what is queued: whichever has the name now shall have it.
		l.known = 0
		l.rename(true)
	case e.Retryable && !e.numbering() && !e.Is(ErrStreamDeleted):
		l.last = e
		if since, ok := l.oldest(); ok && l.p.o.DeliveryTimeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, since.Add(l.p.o.DeliveryTimeout))
			defer cancel()
		}
		_ = route.failed(ctx, e) // run looks at its own context
	default:
		gone := e.Is(ErrStreamDeleted) || e.Is(ErrNotFound)
		l.failAll(e)
		l.rename(gone || e.Is(ErrProducerFenced))
		if gone {
			l.known = 0
		}
	}
}

// lastOf is the newest failure that says more than that time is up.
func (l *lane) lastOf(e *Error) *Error {
	if l.last != nil && e.Detail == nil {
		return l.last
	}
	if errors.Is(e, ErrDeliveryTimeout) {
		return nil
	}
	return e
}

// failAll gives up all that is queued: the first batch fails with e, the others with
// [ErrAborted]. Each error says whether its batch may be stored.
func (l *lane) failAll(e *Error) {
	l.mu.Lock()
	all := l.queue
	if l.forming != nil {
		all = append(all, l.forming)
	}
	l.queue, l.forming, l.sent = nil, nil, 0
	l.mu.Unlock()
	for i, c := range all {
		each := *e
		each.Applied = AppliedNo
		if c.doubt {
			each.Applied = AppliedUnknown
		}
		if i > 0 {
			each = Error{Op: e.Op, Applied: each.Applied, Err: fmt.Errorf("%w: %w", ErrAborted, e)}
		}
		l.finish(c, Position{}, &each)
	}
}

// numbering reports whether the batch was refused for its producer id, epoch or
// sequence. Sending it again as it is would not help.
func (e *Error) numbering() bool {
	return e.Is(ErrUnknownProducer) || e.Is(ErrSequenceGap) || e.Is(ErrProducerFenced)
}
