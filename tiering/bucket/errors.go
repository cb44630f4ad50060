package bucket

import (
	"errors"
	"fmt"
	"strings"

	"github.com/varve-io/varve/meta"
)

// What can go wrong. Each is also the error of package meta that it wraps, so
// that rooms above need to know only those. Test with errors.Is.
var (
	ErrNotExist    = meta.Errorf(meta.ErrNotFound, "no such object")
	ErrExists      = meta.Errorf(meta.ErrExists, "the object exists already and is not this writer's")
	ErrUnknown     = meta.Errorf(meta.ErrUnknown, "outcome unknown")
	ErrUnavailable = meta.Errorf(meta.ErrUnavailable, "the object store is unavailable")
	ErrCorrupt     = meta.Errorf(meta.ErrCorrupt, "the object's bytes are not what they should be")
	ErrInvalid     = meta.Errorf(meta.ErrInvalid, "invalid")
	ErrTooLarge    = meta.Errorf(meta.ErrExhausted, "the object is larger than the caller takes")

	// ErrDenied says that the store refused the credentials or that they lack a
	// permission. It is not retried within a call; a later call may succeed once
	// the permission is given, without a restart.
	ErrDenied = meta.Errorf(ErrUnavailable, "access denied")
	// ErrClock says that the store refuses requests because this machine's clock
	// is too far from its own.
	ErrClock = meta.Errorf(ErrUnavailable, "the clocks of this machine and the object store differ too much")
	// ErrFull says that the store or disk has no room left.
	ErrFull = meta.Errorf(ErrUnavailable, "the object store is full")
)

// Error is what went wrong with one object of one bucket. All methods of a
// Bucket return it, or an error that wraps it.
type Error struct {
	Op     string // "put", "get", ...
	Bucket string // location
	Key    string // or prefix, or empty
	Kind   error  // one of the errors above
	Err    error  // the cause, or nil
	Advice string // what to do next
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q in bucket %s: %v", e.Op, e.Key, e.Bucket, e.Kind)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Advice != "" {
		b.WriteString("; ")
		b.WriteString(e.Advice)
	}
	return b.String()
}

func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// DeleteError names the keys that a Delete could not remove, each with the
// reason.
type DeleteError struct {
	Failed []KeyError // never empty
}

// KeyError is the reason for which one key was not deleted.
type KeyError struct {
	Key string
	Err error
}

func (e *DeleteError) Error() string {
	first := e.Failed[0]
	if len(e.Failed) == 1 {
		return fmt.Sprintf("1 object was not deleted: %v", first.Err)
	}
	return fmt.Sprintf("%d objects were not deleted, the first: %v; call again with them", len(e.Failed), first.Err)
}

// Unwrap returns the distinct reasons, so that errors.Is finds each.
func (e *DeleteError) Unwrap() []error {
	var out []error
	for _, f := range e.Failed {
		known := false
		for _, o := range out {
			if o == f.Err { //nolint:errorlint // the same value, shared by a batch
				known = true
				break
			}
		}
		if !known && len(out) < 16 {
			out = append(out, f.Err)
		}
	}
	return out
}

// Keys returns the keys that failed.
func (e *DeleteError) Keys() []string {
	keys := make([]string, len(e.Failed))
	for i, f := range e.Failed {
		keys[i] = f.Key
	}
	return keys
}

// Remaining returns the keys of which an error of Delete says that they may
// still exist: those of a [DeleteError], none for nil.
func Remaining(err error) []string {
	var d *DeleteError
	if errors.As(err, &d) {
		return d.Keys()
	}
	return nil
}
