package etcdkv

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// watch forwards etcd's events of one prefix.
type watch struct {
	c      chan catalog.Changes
	cancel context.CancelFunc
	ended  chan struct{}

	mu  sync.Mutex
	err error
}

func (w *watch) C() <-chan catalog.Changes { return w.c }

func (w *watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close ends the watch and waits for its goroutine.
func (w *watch) Close() {
	w.cancel()
	<-w.ended
}

func (w *watch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// Watch implements catalog.KV.
func (s *Store) Watch(ctx context.Context, prefix string, from catalog.Revision) catalog.Watch {
	w := &watch{c: make(chan catalog.Changes), ended: make(chan struct{}), cancel: func() {}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		w.err = meta.Errorf(meta.ErrUnavailable, "%w", catalog.ErrClosed)
		close(w.c)
		close(w.ended)
		return w
	}
	ctx, w.cancel = context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, func() {
		w.fail(meta.Errorf(meta.ErrUnavailable, "%w", context.Cause(s.ctx)))
		w.cancel()
	})
	s.wg.Go(func() {
		defer close(w.ended)
		defer close(w.c)
		defer stop()
		defer w.cancel()
		w.fail(s.pump(ctx, w, prefix, from))
	})
	return w
}

// pump delivers until the watch ends, and says why it did.
func (s *Store) pump(ctx context.Context, w *watch, prefix string, from catalog.Revision) error {
	// etcd waits silently for a revision that was never reached.
	seen := from - 1
	now, err := s.client.Get(ctx, s.opt.Prefix, clientv3.WithKeysOnly())
	if err != nil {
		return translate(err, meta.ErrUnavailable)
	}
	if catalog.Revision(now.Header.Revision) < seen {
		return catalog.ErrFuture
	}
	if s.server == nil {
		ctx = clientv3.WithRequireLeader(ctx) // a member cut off from the others ends the watch
	}
	// A client takes its watch up again by itself when the store comes back, and if that
	// is an older one, waits as silently: only a look at its revision tells. Within
	// one process a store can't be exchanged.
	var look <-chan time.Time
	if s.server == nil {
		t := time.NewTicker(rewindEvery)
		defer t.Stop()
		look = t.C
	}
	events := s.client.Watch(ctx, s.opt.Prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(int64(from)), clientv3.WithProgressNotify())
	for {
		var r clientv3.WatchResponse
		var ok bool
		select {
		case r, ok = <-events:
		case <-look:
			if s.rewound(ctx, seen) {
				return catalog.ErrFuture
			}
			continue
		case <-ctx.Done(): // etcd may be in no state to say so
			return ctx.Err()
		}
		switch {
		case !ok && ctx.Err() != nil:
			return ctx.Err()
		case !ok:
			return meta.Errorf(meta.ErrUnavailable, "the watch was dropped")
		case r.CompactRevision != 0:
			return catalog.ErrCompacted
		case r.Err() != nil:
			return translate(r.Err(), meta.ErrUnavailable)
		case catalog.Revision(r.Header.Revision) < seen:
			return catalog.ErrFuture
		}
		if r.IsProgressNotify() || len(r.Events) == 0 {
			continue
		}
		ch := catalog.Changes{Revision: catalog.Revision(r.Header.Revision)}
		for _, e := range r.Events {
			ev := catalog.Event{Deleted: e.Type == clientv3.EventTypeDelete}
			if ev.Deleted {
				ev.KV = catalog.KeyValue{Key: string(e.Kv.Key[len(s.opt.Prefix):]), Mod: catalog.Revision(e.Kv.ModRevision)}
			} else if ev.KV, err = s.keyValue(e.Kv); err != nil {
				return err
			}
			ch.Events = append(ch.Events, ev)
		}
		// A response of many revisions may stop short of the header's.
		ch.Revision = ch.Events[len(ch.Events)-1].KV.Mod
		seen = ch.Revision
		select {
		case w.c <- ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// rewindEvery is how often a watching client looks whether the store went back in
// time, and how long one look may take.
const rewindEvery = 5 * time.Second

// rewound reports whether the store is at a revision below one that was seen. A
// store that can't be asked is not rewound.
func (s *Store) rewound(ctx context.Context, seen catalog.Revision) bool {
	ctx, cancel := context.WithTimeout(ctx, rewindEvery)
	defer cancel()
	now, err := s.client.Get(ctx, s.opt.Prefix, clientv3.WithKeysOnly())
	return err == nil && catalog.Revision(now.Header.Revision) < seen
}
