package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/services/internal/replica"
)

// Append is one batch for the end of a shard.
type Append struct {
	// Batch is a Kafka record batch that passed batch.Check. The broker writes base
	// offset and leader epoch into it and owns it from then on.
	Batch          []byte
	ExpectedOffset *meta.Offset // refuse unless this is the next offset
	FenceToken     *string      // refuse unless this is the fence token
	Level          replica.Level
}

// Result says where a batch is.
type Result struct {
	First, Next   meta.Offset
	Time          meta.Micros // append time; a duplicate's first one
	Tail          meta.Offset // committed end when the answer left
	Lineage       meta.Lineage
	Duplicate     bool // stored before; the figures are the first answer's
	OffsetUnknown bool // stored before, so long ago that the offsets are forgotten
}

// mayApply reports whether what ended in an error may have been applied, or may yet be.
func mayApply(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Unknown
}

// Failure is an error of a proposal, with what is known of its effect.
type Failure struct {
	Err     error
	Unknown bool // it may have been applied, or may yet be
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Append gives a shard's leader one batch and returns once it is under way; done
// is called once with the outcome, in the order of the calls, and must not block.
// Append itself waits for leadership and for room in the log, until ctx's
// deadline. If it returns an error, nothing was applied and done is not called.
func (b *Broker) Append(ctx context.Context, id meta.ShardID, a Append, done func(Result, error)) error {
	if len(a.Batch) > entry.MaxPayload {
		return meta.Invalidf("batch has %d bytes: at most %d", len(a.Batch), entry.MaxPayload)
	}
	s, err := b.shard(ctx, id)
	if err != nil {
		return err
	}
	if err := s.lead(ctx); err != nil {
		return err
	}
	release, err := b.log.Reserve(ctx, int64(len(a.Batch))+entry.HeaderSize)
	if err != nil {
		return fmt.Errorf("stream %s: %w", id.Stream, err)
	}
	s.propose(&replica.Propose{
		Kind: replica.ProposeBatch, Bytes: a.Batch,
		ExpectedOffset: a.ExpectedOffset, FenceToken: a.FenceToken, Level: a.Level,
	}, func(r replica.Answer) {
		release()
		if r.Err != nil {
			b.events.refused(r.Err)
			done(Result{}, &Failure{Err: r.Err, Unknown: r.Applied != replica.AppliedNo})
			return
		}
		b.events.appended(len(a.Batch), int64(r.Next-r.First), r.Duplicate)
		done(Result{
			First: r.First, Next: r.Next, Time: r.Time, Tail: r.Tail, Lineage: s.row.Lineage,
			Duplicate: r.Duplicate, OffsetUnknown: r.OffsetUnknown,
		}, nil)
	})
	return nil
}

// command proposes something small and waits for its answer. Cancelling ctx ends
// the wait, not the command; the error then says that its outcome is unknown.
func (b *Broker) command(ctx context.Context, id meta.ShardID, p *replica.Propose, bytes int64) (replica.Answer, meta.Lineage, error) {
	s, err := b.shard(ctx, id)
	if err != nil {
		return replica.Answer{}, 0, err
	}
	return s.command(ctx, p, bytes)
}

func (s *shard) command(ctx context.Context, p *replica.Propose, bytes int64) (replica.Answer, meta.Lineage, error) {
	if err := s.lead(ctx); err != nil {
		return replica.Answer{}, 0, err
	}
	release := func() {}
	if bytes > 0 {
		r, err := s.reserve(ctx, p.Kind, bytes+entry.HeaderSize)
		if err != nil {
			return replica.Answer{}, 0, err
		}
		release = r
	}
	answered := make(chan replica.Answer, 1)
	var lineage meta.Lineage
	s.propose(p, func(a replica.Answer) {
		release()
		lineage = s.row.Lineage
		answered <- a
	})
	select {
	case a := <-answered:
		if a.Err != nil {
			return a, lineage, &Failure{Err: a.Err, Unknown: a.Applied != replica.AppliedNo}
		}
		return a, lineage, nil
	case <-ctx.Done():
		err := meta.Errorf(meta.ErrUnknown, "shard %s: no answer in time; the command may still be carried out: %w", s.id, context.Cause(ctx))
		return replica.Answer{}, 0, &Failure{Err: err, Unknown: true}
	}
}

// reserve takes room for a command. What a client asks for is let in only while
// there is room for a mark besides: any number of trims and fences on a full log
// must not use up what archiving needs to make room.
func (s *shard) reserve(ctx context.Context, kind replica.ProposeKind, bytes int64) (release func(), err error) {
	if kind == replica.ProposeFence || kind == replica.ProposeTrim {
		spare, err := s.b.log.ReserveCommand(ctx, bytes+s.b.markRoom())
		if err != nil {
			return nil, err
		}
		defer spare()
	}
	return s.b.log.ReserveCommand(ctx, bytes)
}

// Ends are a shard's first and next offset.
type Ends struct {
	Start, Tail meta.Offset
	LastTime    meta.Micros // append time of the last batch or command; 0 with none
	Lineage     meta.Lineage
}

// CheckTail says where a shard begins and ends; linearizable.
func (b *Broker) CheckTail(ctx context.Context, id meta.ShardID) (Ends, error) {
	a, lineage, err := b.command(ctx, id, &replica.Propose{Kind: replica.CheckTail}, 0)
	if err != nil {
		return Ends{}, err
	}
	return Ends{Start: a.Start, Tail: a.Tail, LastTime: a.Time, Lineage: lineage}, nil
}

// Trim moves a shard's start offset up to an offset; lower is a no-op, beyond
// the tail is an [meta.OffsetOutOfRange].
func (b *Broker) Trim(ctx context.Context, id meta.ShardID, before meta.Offset) (Ends, error) {
	a, lineage, err := b.command(ctx, id, &replica.Propose{Kind: replica.ProposeTrim, Start: before}, 64)
	if err != nil {
		return Ends{}, err
	}
	return Ends{Start: a.Start, Tail: a.Tail, LastTime: a.Time, Lineage: lineage}, nil
}

// Fence sets a shard's fence token; an empty one takes it away. With strict,
// appends that name no token are refused too.
func (b *Broker) Fence(ctx context.Context, id meta.ShardID, token string, strict bool) (Ends, error) {
	if len(token) > entry.MaxToken {
		return Ends{}, meta.Invalidf("fence token has %d bytes: at most %d", len(token), entry.MaxToken)
	}
	if token == "" && strict {
		return Ends{}, meta.Invalidf("a strict fence needs a token: without one no append could ever pass")
	}
	a, lineage, err := b.command(ctx, id, &replica.Propose{Kind: replica.ProposeFence, Token: token, Strict: strict}, int64(64+len(token)))
	if err != nil {
		return Ends{}, err
	}
	return Ends{Start: a.Start, Tail: a.Tail, LastTime: a.Time, Lineage: lineage}, nil
}

// Lead makes this broker lead a shard, or says why it can't, and returns the
// lineage in which it does.
func (b *Broker) Lead(ctx context.Context, id meta.ShardID) (meta.Lineage, error) {
	s, err := b.shard(ctx, id)
	if err != nil {
		return 0, err
	}
	if err := s.lead(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.row.Lineage, s.gone
}
