package replica

import (
	"fmt"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// follow takes the commit mark as far as this copy may believe it: in an epoch
// that it has adopted, up to what it holds durably.
func (r *Replica) follow() {
	r.readmit()
	if r.marks <= r.d.state.lsn {
		return
	}
	if r.adopted() || r.cfg.Twins.MarkUnadopted {
		r.d.advance(min(r.marks, r.durable))
	}
}

// hear remembers the highest mark of this epoch's leader.
func (r *Replica) hear(mark meta.LSN) { r.marks = max(r.marks, mark) }

// onReconcile cuts what this copy has beyond the last entry that it shares with
// the leader's log, whose vector ends with the epoch's opening entry. A copy that
// holds that entry never truncates for this epoch's leader again.
func (r *Replica) onReconcile(m *Message) {
	d := r.d
	r.whole = m.Last
	if d.tail.epoch == d.promise && !r.cfg.Twins.TruncateAdopted {
		r.acknowledge(m, nil)
		return
	}
	if d.broken { // set aside: begins again from nothing, and still does not count
		if !r.replace(&installation{lineage: d.lineage, instance: d.instance, stranger: true}) {
			return
		}
	}
	agreed, known := meta.LSN(0), true
	if d.tail.lsn > 0 {
		agreed, known = Diverge(r.vector(), d.tail.lsn, m.Vector, m.Last)
	}
	switch {
	case !known || agreed+1 < d.start:
		r.why = fmt.Errorf("the leader's log and this one have no epoch in common: nothing is cut; the copy needs a base")
		return
	case agreed < d.state.lsn:
		r.stop(fmt.Errorf("the leader of epoch %d asks to cut the log after LSN %d, but entries up to %d are known to be committed", m.Epoch, agreed, d.state.lsn))
		return
	}
	r.why = nil
	if agreed < d.tail.lsn {
		from := len(r.out.records)
		r.record(Record{Kind: KindTruncate, LSN: agreed})
		r.write(from, true)
	}
	r.acknowledge(m, nil)
}

// onAppend takes entries that follow what this copy holds. What overlaps is
// skipped if it is the same and is a mismatch if not; nothing is cut here.
func (r *Replica) onAppend(m *Message) {
	d := r.d
	if m.PrevLSN > d.tail.lsn || len(m.Entries) > 0 && m.Entries[0].LSN > d.tail.lsn+1 {
		r.acknowledge(m, nil) // a gap: the leader sends again from our end
		return
	}
	if m.PrevLSN+1 >= d.start && m.PrevLSN > 0 && d.epochAt(m.PrevLSN) != m.PrevEpoch {
		r.acknowledge(m, r.vector())
		return
	}
	from, next, opens := len(r.out.records), d.tail.lsn+1, false
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.LSN < next {
			if e.LSN >= d.start && d.epochAt(e.LSN) != e.Epoch {
				r.out.records = r.out.records[:from]
				r.acknowledge(m, r.vector())
				return
			}
			continue
		}
		if len(r.out.records) == from {
			r.recordMark()
		}
		r.record(Record{Kind: KindEntry, Entry: *e})
		opens = opens || e.Kind == entry.Open
		next++
	}
	if len(r.out.records) > from {
		r.write(from, opens)
	}
	if r.role != Following {
		return
	}
	r.hear(m.Commit)
	r.follow()
	r.acknowledge(m, nil)
}

// acknowledge says how far this copy's log goes once everything written so far is
// durable. A vector says that the append did not fit.
func (r *Replica) acknowledge(to *Message, v meta.Vector) {
	r.follow()
	r.reply(to, Message{
		Kind: MsgAppendAnswer, Vector: v, Last: r.d.tail.lsn, Commit: r.d.state.lsn,
		Adopted: r.d.tail.epoch == r.d.promise,
	})
}

// onFetch gives the candidate that fenced this copy the rest of a better log.
func (r *Replica) onFetch(m *Message) {
	if m.From != r.leader || m.First < r.d.start || m.First > r.d.tail.lsn || m.First == 0 {
		return
	}
	r.reply(m, Message{
		Kind: MsgFetchAnswer, First: m.First, Last: min(m.Last, r.d.tail.lsn),
		PrevLSN: m.First - 1, PrevEpoch: r.d.epochAt(m.First - 1),
	})
}
