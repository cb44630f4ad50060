package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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
	for tick := time.NewTicker(echo / 4); ; {
		select {
		case <-hard:
			tick.Stop()
			return
		case <-tick.C:
			send(t)
		}
	}
}

// One wish to stop may arrive twice: that is not impatience.
func TestEchoIsNoSecondSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, stop := make(chan os.Signal), make(chan struct{})
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan bool, 1)
		go func() {
			var hard bool
			watch(signals, stop, cancel, func() { hard = true })
			ended <- hard
		}()
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM
		time.Sleep(echo - 1)
		signals <- syscall.SIGINT
		synctest.Wait()
		if len(ended) > 0 || ctx.Err() == nil {
			t.Error("the signal was taken for two")
		}
		time.Sleep(1)
		signals <- syscall.SIGINT
		if !<-ended {
			t.Error("the second signal did not end it")
		}
	})
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
