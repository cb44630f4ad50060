package replica

import (
	"fmt"
	"slices"

	"github.com/varve-io/varve/meta"
)

// assign takes the shard's row: what it says of incarnation, then lineage, then
// epoch, is never lower than what was seen before.
func (r *Replica) assign(a *Assignment) {
	if r.role == Poisoned || r.role == Stopped {
		return
	}
	if a.Shard != r.shard || r.known && r.older(a) {
		return
	}
	r.now = max(r.now, a.Now)
	if a.Epoch != r.row.Epoch || a.Leader != r.row.Leader || a.Boot != r.row.Boot || a.Lineage != r.row.Lineage {
		r.row = *a
		r.stepDown(nil)
	}
	r.row, r.known = *a, true
	r.row.Members = slices.Clone(a.Members)
	slices.SortFunc(r.row.Members, meta.Member.Compare)
	r.why = nil
	if !r.settle() {
		return
	}
	r.readmit()
	r.stand()
}

func (r *Replica) older(a *Assignment) bool {
	switch {
	case a.Revision != r.row.Revision:
		return a.Revision < r.row.Revision
	case a.Lineage != r.row.Lineage:
		return a.Lineage < r.row.Lineage
	default:
		return a.Epoch < r.row.Epoch
	}
}

// settle brings the copy into the row's lineage: a base is installed, a re-formed
// log is taken over, an empty copy just begins. It reports whether the copy is of
// the row's lineage then; one that is not is set aside.
func (r *Replica) settle() bool {
	a, d := &r.row, r.d
	switch {
	case a.Reform != nil && d.lineage == a.Reform.From && d.lineage < a.Lineage && !d.broken && d.epochAt(a.Reform.LSN) == a.Reform.Epoch:
		return r.reform(a.Reform)
	case a.Base != nil && d.lineage != 0 && d.lineage < a.Lineage && d.tail.lsn > a.Base.LSN && r.alone():
		r.stop(fmt.Errorf("the row's base at LSN %d would drop what this copy, its only member, has up to LSN %d: re-form the shard from the copy instead", a.Base.LSN, d.tail.lsn))
		return false
	case a.Base != nil && (d.lineage < a.Lineage || d.lineage == a.Lineage && d.tail.lsn < a.Base.LSN):
		return r.install(a.Base)
	case d.lineage == a.Lineage:
		return true
	case d.lineage == 0 && d.tail.lsn == 0: // also a broken copy: it stays a stranger
		l := d.local()
		l.lineage, l.instance = a.Lineage, a.Instance
		r.writeLocal(l)
		return r.role != Stopped
	case d.lineage < a.Lineage:
		r.why = fmt.Errorf("this copy is of lineage %d, the shard of %d: it is set aside", d.lineage, a.Lineage)
		return false
	default:
		return false
	}
}

// install takes a base whole: one record.
func (r *Replica) install(b *Base) bool {
	n := installation{base: *b, lineage: r.row.Lineage, instance: r.d.instance, stranger: r.d.stranger}
	if n.instance == 0 {
		n.instance = r.row.Instance
	}
	if r.d.lineage != 0 && r.d.lineage != r.row.Lineage {
		n.stranger = false // another lineage begins here: nothing of before is owed
	}
	return r.replace(&n)
}

// replace writes the base record that puts another log in the place of this one.
func (r *Replica) replace(n *installation) bool {
	if _, err := n.base.state(r.d.state.expiry); err != nil {
		r.stop(err)
		return false
	}
	from := len(r.out.records)
	r.record(Record{Kind: KindBase, LSN: n.base.LSN, Data: n.encode()})
	r.write(from, true)
	r.marked = n.base.LSN
	return r.role != Stopped
}

// reform goes on in the next lineage from an entry that this copy holds.
func (r *Replica) reform(f *Reform) bool {
	if f.LSN < r.d.state.lsn {
		r.stop(fmt.Errorf("re-forming at LSN %d would drop what is committed up to %d", f.LSN, r.d.state.lsn))
		return false
	}
	from := len(r.out.records)
	if f.LSN < r.d.tail.lsn {
		r.record(Record{Kind: KindTruncate, LSN: f.LSN})
	}
	l := r.d.local()
	l.lineage, l.stranger = r.row.Lineage, false
	r.record(Record{Kind: KindState, Data: l.encode()})
	r.write(from, true)
	r.marked = l.commit
	return r.role != Stopped
}

// readmit ends a copy's time as a stranger: the row names it, and it has adopted
// the row's epoch in full, durably. In full means up to the leader's end when the
// leader measured this boot of the copy: the opening entry alone would not do,
// since the copy may have acknowledged entries of this very epoch and lost them.
func (r *Replica) readmit() {
	if !r.d.stranger || r.whole == 0 || r.durable < r.whole || !r.member() || !r.adopted() || r.d.promise != r.row.Epoch {
		return
	}
	l := r.d.local()
	l.stranger = false
	r.writeLocal(l)
}

// alone reports whether this copy is the row's only member.
func (r *Replica) alone() bool { return len(r.row.Members) == 1 && r.member() }

func (r *Replica) member() bool { return slices.Contains(r.row.Members, r.cfg.Self) }

// stand begins a tenure when the row's epoch was granted to this boot and was not
// promised before: an epoch is led by one boot, once.
func (r *Replica) stand() {
	a := &r.row
	if r.role != Following || a.Epoch == 0 || a.Leader != r.cfg.Self {
		return
	}
	if r.cfg.Twins.ResumeEpoch {
		if a.Epoch < r.d.promise {
			return
		}
	} else if a.Boot != r.cfg.Boot || a.Epoch <= r.d.promise {
		return
	}
	r.tenure = tenure{epoch: a.Epoch, standing: true}
	for _, m := range a.Members {
		r.peers = append(r.peers, peer{member: m, self: m == r.cfg.Self})
	}
	l := r.d.local()
	l.promise = a.Epoch
	r.role = Promising
	r.following = following{}
	r.writeLocal(l)
	r.promiseSeq = r.seq
}
