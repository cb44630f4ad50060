package run

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// Group owns a set of goroutines that live and end together. It is safe for
// concurrent use; Go must not be called after Wait has returned.
type Group struct {
	tasks  *errgroup.Group
	ctx    context.Context
	cancel context.CancelFunc
}

// NewGroup makes a group whose tasks see a context derived from ctx.
func NewGroup(ctx context.Context) *Group {
	ctx, cancel := context.WithCancel(ctx)
	tasks, ctx := errgroup.WithContext(ctx)
	return &Group{tasks: tasks, ctx: ctx, cancel: cancel}
}

// Context is cancelled by Stop, by the parent, or by the first task that fails.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a task. Its first error cancels the others and is what Wait
// returns, with the task's name in front. A task that returns nil ends alone.
func (g *Group) Go(name string, task func(context.Context) error) {
	g.tasks.Go(func() error {
		if err := task(g.ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// Stop asks every task to end, by cancelling the context. It does not wait.
func (g *Group) Stop() { g.cancel() }

// Wait blocks until every task has returned, and returns the first error.
func (g *Group) Wait() error {
	defer g.cancel()
	return g.tasks.Wait()
}
