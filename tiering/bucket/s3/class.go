package s3

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/varve-io/varve/tiering/bucket"
)

// class is one kind of calls with a retry budget of its own, so that none of them
// starves another.
//
//	well --failure--> failing: requests pass at the limiter's rate
//	failing --any answer that shows the store at work--> well: all who wait pass
type class struct {
	name    string
	budget  Budget
	backoff time.Duration
	events  Events
	renew   func() // credentials were refused
	limiter *rate.Limiter

	mu     sync.Mutex
	last   error         // why the class fails; nil when well
	healed chan struct{} // closed when the class is well again; nil when well
}

func newClass(name string, budget Budget, opts Options, renew func()) *class {
	return &class{name: name, budget: budget, backoff: opts.MaxBackoff, events: opts.Events, renew: renew,
		limiter: rate.NewLimiter(rate.Limit(budget.PerSecond), max(1, int(budget.PerSecond)))}
}

// do runs attempt until it succeeds, its verdict is final, the budget is used up or
// ctx ends. Each attempt has timeout. The error is the last attempt's verdict.
func (c *class) do(ctx context.Context, request string, timeout time.Duration, attempt func(context.Context) error) error {
	var last *verdict
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := c.admit(ctx); err != nil {
			if last == nil {
				last = err
			}
			return struct{}{}, backoff.Permanent(err)
		}
		begun := time.Now()
		attemptCtx, cancel := context.WithTimeout(ctx, timeout)
		err := attempt(attemptCtx)
		cancel()
		if c.events.Request != nil {
			c.events.Request(request, time.Since(begun), err)
		}
		if err == nil {
			c.note(nil)
			return struct{}{}, nil
		}
		last = classify(err)
		c.note(last)
		if ctx.Err() != nil || !last.retry {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithBackOff(c.pace()), backoff.WithMaxElapsedTime(c.budget.For), backoff.WithNotify(func(err error, wait time.Duration) {
		if c.events.Retry != nil {
			c.events.Retry(request, err, wait)
		}
	}))
	switch {
	case err == nil:
		return nil
	case last != nil:
		return last
	}
	return classify(err)
}

// pace is the waits between attempts: from 100 ms, doubled, half of it by chance.
func (c *class) pace() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = min(100*time.Millisecond, c.backoff)
	b.Multiplier = 2
	b.RandomizationFactor = 0.5
	b.MaxInterval = c.backoff
	return b
}

// admit waits for a turn while the class fails. Nothing is sent for a context that has
// ended.
func (c *class) admit(ctx context.Context) *verdict {
	if ctx.Err() != nil {
		return &verdict{kind: bucket.ErrUnavailable, err: context.Cause(ctx), own: true, advice: "the caller gave up; nothing was sent"}
	}
	c.mu.Lock()
	last, healed := c.last, c.healed
	c.mu.Unlock()
	if healed == nil {
		return nil
	}
	turn := c.limiter.Reserve()
	wait := turn.Delay()
	if wait == 0 {
		return nil
	}
	if wait > c.budget.For {
		turn.Cancel()
		return &verdict{kind: bucket.ErrUnavailable, err: last, advice: "too many calls wait for the store; try again later"}
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-healed:
		turn.Cancel()
		return nil
	case <-ctx.Done():
		turn.Cancel()
		return &verdict{kind: bucket.ErrUnavailable, err: errors.Join(context.Cause(ctx), last), advice: "the store failed before; try again later"}
	}
}

// note takes the outcome of a request.
func (c *class) note(v *verdict) {
	if v != nil && v.renew {
		c.renew()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch sick := v != nil && v.sick; {
	case sick && c.healed == nil:
		c.last, c.healed = v, make(chan struct{})
	case sick:
		c.last = v
	case c.healed != nil && (v == nil || !v.own):
		close(c.healed)
		c.last, c.healed = nil, nil
	}
}
