package edge

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"
)

// watcher measures calls, gives every error its detail, and bounds how long a
// client may take to accept an answer.
type watcher struct{ s *Server }

// WrapUnary is connect.Interceptor's.
func (w *watcher) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (out connect.AnyResponse, err error) {
		start := time.Now()
		c := callOf(ctx)
		c.body.late.Stop() // all of it is here
		if err = undecodable(r.Any()); err == nil {
			out, err = next(ctx, r)
		}
		err = wire(err)
		w.done(r.Spec().Procedure, start, err)
		c.answer()
		return out, err
	}
}

// WrapStreamingClient is connect.Interceptor's; there are no clients here.
func (w *watcher) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler is connect.Interceptor's.
func (w *watcher) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		start := time.Now()
		c := callOf(ctx)
		if conn.Spec().StreamType&connect.StreamTypeClient != 0 {
			// Receiving ends when the server begins to stop; what has been received is
			// still answered.
			// So it does when the call's time is over, which no read notices by itself.
			stop, late := context.AfterFunc(w.s.drain, c.endReads), context.AfterFunc(ctx, c.endReads)
			defer stop()
			defer late()
		}
		err := wire(next(ctx, &guarded{conn, c}))
		w.done(conn.Spec().Procedure, start, err)
		c.answer()
		return err
	}
}

// guarded is a stream whose errors have details and whose sends end in time.
type guarded struct {
	connect.StreamingHandlerConn
	c *call
}

// Receive is connect.StreamingHandlerConn's.
func (g *guarded) Receive(m any) error {
	err := g.StreamingHandlerConn.Receive(m)
	if errors.Is(err, io.EOF) {
		return err
	}
	if err == nil {
		err = undecodable(m)
	}
	return wire(err)
}

// Send is connect.StreamingHandlerConn's.
func (g *guarded) Send(m any) error {
	g.c.answer()
	defer g.c.cut.Stop()
	return g.StreamingHandlerConn.Send(m)
}

func (w *watcher) done(procedure string, start time.Time, err error) {
	w.s.calls.WithLabelValues(procedure).Observe(time.Since(start).Seconds())
	if err != nil {
		code := connect.CodeOf(err)
		w.s.failed.WithLabelValues(procedure, code.String()).Inc()
		if code == connect.CodeInternal || code == connect.CodeDataLoss {
			w.s.opts.Logger.Error("a call failed", "procedure", procedure, "error", err)
		}
	}
}
