package sdk

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// AppendOptions are what an append by [Client.Append] depends on.
type AppendOptions struct {
	// Shard, or nil: as the records' keys say, all of which must go to the same.
	Shard *uint32
	// Incarnation, unless 0, is the only one that is meant.
	Incarnation uint64
	// ExpectedOffset, unless nil, must be the shard's next offset.
	ExpectedOffset *uint64
	// FenceToken, unless nil, must be the shard's.
	FenceToken *string
	// Ack is what to wait for. Default quorum.
	Ack Ack
	// Compression of the batch. Default none.
	Compression Compression
	// Idempotent lets the call be sent again after an unknown outcome, as the shard
	// recognizes it then. It takes a place in the shard's table of producers for a
	// while: for many appends use a [Producer].
	Idempotent bool
}

// Appended says where the records of one append are, next to one another.
type Appended struct {
	Position         // of the first
	Next      uint64 // offset after the last
	Tail      uint64 // next offset of the shard, at the time of the answer
	Duplicate bool   // stored by an earlier try of this call
}

// Append stores records in one shard, all or none, in one call. Without
// [AppendOptions.Idempotent] it is sent again only when the try before certainly was
// not applied; otherwise the error says [AppliedUnknown] and the caller decides. At
// most one AppendOptions is looked at.
func (c *Client) Append(ctx context.Context, stream string, records []Record, options ...AppendOptions) (Appended, error) {
	var o AppendOptions
	if len(options) > 0 {
		o = options[0]
	}
	op := "append to " + stream
	request := &varvev1.AppendRequest{
		Stream: stream, Incarnation: optional(o.Incarnation), Shard: o.Shard,
		ExpectedOffset: o.ExpectedOffset, FenceToken: o.FenceToken, Ack: o.Ack,
	}
	switch {
	case len(records) == 0:
		return Appended{}, invalidf(op, "no records")
	case (o.Ack == AckNone || o.Ack == AckLeader) && (o.Idempotent || o.ExpectedOffset != nil || o.FenceToken != nil):
		return Appended{}, invalidf(op, "acknowledgement %s is a hint only: it takes no conditions and is not idempotent", o.Ack)
	}
	if o.Shard == nil && !o.Idempotent {
		for i := range records {
			request.Records = append(request.Records, wireRecord(&records[i]))
		}
	} else if err := c.encode(ctx, op, request, records, o); err != nil {
		return Appended{}, err
	}
	safe := certain
	if o.Idempotent {
		safe = always
	}
	r, err := call(ctx, c, op, safe, request,
		func(e *endpoint, ctx context.Context, r *varvev1.AppendRequest) (*varvev1.AppendResponse, error) {
			return e.streams.Append(ctx, r)
		})
	if err != nil {
		return Appended{}, err
	}
	return Appended{
		Position: positionOf(r, r.GetOffsetUnknown() || o.Ack == AckNone),
		Next:     r.GetNextOffset(), Tail: r.GetTail(), Duplicate: r.GetDuplicate(),
	}, nil
}

// encode puts the records into the request as one batch, for a shard that it chooses
// itself if need be.
func (c *Client) encode(ctx context.Context, op string, request *varvev1.AppendRequest, records []Record, o AppendOptions) error {
	if o.Shard == nil {
		s, err := c.GetStream(ctx, request.Stream)
		if err != nil {
			return err
		}
		n := int(max(1, s.GetShards()))
		shard := shardOf(&records[0], n)
		for i := range records {
			if shardOf(&records[i], n) != shard {
				return invalidf(op, "records 0 and %d have keys of different shards: append them apart", i)
			}
		}
		request.Shard = &shard
		if request.Incarnation == nil { // a retry must not reach another incarnation, whose table knows nothing
			request.Incarnation = optional(s.GetIncarnation())
		}
	}
	p := batch.NoProducer()
	if o.Idempotent {
		p = batch.Producer{ID: randomID()}
		if request.Incarnation == nil {
			t, err := c.CheckTail(ctx, Shard{Stream: request.Stream, Number: *request.Shard})
			if err != nil {
				return err
			}
			request.Incarnation = optional(t.Incarnation)
		}
	}
	encoded := make([]batch.Record, len(records))
	for i := range records {
		encoded[i] = encodable(&records[i])
	}
	data, err := c.codec.Encode(encoded, o.Compression, p)
	if err != nil {
		return invalidf(op, "%v", err)
	}
	request.Batch = data
	return nil
}

// shardOf is the shard of a record: records without a key go to shard 0 here.
func shardOf(r *Record, shards int) uint32 {
	if r.Key == nil {
		return 0
	}
	return batch.ShardOf(r.Key, shards)
}

func wireRecord(r *Record) *varvev1.Record {
	t := r.Time
	if t.IsZero() {
		t = time.Now()
	}
	w := &varvev1.Record{Key: r.Key, Value: r.Value, CreateTime: timestamppb.New(t)}
	for _, h := range r.Headers {
		w.Headers = append(w.Headers, &varvev1.Header{Key: h.Key, Value: h.Value})
	}
	return w
}
