package run

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
)

func TestSecondSignalIsImmediate(t *testing.T) {
	hard := make(chan struct{})
	ctx, stop := Signals(t.Context(), func() { close(hard) })
	defer stop()
	send(t)
	<-ctx.Done()
	var by *SignalError
	if err := context.Cause(ctx); !errors.As(err, &by) || by.Signal != syscall.SIGTERM {
		t.Errorf("the cause is %v, want the signal", err)
	}
	select {
	case <-hard:
		t.Fatal("the first signal was taken for the second")
	default:
	}
	send(t)
	<-hard
}

func TestSignalsStopLeavesNothingBehind(t *testing.T) {
	ctx, stop := Signals(t.Context(), func() { t.Error("no signal was sent") })
	stop() // waits for the watcher
	if ctx.Err() == nil {
		t.Error("the context outlives its watcher")
	}
}

func send(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("any"), 1},
		{fmt.Errorf("start: %w", &UsageError{errors.New("--x")}), 2},
		{fmt.Errorf("broker: %w", meta.Errorf(meta.ErrPoisoned, "fsync of 000001.log: EIO")), 74},
		{&UsageError{meta.ErrPoisoned}, 74},
		{&SignalError{syscall.SIGTERM}, 0},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("ExitCode(%v) is %d, want %d", c.err, got, c.want)
		}
	}
}
