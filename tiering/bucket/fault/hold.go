package fault

import (
	"context"
	"sync"
)

// Hold keeps matching calls back, before their effect, until it is released.
type Hold struct {
	arrived chan struct{}
	release chan struct{}
	once    sync.Once
	remove  func()
}

// Hold holds the calls that f says: all that match, or Times of them if set. What
// else f says happens after the release.
func (b *Bucket) Hold(f Fault) *Hold {
	h := &Hold{arrived: make(chan struct{}, 1024), release: make(chan struct{})}
	if f.Times == 0 {
		f.Times = -1
	}
	h.remove = b.add(&rule{Fault: f, hold: h})
	return h
}

// Arrived gives one value for each call that is held.
func (h *Hold) Arrived() <-chan struct{} { return h.arrived }

// Release lets all held calls go on, and later ones through. Twice is fine.
func (h *Hold) Release() {
	h.remove()
	h.once.Do(func() { close(h.release) })
}

func (h *Hold) wait(ctx context.Context) error {
	select {
	case h.arrived <- struct{}{}:
	default: // nobody counts that many
	}
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
