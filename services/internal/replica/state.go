package replica

import (
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// maxStep is the most that one step between two append times adds to the log
// age, in microseconds, so that one wrong clock expires nobody.
const maxStep = 60_000_000

// sweeps is how often expiry is looked at in one expiry period.
const sweeps = 128

// pruneAt is the length from which pairs below the archived end leave the
// vector. It lies below the bound to leave room for elections that pile up
// uncommitted.
const pruneAt = meta.MaxVector / 4 * 3

// point is the part of the fold that is cheap to copy. The log's end has one as
// well as the commit mark: checks look at the former.
type point struct {
	lsn    meta.LSN
	epoch  meta.Epoch // of the entry at lsn
	next   meta.Offset
	start  meta.Offset
	time   meta.Micros
	age    uint64 // log age, microseconds
	token  string
	strict bool
	closed meta.Epoch // the epoch that was closed last

	archived    meta.LSN    // archived end
	archivedOff meta.Offset // everything below is archived
	mark        meta.LSN    // the newest applied archive mark
}

// apply folds one entry and reports whether a mark took effect.
func (p *point) apply(it *item) (effect bool) {
	if p.time != 0 || p.lsn != 0 {
		p.age += uint64(min(max(it.time-p.time, 0), maxStep))
	}
	p.lsn, p.epoch, p.time = it.lsn, it.epoch, it.time
	p.next += it.records()
	switch it.kind {
	case entry.Fence:
		p.token, p.strict = it.cmd.token, it.cmd.strict
	case entry.Trim:
		p.start = max(p.start, min(it.cmd.start, p.next))
	case entry.Close:
		p.closed = it.epoch
	case entry.Mark:
		if it.cmd.from != p.archived || it.cmd.parent != p.mark || it.cmd.end > it.lsn {
			return false
		}
		p.archived, p.mark = it.cmd.end, it.lsn
		p.archivedOff = max(p.archivedOff, min(max(it.cmd.next, it.cmd.start), p.next)) // what is trimmed needs no segment
		return true
	}
	return false
}

// State is the fold of a shard's log up to one LSN: what an archive mark and a
// manifest carry. It is a pure function of the entries (and of the expiry that
// was set when the shard was formed). Not safe for concurrent use.
type State struct {
	point
	expiry uint64 // of producers, microseconds of log age
	vector meta.Vector
	marks  []MarkRef // applied, not confirmed

	confirmed    meta.LSN // newest confirmed mark
	droppable    meta.LSN
	confirmedOff meta.Offset
	table        table
}

func newState(expiry uint64) State {
	return State{point: point{archived: 1}, droppable: 1, expiry: expiry}
}

// LSN is the last entry that was folded.
func (s *State) LSN() meta.LSN { return s.lsn }

// NextOffset is the offset after the last record.
func (s *State) NextOffset() meta.Offset { return s.next }

// StartOffset is the first offset that may be read.
func (s *State) StartOffset() meta.Offset { return s.start }

// Vector is the epoch vector up to LSN. The caller must not change it.
func (s *State) Vector() meta.Vector { return s.vector }

func (s *State) clone() State {
	n := *s
	n.vector = slices.Clone(s.vector)
	n.marks = slices.Clone(s.marks)
	n.table = s.table.clone()
	return n
}

// apply folds one committed entry. It is the only way that state changes.
func (s *State) apply(it *item) {
	before := s.age
	effect := s.point.apply(it)
	switch it.kind {
	case entry.Open:
		s.vector = append(s.vector, meta.EpochStart{Epoch: it.epoch, LSN: it.lsn})
		s.prune()
	case entry.Mark:
		if effect {
			s.marks = append(s.marks, MarkRef{
				LSN: it.lsn, End: it.cmd.end, Parent: it.cmd.parent, NextOffset: s.archivedOff, StartOffset: it.cmd.start,
			})
		}
	case entry.Confirm:
		s.confirm(it.cmd.mark)
	case entry.Batch:
		if b := &it.batch; b.producer >= 0 {
			s.table.store(b.producer, b.epoch, s.age, stored{seq: b.seq, count: b.count, crc: b.crc, offset: it.offset, time: it.time})
		}
	}
	if step := max(s.expiry/sweeps, 1); before/step != s.age/step {
		s.table.expire(s.age, s.expiry)
	}
}

// confirm takes "the manifest of that mark is in the bucket". A manifest holds
// those before it, so every mark up to it is confirmed.
func (s *State) confirm(mark meta.LSN) {
	for i := range s.marks {
		if m := &s.marks[i]; m.LSN == mark {
			s.confirmed, s.droppable, s.confirmedOff = mark, m.End, m.NextOffset
			s.marks = slices.Delete(s.marks, 0, i+1)
			return
		}
	}
}

// prune drops pairs below the archived end, keeping the one that covers it.
func (s *State) prune() {
	if len(s.vector) < pruneAt {
		return
	}
	n := 0
	for n+1 < len(s.vector) && s.vector[n+1].LSN < s.archived {
		n++
	}
	s.vector = slices.Delete(s.vector, 0, n)
}

// rebase makes the state the base of a log that goes on after lsn, archived up
// to there by the mark.
func (s *State) rebase(lsn, mark meta.LSN) {
	s.lsn = lsn
	s.archived, s.archivedOff, s.mark = lsn+1, s.next, mark
	s.marks = nil
	// The mark's own LSN may lie above, in the history that the base ends.
	s.confirmed, s.droppable, s.confirmedOff = min(mark, lsn), lsn+1, s.next
}
