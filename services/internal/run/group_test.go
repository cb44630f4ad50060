package run

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestGroupFirstErrorCancelsAndIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := NewGroup(t.Context())
		cause := errors.New("boom")
		group.Go("reader", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Hour) // a slow clean-up: Wait waits for it
			return ctx.Err()
		})
		group.Go("writer", func(context.Context) error { return cause })
		start := time.Now()
		err := group.Wait()
		if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "writer: ") {
			t.Errorf("Wait returned %v, want the first error with its task's name", err)
		}
		if time.Since(start) < time.Hour {
			t.Error("Wait did not wait for the other task")
		}
	})
}

func TestGroupTaskMayEndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := NewGroup(t.Context())
		group.Go("short", func(context.Context) error { return nil })
		stopped := false
		group.Go("long", func(ctx context.Context) error {
			<-ctx.Done()
			stopped = true
			return nil
		})
		synctest.Wait()
		if group.Context().Err() != nil {
			t.Fatal("a task that ended well cancelled the others")
		}
		group.Stop()
		if err := group.Wait(); err != nil || !stopped {
			t.Errorf("after Stop: %v, the task ran to its end: %v", err, stopped)
		}
	})
}
