package edge

import (
	"context"
	"errors"
	"io"
	"sync"

	"connectrpc.com/connect"

	"github.com/varve-io/varve/meta"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
)

type appendStream = connect.BidiStream[varvev1.AppendSessionRequest, varvev1.AppendSessionResponse]

// slot is one request of a session that waits for its answer.
type slot struct {
	once   sync.Once
	ready  chan struct{} // closed once answer is there
	answer *varvev1.AppendSessionResponse
}

// AppendSession takes batches in order and answers each in order. One goroutine
// (this one) receives, another sends. A permit is taken before a request is read
// and given back when its answer has left, so that no more than MaxInFlight wait.
//
//	permit -> receive -> check -> slot queued -> broker.Append -> (answer fills the slot)
//	   ^                              |
//	   |                              +--> send: waits for the oldest slot, sends it --+
//	   +-------------------------------------------------------------------------------+
func (s *streams) AppendSession(ctx context.Context, stream *appendStream) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) {
		return meta.Invalidf("the session ended before it was opened")
	}
	if err != nil {
		return err
	}
	w, err := s.openWriter(ctx, stream, first)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.slots, w.permits = make(chan *slot, MaxInFlight), make(chan struct{}, MaxInFlight)
	var sender sync.WaitGroup
	sender.Go(func() {
		if err := w.send(ctx, stream); err != nil {
			cancel(err)
			callOf(ctx).endReads() // the receiver may be waiting for the client
		}
	})
	err = w.receive(ctx, stream)
	close(w.slots)
	sender.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // what ended the sender says more than what the receiver saw of it
	}
	if err != nil {
		return &unanswered{err}
	}
	return nil
}

// writer is the state of one appending session.
type writer struct {
	s       *streams
	t       target
	id      meta.ShardID
	ask     broker.Append // what holds for every batch
	slots   chan *slot
	permits chan struct{} // one for each request that is read and not answered
}

func (s *streams) openWriter(ctx context.Context, stream *appendStream, first *varvev1.AppendSessionRequest) (*writer, error) {
	open := first.GetOpen()
	if open == nil || len(first.GetBatch()) > 0 || first.ExpectedOffset != nil {
		return nil, meta.Invalidf("a session's first request holds only \"open\"")
	}
	level, err := ack(open.GetAck())
	if err != nil {
		return nil, err
	}
	t, err := s.find(ctx, stream.RequestHeader(), VerbAppend, open.GetStream(), open.Incarnation)
	if err != nil {
		return nil, err
	}
	id, err := t.shard(open.GetShard())
	if err != nil {
		return nil, err
	}
	lineage, err := s.broker.Lead(ctx, id)
	if err != nil {
		return nil, t.explain(err)
	}
	w := &writer{s: s, t: t, id: id, ask: broker.Append{Level: level, FenceToken: open.FenceToken}}
	return w, stream.Send(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Opened{Opened: &varvev1.AppendSessionOpened{
		Incarnation: uint64(t.Incarnation), Lineage: uint64(lineage), Shards: t.Shards, MaxInFlight: MaxInFlight,
	}}})
}

// receive hands on one batch after the other until the client has sent all it has.
func (w *writer) receive(ctx context.Context, stream *appendStream) error {
	for {
		select {
		case w.permits <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.s.drain.Done():
			return errStopping
		}
		r, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if r.GetOpen() != nil {
			return meta.Invalidf("the session is open already: \"open\" stands in the first request only")
		}
		sl := &slot{ready: make(chan struct{})}
		w.slots <- sl // never full: there are no more permits than room
		w.hand(ctx, r, sl)
	}
}

// hand gives one batch to the broker; the slot is filled now or later.
func (w *writer) hand(ctx context.Context, r *varvev1.AppendSessionRequest, sl *slot) {
	done := func(result broker.Result, err error) {
		if err != nil {
			sl.fail(w.t.explain(err))
			return
		}
		out := appendResponse(w.id, result)
		if w.ask.Level == replica.None {
			out = hint(w.id)
		}
		sl.fill(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Result{Result: out}})
	}
	a := w.ask
	a.ExpectedOffset = offset(r.ExpectedOffset)
	var err error
	if a.Batch, err = w.s.checked(r.GetBatch(), w.t); err != nil {
		sl.fail(err)
		return
	}
	waitCtx, cancel := w.s.throttle(ctx)
	defer cancel()
	if err := w.s.broker.Append(waitCtx, w.id, a, done); err != nil {
		sl.fail(w.t.explain(err))
		return
	}
	if a.Level == replica.None { // at once, unless it was refused
		sl.fill(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Result{Result: hint(w.id)}})
	}
}

// fill answers the slot, once.
func (sl *slot) fill(m *varvev1.AppendSessionResponse) {
	sl.once.Do(func() {
		sl.answer = m
		close(sl.ready)
	})
}

func (sl *slot) fail(err error) {
	d, _ := detail(err)
	sl.fill(&varvev1.AppendSessionResponse{Answer: &varvev1.AppendSessionResponse_Error{Error: d}})
}

// send answers the slots in order. What is still unanswered when the client is
// gone has an unknown outcome, as the contract says.
func (w *writer) send(ctx context.Context, stream *appendStream) error {
	for sl := range w.slots {
		select {
		case <-sl.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := stream.Send(sl.answer); err != nil {
			return err
		}
		<-w.permits
	}
	return nil
}
