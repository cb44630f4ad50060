package sdk

import (
	"context"
	"fmt"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// safety says when a unary call may be sent again.
type safety uint8

const (
	always  safety = iota // repeating changes nothing
	certain               // only when the try before certainly was not applied
)

// call makes a unary call, again and again where that may help and cannot hurt,
// until ctx ends.
func call[Req, Res any](ctx context.Context, c *Client, op string, s safety, request *Req, do func(*endpoint, context.Context, *Req) (*Res, error)) (*Res, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })()
	route := c.newRoute()
	applied := AppliedNo // of the tries so far
	for {
		if ctx.Err() != nil {
			return nil, &Error{Op: op, Applied: applied, Err: context.Cause(ctx)}
		}
		try, sent := c.watched(ctx)
		res, err := do(route.server(), try, request)
		if err == nil {
			return res, nil
		}
		e := errorOf(op, err)
		if !sent() {
			e.Applied = AppliedNo
		}
		again := e.Retryable && (s == always || e.Applied == AppliedNo)
		if applied == AppliedUnknown {
			e.Applied = AppliedUnknown // an earlier try may have been
		}
		applied = e.Applied
		if ctx.Err() != nil {
			return nil, &Error{Op: op, Detail: e.Detail, Applied: applied, Err: fmt.Errorf("%w; last try: %w", context.Cause(ctx), err)}
		}
		if !again {
			return nil, e
		}
		if cause := route.failed(ctx, e); cause != nil {
			return nil, &Error{Op: op, Detail: e.Detail, Applied: applied, Err: fmt.Errorf("%w; last try: %w", cause, err)}
		}
	}
}

// watched tells whether a request got as far as a connection: without one, nothing of
// it was sent. Another HTTP client than ours is not asked.
func (c *Client) watched(ctx context.Context) (context.Context, func() bool) {
	if c.options.HTTPClient != nil {
		return ctx, func() bool { return true }
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	return ctx, connected.Load
}

// Tail is where a shard begins and ends.
type Tail struct {
	Start, Next uint64    // the first offset that can be read; the next one to be written
	LastAppend  time.Time // append time of the last batch; zero when there was none
	Incarnation uint64
	Lineage     uint64
	Shards      uint32 // of the stream
}

// CheckTail asks where a shard begins and ends. The answer is linearizable: it holds
// all that was acknowledged before the call.
func (c *Client) CheckTail(ctx context.Context, s Shard) (Tail, error) {
	r, err := call(ctx, c, "check the tail of "+s.String(), always,
		&varvev1.CheckTailRequest{Stream: s.Stream, Incarnation: optional(s.Incarnation), Shard: s.Number},
		func(e *endpoint, ctx context.Context, r *varvev1.CheckTailRequest) (*varvev1.CheckTailResponse, error) {
			return e.streams.CheckTail(ctx, r)
		})
	if err != nil {
		return Tail{}, err
	}
	t := Tail{Start: r.GetStartOffset(), Next: r.GetTail(), Incarnation: r.GetIncarnation(), Lineage: r.GetLineage(), Shards: max(1, r.GetShards())}
	if at := r.GetLastAppendTime(); at != nil {
		t.LastAppend = at.AsTime()
	}
	return t, nil
}

// Trim drops a shard's records below an offset and returns what the shard holds
// then. An offset below the start changes nothing.
func (c *Client) Trim(ctx context.Context, s Shard, before uint64) (Tail, error) {
	op := fmt.Sprintf("trim %s below %d", s, before)
	safe := always
	if s.Incarnation == 0 {
		safe = certain // the name may belong to another stream by then
	}
	r, err := call(ctx, c, op, safe,
		&varvev1.TrimRequest{Stream: s.Stream, Incarnation: optional(s.Incarnation), Shard: s.Number, Before: before},
		func(e *endpoint, ctx context.Context, r *varvev1.TrimRequest) (*varvev1.TrimResponse, error) {
			return e.streams.Trim(ctx, r)
		})
	if err != nil {
		return Tail{}, err
	}
	return Tail{Start: r.GetStartOffset(), Next: r.GetTail(), Incarnation: r.GetIncarnation(), Lineage: r.GetLineage()}, nil
}

// Fence sets a shard's fence token, at most 128 bytes; an empty one takes the fence
// away. With strict, appends that name no token are refused too. It returns the next
// offset: what lies below was appended before the fence. A call whose outcome is not
// known is not repeated, as that could undo somebody else's fence.
func (c *Client) Fence(ctx context.Context, s Shard, token string, strict bool) (uint64, error) {
	r, err := call(ctx, c, "fence "+s.String(), certain,
		&varvev1.FenceRequest{Stream: s.Stream, Incarnation: optional(s.Incarnation), Shard: s.Number, Token: token, Strict: strict},
		func(e *endpoint, ctx context.Context, r *varvev1.FenceRequest) (*varvev1.FenceResponse, error) {
			return e.streams.Fence(ctx, r)
		})
	return r.GetTail(), err
}
