package edge

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/varve-io/varve/meta"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

const (
	heartbeatDefault = 5 * time.Second
	heartbeatLeast   = time.Second
	heartbeatMost    = time.Minute
)

func (s *streams) ReadSession(ctx context.Context, r *varvev1.ReadSessionRequest, out *connect.ServerStream[varvev1.ReadSessionResponse]) error {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	beat := heartbeatDefault
	if h := r.GetHeartbeat(); h != nil {
		if beat = h.AsDuration(); h.CheckValid() != nil || beat < heartbeatLeast || beat > heartbeatMost {
			return meta.Invalidf("heartbeat is %v: want %v to %v", beat, heartbeatLeast, heartbeatMost)
		}
	}
	if r.GetRead() == nil {
		return meta.Invalidf("a reading session must say what to read")
	}
	g, err := s.open(ctx, info.RequestHeader(), r.GetRead())
	if err != nil {
		return err
	}
	defer g.reader.Close()
	return g.t.explain(g.session(ctx, beat, out.Send))
}

// session sends pages until a limit, the tail, or the client's end.
//
//	first answer --> reading --(at the tail)--> waiting --(more)--> reading
//	                    |                          |
//	                    +-- limit: end             +-- nobody wants to wait: end
//
// Whatever it waits for, the log or the bucket, it sends a heartbeat meanwhile.
func (g *reading) session(ctx context.Context, beat time.Duration, send func(*varvev1.ReadSessionResponse) error) error {
	first, err := g.blank()
	if err != nil {
		return err
	}
	if err := send(&varvev1.ReadSessionResponse{Page: first}); err != nil {
		return err
	}
	alive := func() error {
		page, err := g.blank()
		if err != nil {
			return err
		}
		return send(&varvev1.ReadSessionResponse{Page: page, Heartbeat: true})
	}
	for {
		if g.s.drain.Err() != nil {
			return errStopping
		}
		before := g.sel.from
		page, done, err := g.fetch(ctx, beat, alive)
		if err != nil {
			return err
		}
		if g.sel.from != before {
			if err := send(&varvev1.ReadSessionResponse{Page: page}); err != nil {
				return err
			}
		}
		if done {
			return nil
		}
		if g.sel.from == before {
			if more, err := g.stay(ctx, beat, alive); !more {
				return err
			}
		}
	}
}

// fetch reads a page and keeps the session alive while that takes long, as a read
// from the bucket may. The page is read by a goroutine that has ended when fetch
// returns; meanwhile only the shard's ends are looked at, which the reader does not
// change.
func (g *reading) fetch(ctx context.Context, beat time.Duration, alive func() error) (page *varvev1.ReadResponse, done bool, err error) {
	if g.reader.Near(g.sel.from) {
		return g.page(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan struct{})
	ahead := *g // the position moves in a copy
	go func() {
		defer close(ready)
		page, done, err = ahead.page(ctx)
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ready:
			g.sel, g.fresh = ahead.sel, ahead.fresh
			return page, done, err
		case <-tick.C:
			if failed := alive(); failed != nil {
				cancel()
				<-ready
				return nil, false, failed
			}
		}
	}
}

// stay waits at the tail. more says whether there may be something to read.
func (g *reading) stay(ctx context.Context, beat time.Duration, alive func() error) (more bool, err error) {
	start := time.Now()
	for {
		pause := beat
		if !g.follow {
			left := g.wait - time.Since(start)
			if left <= 0 {
				return false, nil
			}
			pause = min(beat, left)
		}
		waitCtx, cancel := context.WithTimeout(ctx, pause)
		err := g.reader.Wait(waitCtx, g.sel.from)
		late := waitCtx.Err() != nil
		cancel()
		switch {
		case err != nil:
			return false, err
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case g.s.drain.Err() != nil:
			return false, errStopping
		case !late:
			return true, nil
		case pause == beat:
			if err := alive(); err != nil {
				return false, err
			}
		}
	}
}
