package memkv

import (
	"context"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Lease implements catalog.KV.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (catalog.LeaseID, error) {
	if ttl < time.Second {
		return 0, meta.Invalidf("lease of %s: at least 1s", ttl)
	}
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	s.lastLease++
	s.leases[s.lastLease] = &lease{ttl: ttl, ends: s.now().Add(ttl)}
	return s.lastLease, nil
}

// KeepAlive implements catalog.KV.
func (s *Store) KeepAlive(ctx context.Context, id catalog.LeaseID) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	l, ok := s.leases[id]
	if !ok {
		return catalog.ErrLease
	}
	l.ends = s.now().Add(l.ttl)
	return nil
}

// Revoke implements catalog.KV.
func (s *Store) Revoke(ctx context.Context, id catalog.LeaseID) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if _, ok := s.leases[id]; !ok {
		return catalog.ErrLease
	}
	s.endLease(id)
	return nil
}

// Expire ends the leases whose time is up; every other call does so too.
func (s *Store) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
}

func (s *Store) expire() {
	var over []catalog.LeaseID
	for id, l := range s.leases {
		if s.now().After(l.ends) {
			over = append(over, id)
		}
	}
	slices.Sort(over)
	for _, id := range over {
		s.endLease(id)
	}
}

func (s *Store) endLease(id catalog.LeaseID) {
	delete(s.leases, id)
	var ops []catalog.Op
	for _, key := range s.sortedKeys("") {
		if kv, found := s.at(key, s.revision); found && kv.Lease == id {
			ops = append(ops, catalog.Op{Key: key, Delete: true})
		}
	}
	s.write(ops)
}
