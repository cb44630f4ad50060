package memkv

import (
	"maps"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Fault is one scripted mishap.
type Fault uint8

// The faults.
const (
	// LoseAnswer commits the next transaction but answers meta.ErrUnknown.
	LoseAnswer Fault = iota + 1
	// LandLate answers meta.ErrUnknown to the next transaction and applies it, if
	// its comparisons still hold then, at the next [Store.Land].
	LandLate
	// LoseRequest answers meta.ErrUnknown to the next transaction and never applies it.
	LoseRequest
	// FailCommit refuses the next transaction with meta.ErrUnavailable.
	FailCommit
	// FailRead refuses the next read with meta.ErrUnavailable.
	FailRead
	// Pass lets the next transaction through.
	Pass
)

// Inject queues faults, each for the next call that it fits, in order.
func (s *Store) Inject(fs ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fs...)
}

// Land applies the transactions that were to land late, in order, each only if
// its comparisons hold now. It returns how many of them applied.
func (s *Store) Land() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, t := range s.late {
		if r, err := s.apply(t); err == nil && r.Applied {
			n++
		}
	}
	s.late = nil
	return n
}

func (s *Store) readFault() error {
	if i := slices.Index(s.faults, FailRead); i == 0 {
		s.faults = s.faults[1:]
		return meta.Errorf(meta.ErrUnavailable, "scripted fault: the read failed")
	}
	return nil
}

func (s *Store) commitFaulty(t catalog.Transaction) (catalog.Result, error) {
	if len(s.faults) == 0 || s.faults[0] == FailRead {
		return s.apply(t)
	}
	f := s.faults[0]
	s.faults = s.faults[1:]
	lost := meta.Errorf(meta.ErrUnknown, "scripted fault: the answer was lost")
	switch f {
	case LoseAnswer:
		if _, err := s.apply(t); err != nil {
			return catalog.Result{}, err
		}
		return catalog.Result{}, lost
	case LandLate:
		s.late = append(s.late, t)
		return catalog.Result{}, lost
	case LoseRequest:
		return catalog.Result{}, lost
	case FailCommit:
		return catalog.Result{}, meta.Errorf(meta.ErrUnavailable, "scripted fault: the commit failed")
	}
	return s.apply(t)
}

// Backup is a state to go back to.
type Backup struct {
	revision catalog.Revision
	keys     map[string][]version
	log      []catalog.Event
}

// Backup takes a copy of the state.
func (s *Store) Backup() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := Backup{revision: s.revision, keys: maps.Clone(s.keys), log: slices.Clone(s.log)}
	for k, vs := range b.keys {
		b.keys[k] = slices.Clone(vs)
	}
	return b
}

// Rewind puts an older state in place, revision and all, as restoring an old
// backup of the real store does. Watches that are open end.
func (s *Store) Rewind(b Backup) {
	s.mu.Lock()
	s.revision, s.keys, s.log = b.revision, maps.Clone(b.keys), slices.Clone(b.log)
	s.compacted = min(s.compacted, s.revision)
	s.mu.Unlock()
	s.DropWatches()
}

// DropWatches ends every open watch, as a lost connection does.
func (s *Store) DropWatches() {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.watches))
	s.mu.Unlock()
	for _, w := range open {
		w.end(meta.Errorf(meta.ErrUnavailable, "the watch was dropped"))
	}
}
