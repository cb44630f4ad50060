package meta

import (
	"errors"
	"fmt"
	"time"
)

// Errors that cross rooms. Test with errors.Is for the sentinels and errors.As
// for the types that carry figures. The edge has one table that maps each to a
// wire code, a reason, and what a client may do next.
var (
	ErrInvalid         = errors.New("invalid")                    // the caller's input breaks a rule
	ErrNotFound        = errors.New("not found")                  // no such namespace, stream, shard
	ErrExists          = errors.New("already exists")             // a name that is taken
	ErrDeleted         = errors.New("stream deleted")             // that incarnation is covered by a tombstone
	ErrUnavailable     = errors.New("unavailable")                // try again; nothing was applied
	ErrUnknown         = errors.New("outcome unknown")            // may have been applied
	ErrExhausted       = errors.New("resource exhausted")         // disk, quota or table full; nothing was applied
	ErrCorrupt         = errors.New("corrupt")                    // bytes that do not verify
	ErrPoisoned        = errors.New("storage failed")             // a write or sync failed; the broker stops
	ErrStranger        = errors.New("stranger")                   // this copy may have lost its tail
	ErrFormatLevel     = errors.New("format level changed")       // the writer is older than the cluster's level
	ErrConflict        = errors.New("conflict")                   // a compare-and-swap lost
	ErrForeign         = errors.New("belongs to another cluster") // prefix, directory or copy of somebody else
	ErrFenced          = errors.New("fence token refused")        // fence token missing or stale
	ErrProducerFence   = errors.New("producer fenced")            // older producer epoch
	ErrUnauthenticated = errors.New("unauthenticated")            // the caller is not known
	ErrDenied          = errors.New("permission denied")          // the caller may not do this
	ErrUnknownWriter   = errors.New("unknown producer")           // a sequence above 0 from a producer not in the table
)

// Invalidf makes an error that is an [ErrInvalid].
func Invalidf(format string, args ...any) error { return Errorf(ErrInvalid, format, args...) }

// Errorf makes an error with the given message that is also kind, without
// repeating kind's own words.
func Errorf(kind error, format string, args ...any) error {
	return &kinded{kind: kind, err: fmt.Errorf(format, args...)}
}

type kinded struct{ kind, err error }

func (e *kinded) Error() string   { return e.err.Error() }
func (e *kinded) Unwrap() []error { return []error{e.kind, e.err} }

// OffsetOutOfRange says that an offset lies outside [Start, End].
type OffsetOutOfRange struct {
	Asked, Start, End Offset
}

func (e *OffsetOutOfRange) Error() string {
	return fmt.Sprintf("offset %d is out of range: the stream holds %d up to, but not including, %d", e.Asked, e.Start, e.End)
}

// ConditionFailed says that an append's expected offset was not the end of the log.
type ConditionFailed struct {
	Expected, Actual Offset
}

func (e *ConditionFailed) Error() string {
	return fmt.Sprintf("expected the next offset to be %d, but it is %d", e.Expected, e.Actual)
}

// SequenceGap says that a producer's batch does not follow its last one.
type SequenceGap struct {
	Producer       int64
	Got, Want      int32
	ProducerEpoch  int16
	UnknownApplied bool // an unknown producer: the batch may have been stored before it was forgotten
}

func (e *SequenceGap) Error() string {
	return fmt.Sprintf("producer %d epoch %d sent sequence %d, but %d is next", e.Producer, e.ProducerEpoch, e.Got, e.Want)
}

// NotLeader says that another broker leads the shard, if any is known.
type NotLeader struct{ Leader BrokerID }

func (e *NotLeader) Error() string {
	if e.Leader == "" {
		return "no broker leads this shard yet"
	}
	return fmt.Sprintf("broker %s leads this shard", e.Leader)
}

// NoQuorum says that a shard waits for copies and why each does not count.
type NoQuorum struct {
	Shard   ShardID
	Waiting []string // one "member: reason" a copy
}

func (e *NoQuorum) Error() string {
	return fmt.Sprintf("shard %s has no quorum; waiting for: %q", e.Shard, e.Waiting)
}

// Throttled says that nothing was applied and when to try again.
type Throttled struct {
	RetryAfter time.Duration
	Why        string
}

func (e *Throttled) Error() string {
	return fmt.Sprintf("throttled: %s; try again in %s", e.Why, e.RetryAfter)
}
