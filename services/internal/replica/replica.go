package replica

import (
	"slices"

	"github.com/varve-io/varve/meta"
)

// Replica is one copy of a shard: a [Durable] and what a crash drops. Not safe
// for concurrent use: its driver gives it one input at a time.
type Replica struct {
	shard meta.ShardID
	cfg   *Config // shared by all replicas of a broker
	d     *Durable

	role  Role
	row   Assignment
	known bool // row was set
	why   error

	// Writes. The WAL keeps their order, so that durable is one number.
	seq      uint64
	synced   uint64
	unsynced fifo[unsynced]
	durable  meta.LSN // last entry that is durable
	marked   meta.LSN // commit mark in the last state record
	cutSeq   uint64   // the newest write that cut the log
	cutTo    meta.LSN // and the lowest end of those cuts that are not durable yet

	now   meta.Micros
	stamp uint64

	tenure    // of a candidate or leader
	following // of a follower
	*queues   // unanswered proposals; nil at rest

	seen Committed // what readers were told
	view [3]uint64 // what Changed compares
	out  *ready    // nil at rest
}

type unsynced struct {
	seq  uint64
	last meta.LSN // the log's end as of that write
}

// following is what a follower remembers of its leader.
type following struct {
	leader meta.Member
	marks  meta.LSN // the highest commit mark heard of in the promised epoch
	whole  meta.LSN // the leader's end when it measured this copy; 0: it did not yet
}

// ready holds the buffers of a [Ready] between steps.
type ready struct {
	Ready
	records   []Record
	committed Committed
}

// New makes a replica of a copy. It takes the state over. Records that were folded
// into it count as durable.
func New(cfg Config, d *Durable) *Replica { return cfg.Prepare().New(cfg.Shard, d) }

// New is [New] for a shard of many with one configuration, which is kept once.
func (p *Prepared) New(shard meta.ShardID, d *Durable) *Replica {
	r := &Replica{shard: shard, cfg: &p.cfg, d: d}
	d.twins = &p.cfg.Twins
	if d.state.expiry == 0 {
		d.state.expiry = uint64(r.cfg.Expiry.Microseconds())
	}
	r.durable, r.marked = d.tail.lsn, d.state.lsn
	r.seen = r.readable()
	return r
}

// Durable is the live state: the fold of every record in every [Write] so far.
func (r *Replica) Durable() *Durable { return r.d }

// Step takes one input and says what must be done. See [Ready] for the order, and
// for how long its slices live.
func (r *Replica) Step(in Input) Ready {
	r.begin()
	switch in := in.(type) {
	case *Assignment:
		r.assign(in)
	case *Message:
		r.receive(in)
	case Written:
		r.written(in.Seq)
	case Failed:
		r.fail(in.Err)
	case Tick:
		r.now = max(r.now, in.Now)
		r.tick()
	case Connected:
		r.connected(in)
	case *Propose:
		r.propose(in)
	case Resign:
		r.stepDown(in.Reason)
	}
	r.progress()
	return r.finish()
}

// Rest gives back the buffers that are empty now and whatever a standing leader
// has no use for. The driver calls it when a shard falls idle; it changes nothing
// else, and the next Step makes new ones.
func (r *Replica) Rest() {
	r.out = nil
	r.unsynced.rest()
	if q := r.queues; q != nil && q.committing.len()+q.confirming.len()+q.hints.len()+len(q.archiving) == 0 {
		r.queues = nil
	}
	r.d.over.rest()
	if r.role == Leading {
		for i := range r.peers {
			r.peers[i].vector = nil // it chose the best log
		}
	}
}

func (r *Replica) begin() {
	if r.out == nil {
		r.out = new(ready)
	}
	if r.queues == nil {
		r.queues = &queues{covered: r.d.state.confirmedOff}
	}
	clear(r.out.records)
	r.out.records = r.out.records[:0]
	r.out.Ready = Ready{
		Writes: r.out.Writes[:0], Messages: r.out.Messages[:0], Answers: r.out.Answers[:0],
	}
}

func (r *Replica) finish() Ready {
	if now := r.readable(); now != r.seen {
		r.seen, r.out.committed = now, now
		r.out.Committed = &r.out.committed
	}
	view := [3]uint64{uint64(r.role), uint64(r.epoch), uint64(bit(r.serving()))}
	if view != r.view {
		r.view, r.out.Changed = view, true
	}
	return r.out.Ready
}

func (r *Replica) readable() Committed {
	s := &r.d.state
	return Committed{LSN: s.lsn, Offset: s.next, Start: s.start, Droppable: s.droppable}
}

// progress moves a tenure through its states as far as it goes, then the commit
// mark, then lets answers go.
func (r *Replica) progress() {
	for before := Role(0xff); before != r.role; {
		before = r.role
		switch r.role {
		case Following:
			r.follow()
		case Promising:
			r.promising()
		case Fencing:
			r.fencing()
		case Copying:
			r.copying()
		case Opening:
			r.opened()
		}
	}
	if r.role == Opening || r.role == Leading {
		r.commit()
		for i := range r.peers {
			r.drive(&r.peers[i])
		}
	}
	r.release()
}

// write applies records and gives them to the driver as one write. The records
// are those that were added since out.records had from. One that does not fit
// stops the shard; those before it are written, since they are in the state.
func (r *Replica) write(from int, sync bool) {
	records := r.out.records[from:len(r.out.records):len(r.out.records)]
	for i := range records {
		if err := r.d.Apply(&records[i]); err != nil {
			if records = records[:i]; i > 0 {
				r.issue(records, sync)
			}
			r.stop(err)
			return
		}
	}
	r.issue(records, sync)
}

func (r *Replica) issue(records []Record, sync bool) {
	r.seq++
	last := r.d.tail.lsn
	r.unsynced.push(unsynced{seq: r.seq, last: last})
	if k := records[0].Kind; k == KindTruncate || k == KindBase {
		if r.cutSeq > r.synced {
			last = min(last, r.cutTo)
		}
		r.cutSeq, r.cutTo = r.seq, last
		r.durable = min(r.durable, last)
	}
	r.out.Writes = append(r.out.Writes, Write{Seq: r.seq, Records: records, Sync: sync})
}

// record adds a record to the write that is being built.
func (r *Replica) record(rec Record) { r.out.records = append(r.out.records, rec) }

// writeLocal writes promise, flags and commit mark.
func (r *Replica) writeLocal(l local) {
	from := len(r.out.records)
	r.record(Record{Kind: KindState, Data: l.encode()})
	r.marked = l.commit
	r.write(from, true)
}

// markEvery is after how many commits the mark goes into the log again, so that a
// replay's overlay stays short.
const markEvery = 1024

// recordMark adds the commit mark to the write being built when it is due. It is
// at most what is durable here.
func (r *Replica) recordMark() {
	if at := min(r.d.state.lsn, r.durable); at >= r.marked+markEvery {
		l := r.d.local()
		l.commit, r.marked = at, at
		r.record(Record{Kind: KindState, Data: l.encode()})
	}
}

func (r *Replica) written(seq uint64) {
	if r.role == Poisoned {
		return
	}
	r.synced = max(r.synced, seq)
	for u := r.unsynced.first(); u != nil && u.seq <= seq; u = r.unsynced.first() {
		r.durable = r.unsynced.pop().last
	}
	if r.cutSeq > r.synced { // a cut under way takes its part already
		r.durable = min(r.durable, r.cutTo)
	}
}

// fail is for good: after a failed write nothing that is read back proves anything.
func (r *Replica) fail(err error) {
	if r.role == Poisoned {
		return
	}
	if err == nil {
		err = meta.ErrPoisoned
	}
	r.why = meta.Errorf(meta.ErrPoisoned, "shard %s: its log failed: %w; restart the broker", r.shard, err)
	r.role = Poisoned
	r.drop(r.why)
	r.out.Alarm = r.why
}

// stop keeps the data and serves nothing any more.
func (r *Replica) stop(err error) {
	if r.role == Poisoned || r.role == Stopped {
		return
	}
	r.why = meta.Errorf(meta.ErrCorrupt, "shard %s stopped: %w", r.shard, err)
	r.role = Stopped
	r.drop(r.why)
	r.out.Alarm = r.why
}

// stepDown gives up a tenure. Reason, or NotLeader, goes to proposals that were
// not appended.
func (r *Replica) stepDown(reason error) {
	if r.role == Poisoned || r.role == Stopped {
		return
	}
	if reason == nil {
		reason = r.notLeader()
	}
	r.role = Following
	r.drop(reason)
	r.tenure = tenure{}
}

func (r *Replica) notLeader() error {
	if r.row.Leader == r.cfg.Self {
		return &meta.NotLeader{}
	}
	return &meta.NotLeader{Leader: r.row.Leader.Broker}
}

// serving reports whether proposals are answered: the opening entry is committed.
func (r *Replica) serving() bool {
	return r.role == Leading && r.d.state.lsn >= r.openLSN
}

// send adds a message. It leaves once every write so far is durable.
func (r *Replica) send(m Message) {
	r.stamp++
	m.From, m.Boot, m.Shard, m.Lineage, m.Stamp = r.cfg.Self, r.cfg.Boot, r.shard, r.d.lineage, r.stamp
	r.out.Messages = append(r.out.Messages, m)
}

// vector is the copy's epoch vector, as it is compared and sent.
func (r *Replica) vector() meta.Vector {
	v := r.d.Vector()
	if r.cfg.Twins.ReplacePair {
		v = slices.CompactFunc(v, func(later, kept meta.EpochStart) bool { return later.LSN == kept.LSN+1 })
	}
	return v
}

// Status is a view for the driver and for people.
func (r *Replica) Status() Status {
	s := Status{
		Role: r.role, Lineage: r.d.lineage, Epoch: r.row.Epoch, Promise: r.d.promise, Leader: r.row.Leader,
		Serving: r.serving(), Stranger: r.d.stranger, View: r.d.View(),
		Closed: r.d.tail.closed != 0 && r.d.tail.closed == r.d.tail.epoch, Best: r.named,
	}
	s.NeedsEpoch = r.role == Following && r.known && r.row.Lineage == r.d.lineage && r.row.Epoch > 0 && r.row.Leader == r.cfg.Self
	if r.why != nil {
		s.Waiting = append(s.Waiting, r.why.Error())
	}
	s.Waiting = append(s.Waiting, r.waiting()...)
	return s
}
