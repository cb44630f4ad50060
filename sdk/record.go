package sdk

import (
	"fmt"
	"time"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// Record is one record. Only the fields of the first block are sent.
type Record struct {
	Key, Value []byte // nil is null, which is not the same as empty
	Headers    []Header
	Time       time.Time // when it was made, kept to the millisecond; zero: now

	Shard       uint32
	Offset      uint64    // its place in the shard, from 0
	AppendTime  time.Time // when the shard's leader took it; never goes back in a shard
	Incarnation uint64    // of the stream
	Lineage     uint64    // of the shard
}

// Header is a header of a record; names may repeat.
type Header = batch.Header

// Position is the place of a stored record.
type Position struct {
	Shard       uint32
	Offset      uint64
	Incarnation uint64    // of the stream
	Lineage     uint64    // of the shard
	AppendTime  time.Time // when the shard's leader took it
	// Unknown says that the record was stored by an earlier try, so long ago that its
	// offset is no longer known.
	Unknown bool
}

// Position is the record's place.
func (r *Record) Position() Position {
	return Position{Shard: r.Shard, Offset: r.Offset, Incarnation: r.Incarnation, Lineage: r.Lineage, AppendTime: r.AppendTime}
}

// Shard names one shard of a stream.
type Shard struct {
	Stream string // "namespace/name"
	Number uint32
	// Incarnation, unless 0, is the only one that is meant: a request is refused with
	// [ErrStreamDeleted] rather than carried out on another one of the same name.
	Incarnation uint64
}

func (s Shard) String() string { return fmt.Sprintf("%s shard %d", s.Stream, s.Number) }

// Ack is how an append is acknowledged.
type Ack = varvev1.Ack

// Acknowledgement levels, weakest first. None and Leader are a hint only: with
// them there are no conditions and no idempotence. The zero value is Quorum.
const (
	AckNone    = varvev1.Ack_ACK_NONE    // at once
	AckLeader  = varvev1.Ack_ACK_LEADER  // the leader has it
	AckQuorum  = varvev1.Ack_ACK_QUORUM  // a quorum of copies has it
	AckArchive = varvev1.Ack_ACK_ARCHIVE // object storage has it
)

func optional(incarnation uint64) *uint64 {
	if incarnation == 0 {
		return nil
	}
	return &incarnation
}

func invalidf(op, format string, args ...any) *Error {
	return &Error{
		Op: op, Applied: AppliedNo, Err: ErrInvalid,
		Detail: &varvev1.ErrorDetail{Reason: varvev1.Reason_REASON_INVALID_ARGUMENT, Message: fmt.Sprintf(format, args...)},
	}
}

func encodable(r *Record) batch.Record {
	t := r.Time
	if t.IsZero() {
		t = time.Now()
	}
	return batch.Record{Key: r.Key, Value: r.Value, Headers: r.Headers, Time: t.UnixMilli()}
}
