package edge

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/broker"
)

// rule says how a domain error looks on the wire. Applied is NO unless the error
// says that it does not know: the broker decides that, not this table.
type rule struct {
	is        error
	code      connect.Code
	reason    varvev1.Reason
	retryable bool
}

// rules is the one table, most specific first. Errors with figures come before it
// (figures).
var rules = []rule{
	{meta.ErrUnauthenticated, connect.CodeUnauthenticated, varvev1.Reason_REASON_UNAUTHENTICATED, false},
	{meta.ErrDenied, connect.CodePermissionDenied, varvev1.Reason_REASON_PERMISSION_DENIED, false},
	{meta.ErrDeleted, connect.CodeNotFound, varvev1.Reason_REASON_STREAM_DELETED, false},
	{meta.ErrNotFound, connect.CodeNotFound, varvev1.Reason_REASON_NOT_FOUND, false},
	{meta.ErrExists, connect.CodeAlreadyExists, varvev1.Reason_REASON_ALREADY_EXISTS, false},
	{meta.ErrFenced, connect.CodeFailedPrecondition, varvev1.Reason_REASON_FENCE_TOKEN, false},
	{meta.ErrProducerFence, connect.CodeFailedPrecondition, varvev1.Reason_REASON_PRODUCER_FENCED, false},
	{meta.ErrUnknownWriter, connect.CodeFailedPrecondition, varvev1.Reason_REASON_UNKNOWN_PRODUCER, false},
	{meta.ErrConflict, connect.CodeAborted, varvev1.Reason_REASON_CONFLICT, true},
	{meta.ErrExhausted, connect.CodeResourceExhausted, varvev1.Reason_REASON_RESOURCE_EXHAUSTED, true},
	{meta.ErrCorrupt, connect.CodeDataLoss, varvev1.Reason_REASON_CORRUPT, false},
	{meta.ErrPoisoned, connect.CodeUnavailable, varvev1.Reason_REASON_UNAVAILABLE, true},
	{meta.ErrStranger, connect.CodeUnavailable, varvev1.Reason_REASON_NO_QUORUM, true},
	{meta.ErrFormatLevel, connect.CodeFailedPrecondition, varvev1.Reason_REASON_UNAVAILABLE, true},
	{meta.ErrInvalid, connect.CodeInvalidArgument, varvev1.Reason_REASON_INVALID_ARGUMENT, false},
	{batch.ErrInvalid, connect.CodeInvalidArgument, varvev1.Reason_REASON_INVALID_ARGUMENT, false},
	{meta.ErrUnknown, connect.CodeUnavailable, varvev1.Reason_REASON_UNAVAILABLE, true},
	{meta.ErrUnavailable, connect.CodeUnavailable, varvev1.Reason_REASON_UNAVAILABLE, true},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded, varvev1.Reason_REASON_UNAVAILABLE, true},
	{context.Canceled, connect.CodeCanceled, varvev1.Reason_REASON_UNAVAILABLE, true},
}

// detail turns an error into what a program reads of it.
func detail(err error) (*varvev1.ErrorDetail, connect.Code) {
	d := &varvev1.ErrorDetail{Message: err.Error(), Applied: varvev1.Applied_APPLIED_NO}
	code, ok := figures(err, d)
	var already *connect.Error
	if !ok && errors.As(err, &already) {
		code, ok = fromConnect(already, d), true
	}
	if !ok {
		code, d.Reason = connect.CodeInternal, varvev1.Reason_REASON_INTERNAL
		d.Applied = varvev1.Applied_APPLIED_UNKNOWN
		for _, r := range rules {
			if errors.Is(err, r.is) {
				code, d.Reason, d.Retryable = r.code, r.reason, r.retryable
				if r.is != context.Canceled && r.is != context.DeadlineExceeded { // wherever that met it
					d.Applied = varvev1.Applied_APPLIED_NO
				}
				break
			}
		}
	}
	var failure *broker.Failure
	var ended *unanswered
	if errors.As(err, &failure) && failure.Unknown || errors.As(err, &ended) || errors.Is(err, meta.ErrUnknown) || errors.Is(err, meta.ErrUnknownWriter) {
		d.Applied = varvev1.Applied_APPLIED_UNKNOWN
	}
	return d, code
}

// figures recognizes the errors that carry numbers.
func figures(err error, d *varvev1.ErrorDetail) (connect.Code, bool) {
	var (
		leader    *meta.NotLeader
		offset    *meta.OffsetOutOfRange
		condition *meta.ConditionFailed
		gap       *meta.SequenceGap
		quorum    *meta.NoQuorum
		throttled *meta.Throttled
		rewound   *rewoundError
		deleted   *deletedError
	)
	switch {
	case errors.As(err, &leader):
		d.Reason, d.Retryable = varvev1.Reason_REASON_NOT_LEADER, true
		d.Figures = &varvev1.ErrorDetail_NotLeader{NotLeader: &varvev1.NotLeader{Leader: string(leader.Leader)}}
		return connect.CodeUnavailable, true
	case errors.As(err, &offset):
		d.Reason = varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE
		d.Figures = &varvev1.ErrorDetail_OffsetOutOfRange{OffsetOutOfRange: &varvev1.OffsetOutOfRange{
			Start: uint64(offset.Start), End: uint64(offset.End), Asked: uint64(offset.Asked)}}
		return connect.CodeOutOfRange, true
	case errors.As(err, &condition):
		d.Reason = varvev1.Reason_REASON_CONDITION_FAILED
		d.Figures = &varvev1.ErrorDetail_ConditionFailed{ConditionFailed: &varvev1.ConditionFailed{
			Expected: uint64(condition.Expected), Actual: uint64(condition.Actual)}}
		return connect.CodeFailedPrecondition, true
	case errors.As(err, &gap):
		d.Reason = varvev1.Reason_REASON_SEQUENCE_GAP
		if gap.UnknownApplied || errors.Is(err, meta.ErrUnknownWriter) {
			d.Reason, d.Applied = varvev1.Reason_REASON_UNKNOWN_PRODUCER, varvev1.Applied_APPLIED_UNKNOWN
		}
		d.Figures = &varvev1.ErrorDetail_SequenceGap{SequenceGap: &varvev1.SequenceGap{
			ProducerId: gap.Producer, Epoch: int32(gap.ProducerEpoch), Got: gap.Got, Want: gap.Want}}
		return connect.CodeFailedPrecondition, true
	case errors.As(err, &quorum):
		d.Reason, d.Retryable = varvev1.Reason_REASON_NO_QUORUM, true
		d.Figures = &varvev1.ErrorDetail_NoQuorum{NoQuorum: &varvev1.NoQuorum{Waiting: quorum.Waiting}}
		return connect.CodeUnavailable, true
	case errors.As(err, &throttled):
		d.Reason, d.Retryable = varvev1.Reason_REASON_THROTTLED, true
		d.Figures = &varvev1.ErrorDetail_Throttled{Throttled: &varvev1.Throttled{RetryAfter: durationpb.New(throttled.RetryAfter)}}
		return connect.CodeResourceExhausted, true
	case errors.As(err, &deleted):
		d.Reason = varvev1.Reason_REASON_STREAM_DELETED
		d.Figures = &varvev1.ErrorDetail_StreamDeleted{StreamDeleted: &varvev1.StreamDeleted{
			Stream: deleted.stream.String(), Incarnation: uint64(deleted.asked), Current: uint64(deleted.current)}}
		return connect.CodeNotFound, true
	case errors.As(err, &rewound):
		d.Reason = varvev1.Reason_REASON_REWOUND
		d.Figures = &varvev1.ErrorDetail_Rewound{Rewound: &varvev1.Rewound{Asked: uint64(rewound.asked), Lineage: uint64(rewound.lineage)}}
		return connect.CodeFailedPrecondition, true
	}
	return 0, false
}

// rewoundError says that a position belongs to a history that was cut.
type rewoundError struct{ asked, lineage meta.Lineage }

func (e *rewoundError) Error() string {
	return fmt.Sprintf("the position belongs to lineage %s of the shard, which has gone on to %s since: what followed a cut may stand under the same offsets; start from an offset or time you trust, without a lineage",
		meta.Hex(e.asked), meta.Hex(e.lineage))
}

// deletedError is an incarnation that is gone, with figures.
type deletedError struct {
	stream  meta.StreamName
	asked   meta.Incarnation
	current meta.Incarnation // that has the name now; 0: none, or not known
	err     error
}

func (e *deletedError) Error() string { return e.err.Error() }
func (e *deletedError) Unwrap() error { return e.err }

// unanswered is why a session ended: of what it had sent and was not answered,
// the outcome is unknown.
type unanswered struct{ err error }

func (e *unanswered) Error() string { return e.err.Error() }
func (e *unanswered) Unwrap() error { return e.err }

// byCode are the errors that connect makes itself.
var byCode = map[connect.Code]rule{
	connect.CodeInvalidArgument:   {reason: varvev1.Reason_REASON_INVALID_ARGUMENT},
	connect.CodeResourceExhausted: {reason: varvev1.Reason_REASON_INVALID_ARGUMENT}, // a message is too large
	connect.CodeUnimplemented:     {reason: varvev1.Reason_REASON_INVALID_ARGUMENT},
	connect.CodeCanceled:          {reason: varvev1.Reason_REASON_UNAVAILABLE, retryable: true},
	connect.CodeDeadlineExceeded:  {reason: varvev1.Reason_REASON_UNAVAILABLE, retryable: true},
	connect.CodeUnavailable:       {reason: varvev1.Reason_REASON_UNAVAILABLE, retryable: true},
	connect.CodeUnknown:           {reason: varvev1.Reason_REASON_UNAVAILABLE, retryable: true}, // a transport that broke
}

// fromConnect describes an error that is connect's. It comes from the way here,
// so nothing was applied.
func fromConnect(e *connect.Error, d *varvev1.ErrorDetail) connect.Code {
	d.Message = e.Message()
	for _, more := range e.Details() {
		if v, err := more.Value(); err == nil {
			if was, ok := v.(*varvev1.ErrorDetail); ok {
				proto.Merge(d, was)
				return e.Code()
			}
		}
	}
	r, ok := byCode[e.Code()]
	if !ok {
		r.reason, d.Applied = varvev1.Reason_REASON_INTERNAL, varvev1.Applied_APPLIED_UNKNOWN
	}
	d.Reason, d.Retryable = r.reason, r.retryable
	return e.Code()
}

// wire turns an error into a Connect error with its detail.
func wire(err error) error {
	if err == nil {
		return nil
	}
	d, code := detail(err)
	out := connect.NewError(code, errors.New(d.Message))
	if more, err := connect.NewErrorDetail(d); err == nil {
		out.AddDetail(more)
	}
	return out
}
