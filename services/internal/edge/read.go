package edge

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/varve-io/varve/meta"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/broker"
)

// reading is one client's way through one shard.
type reading struct {
	s      *Server
	t      target
	id     meta.ShardID
	reader *broker.Reader
	sel    selection
	wait   time.Duration // at the tail, for more
	follow bool
	clamp  bool
}

// open checks a request and finds where it starts.
func (s *streams) open(ctx context.Context, header http.Header, r *varvev1.ReadRequest) (*reading, error) {
	t, err := s.find(ctx, header, VerbRead, r.GetStream(), r.Incarnation)
	if err != nil {
		return nil, err
	}
	id, err := t.shard(r.GetShard())
	if err != nil {
		return nil, err
	}
	g := &reading{s: s.Server, t: t, id: id, follow: r.GetFollow(), clamp: r.GetClamp()}
	if g.sel, err = parseSelection(r); err != nil {
		return nil, err
	}
	if d := r.GetWait(); d != nil {
		if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
			return nil, meta.Invalidf("wait is negative or out of range: want 0 or more")
		}
		g.wait = d.AsDuration()
	}
	if g.reader, err = s.broker.Reader(ctx, id); err != nil {
		return nil, err
	}
	if err := g.begin(ctx, r); err != nil {
		g.reader.Close()
		return nil, err
	}
	return g, nil
}

func parseSelection(r *varvev1.ReadRequest) (selection, error) {
	sel := selection{records: -1, bytes: -1, format: r.GetFormat()}
	switch sel.format {
	case varvev1.Format_FORMAT_UNSPECIFIED, varvev1.Format_FORMAT_RECORDS, varvev1.Format_FORMAT_BATCHES:
	default:
		return sel, meta.Invalidf("format %d is neither records nor batches", sel.format)
	}
	if r.MaxRecords != nil {
		sel.records = int64(min(r.GetMaxRecords(), uint64(meta.MaxOffset)))
	}
	if r.MaxBytes != nil {
		sel.bytes = int64(min(r.GetMaxBytes(), uint64(meta.MaxOffset)))
	}
	if u := r.GetUntil(); u != nil {
		if err := u.CheckValid(); err != nil {
			return sel, meta.Invalidf("until: %w", err)
		}
		if sel.until = meta.MicrosOf(u.AsTime()); sel.until <= 0 {
			sel.until = 1 // before every record
		}
	}
	return sel, nil
}

// begin turns the request's start into an offset.
func (g *reading) begin(ctx context.Context, r *varvev1.ReadRequest) error {
	ends, err := g.reader.Ends()
	if err != nil {
		return err
	}
	switch start := r.GetStart().(type) {
	case *varvev1.ReadRequest_Offset:
		if g.sel.from, err = offsetIn(start.Offset); err != nil {
			return err
		}
		if r.Lineage != nil && meta.Lineage(r.GetLineage()) != ends.Lineage {
			return &rewoundError{asked: meta.Lineage(r.GetLineage()), lineage: ends.Lineage}
		}
	case *varvev1.ReadRequest_Time:
		if err := start.Time.CheckValid(); err != nil {
			return meta.Invalidf("start time: %w", err)
		}
		g.sel.from, err = g.reader.FindTime(ctx, meta.MicrosOf(start.Time.AsTime()))
		return err
	case *varvev1.ReadRequest_BeforeTail:
		back := meta.Offset(min(start.BeforeTail, uint64(ends.Tail-ends.Start)))
		g.sel.from = ends.Tail - back
	case *varvev1.ReadRequest_FromStart:
		g.sel.from = ends.Start
	case *varvev1.ReadRequest_FromTail, nil:
		g.sel.from = ends.Tail
	}
	if g.sel.from < ends.Start || g.sel.from > ends.Tail {
		if !g.clamp {
			return &meta.OffsetOutOfRange{Asked: g.sel.from, Start: ends.Start, End: ends.Tail}
		}
		g.sel.from = min(max(g.sel.from, ends.Start), ends.Tail)
	}
	return nil
}

// page reads the next page, at most so many stored bytes but at least one batch.
// At the tail it is empty.
func (g *reading) page(ctx context.Context, most int) (out *varvev1.ReadResponse, done bool, err error) {
	if g.sel.bytes >= 0 {
		most = int(min(int64(most), g.sel.bytes))
	}
	p, err := g.reader.Read(ctx, g.sel.from, max(most, 1))
	if err != nil {
		return nil, false, err
	}
	out = &varvev1.ReadResponse{
		NextOffset: uint64(g.sel.from), StartOffset: uint64(p.Start), Tail: uint64(p.Tail),
		Incarnation: uint64(g.id.Incarnation), Lineage: uint64(p.Lineage), Shard: g.id.Shard,
	}
	done, err = g.s.take(&g.sel, p, out)
	return out, done || g.sel.records == 0 || g.sel.bytes == 0, err
}

func (s *streams) Read(ctx context.Context, r *varvev1.ReadRequest) (*varvev1.ReadResponse, error) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	if r.GetFollow() {
		return nil, meta.Invalidf("follow is for reading sessions: use wait to stay at the tail for a while")
	}
	g, err := s.open(ctx, info.RequestHeader(), r)
	if err != nil {
		return nil, err
	}
	defer g.reader.Close()
	most := maxPage
	if g.sel.bytes >= 0 {
		most = int(min(g.sel.bytes, maxPage))
	}
	out, done, err := g.page(ctx, most)
	if err != nil || done || g.wait == 0 || uint64(g.sel.from) > out.GetTail() || len(out.GetBatches())+len(out.GetRecords()) > 0 {
		return out, err
	}
	waitCtx, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	if err := g.reader.Wait(waitCtx, g.sel.from); err != nil {
		return nil, err
	}
	out, _, err = g.page(ctx, most)
	return out, err
}

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
	send := func(m *varvev1.ReadSessionResponse) error {
		s.bound(ctx)
		return out.Send(m)
	}
	return g.session(ctx, beat, send)
}

// session sends pages until a limit, the tail, or the client's end. The first
// answer leaves at once.
func (g *reading) session(ctx context.Context, beat time.Duration, send func(*varvev1.ReadSessionResponse) error) error {
	quiet := time.Duration(0) // at the tail so far
	for first := true; ; first = false {
		before := g.sel.from
		page, done, err := g.page(ctx, pageBytes)
		if err != nil {
			return err
		}
		moved := g.sel.from != before
		if first || moved || done {
			if err := send(&varvev1.ReadSessionResponse{Page: page}); err != nil {
				return err
			}
		}
		switch {
		case done:
			return nil
		case moved:
			quiet = 0
			continue
		case !g.follow && quiet >= g.wait:
			return nil
		}
		pause := beat
		if !g.follow {
			pause = min(beat, g.wait-quiet)
		}
		start := time.Now()
		waitCtx, cancel := context.WithTimeout(ctx, pause)
		err = g.reader.Wait(waitCtx, g.sel.from)
		late := waitCtx.Err() != nil
		cancel()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if g.s.drain.Err() != nil {
			return errStopping
		}
		quiet += time.Since(start)
		if late && pause == beat {
			page.Batches, page.Records = nil, nil
			if err := send(&varvev1.ReadSessionResponse{Page: page, Heartbeat: true}); err != nil {
				return err
			}
		}
	}
}
