package replica

import (
	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// propose takes one proposal. Every one is answered exactly once.
func (r *Replica) propose(p *Propose) {
	r.now = max(r.now, p.Now)
	switch {
	case r.role == Poisoned || r.role == Stopped:
		r.refuse(p.ID, r.why)
		return
	case r.role != Leading && !r.standing:
		r.refuse(p.ID, r.notLeader())
		return
	case r.role != Leading:
		r.refuse(p.ID, meta.Errorf(meta.ErrUnavailable, "shard %s: epoch %d is being opened: try again", r.shard, r.epoch))
		return
	}
	if r.d.over.len() >= r.cfg.Limits.Pending && p.Kind != ProposeMark && p.Kind != ProposeConfirm {
		r.refuse(p.ID, meta.Errorf(meta.ErrUnavailable, "shard %s: %d entries wait for a quorum: try again", r.shard, r.d.over.len()))
		return
	}
	switch p.Kind {
	case ProposeBatch:
		r.proposeBatch(p)
	case ProposeFence:
		r.proposeFence(p)
	case ProposeTrim:
		r.proposeTrim(p)
	case ProposeMark:
		r.proposeMark(p)
	case ProposeConfirm:
		r.proposeConfirm(p)
	case ProposeClose:
		if r.closed() {
			r.unchanged(p.ID)
			return
		}
		r.command(p, entry.Close, nil)
	case CheckTail:
		r.checkTail(p)
	default:
		r.refuse(p.ID, meta.Invalidf("proposal of unknown kind %d", p.Kind))
	}
}

// proposeBatch checks duplicate, then fence token, then expected offset, all at
// the end of the log, and appends.
func (r *Replica) proposeBatch(p *Propose) {
	h, err := parseBatch(p.Bytes)
	if err == nil && len(p.Bytes) > entry.MaxPayload {
		err = meta.Invalidf("record batch has %d bytes: at most %d", len(p.Bytes), entry.MaxPayload)
	}
	hint := p.Level == None || p.Level == Leader
	if err == nil && p.Level > Archive {
		err = meta.Invalidf("acknowledgement level %d is not known", p.Level)
	}
	if err == nil && hint && (h.producer >= 0 || p.ExpectedOffset != nil || p.FenceToken != nil) {
		err = meta.Invalidf("acknowledgement levels none and leader are a hint only: no producer id, expected offset or fence token; use quorum")
	}
	if err != nil {
		r.refuse(p.ID, err)
		return
	}
	var v verdict
	if h.producer >= 0 {
		if r.cfg.Twins.ConditionFirst {
			if err := r.conditions(p); err != nil {
				r.negative(p.ID, err, false)
				return
			}
		}
		if v = r.d.judge(&h); v.duplicate || v.err != nil {
			r.judged(p, &h, &v)
			return
		}
	}
	switch {
	case r.closed():
		err = meta.Errorf(meta.ErrUnavailable, "shard %s: %w", r.shard, errClosed)
	default:
		err = r.conditions(p)
	}
	if err != nil {
		r.negative(p.ID, err, false)
		return
	}
	if h.producer >= 0 {
		err = r.room(&v, p.Producers)
	}
	if err == nil && r.d.tail.next+meta.Offset(h.count) > meta.MaxOffset {
		err = meta.Errorf(meta.ErrExhausted, "shard %s has no offsets left", r.shard)
	}
	if err != nil {
		r.negative(p.ID, err, false)
		return
	}
	e := r.appendEntry(entry.Batch, p.Bytes, p.Now, false)
	if r.role != Leading {
		r.refuse(p.ID, r.why)
		return
	}
	next := e.Offset + meta.Offset(h.count)
	w := waiter{lsn: e.LSN, appended: true, archive: p.Level == Archive, offset: next}
	w.answer = Answer{ID: p.ID, Applied: AppliedYes, LSN: e.LSN, First: e.Offset, Next: next, Time: e.Time}
	if hint {
		r.hints.push(w)
	} else {
		r.wait(w)
	}
}

// judged answers a batch that the client table decides: a duplicate, once its
// first is committed, or a refusal, once all it was computed from is.
func (r *Replica) judged(p *Propose, h *batchHeader, v *verdict) {
	if v.err != nil {
		r.negative(p.ID, v.err, v.unknown)
		return
	}
	a := Answer{ID: p.ID, Applied: AppliedYes, Duplicate: true, LSN: v.lsn}
	w := waiter{lsn: v.lsn, stored: true}
	if v.forgotten {
		a.OffsetUnknown = true
		w.lsn = r.d.tail.lsn
	} else {
		a.First, a.Next, a.Time = v.offset, v.offset+meta.Offset(h.count), v.time
		w.archive, w.offset = p.Level == Archive, a.Next
	}
	if r.cfg.Twins.DuplicateAtOnce {
		r.deliver(a)
		return
	}
	// The queue is in the order of LSNs: a place further back only waits longer.
	w.lsn = max(w.lsn, r.lastQueued())
	w.answer = a
	r.wait(w)
}

func (r *Replica) lastQueued() meta.LSN {
	if w := r.committing.all(); len(w) > 0 {
		return w[len(w)-1].lsn
	}
	return 0
}

// negative queues a refusal that was computed from the log's end: it leaves once
// all of that is committed, and a round that began after now confirmed that this
// copy still leads.
func (r *Replica) negative(id uint64, err error, unknown bool) {
	a := Answer{ID: id, Err: err}
	if unknown {
		a.Applied = AppliedUnknown
	}
	r.wait(waiter{answer: a, lsn: max(r.d.tail.lsn, r.lastQueued()), round: r.freshRound()})
}

// unchanged answers a command that has nothing to change, as of the log's end.
func (r *Replica) unchanged(id uint64) {
	r.wait(waiter{answer: Answer{ID: id, Applied: AppliedYes, NoEffect: true}, lsn: max(r.d.tail.lsn, r.lastQueued()), round: r.freshRound()})
}

func (r *Replica) command(p *Propose, kind entry.Kind, payload []byte) {
	e := r.appendEntry(kind, payload, p.Now, false)
	if r.role != Leading {
		r.refuse(p.ID, r.why)
		return
	}
	a := Answer{ID: p.ID, Applied: AppliedYes, LSN: e.LSN, First: e.Offset, Next: e.Offset, Time: e.Time}
	a.NoEffect = kind == entry.Mark && r.d.tail.mark != e.LSN
	r.wait(waiter{answer: a, lsn: e.LSN, appended: true})
}

func (r *Replica) proposeFence(p *Propose) {
	switch {
	case len(p.Token) > entry.MaxToken:
		r.refuse(p.ID, meta.Invalidf("fence token has %d bytes: at most %d", len(p.Token), entry.MaxToken))
	case p.Strict && p.Token == "":
		r.refuse(p.ID, meta.Invalidf("strict fencing needs a token"))
	case r.closed():
		r.negative(p.ID, meta.Errorf(meta.ErrUnavailable, "shard %s: %w", r.shard, errClosed), false)
	default:
		if err := r.token(p); err != nil {
			r.negative(p.ID, err, false)
			return
		}
		r.command(p, entry.Fence, entry.FencePayload{Strict: p.Strict, Token: p.Token}.Encode())
	}
}

func (r *Replica) proposeTrim(p *Propose) {
	t := &r.d.tail
	switch err := r.token(p); {
	case r.closed():
		r.negative(p.ID, meta.Errorf(meta.ErrUnavailable, "shard %s: %w", r.shard, errClosed), false)
	case err != nil:
		r.negative(p.ID, err, false)
	case p.Start > t.next:
		r.negative(p.ID, &meta.OffsetOutOfRange{Asked: p.Start, Start: t.start, End: t.next}, false)
	case p.Start <= t.start:
		r.unchanged(p.ID)
	default:
		r.command(p, entry.Trim, entry.TrimPayload{Start: p.Start}.Encode())
	}
}

// proposeMark appends an archive mark. What can't apply is refused before; what is
// appended is judged again when it commits.
func (r *Replica) proposeMark(p *Propose) {
	m, err := entry.DecodeMark(p.Bytes)
	t := &r.d.tail
	switch {
	case len(p.Bytes) > entry.MaxPayload:
		r.refuse(p.ID, meta.Invalidf("archive mark has %d bytes: at most %d", len(p.Bytes), entry.MaxPayload))
	case err != nil:
		r.refuse(p.ID, meta.Invalidf("archive mark of %d bytes can't be read: %w", len(p.Bytes), err))
	case m.End > r.d.state.lsn+1:
		r.refuse(p.ID, meta.Invalidf("archive mark ends at LSN %d: only what is committed is archived, up to %d", m.End, r.d.state.lsn))
	case m.Segment != nil && m.Segment.NextOffset > r.d.state.next:
		r.refuse(p.ID, meta.Invalidf("archive mark's segment ends at offset %d: only what is committed is archived, up to %d", m.Segment.NextOffset, r.d.state.next))
	case len(r.d.state.marks)+r.d.over.len() >= r.cfg.Limits.Marks && r.openMarks() >= r.cfg.Limits.Marks:
		r.refuse(p.ID, meta.Errorf(meta.ErrExhausted, "%d archive marks wait for their manifests: put those first", r.openMarks()))
	case m.Start != t.archived || m.Parent != t.mark:
		r.negative(p.ID, meta.Errorf(meta.ErrConflict, "archive mark starts at LSN %d after mark %d: the archived end is %d, made by mark %d", m.Start, m.Parent, t.archived, t.mark), false)
	default:
		r.command(p, entry.Mark, p.Bytes)
	}
}

func (r *Replica) openMarks() int {
	n := len(r.d.state.marks)
	for i := range r.d.over.items() {
		if r.d.over.items()[i].kind == entry.Mark {
			n++
		}
	}
	return n
}

func (r *Replica) proposeConfirm(p *Propose) {
	s := &r.d.state
	if p.LSN <= s.confirmed && p.LSN != 0 {
		r.unchanged(p.ID)
		return
	}
	for i := range s.marks {
		if s.marks[i].LSN == p.LSN {
			r.command(p, entry.Confirm, entry.ConfirmPayload{Mark: p.LSN}.Encode())
			return
		}
	}
	r.negative(p.ID, meta.Errorf(meta.ErrConflict, "no committed mark at LSN %d waits for its manifest", p.LSN), false)
}

// checkTail answers with the committed end, once that is at least what it was when
// the request arrived and a round confirmed this leader.
func (r *Replica) checkTail(p *Propose) {
	at := max(r.d.state.lsn, r.openLSN)
	if w := r.confirming.all(); len(w) > 0 {
		at = max(at, w[len(w)-1].lsn)
	}
	round := r.freshRound()
	w := waiter{answer: Answer{ID: p.ID, Applied: AppliedYes}, lsn: at, round: round}
	if round == 0 {
		w.lsn = max(at, r.lastQueued())
	}
	r.wait(w)
}
