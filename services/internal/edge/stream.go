package edge

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
)

// streams answers StreamService.
type streams struct{ *Server }

// target is a stream that was found for a request.
type target struct {
	broker.Stream
	addressed bool // the caller named the incarnation
}

// explain adds to the end of a stream which one it was.
func (t target) explain(err error) error {
	if err == nil || !errors.Is(err, meta.ErrDeleted) {
		return err
	}
	var already *deletedError
	if errors.As(err, &already) {
		return err
	}
	return &deletedError{stream: t.Name, asked: t.Incarnation, err: err}
}

// find checks name and access, and finds the stream; where its namespace allows
// it, one that does not exist is created.
func (s *Server) find(ctx context.Context, header http.Header, verb Verb, name string, incarnation *uint64) (target, error) {
	n, err := meta.ParseStreamName(name)
	if err != nil {
		return target{}, err
	}
	if err := s.allow(ctx, header, verb, n); err != nil {
		return target{}, err
	}
	want, err := addressed(incarnation)
	if err != nil {
		return target{}, err
	}
	return s.resolve(ctx, verb, n, want)
}

// addressed is the incarnation that a request names; 0 when it names none.
func addressed(incarnation *uint64) (meta.Incarnation, error) {
	if incarnation == nil {
		return 0, nil
	}
	if *incarnation == 0 {
		return 0, meta.Invalidf("incarnation 0 names nothing: leave it out to mean whichever has the name")
	}
	return meta.Incarnation(*incarnation), nil
}

// resolve finds a stream for a caller that was let in.
func (s *Server) resolve(ctx context.Context, verb Verb, n meta.StreamName, want meta.Incarnation) (target, error) {
	var st broker.Stream
	var err error
	switch verb {
	case VerbAppend, VerbRead:
		st, err = s.broker.FindOrCreate(ctx, n, want, verb == VerbRead)
	default:
		st, err = s.broker.Stream(ctx, n, want)
	}
	if err != nil && want != 0 && errors.Is(err, meta.ErrDeleted) {
		gone := &deletedError{stream: n, asked: want, err: err}
		if now, err := s.broker.Stream(ctx, n, 0); err == nil {
			gone.current = now.Incarnation
		}
		err = gone
	}
	return target{st, want != 0}, err
}

// shard picks a shard that the caller named.
func (t target) shard(n uint32) (meta.ShardID, error) {
	if n >= t.Shards && t.Shards == 1 {
		return meta.ShardID{}, meta.Invalidf("stream %s has one shard, 0: there is no shard %d", t.Name, n)
	}
	if n >= t.Shards {
		return meta.ShardID{}, meta.Invalidf("stream %s has %d shards, 0 to %d: there is no shard %d", t.Name, t.Shards, t.Shards-1, n)
	}
	return t.Shard(n), nil
}

func ack(a varvev1.Ack) (replica.Level, error) {
	switch a {
	case varvev1.Ack_ACK_UNSPECIFIED, varvev1.Ack_ACK_QUORUM:
		return replica.Quorum, nil
	case varvev1.Ack_ACK_NONE:
		return replica.None, nil
	case varvev1.Ack_ACK_LEADER:
		return replica.Leader, nil
	case varvev1.Ack_ACK_ARCHIVE:
		return replica.Archive, nil
	default:
		return 0, meta.Invalidf("acknowledgement level %d is none of 1 to 4", a)
	}
}

// throttle gives calls without a deadline one for the wait for room in the log,
// so that nobody is met with silence.
func (s *Server) throttle(ctx context.Context) (context.Context, context.CancelFunc) {
	const margin = 100 * time.Millisecond // so that the answer gets out before the caller gives up
	if d, ok := ctx.Deadline(); ok && time.Until(d) < s.opts.Throttle+margin {
		return context.WithDeadline(ctx, d.Add(-margin))
	}
	return context.WithTimeout(ctx, s.opts.Throttle)
}

func (s *streams) Append(ctx context.Context, r *varvev1.AppendRequest) (*varvev1.AppendResponse, error) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	t, err := s.find(ctx, info.RequestHeader(), VerbAppend, r.GetStream(), r.Incarnation)
	if err != nil {
		return nil, err
	}
	out, err := s.appendTo(ctx, t, r)
	if err != nil && !t.addressed && isGone(err) {
		// A caller that addressed the name means whichever stream has it: the one we
		// knew is gone and nothing was applied, so look again, once.
		s.broker.Forget(t.Name)
		if t, err = s.resolve(ctx, VerbAppend, t.Name, 0); err != nil {
			return nil, err
		}
		out, err = s.appendTo(ctx, t, r)
	}
	return out, t.explain(err)
}

// isGone reports whether an incarnation is deleted and the request left no trace.
func isGone(err error) bool {
	d, _ := detail(err)
	return d.Reason == varvev1.Reason_REASON_STREAM_DELETED && d.Applied == varvev1.Applied_APPLIED_NO
}

func (s *streams) appendTo(ctx context.Context, t target, r *varvev1.AppendRequest) (*varvev1.AppendResponse, error) {
	level, err := ack(r.GetAck())
	if err != nil {
		return nil, err
	}
	a := broker.Append{Level: level, FenceToken: r.FenceToken, ExpectedOffset: offset(r.ExpectedOffset)}
	id, err := s.choose(t, r)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Batch != nil && len(r.GetRecords()) > 0:
		return nil, meta.Invalidf("both batch and records are set: send one of them")
	case r.Batch != nil:
		a.Batch, err = s.checked(r.GetBatch(), t)
	default:
		a.Batch, err = s.encode(r.GetRecords(), t)
	}
	if err != nil {
		return nil, err
	}
	waitCtx, cancel := s.throttle(ctx)
	defer cancel()
	type outcome struct {
		result broker.Result
		err    error
	}
	answered := make(chan outcome, 1)
	if err := s.broker.Append(waitCtx, id, a, func(r broker.Result, err error) { answered <- outcome{r, err} }); err != nil {
		return nil, err
	}
	if level == replica.None {
		select {
		case o := <-answered: // a refusal is there at once
			if o.err != nil {
				return nil, o.err
			}
		default:
		}
		return hint(id), nil
	}
	select {
	case o := <-answered:
		if o.err != nil {
			return nil, o.err
		}
		return appendResponse(id, o.result), nil
	case <-ctx.Done():
		return nil, meta.Errorf(meta.ErrUnknown, "the batch was handed on, and may be stored, but its answer did not come in time: %w", context.Cause(ctx))
	}
}

// hint is the answer at level none: no offset is known yet.
func hint(id meta.ShardID) *varvev1.AppendResponse {
	return &varvev1.AppendResponse{Incarnation: uint64(id.Incarnation), Shard: id.Shard}
}

func appendResponse(id meta.ShardID, r broker.Result) *varvev1.AppendResponse {
	out := &varvev1.AppendResponse{
		Tail: uint64(r.Tail), Incarnation: uint64(id.Incarnation), Lineage: uint64(r.Lineage), Shard: id.Shard,
		Duplicate: r.Duplicate, OffsetUnknown: r.OffsetUnknown,
	}
	if !r.OffsetUnknown {
		out.FirstOffset, out.NextOffset, out.AppendTime = uint64(r.First), uint64(r.Next), stamp(r.Time)
	}
	return out
}

// checked verifies an encoded batch as far as every later reader relies on it.
func (s *Server) checked(b []byte, t target) ([]byte, error) {
	if _, err := s.codec.Validate(b, int(t.Effective.MaxRecordBytes)); err != nil {
		return nil, err
	}
	return b, nil
}

// encode packs plain records into a batch.
func (s *Server) encode(records []*varvev1.Record, t target) ([]byte, error) {
	if len(records) == 0 {
		return nil, meta.Invalidf("an append needs at least one record, or a batch")
	}
	now := s.opts.Now().UnixMilli()
	list := make([]batch.Record, len(records))
	for i, r := range records {
		var err error
		if list[i], err = record(r, now); err != nil {
			return nil, err
		}
		if most := t.Effective.MaxRecordBytes; int64(len(r.GetValue())) > most {
			return nil, meta.Invalidf("record %d has a value of %d bytes: stream %s takes at most %d", i, len(r.GetValue()), t.Name, most)
		}
	}
	b, err := s.codec.Encode(list, batch.None, batch.NoProducer())
	if err != nil {
		return nil, err
	}
	return s.checked(b, t)
}

// choose finds the shard of an append: the one that was named, or the one that the
// records' keys say.
func (s *streams) choose(t target, r *varvev1.AppendRequest) (meta.ShardID, error) {
	if r.Shard != nil {
		return t.shard(r.GetShard())
	}
	if t.Shards == 1 {
		return t.shard(0)
	}
	if r.Batch != nil {
		return meta.ShardID{}, meta.Invalidf("stream %s has %d shards: a batch must say which one it is for", t.Name, t.Shards)
	}
	chosen, by := uint32(0), -1 // by: the record whose key chose
	for i, rec := range r.GetRecords() {
		if rec.Key == nil {
			continue
		}
		n := batch.ShardOf(rec.GetKey(), int(t.Shards))
		if by >= 0 && n != chosen {
			return meta.ShardID{}, meta.Invalidf("record %d belongs to shard %d, record %d to shard %d: an append goes to one shard", i, n, by, chosen)
		}
		if by < 0 {
			chosen, by = n, i
		}
	}
	if by < 0 {
		chosen = rand.Uint32N(t.Shards)
	}
	return t.shard(chosen)
}

func (s *streams) CheckTail(ctx context.Context, r *varvev1.CheckTailRequest) (*varvev1.CheckTailResponse, error) {
	t, id, err := s.locate(ctx, VerbRead, r.GetStream(), r.Incarnation, r.GetShard())
	if err != nil {
		return nil, err
	}
	e, err := s.broker.CheckTail(ctx, id)
	if err != nil {
		return nil, t.explain(err)
	}
	out := &varvev1.CheckTailResponse{
		StartOffset: uint64(e.Start), Tail: uint64(e.Tail), Incarnation: uint64(id.Incarnation), Lineage: uint64(e.Lineage),
		Shard: id.Shard, Shards: t.Shards,
	}
	if e.LastTime > 0 && e.Tail > 0 {
		out.LastAppendTime = stamp(e.LastTime)
	}
	return out, nil
}

func (s *streams) Trim(ctx context.Context, r *varvev1.TrimRequest) (*varvev1.TrimResponse, error) {
	t, id, err := s.locate(ctx, VerbWrite, r.GetStream(), r.Incarnation, r.GetShard())
	if err != nil {
		return nil, err
	}
	before, err := offsetIn(r.GetBefore())
	if err != nil {
		return nil, err
	}
	e, err := s.broker.Trim(ctx, id, before)
	if err != nil {
		return nil, t.explain(err)
	}
	return &varvev1.TrimResponse{StartOffset: uint64(e.Start), Tail: uint64(e.Tail), Incarnation: uint64(id.Incarnation), Lineage: uint64(e.Lineage)}, nil
}

func (s *streams) Fence(ctx context.Context, r *varvev1.FenceRequest) (*varvev1.FenceResponse, error) {
	t, id, err := s.locate(ctx, VerbWrite, r.GetStream(), r.Incarnation, r.GetShard())
	if err != nil {
		return nil, err
	}
	e, err := s.broker.Fence(ctx, id, r.GetToken(), r.GetStrict())
	if err != nil {
		return nil, t.explain(err)
	}
	return &varvev1.FenceResponse{Tail: uint64(e.Tail), Incarnation: uint64(id.Incarnation), Lineage: uint64(e.Lineage)}, nil
}

// locate finds a shard that a request names.
func (s *Server) locate(ctx context.Context, verb Verb, name string, incarnation *uint64, shard uint32) (target, meta.ShardID, error) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	t, err := s.find(ctx, info.RequestHeader(), verb, name, incarnation)
	if err != nil {
		return t, meta.ShardID{}, err
	}
	id, err := t.shard(shard)
	return t, id, err
}

func offset(o *uint64) *meta.Offset {
	if o == nil {
		return nil
	}
	v := meta.Offset(*o)
	return &v
}

func offsetIn(o uint64) (meta.Offset, error) {
	if meta.Offset(o) > meta.MaxOffset {
		return 0, meta.Invalidf("offset %d is too large: offsets go up to %d", o, meta.MaxOffset)
	}
	return meta.Offset(o), nil
}

func stamp(m meta.Micros) *timestamppb.Timestamp { return timestamppb.New(m.Time()) }
