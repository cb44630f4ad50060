package replica

import (
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Seal is a committed range that may be archived, and the shard's state at its
// end. It has what an archive mark needs but for the segment and the stream's row.
type Seal struct {
	Start, End  meta.LSN    // [Start, End); Start is the archived end
	Parent      meta.LSN    // the mark whose manifest the next one continues; 0: the first
	FirstOffset meta.Offset // of the first record at or after Start
	NextOffset  meta.Offset // after the last record below End
	StartOffset meta.Offset // as of End
	Level       uint16
	State       []byte // the fold up to exactly End-1, encoded at that very moment
}

// MarkRef is an applied archive mark whose manifest is not confirmed yet. Its
// entry stands in the local log.
type MarkRef struct {
	LSN         meta.LSN // of the mark
	End         meta.LSN // the archived end it made
	Parent      meta.LSN
	NextOffset  meta.Offset // everything below is covered
	StartOffset meta.Offset
}

// Seal is what may be archived now: what is committed from the archived end on,
// with the state at exactly that point. It is the zero Seal and false when
// nothing is new since the last mark. State is the caller's.
//
// A range that has to end earlier is sealed by [Refold]: whoever builds a segment
// reads the entries of the range anyway, and the fold is a pure function of them.
func (r *Replica) Seal() (Seal, bool) {
	d := r.d
	at, s := d.state.lsn, &d.state
	if r.cfg.Twins.ArchiveToEnd {
		at = d.tail.lsn
	}
	if r.cfg.Twins.StateOfNow {
		c := d.clone()
		c.advance(d.tail.lsn)
		s = &c.state
	}
	start := max(s.archived, d.start)
	if at+1 <= start || d.broken {
		return Seal{}, false
	}
	level := r.row.Level
	if level == 0 {
		level = entry.Level
	}
	return Seal{
		Start: start, End: at + 1, Parent: s.mark, FirstOffset: s.archivedOff, NextOffset: s.next,
		StartOffset: s.start, Level: level, State: s.Encode(),
	}, true
}

// Marks lists the applied marks whose manifests are not confirmed, oldest first:
// what a new leader has to put. Their entries stand in the local log.
func (r *Replica) Marks() []MarkRef { return slices.Clone(r.d.state.marks) }

// Refold folds entries onto the state that a mark carries, to make the state of
// the next one. Prev is the State of the newest applied mark ([Seal].Parent: its
// entry is in the local log, or its manifest has it); nil before the first, with
// the expiry of [Replica.Expiry].
type Refold struct{ s State }

// NewRefold begins at prev, which is not kept. Errors are [meta.ErrCorrupt].
func NewRefold(prev []byte, expiry time.Duration) (*Refold, error) {
	if prev == nil {
		return &Refold{s: newState(uint64(expiry.Microseconds()))}, nil
	}
	s, err := DecodeState(prev)
	if err != nil {
		return nil, err
	}
	return &Refold{s: *s}, nil
}

// Rebase continues after a base: its LSN may lie above that of its state.
func (f *Refold) Rebase(lsn, mark meta.LSN) { f.s.rebase(lsn, mark) }

// Apply folds the next entry. An error is a [meta.ErrCorrupt]: it does not follow.
func (f *Refold) Apply(e *entry.Entry) error {
	it, err := itemOf(e)
	if err != nil {
		return err
	}
	if e.LSN != f.s.lsn+1 || e.Offset != f.s.next {
		return meta.Errorf(meta.ErrCorrupt, "entry LSN %d offset %d after LSN %d: want LSN %d offset %d", e.LSN, e.Offset, f.s.lsn, f.s.lsn+1, f.s.next)
	}
	f.s.apply(&it)
	return nil
}

// State is the fold so far, for a mark that ends after the last entry.
func (f *Refold) State() *State { return &f.s }

// Expiry is the log age after which this shard forgets a silent producer.
func (r *Replica) Expiry() time.Duration {
	return time.Duration(r.d.state.expiry) * time.Microsecond
}
