package memkv

import (
	"context"
	"strings"
	"sync"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// watch pumps one prefix's events from the store's log into a channel.
type watch struct {
	s      *Store
	prefix string
	next   catalog.Revision // first revision not delivered yet; owned by the pump
	c      chan catalog.Changes
	woken  chan struct{}
	done   chan struct{}
	ended  chan struct{}
	once   sync.Once

	mu  sync.Mutex
	err error
}

// Watch implements catalog.KV.
func (s *Store) Watch(ctx context.Context, prefix string, from catalog.Revision) catalog.Watch {
	w := &watch{
		s: s, prefix: prefix, next: from,
		c: make(chan catalog.Changes), woken: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}),
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		w.err = meta.Errorf(meta.ErrUnavailable, "%w", catalog.ErrClosed)
		close(w.c)
		close(w.ended)
		return w
	}
	s.watches[w] = struct{}{}
	s.mu.Unlock()
	go w.pump(ctx)
	return w
}

func (s *Store) wake() {
	for w := range s.watches {
		select {
		case w.woken <- struct{}{}:
		default:
		}
	}
}

func (w *watch) C() <-chan catalog.Changes { return w.c }

func (w *watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close ends the watch and waits for its pump.
func (w *watch) Close() { w.end(nil) }

// end stops the pump with a reason and waits for it.
func (w *watch) end(err error) {
	w.fail(err)
	w.once.Do(func() { close(w.done) })
	<-w.ended
}

func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *watch) pump(ctx context.Context) {
	defer func() {
		w.s.mu.Lock()
		delete(w.s.watches, w)
		w.s.mu.Unlock()
		close(w.c)
		close(w.ended)
	}()
	for {
		ch, err := w.collect()
		if err != nil {
			w.fail(err)
			return
		}
		var out chan catalog.Changes
		if len(ch.Events) > 0 {
			out = w.c
		}
		select {
		case out <- ch:
			w.next = ch.Revision + 1
		case <-w.woken:
			if out != nil {
				continue // deliver what is newer too; the same events are collected again
			}
		case <-w.done:
			return
		case <-ctx.Done():
			w.fail(ctx.Err())
			return
		}
	}
}

// collect gathers the prefix's events that were not delivered yet.
func (w *watch) collect() (catalog.Changes, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.next < w.s.compacted {
		return catalog.Changes{}, catalog.ErrCompacted
	}
	if w.next > w.s.revision+1 {
		return catalog.Changes{}, catalog.ErrFuture
	}
	ch := catalog.Changes{Revision: w.s.revision}
	for _, e := range w.s.log {
		if e.KV.Mod >= w.next && strings.HasPrefix(e.KV.Key, w.prefix) {
			e.KV = clone(e.KV)
			ch.Events = append(ch.Events, e)
		}
	}
	return ch, nil
}
