package replica

import (
	"fmt"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// appendEntry puts an entry at the end of the log and returns its header. The
// append time never goes back within a shard.
func (r *Replica) appendEntry(kind entry.Kind, payload []byte, now meta.Micros, sync bool) entry.Header {
	t := &r.d.tail
	level := r.row.Level
	if level == 0 {
		level = entry.Level
	}
	e := entry.Entry{Header: entry.Header{
		Kind: kind, Level: level, Lineage: r.d.lineage, Epoch: r.epoch, LSN: t.lsn + 1, Offset: t.next, Time: max(now, t.time),
	}, Payload: payload}
	if kind == entry.Batch {
		stampBatch(payload, e.Offset, e.Epoch)
	}
	from := len(r.out.records)
	r.recordMark()
	r.record(Record{Kind: KindEntry, Entry: e})
	r.write(from, sync)
	return e.Header
}

// onFenceAnswer takes a promise. From another boot or instance than before it
// drops whatever was believed of that copy.
func (r *Replica) onFenceAnswer(p *peer, m *Message) {
	if p.fenced && p.boot == m.Boot && p.instance == m.Instance {
		if m.Stamp > p.stamp && m.Last < p.match {
			r.distrust(p, m.Last)
		}
		p.stamp = max(p.stamp, m.Stamp)
		return
	}
	if p.known != 0 && m.Boot != p.known {
		return // an answer from before its restart, still under way
	}
	r.forget(p)
	*p = peer{
		member: p.member, known: p.known, fenced: true, boot: m.Boot, instance: m.Instance, stamp: m.Stamp, stranger: m.Stranger,
		vector: m.Vector, first: m.First, last: m.Last, commit: m.Commit,
	}
}

// connected drops what is believed of a broker's copy that is not that copy any
// more, and fences what is there now.
func (r *Replica) connected(in Connected) {
	for i := range r.peers {
		p := &r.peers[i]
		if p.self || p.member.Broker != in.Peer.Broker || r.role == Promising || p.fenced && p.boot == in.Boot && p.member == in.Peer {
			continue
		}
		r.forget(p)
		p.known = in.Boot
		r.fence(p)
	}
}

// forget drops what is believed of a copy. A candidate that copies from it chooses again.
func (r *Replica) forget(p *peer) {
	if r.role == Copying && p == &r.peers[r.best] {
		r.role = Fencing
	}
	*p = peer{member: p.member}
}

// distrust takes a copy out of the count: it ends below what it acknowledged.
func (r *Replica) distrust(p *peer, last meta.LSN) {
	p.lost = true
	r.out.Alarm = meta.Errorf(meta.ErrStranger, "shard %s: copy %s acknowledged up to LSN %d and now ends at %d: it is not counted", r.shard, p.member, p.match, last)
}

func (r *Replica) onAppendAnswer(p *peer, m *Message) {
	if r.role != Opening && r.role != Leading {
		return
	}
	p.asked, p.age = 0, 0
	if m.Vector != nil && !p.adopted {
		p.reconciled = false
		return
	}
	if m.Last < p.match {
		if m.Stamp > p.stamp {
			r.distrust(p, m.Last)
		}
		return
	}
	if m.Stamp > p.stamp {
		p.stranger = m.Stranger
	}
	p.reconciled = true
	p.match = min(m.Last, r.d.tail.lsn)
	p.adopted = m.Adopted && p.match >= r.openLSN
	p.commit = max(p.commit, min(m.Commit, p.match))
}

// holds is how far a member counts toward a commit.
func (r *Replica) holds(p *peer) meta.LSN {
	t := &r.cfg.Twins
	switch {
	case !p.counts(t):
		return 0
	case p.self:
		return r.ownEnd()
	case p.adopted:
		return p.match
	case t.CountUnadopted:
		return max(p.match, p.last)
	}
	return 0
}

// commit moves the mark to what a majority of adopters holds, once that reaches
// the opening entry: nothing inherited is committed before.
func (r *Replica) commit() {
	var few [8]meta.LSN
	held, least := few[:0], r.openLSN
	for i := range r.peers {
		held = append(held, r.holds(&r.peers[i]))
	}
	if r.cfg.Twins.CommitByCopies {
		least = 0
		for i := range r.peers {
			held[i] = max(held[i], r.peers[i].match)
		}
	}
	slices.Sort(held)
	n := r.quorum()
	if n > len(held) {
		return
	}
	at := held[len(held)-n]
	if at >= least {
		r.d.advance(at)
	}
}

// drive sends a member what it needs next, one message at a time.
func (r *Replica) drive(p *peer) {
	if p.self || p.lost {
		return
	}
	if p.adopted && p.sentRound < r.round {
		p.sentRound = r.round
		r.send(r.addressed(p, Message{Kind: MsgConfirm, Round: r.round}))
	}
	if p.asked != 0 {
		return
	}
	switch {
	case !p.fenced:
		r.fence(p)
		return
	case !p.reconciled:
		r.reconcile(p)
		return
	case p.match < r.d.tail.lsn:
		r.ship(p)
	case p.commit < min(r.d.state.lsn, p.match) && p.adopted:
		r.ask(p, Message{Kind: MsgCommitMark, Commit: r.d.state.lsn})
	}
}

func (r *Replica) ask(p *peer, m Message) {
	p.asked, p.age = m.Kind, 0
	r.send(r.addressed(p, m))
}

func (r *Replica) addressed(p *peer, m Message) Message {
	m.To, m.ToBoot, m.Epoch, m.Instance = p.member, p.boot, r.epoch, p.instance
	return m
}

// reconcile sends the vector, which ends with the opening entry: else a follower
// with a longer tail of the epoch before would keep it.
func (r *Replica) reconcile(p *peer) {
	v, last := r.vector(), r.d.tail.lsn
	if r.cfg.Twins.VectorTooEarly {
		v = v[:len(v)-1]
	}
	r.ask(p, Message{Kind: MsgReconcile, Vector: v, Last: last})
}

// ship names the entries that a follower lacks. They leave before they are durable
// here: the follower's copy counts for itself.
func (r *Replica) ship(p *peer) {
	if p.match+1 < r.d.start {
		r.why = fmt.Errorf("%s ends at LSN %d, below this log's start %d: it needs a base", p.member, p.match, r.d.start)
		return
	}
	r.ask(p, Message{
		Kind: MsgAppend, PrevLSN: p.match, PrevEpoch: r.d.epochAt(p.match),
		First: p.match + 1, Last: r.d.tail.lsn, Commit: r.d.state.lsn,
	})
}

// tick counts the time of unanswered messages and sends them again.
func (r *Replica) tick() {
	if !r.standing {
		return
	}
	if r.role == Copying {
		if r.fetched++; r.fetched >= r.cfg.Limits.Resend {
			r.fetch()
		}
	}
	for i := range r.peers {
		p := &r.peers[i]
		if p.self || r.role == Promising {
			continue
		}
		if p.age++; p.age < r.cfg.Limits.Resend {
			continue
		}
		p.age = 0
		if p.asked != 0 || !p.fenced || r.role == Copying {
			r.fence(p) // also asks whether it is still the same boot
		}
		if p.fenced {
			p.asked, p.sentRound = 0, p.confirmed
		}
	}
}
