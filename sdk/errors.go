package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"connectrpc.com/connect"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// What can go wrong. Test with errors.Is; figures are in [Error.Detail].
var (
	ErrInvalid          = errors.New("invalid argument")
	ErrNotFound         = errors.New("not found")
	ErrExists           = errors.New("already exists")
	ErrStreamDeleted    = errors.New("stream deleted or recreated")
	ErrNotLeader        = errors.New("not the shard's leader")
	ErrNoQuorum         = errors.New("no quorum")
	ErrOffsetOutOfRange = errors.New("offset out of range")
	ErrConditionFailed  = errors.New("expected offset does not match")
	ErrFenceToken       = errors.New("fence token refused")
	ErrProducerFenced   = errors.New("producer fenced")
	ErrSequenceGap      = errors.New("sequence gap")
	ErrUnknownProducer  = errors.New("unknown producer")
	ErrRewound          = errors.New("history was cut")
	ErrThrottled        = errors.New("throttled")
	ErrExhausted        = errors.New("resource exhausted")
	ErrUnavailable      = errors.New("unavailable")
	ErrCorrupt          = errors.New("corrupt")
	ErrConflict         = errors.New("conflict")
	ErrDenied           = errors.New("permission denied")
	ErrUnauthenticated  = errors.New("unauthenticated")
	ErrInternal         = errors.New("internal error")

	// ErrClosed is for calls after Close, and for what Close could not deliver.
	ErrClosed = errors.New("closed")
	// ErrAborted is for an append that was given up because one before it failed;
	// that one's error is wrapped.
	ErrAborted = errors.New("aborted after an earlier append failed")
	// ErrDeliveryTimeout is for an append that could not be delivered in time.
	ErrDeliveryTimeout = errors.New("delivery timeout")
)

func sentinelOf(r varvev1.Reason) error {
	switch r {
	case varvev1.Reason_REASON_INVALID_ARGUMENT:
		return ErrInvalid
	case varvev1.Reason_REASON_NOT_FOUND:
		return ErrNotFound
	case varvev1.Reason_REASON_ALREADY_EXISTS:
		return ErrExists
	case varvev1.Reason_REASON_STREAM_DELETED:
		return ErrStreamDeleted
	case varvev1.Reason_REASON_NOT_LEADER:
		return ErrNotLeader
	case varvev1.Reason_REASON_NO_QUORUM:
		return ErrNoQuorum
	case varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE:
		return ErrOffsetOutOfRange
	case varvev1.Reason_REASON_CONDITION_FAILED:
		return ErrConditionFailed
	case varvev1.Reason_REASON_FENCE_TOKEN:
		return ErrFenceToken
	case varvev1.Reason_REASON_PRODUCER_FENCED:
		return ErrProducerFenced
	case varvev1.Reason_REASON_SEQUENCE_GAP:
		return ErrSequenceGap
	case varvev1.Reason_REASON_UNKNOWN_PRODUCER:
		return ErrUnknownProducer
	case varvev1.Reason_REASON_REWOUND:
		return ErrRewound
	case varvev1.Reason_REASON_THROTTLED:
		return ErrThrottled
	case varvev1.Reason_REASON_RESOURCE_EXHAUSTED:
		return ErrExhausted
	case varvev1.Reason_REASON_UNAVAILABLE:
		return ErrUnavailable
	case varvev1.Reason_REASON_CORRUPT:
		return ErrCorrupt
	case varvev1.Reason_REASON_CONFLICT:
		return ErrConflict
	case varvev1.Reason_REASON_PERMISSION_DENIED:
		return ErrDenied
	case varvev1.Reason_REASON_UNAUTHENTICATED:
		return ErrUnauthenticated
	case varvev1.Reason_REASON_INTERNAL:
		return ErrInternal
	}
	return nil
}

// Applied says whether a failed request was carried out.
type Applied uint8

const (
	// AppliedUnknown: perhaps. Sending it again may store it twice.
	AppliedUnknown Applied = iota
	// AppliedNo: certainly not.
	AppliedNo
)

func (a Applied) String() string {
	if a == AppliedNo {
		return "no"
	}
	return "unknown"
}

// Error is every error of this package.
type Error struct {
	Op        string               // what was tried, for example "append to logs/app"
	Detail    *varvev1.ErrorDetail // what the server said; nil when it said nothing
	Retryable bool                 // whether the same may succeed later
	Applied   Applied
	Err       error // the cause
}

func (e *Error) Error() string {
	text := "no reason given"
	switch {
	case e.Detail.GetMessage() != "":
		text = e.Detail.GetMessage()
	case e.Err != nil:
		text = e.Err.Error()
	}
	if e.Applied == AppliedUnknown {
		text += " (it may have been applied)"
	}
	return e.Op + ": " + text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches the reason that the server gave; without one, a failure that may pass is
// [ErrUnavailable].
func (e *Error) Is(target error) bool {
	if e.Detail == nil && e.Retryable {
		return target == ErrUnavailable
	}
	s := sentinelOf(e.Detail.GetReason())
	return s != nil && s == target
}

// RetryAfter is how long the server asks to wait, at most a minute; 0 when it did not
// say.
func (e *Error) RetryAfter() time.Duration {
	return min(max(0, e.Detail.GetThrottled().GetRetryAfter().AsDuration()), time.Minute)
}

// AppliedOf says whether what failed with err was carried out. It is unknown for
// errors of other packages.
func AppliedOf(err error) Applied {
	var e *Error
	if errors.As(err, &e) {
		return e.Applied
	}
	return AppliedUnknown
}

// errorOf makes an Error of what a call returned.
func errorOf(op string, err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	e := &Error{Op: op, Err: err}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return e // the caller's own wish, or a deadline that the server keeps
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		e.Retryable = true
		return e
	}
	for _, d := range ce.Details() {
		if v, err := d.Value(); err == nil {
			if detail, ok := v.(*varvev1.ErrorDetail); ok {
				return ofDetail(op, detail, ce)
			}
		}
	}
	switch ce.Code() {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeUnimplemented:
		e.Applied = AppliedNo // refused before it reached a handler
	case connect.CodeResourceExhausted, connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeAlreadyExists, connect.CodeDataLoss:
		// A message over a size limit, for example: the same would fail again.
	default:
		e.Retryable = true
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			e.Err = fmt.Errorf("the connection to the server broke: %w", err)
		}
		if neverSent(err) {
			e.Applied = AppliedNo
		}
	}
	return e
}

func ofDetail(op string, d *varvev1.ErrorDetail, cause error) *Error {
	e := &Error{Op: op, Detail: d, Retryable: d.GetRetryable(), Err: cause}
	if d.GetApplied() == varvev1.Applied_APPLIED_NO {
		e.Applied = AppliedNo
	}
	if cause == nil {
		e.Err = fmt.Errorf("%s", d.GetReason())
	}
	return e
}

// neverSent reports whether no byte of the request can have left: there was no
// connection.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
