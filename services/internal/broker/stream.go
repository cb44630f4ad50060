package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// routeAge is how long a stream's row is believed without another look. It
// bounds how late changed settings take effect; identity does not hang on it: a
// deleted stream's shards end at once, and a shard's row is read before it leads.
const routeAge = 5 * time.Second

// mostRoutes bounds the cache of rows.
const mostRoutes = 100_000

// Stream is a stream with the settings that hold for it.
type Stream struct {
	catalog.StreamRow
	Effective catalog.StreamConfig
	Namespace catalog.NamespaceConfig
}

type route struct {
	stream *Stream // shared, never changed
	read   time.Time
}

// routes caches streams by name. Rows that are too old to be believed leave with
// their generation, so that nothing is kept for streams that nobody asks for.
type routes struct {
	mu        sync.Mutex
	rows, old map[meta.StreamName]route
	turned    time.Time // when rows was begun
}

func (r *routes) get(n meta.StreamName, now time.Time) (Stream, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.rows[n]
	if !ok {
		c, ok = r.old[n]
	}
	if !ok || now.Sub(c.read) >= routeAge {
		return Stream{}, false
	}
	return *c.stream, true
}

func (r *routes) put(s *Stream, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	if len(r.rows) >= mostRoutes || r.rows == nil {
		r.rows = make(map[meta.StreamName]route) // the working set is back soon
	}
	r.rows[s.Name] = route{s, now}
}

// turn begins a new generation when it is time. r.mu is held.
func (r *routes) turn(now time.Time) {
	if now.Sub(r.turned) >= routeAge {
		r.rows, r.old, r.turned = nil, r.rows, now
	}
}

// age lets old rows go.
func (r *routes) age(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
}

func (r *routes) drop(n meta.StreamName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rows, n)
	delete(r.old, n)
}

// Stream finds the stream that has a name now. A caller that means one creation
// of it names the incarnation; another one's is never returned in its place:
// meta.ErrDeleted.
func (b *Broker) Stream(ctx context.Context, n meta.StreamName, incarnation meta.Incarnation) (Stream, error) {
	s, ok := b.routes.get(n, b.opts.Now())
	if !ok || incarnation != 0 && s.Incarnation != incarnation {
		var err error
		if s, err = b.readStream(ctx, n); err != nil {
			return Stream{}, err
		}
	}
	if incarnation != 0 && s.Incarnation != incarnation {
		return Stream{}, meta.Errorf(meta.ErrDeleted, "stream %s: incarnation %d is gone, %d has its name", n, incarnation, s.Incarnation)
	}
	return s, nil
}

func (b *Broker) readStream(ctx context.Context, n meta.StreamName) (Stream, error) {
	row, err := b.opts.Catalog.Stream(ctx, n)
	if err != nil {
		b.routes.drop(n)
		return Stream{}, err
	}
	ns, err := b.opts.Catalog.Namespace(ctx, n.Namespace)
	if err != nil {
		return Stream{}, err
	}
	s := b.Effective(row, ns.Config)
	b.routes.put(&s, b.opts.Now())
	b.renew(&s)
	return s, nil
}

// renew gives the shards of a stream its newest settings.
func (b *Broker) renew(st *Stream) {
	var list []*shard
	b.mu.RLock()
	if h := b.held[st.Name]; h != nil {
		for _, s := range h.shards {
			if s.id.Incarnation == st.Incarnation {
				list = append(list, s)
			}
		}
	}
	b.mu.RUnlock()
	now := b.opts.Now()
	for _, s := range list {
		s.mu.Lock()
		if s.stream == nil || s.stream.Revision <= st.Revision {
			s.stream, s.read = st, now
		}
		s.mu.Unlock()
	}
}

// Effective fills in the settings of a stream from its namespace and the server.
func (b *Broker) Effective(row catalog.StreamRow, ns catalog.NamespaceConfig) Stream {
	return Stream{StreamRow: row, Namespace: ns, Effective: row.Config.Over(ns.Defaults).Over(b.opts.Defaults)}
}

// FindOrCreate is Stream for a first append (or read): where the namespace allows
// it, a name without a stream gets one.
func (b *Broker) FindOrCreate(ctx context.Context, n meta.StreamName, incarnation meta.Incarnation, reading bool) (Stream, error) {
	s, err := b.Stream(ctx, n, incarnation)
	if incarnation != 0 || !errors.Is(err, meta.ErrNotFound) {
		return s, err
	}
	ns, nsErr := b.opts.Catalog.Namespace(ctx, n.Namespace)
	if errors.Is(nsErr, meta.ErrNotFound) && b.opts.AutoCreate && !reading {
		ns, nsErr = b.createNamespace(ctx, n.Namespace)
	}
	if nsErr != nil {
		return s, nsErr
	}
	if reading && !ns.Config.CreateOnRead || !reading && !ns.Config.CreateOnAppend {
		return s, err
	}
	if _, _, err := b.opts.Catalog.Create(ctx, catalog.CreateStream{Name: n}); err != nil && !errors.Is(err, meta.ErrExists) {
		return s, err
	}
	return b.readStream(ctx, n)
}

// CreateStream makes a stream that somebody asked for by name; its namespace too,
// where Options.AutoCreate lets namespaces come into being by use.
func (b *Broker) CreateStream(ctx context.Context, c catalog.CreateStream) (catalog.StreamRow, error) {
	row, _, err := b.opts.Catalog.Create(ctx, c)
	if !errors.Is(err, meta.ErrNotFound) || !b.opts.AutoCreate {
		return row, err
	}
	if _, err := b.createNamespace(ctx, c.Name.Namespace); err != nil {
		return row, err
	}
	row, _, err = b.opts.Catalog.Create(ctx, c)
	return row, err
}

// createNamespace makes the namespace of a first use, in which streams come into
// being by use as well; one that somebody else makes meanwhile is as good.
func (b *Broker) createNamespace(ctx context.Context, name string) (catalog.NamespaceRow, error) {
	row, err := b.opts.Catalog.CreateNamespace(ctx, name, catalog.NamespaceConfig{CreateOnAppend: true}, "")
	if errors.Is(err, meta.ErrExists) {
		return b.opts.Catalog.Namespace(ctx, name)
	}
	return row, err
}

// Forget drops what is cached of a name; for callers that changed its row.
func (b *Broker) Forget(n meta.StreamName) { b.routes.drop(n) }

// Delete removes a stream and all its data. safe is false when its tombstone
// could not be written to the bucket in time: the stream is deleted, but not yet
// safe against a restore; the broker goes on trying.
func (b *Broker) Delete(ctx context.Context, n meta.StreamName, incarnation meta.Incarnation) (gone catalog.Deleted, safe bool, err error) {
	gone, err = b.opts.Catalog.Delete(ctx, n, incarnation)
	if err != nil {
		return gone, false, err
	}
	b.routes.drop(n)
	b.bury(gone.Tombstone)
	putCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tombstoneTimeout)
	defer cancel()
	if err := b.opts.Store.PutTombstone(putCtx, meta.Tombstone{Stream: n, Through: gone.Stream.Incarnation}); err != nil {
		b.opts.Logger.Warn("stream is deleted, but not yet safe against a restore: its tombstone could not be written to the bucket; trying on",
			"stream", n.String(), "incarnation", gone.Stream.Incarnation, "error", err)
	} else {
		safe = true
	}
	b.purgeSoon()
	return gone, safe, nil
}

// tombstoneTimeout is how long a delete waits for the bucket.
const tombstoneTimeout = 10 * time.Second
