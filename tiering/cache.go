package tiering

import (
	"container/list"
	"context"
	"sync"

	"github.com/varve-io/varve/meta"
)

// cacheKey is an object and a place in it. Object keys carry the incarnation, so
// a recreated stream never meets a block of the one before.
type cacheKey struct {
	object string
	at     int64
}

// cache holds what was downloaded, least recently used first to go, and lets
// everyone who wants the same thing wait for one download. Values are read-only.
//
// A value is handed to all who wait for it whether or not it fits, and whoever
// holds one keeps it whatever is evicted. So a cache smaller than one block only
// costs more requests: it never stops a reader.
//
// Read-ahead lives on credit, half of the limit at most: a download ahead takes
// some, whoever reads it gives it back, and what is evicted unread is lost and earned
// again, slowly, by downloads that somebody waits for. So many scans at once in a
// cache that is too small for them read ahead less instead of fetching all of it
// several times.
type cache struct {
	limit int64
	count *counters
	wg    sync.WaitGroup // downloads

	mu      sync.Mutex
	closed  bool
	used    int64
	credit  int64 // bytes that may be fetched ahead
	ahead   int64 // bytes fetched ahead, or on their way, that nobody has asked for
	items   map[cacheKey]*list.Element
	order   list.List // of *item, most recent at the front
	flights map[cacheKey]*flight
}

type item struct {
	key   cacheKey
	value any
	size  int64
	ahead int64 // credit it holds until it is asked for
}

type flight struct {
	done  chan struct{} // closed when value and err are set
	value any
	err   error
	ahead int64 // as an item's
}

// earn is the part of a download that somebody waits for that becomes credit.
const earn = 8

func newCache(limit int64, count *counters) *cache {
	return &cache{limit: limit, count: count, credit: limit / 2, items: make(map[cacheKey]*list.Element), flights: make(map[cacheKey]*flight)}
}

// get returns the value, loading it if need be. The load runs on its own: when
// ctx ends the wait ends, and the download goes on for whoever asks next.
func (c *cache) get(ctx context.Context, key cacheKey, load func() (any, int64, error)) (any, error) {
	v, f, err := c.start(key, load)
	if f == nil {
		return v, err
	}
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		return nil, meta.Errorf(meta.ErrUnavailable, "wait for %s: %w", key.object, context.Cause(ctx))
	}
}

// prefetch starts a download unless the value is there or on its way, or the credit
// for it is used up; cost is what it takes, 0 for what the caller asks for next.
func (c *cache) prefetch(key cacheKey, cost int64, load func() (any, int64, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, have := c.items[key]
	if _, coming := c.flights[key]; !have && !coming && !c.closed && cost <= c.credit {
		c.credit -= cost
		c.ahead += cost
		c.fly(key, cost, load)
	}
}

// settle ends a claim on credit: given back, or lost.
func (c *cache) settle(ahead *int64, back bool) {
	c.ahead -= *ahead
	if back {
		c.credit += *ahead
	}
	*ahead = 0
}

// start returns the cached value, or the download that will bring it.
func (c *cache) start(key cacheKey, load func() (any, int64, error)) (any, *flight, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.items[key]; ok {
		it := e.Value.(*item)
		c.settle(&it.ahead, true)
		c.order.MoveToFront(e)
		c.count.hits.Add(1)
		return it.value, nil, nil
	}
	if f, ok := c.flights[key]; ok {
		c.settle(&f.ahead, true)
		c.count.hits.Add(1)
		return nil, f, nil
	}
	if c.closed {
		return nil, nil, meta.Errorf(meta.ErrUnavailable, "the store is closed")
	}
	c.count.misses.Add(1)
	return nil, c.fly(key, 0, load), nil
}

func (c *cache) fly(key cacheKey, ahead int64, load func() (any, int64, error)) *flight {
	f := &flight{done: make(chan struct{}), ahead: ahead}
	c.flights[key] = f
	c.wg.Go(func() { c.run(key, f, load) })
	return f
}

func (c *cache) run(key cacheKey, f *flight, load func() (any, int64, error)) {
	v, size, err := load()
	c.mu.Lock()
	defer c.mu.Unlock()
	f.value, f.err = v, err
	delete(c.flights, key)
	close(f.done)
	if f.ahead == 0 {
		c.credit = min(c.credit+size/earn, c.limit/2-c.ahead)
	}
	if err != nil || size > c.limit {
		c.settle(&f.ahead, true)
		return
	}
	c.items[key] = c.order.PushFront(&item{key: key, value: v, size: size, ahead: f.ahead})
	c.used += size
	for c.used > c.limit {
		c.drop(c.order.Back())
		c.count.evictions.Add(1)
	}
}

func (c *cache) drop(e *list.Element) {
	it := c.order.Remove(e).(*item)
	c.settle(&it.ahead, false)
	delete(c.items, it.key)
	c.used -= it.size
}

// forget drops all that is cached of the objects for which match says so.
func (c *cache) forget(match func(object string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.order.Front(); e != nil; {
		next := e.Next()
		if match(e.Value.(*item).key.object) {
			c.drop(e)
		}
		e = next
	}
}

func (c *cache) usage() (bytes, flights int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used, int64(len(c.flights))
}

// close refuses new downloads and waits for the running ones.
func (c *cache) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
}
