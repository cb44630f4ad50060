package replica

import (
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Durable is what survives of a replica: the fold of its records in the WAL, in
// order. The live replica and the replay change it through the same methods, so
// the same records and the same commit mark give the same bytes.
//
// The state is folded up to the commit mark only; entries above it are an overlay
// that a commit folds and a truncation drops. Not safe for concurrent use.
type Durable struct {
	lineage  meta.Lineage
	instance uint64
	promise  meta.Epoch
	stranger bool
	broken   bool     // the log is unknown: entries are passed over until a base comes
	start    meta.LSN // first LSN of the local log

	state State // at the commit mark
	tail  point // at the log's end
	over  overlay

	twins *Twins // nil: none
}

// NewDurable is the state of a copy that never promised and holds nothing.
func NewDurable() *Durable {
	d := &Durable{start: 1, state: newState(0)}
	d.tail = d.state.point
	return d
}

// Last is the LSN of the last entry, 0 for none.
func (d *Durable) Last() meta.LSN { return d.tail.lsn }

// Commit is the last entry known to be committed.
func (d *Durable) Commit() meta.LSN { return d.state.lsn }

// Promise is the highest epoch that was promised.
func (d *Durable) Promise() meta.Epoch { return d.promise }

// Lineage is the history that the copy belongs to, 0 for none yet.
func (d *Durable) Lineage() meta.Lineage { return d.lineage }

// Stranger reports whether the copy may have lost something: it does not count.
func (d *Durable) Stranger() bool { return d.stranger }

// Apply folds one record, in log order: live when it is written, and at replay.
// It keeps nothing of the record's bytes. An error is a [meta.ErrCorrupt] or
// [meta.ErrFormatLevel] that names what does not fit; the shard must not be used
// then, but may be broken off with [Durable.Break].
func (d *Durable) Apply(r *Record) error {
	switch r.Kind {
	case KindState:
		return d.applyLocal(r.Data)
	case KindBase:
		return d.applyBase(r.LSN, r.Data)
	case KindEntry:
		if d.broken {
			return nil
		}
		return d.applyEntry(&r.Entry)
	case KindTruncate:
		if d.broken {
			return nil
		}
		return d.truncate(r.LSN)
	default:
		return meta.Errorf(meta.ErrFormatLevel, "record of unknown kind %d: start a build that knows it", r.Kind)
	}
}

func (d *Durable) applyEntry(e *entry.Entry) error {
	it, err := itemOf(e)
	if err != nil {
		return err
	}
	if err := d.fits(e, &it); err != nil {
		return err
	}
	d.tail.apply(&it)
	d.over.push(it)
	return nil
}

// fits checks that an entry continues the log: no gap in LSN or offset, time and
// epoch not going back, every epoch beginning with its opening entry, nothing but
// marks and confirmations after a close.
func (d *Durable) fits(e *entry.Entry, it *item) error {
	t := &d.tail
	switch {
	case e.LSN != t.lsn+1:
		return meta.Errorf(meta.ErrCorrupt, "entry LSN %d after LSN %d: want %d", e.LSN, t.lsn, t.lsn+1)
	case e.Offset != t.next || t.next+it.records() > meta.MaxOffset:
		return meta.Errorf(meta.ErrCorrupt, "entry LSN %d has offset %d: want %d", e.LSN, e.Offset, t.next)
	case e.Time < t.time:
		return meta.Errorf(meta.ErrCorrupt, "entry LSN %d has append time %d, before %d of the one before it", e.LSN, e.Time, t.time)
	case e.Lineage > d.lineage:
		return meta.Errorf(meta.ErrCorrupt, "entry LSN %d is of lineage %d: this copy is of %d", e.LSN, e.Lineage, d.lineage)
	case e.Epoch > d.promise:
		return meta.Errorf(meta.ErrCorrupt, "entry LSN %d is of epoch %d: this copy promised only %d", e.LSN, e.Epoch, d.promise)
	case e.Epoch < t.epoch, e.Epoch > t.epoch && e.Kind != entry.Open, e.Epoch == t.epoch && e.Kind == entry.Open:
		return meta.Errorf(meta.ErrCorrupt, "%s entry LSN %d has epoch %d after epoch %d", e.Kind, e.LSN, e.Epoch, t.epoch)
	case e.Epoch == t.closed && e.Kind != entry.Mark && e.Kind != entry.Confirm:
		return meta.Errorf(meta.ErrCorrupt, "%s entry LSN %d stands after the close of epoch %d", e.Kind, e.LSN, e.Epoch)
	}
	return nil
}

// truncate drops every entry above last.
func (d *Durable) truncate(last meta.LSN) error {
	if last < d.state.lsn || last > d.tail.lsn {
		return meta.Errorf(meta.ErrCorrupt, "truncation to LSN %d of a log that is committed to %d and ends at %d", last, d.state.lsn, d.tail.lsn)
	}
	d.over.cut(last)
	d.tail = d.state.point
	for _, it := range d.over.items() {
		d.tail.apply(&it)
	}
	return nil
}

// advance moves the commit mark up to lsn, at most to the log's end.
func (d *Durable) advance(lsn meta.LSN) {
	for d.state.lsn < lsn && d.over.len() > 0 {
		it := d.over.pop()
		d.state.apply(&it)
	}
}

// Break makes the copy a stranger whose log is unknown: its promise stays, all
// else is forgotten, and records are passed over until a base comes.
func (d *Durable) Break() {
	fresh := NewDurable()
	fresh.lineage, fresh.instance, fresh.promise = d.lineage, d.instance, d.promise
	fresh.state.expiry, fresh.twins = d.state.expiry, d.twins
	fresh.stranger, fresh.broken = true, true
	*d = *fresh
}

// Estrange makes the copy a stranger that keeps its log, as after a start that
// gave its directory a new storage id. The broker calls it before [New]; the
// replica writes the flag with its next record.
func (d *Durable) Estrange() { d.stranger = true }

// Vector is the epoch vector of the whole log; nil when the log is unknown or
// holds no epoch.
func (d *Durable) Vector() meta.Vector {
	if d.broken {
		return nil
	}
	v := slices.Clone(d.state.vector)
	for _, it := range d.over.items() {
		if it.kind == entry.Open {
			v = append(v, meta.EpochStart{Epoch: it.epoch, LSN: it.lsn})
		}
	}
	return v
}

// epochAt is the epoch of the entry at an LSN of the log, 0 when it is not known.
func (d *Durable) epochAt(lsn meta.LSN) meta.Epoch {
	switch {
	case d.broken || lsn > d.tail.lsn:
		return 0
	case lsn == d.tail.lsn:
		return d.tail.epoch
	}
	if it := d.over.at(lsn); it != nil {
		return it.epoch
	}
	return d.state.vector.EpochAt(lsn)
}

// openingOf is the LSN of that epoch's opening entry, 0 when the log has none.
func (d *Durable) openingOf(e meta.Epoch) meta.LSN {
	for i := len(d.over.items()) - 1; i >= 0; i-- {
		if it := &d.over.items()[i]; it.kind == entry.Open && it.epoch == e {
			return it.lsn
		}
	}
	for i := len(d.state.vector) - 1; i >= 0; i-- {
		if p := d.state.vector[i]; p.Epoch == e {
			return p.LSN
		}
	}
	return 0
}

// View is what the state says.
func (d *Durable) View() View {
	return View{
		Start: d.start, Last: d.tail.lsn, Commit: d.state.lsn,
		Next: d.tail.next, Committed: d.state.next, StartOffset: d.state.start, LastTime: d.tail.time,
		ArchivedEnd: d.state.archived, Archived: d.state.archivedOff, Droppable: d.state.droppable, Marks: len(d.state.marks),
		Producers: len(d.state.table.clients), Token: d.tail.token != "", Strict: d.tail.strict,
	}
}
