package run

import (
	"errors"

	"github.com/varve-io/varve/meta"
)

// Exit codes of every program of the house.
const (
	ExitClean        = 0
	ExitError        = 1
	ExitUsage        = 2
	ExitStorage      = 74 // EX_IOERR of sysexits
	ExitSecondSignal = 130
)

// UsageError is a mistake in flags, environment or configuration file: nothing
// was started.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ExitCode turns what a program ended with into its exit code. A stop by signal
// is clean; a failed disk has its own code, so that a supervisor can tell it
// from a crash and leave the process down.
func ExitCode(err error) int {
	var usage *UsageError
	var stopped *SignalError
	switch {
	case err == nil:
		return ExitClean
	case errors.Is(err, meta.ErrPoisoned):
		return ExitStorage
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &stopped):
		return ExitClean
	default:
		return ExitError
	}
}
