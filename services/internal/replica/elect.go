package replica

import (
	"fmt"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// tenure is what a candidate or leader knows; a crash or a deposition drops it.
type tenure struct {
	standing   bool
	epoch      meta.Epoch
	peers      []peer // one a member, sorted; this copy too when it is one
	promiseSeq uint64

	named   meta.Member // a better copy that can't be copied: it should lead
	best    int         // Copying: the peer that is copied from
	goal    meta.LSN    // Copying: until here
	fetched int         // Copying: ticks since the last fetch

	openLSN meta.LSN
	round   uint64 // of confirmations
}

// peer is what a tenure believes of one member's copy. It all belongs to one boot
// and one instance; when either changes it is dropped.
type peer struct {
	member   meta.Member
	self     bool
	known    meta.BootNonce // of its broker, as the last connection told; 0: none did
	boot     meta.BootNonce // that promised
	instance uint64
	stamp    uint64 // of the newest answer

	fenced   bool // promised this epoch
	stranger bool
	lost     bool // ended below what it had acknowledged
	vector   meta.Vector
	first    meta.LSN // its log's start
	last     meta.LSN // its durable end when it was fenced
	commit   meta.LSN // the highest mark it is known to have

	reconciled bool     // what it holds up to match is ours
	match      meta.LSN // durably held
	adopted    bool     // holds the opening entry durably
	confirmed  uint64   // newest round it answered
	sentRound  uint64   // newest round it was asked

	asked MessageKind // what is under way, 0: nothing
	age   int         // ticks since
}

func (p *peer) counts(t *Twins) bool { return p.fenced && !p.lost && (!p.stranger || t.CountStrangers) }

// quorum is how many members must agree.
func (r *Replica) quorum() int {
	n := majority(len(r.peers))
	if r.cfg.Twins.MajorityShort {
		n = max(n-1, 1)
	}
	return n
}

// promising waits for its own promise to be durable, then fences every member.
// This copy is fenced by the same act, and counts if it is a member and whole.
func (r *Replica) promising() {
	if r.synced < r.promiseSeq {
		return
	}
	for i := range r.peers {
		p := &r.peers[i]
		if !p.self {
			r.fence(p)
			continue
		}
		p.fenced, p.boot, p.instance, p.stranger = true, r.cfg.Boot, r.d.instance, r.d.stranger
		p.vector, p.first, p.last, p.commit = r.vector(), r.d.start, r.durable, r.d.state.lsn
	}
	r.role = Fencing
}

func (r *Replica) fence(p *peer) {
	m := Message{Kind: MsgFence, To: p.member, Epoch: r.epoch, After: r.promiseSeq}
	if r.row.Base != nil {
		m.Floor = r.row.Base.LSN
	}
	p.asked, p.age = MsgFence, 0
	r.send(m)
}

// fencing waits for a majority of promises, then looks for the best log among them.
func (r *Replica) fencing() {
	fenced, best := 0, -1
	var mark meta.LSN
	for i := range r.peers {
		p := &r.peers[i]
		if !p.counts(&r.cfg.Twins) {
			continue
		}
		fenced++
		mark = max(mark, p.commit)
		if best < 0 || r.better(p, &r.peers[best]) {
			best = i
		}
	}
	if fenced < r.quorum() {
		return
	}
	r.named = meta.Member{}
	b := &r.peers[best]
	switch own := r.d; {
	case mark > b.last:
		r.stop(fmt.Errorf("a member knows entries up to LSN %d to be committed, but the best log of a majority, %s, ends at %d", mark, b.member, b.last))
	case own.tail.lsn == b.last && own.tail.epoch == b.vector.EpochAt(b.last):
		r.open()
	default:
		r.copyFrom(best)
	}
}

func (r *Replica) better(a, b *peer) bool {
	ae, be := a.vector.EpochAt(a.last), b.vector.EpochAt(b.last)
	if r.cfg.Twins.BestByLSN {
		ae, be = 0, 0
	}
	return Better(ae, a.last, be, b.last)
}

// copyFrom makes this log a prefix of the best one and asks for the rest.
func (r *Replica) copyFrom(best int) {
	b := &r.peers[best]
	agreed, known := Diverge(r.vector(), r.d.tail.lsn, b.vector, b.last)
	if r.d.tail.lsn == 0 && !r.d.broken {
		agreed, known = 0, true
	}
	switch {
	case !known || agreed+1 < b.first || agreed+1 < r.d.start:
		r.named = b.member
		return
	case agreed < r.d.state.lsn:
		r.stop(fmt.Errorf("the best log, %s, differs after LSN %d, but this copy knows entries up to %d to be committed", b.member, agreed, r.d.state.lsn))
		return
	}
	if agreed < r.d.tail.lsn {
		from := len(r.out.records)
		r.record(Record{Kind: KindTruncate, LSN: agreed})
		r.write(from, true)
	}
	r.best, r.goal, r.fetched = best, b.last, 0
	r.role = Copying
	r.fetch()
}

func (r *Replica) fetch() {
	r.fetched = 0
	if r.d.tail.lsn < r.goal {
		b := &r.peers[r.best]
		r.send(Message{Kind: MsgFetch, To: b.member, ToBoot: b.boot, Instance: b.instance, Epoch: r.epoch, First: r.d.tail.lsn + 1, Last: r.goal})
	}
}

// copying waits until the log reaches the best one's end.
func (r *Replica) copying() {
	if r.d.tail.lsn == r.goal {
		r.open()
	}
}

func (r *Replica) onFetchAnswer(m *Message) {
	if r.role != Copying || m.Epoch != r.epoch || m.From != r.peers[r.best].member || len(m.Entries) == 0 {
		return
	}
	if m.Entries[0].LSN > r.d.tail.lsn+1 || m.PrevLSN > r.d.tail.lsn {
		return
	}
	from, next := len(r.out.records), r.d.tail.lsn+1
	for i := range m.Entries {
		if e := &m.Entries[i]; e.LSN == next && e.LSN <= r.goal {
			r.record(Record{Kind: KindEntry, Entry: *e})
			next++
		}
	}
	if len(r.out.records) > from {
		r.write(from, false)
		if r.role == Copying {
			r.fetch()
		}
	}
}

// open appends the epoch's opening entry after the log that was chosen.
func (r *Replica) open() {
	s := &r.d.state
	if len(s.vector)+r.d.over.len() >= meta.MaxVector && len(r.d.Vector()) >= meta.MaxVector {
		r.why = meta.Errorf(meta.ErrExhausted, "the epoch vector has %d pairs and nothing below is archived: archive the shard's log before another election", meta.MaxVector)
		return
	}
	if lsn := r.d.openingOf(r.epoch); lsn != 0 {
		r.openLSN, r.role = lsn, Opening // only a resumed epoch has one already
		return
	}
	p := entry.OpenPayload{Leader: r.cfg.Self, Boot: r.cfg.Boot}
	r.openLSN = r.d.tail.lsn + 1
	for i := range r.peers {
		q := &r.peers[i]
		q.asked, q.age = 0, 0
	}
	r.role = Opening
	r.appendEntry(entry.Open, p.Encode(), r.now, true)
}

// ownEnd is how far this copy counts: up to what is durable.
func (r *Replica) ownEnd() meta.LSN {
	if r.cfg.Twins.CountUnsynced {
		return r.d.tail.lsn
	}
	return r.durable
}

// opened waits until the opening entry is durable here: only then does the epoch serve.
func (r *Replica) opened() {
	if r.ownEnd() >= r.openLSN {
		r.role = Leading
	}
}

// waiting names the copies that a candidate waits for, and why each does not count.
func (r *Replica) waiting() []string {
	if r.role != Fencing && r.role != Copying && r.role != Opening && (r.role != Leading || r.serving()) {
		return nil
	}
	var w []string
	if !(r.named == meta.Member{}) {
		w = append(w, fmt.Sprintf("%s: has the best log, out of this copy's reach; it should lead", r.named))
	}
	for i := range r.peers {
		switch p := &r.peers[i]; {
		case p.stranger, p.lost:
			w = append(w, p.member.String()+": a stranger, it may have lost entries")
		case !p.fenced:
			w = append(w, p.member.String()+": gave no answer")
		case r.role > Fencing && !p.self && !p.adopted:
			w = append(w, p.member.String()+": has not adopted the epoch yet")
		}
	}
	return w
}
