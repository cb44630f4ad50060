package memkv

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Options configure a store; the zero value is useful.
type Options struct {
	// Now is the clock leases run on; nil means time.Now. Leases end when a call
	// finds their time is up, see [Store.Expire].
	Now func() time.Time
}

// Store is a key-value store in memory.
type Store struct {
	now func() time.Time

	mu        sync.Mutex
	closed    bool
	revision  catalog.Revision
	compacted catalog.Revision // reads and watches below it are refused
	keys      map[string][]version
	log       []catalog.Event // in order of revision
	leases    map[catalog.LeaseID]*lease
	lastLease catalog.LeaseID
	watches   map[*watch]struct{}
	faults    []Fault
	late      []catalog.Transaction
}

// version is what a key was from a revision on.
type version struct {
	kv   catalog.KeyValue
	gone bool
}

type lease struct {
	ttl  time.Duration
	ends time.Time
}

var _ catalog.KV = (*Store)(nil)

// New returns an empty store at revision 1.
func New(opt Options) *Store {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &Store{
		now: opt.Now, revision: 1,
		keys: make(map[string][]version), leases: make(map[catalog.LeaseID]*lease), watches: make(map[*watch]struct{}),
	}
}

// enter locks the store for one call, after leases whose time is up have ended.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return meta.Errorf(meta.ErrUnavailable, "%w", err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return meta.Errorf(meta.ErrUnavailable, "%w", catalog.ErrClosed)
	}
	s.expire()
	return nil
}

// at is the key as of a revision.
func (s *Store) at(key string, r catalog.Revision) (catalog.KeyValue, bool) {
	vs := s.keys[key]
	for i := len(vs) - 1; i >= 0; i-- {
		if vs[i].kv.Mod <= r {
			return vs[i].kv, !vs[i].gone
		}
	}
	return catalog.KeyValue{}, false
}

func clone(kv catalog.KeyValue) catalog.KeyValue {
	kv.Value = bytes.Clone(kv.Value)
	return kv
}

// Get implements catalog.KV.
func (s *Store) Get(ctx context.Context, key string) (catalog.KeyValue, bool, catalog.Revision, error) {
	if err := s.enter(ctx); err != nil {
		return catalog.KeyValue{}, false, 0, err
	}
	defer s.mu.Unlock()
	if err := s.readFault(); err != nil {
		return catalog.KeyValue{}, false, 0, err
	}
	kv, found := s.at(key, s.revision)
	if !found {
		return catalog.KeyValue{}, false, s.revision, nil
	}
	return clone(kv), true, s.revision, nil
}

// Range implements catalog.KV.
func (s *Store) Range(ctx context.Context, r catalog.RangeRequest) (catalog.Page, error) {
	if err := s.enter(ctx); err != nil {
		return catalog.Page{}, err
	}
	defer s.mu.Unlock()
	if err := s.readFault(); err != nil {
		return catalog.Page{}, err
	}
	at := r.Revision
	switch {
	case at == 0:
		at = s.revision
	case at < s.compacted:
		return catalog.Page{}, catalog.ErrCompacted
	case at > s.revision:
		return catalog.Page{}, catalog.ErrFuture
	}
	limit := r.Limit
	if limit <= 0 || limit > catalog.MaxPage {
		limit = catalog.MaxPage
	}
	page := catalog.Page{Revision: at}
	for _, key := range s.sortedKeys(r.Prefix) {
		if r.After != "" && key <= r.After {
			continue
		}
		kv, found := s.at(key, at)
		if !found {
			continue
		}
		if len(page.Items) == limit {
			page.More = true
			break
		}
		page.Items = append(page.Items, clone(kv))
	}
	return page, nil
}

func (s *Store) sortedKeys(prefix string) []string {
	var keys []string
	for k := range s.keys {
		if strings.HasPrefix(k, prefix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// Commit implements catalog.KV.
func (s *Store) Commit(ctx context.Context, t catalog.Transaction) (catalog.Result, error) {
	if err := catalog.CheckTransaction(t); err != nil {
		return catalog.Result{}, err
	}
	if err := s.enter(ctx); err != nil {
		return catalog.Result{}, err
	}
	defer s.mu.Unlock()
	return s.commitFaulty(t)
}

// apply decides and applies a transaction. Called with the lock held.
func (s *Store) apply(t catalog.Transaction) (catalog.Result, error) {
	if !s.holds(t.If) {
		found := make(map[string]catalog.KeyValue)
		for _, c := range t.If {
			if kv, ok := s.at(c.Key, s.revision); ok && c.Kind != catalog.CompareEmpty {
				found[c.Key] = clone(kv)
			}
		}
		return catalog.Result{Revision: s.revision, Found: found}, nil
	}
	for _, op := range t.Then {
		if _, ok := s.leases[op.Lease]; op.Lease != 0 && !op.Delete && !ok {
			return catalog.Result{}, catalog.ErrLease
		}
	}
	s.write(t.Then)
	return catalog.Result{Applied: true, Revision: s.revision}, nil
}

func (s *Store) holds(cs []catalog.Compare) bool {
	for _, c := range cs {
		kv, found := s.at(c.Key, s.revision)
		ok := false
		switch c.Kind {
		case catalog.CompareMod:
			ok = found && kv.Mod == c.Revision || !found && c.Revision == 0
		case catalog.CompareValue:
			ok = found && bytes.Equal(kv.Value, c.Value)
		case catalog.ComparePresent:
			ok = found
		case catalog.CompareEmpty:
			ok = !slices.ContainsFunc(s.sortedKeys(c.Key), func(k string) bool {
				_, there := s.at(k, s.revision)
				return there
			})
		}
		if !ok {
			return false
		}
	}
	return true
}

// write applies operations at one new revision, if they change anything.
func (s *Store) write(ops []catalog.Op) {
	rev := s.revision + 1
	changed := false
	for _, op := range ops {
		old, found := s.at(op.Key, s.revision)
		if op.Delete {
			if !found {
				continue
			}
			v := version{kv: catalog.KeyValue{Key: op.Key, Mod: rev}, gone: true}
			s.keys[op.Key] = append(s.keys[op.Key], v)
			s.log = append(s.log, catalog.Event{KV: v.kv, Deleted: true})
			changed = true
			continue
		}
		kv := catalog.KeyValue{Key: op.Key, Value: bytes.Clone(op.Value), Created: rev, Mod: rev, Lease: op.Lease}
		if found {
			kv.Created = old.Created
		}
		s.keys[op.Key] = append(s.keys[op.Key], version{kv: kv})
		s.log = append(s.log, catalog.Event{KV: kv})
		changed = true
	}
	if changed {
		s.revision = rev
		s.wake()
	}
}

// Compact forgets the history below a revision.
func (s *Store) Compact(at catalog.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at = min(at, s.revision)
	if at <= s.compacted {
		return
	}
	s.compacted = at
	for key, vs := range s.keys {
		for len(vs) > 1 && vs[1].kv.Mod <= at {
			vs = vs[1:]
		}
		if len(vs) == 1 && vs[0].gone && vs[0].kv.Mod <= at {
			delete(s.keys, key)
			continue
		}
		s.keys[key] = vs
	}
	s.log = slices.DeleteFunc(s.log, func(e catalog.Event) bool { return e.KV.Mod < at })
	s.wake()
}

// Revision is the store's revision now.
func (s *Store) Revision() catalog.Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision
}

// Close implements catalog.KV: every watch ends, and later calls fail.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	open := make([]*watch, 0, len(s.watches))
	for w := range s.watches {
		open = append(open, w)
	}
	s.mu.Unlock()
	for _, w := range open {
		w.end(meta.Errorf(meta.ErrUnavailable, "%w", catalog.ErrClosed))
	}
	return nil
}
