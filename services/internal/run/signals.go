package run

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Signals returns a context that the first SIGINT or SIGTERM cancels; the
// cause (context.Cause) is a [SignalError]. The second signal calls hard, which
// should end the process at once; nil means os.Exit(ExitSecondSignal).
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
		for n := 0; ; n++ {
			select {
			case s := <-signals:
				if n > 0 {
					hard()
					return
				}
				cancel(&SignalError{Signal: s})
			case <-stop:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stop)
		<-stopped
		cancel(context.Canceled)
	}
}

// SignalError says which signal asked the process to stop.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return "stopped by " + e.Signal.String() }
