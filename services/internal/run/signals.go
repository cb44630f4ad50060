package run

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Signals returns a context that the first SIGINT or SIGTERM cancels; the
// cause (context.Cause) is a [SignalError]. The second signal calls hard, which
// should end the process at once; nil means os.Exit(ExitSecondSignal). What comes
// within [echo] of the first is the same signal.
//
// The returned function gives the signals back to their default handling and
// waits for the watcher to end.
func Signals(ctx context.Context, hard func()) (context.Context, func()) {
	if hard == nil {
		hard = func() { os.Exit(ExitSecondSignal) }
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(ctx)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		watch(signals, stop, cancel, hard)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		<-stopped
		cancel(context.Canceled)
	}
}

// echo is how long one wish to stop may go on arriving: timeout(1) signals the
// process and then its group, a terminal and a supervisor may both pass one on.
const echo = 200 * time.Millisecond

func watch(signals <-chan os.Signal, stop <-chan struct{}, cancel context.CancelCauseFunc, hard func()) {
	var first time.Time
	for {
		select {
		case s := <-signals:
			switch {
			case first.IsZero():
				first = time.Now()
				cancel(&SignalError{Signal: s})
			case time.Since(first) >= echo:
				hard()
				return
			}
		case <-stop:
			return
		}
	}
}

// SignalError says which signal asked the process to stop.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return "stopped by " + e.Signal.String() }
