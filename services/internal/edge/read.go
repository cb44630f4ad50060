package edge

import (
	"context"
	"errors"
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
	clamp  bool // take the nearest end when the position is cut off
	fresh  bool // nothing has been read yet, and the start was not an offset of the client's
}

// open checks a request and finds where it starts.
func (s *streams) open(ctx context.Context, header http.Header, r *varvev1.ReadRequest) (*reading, error) {
	g := &reading{s: s.Server, follow: r.GetFollow(), clamp: r.GetClamp()}
	var err error
	if g.sel, err = parseSelection(r); err != nil {
		return nil, err
	}
	if d := r.GetWait(); d != nil {
		if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
			return nil, meta.Invalidf("wait is negative or out of range: want 0 or more")
		}
		g.wait = d.AsDuration()
	}
	if g.t, err = s.find(ctx, header, VerbRead, r.GetStream(), r.Incarnation); err != nil {
		return nil, err
	}
	if g.id, err = g.t.shard(r.GetShard()); err != nil {
		return nil, err
	}
	if g.reader, err = s.broker.Reader(ctx, g.id); err != nil {
		return nil, g.t.explain(err)
	}
	if err := g.begin(ctx, r); err != nil {
		g.reader.Close()
		return nil, g.t.explain(err)
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
		if sel.until = ceiling(u.AsTime()); sel.until <= 0 {
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
	g.fresh = true
	switch start := r.GetStart().(type) {
	case *varvev1.ReadRequest_Offset:
		g.fresh = false
		if r.Lineage != nil && meta.Lineage(r.GetLineage()) != ends.Lineage {
			return &rewoundError{asked: meta.Lineage(r.GetLineage()), lineage: ends.Lineage}
		}
		if g.sel.from, err = offsetIn(start.Offset); err != nil && !g.clamp {
			return err
		}
		if err != nil {
			g.sel.from = ends.Tail
		}
	case *varvev1.ReadRequest_Time:
		if err := start.Time.CheckValid(); err != nil {
			return meta.Invalidf("start time: %w", err)
		}
		g.sel.from, err = g.reader.FindTime(ctx, ceiling(start.Time.AsTime()))
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

// ceiling is the first microsecond that is not before t: append times are whole ones.
func ceiling(t time.Time) meta.Micros {
	return meta.MicrosOf(t.Add(time.Microsecond - 1))
}

// blank is a page without records, with the figures of now.
func (g *reading) blank() (*varvev1.ReadResponse, error) {
	ends, err := g.reader.Ends()
	if err != nil {
		return nil, err
	}
	return g.figures(ends.Start, ends.Tail, ends.Lineage), nil
}

func (g *reading) figures(start, tail meta.Offset, lineage meta.Lineage) *varvev1.ReadResponse {
	return &varvev1.ReadResponse{
		Offset: uint64(g.sel.from), NextOffset: uint64(g.sel.from), StartOffset: uint64(start), Tail: uint64(tail),
		Incarnation: uint64(g.id.Incarnation), Lineage: uint64(lineage), Shard: g.id.Shard, Shards: g.t.Shards,
	}
}

// page reads the next page: about pageBytes stored bytes, but at least one batch.
// At the tail it is empty. done says that a limit was reached.
func (g *reading) page(ctx context.Context) (out *varvev1.ReadResponse, done bool, err error) {
	if g.sel.full() {
		out, err = g.blank()
		return out, true, err
	}
	most := int64(pageBytes)
	if g.sel.bytes >= 0 {
		most = min(most, g.sel.bytes)
	}
	p, err := g.reader.Read(ctx, g.sel.from, int(most))
	var outside *meta.OffsetOutOfRange
	if errors.As(err, &outside) && g.sel.from < outside.Start && (g.clamp || g.fresh) {
		g.sel.from = outside.Start // trimmed since the position was found
		p, err = g.reader.Read(ctx, g.sel.from, int(most))
	}
	if err != nil {
		return nil, false, err
	}
	g.fresh = false
	out = g.figures(p.Start, p.Tail, p.Lineage)
	done, err = g.s.take(&g.sel, p, out)
	return out, done || g.sel.full(), err
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
	out, done, err := g.page(ctx)
	if err != nil {
		return nil, g.t.explain(err)
	}
	if done || g.wait == 0 || len(out.GetBatches())+len(out.GetRecords()) > 0 {
		return out, nil
	}
	waitCtx, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	if err := g.reader.Wait(waitCtx, g.sel.from); err != nil {
		return nil, g.t.explain(err)
	}
	out, _, err = g.page(ctx)
	return out, g.t.explain(err)
}
