package replica

// receive takes a message of another copy. Incarnation comes first, then
// lineage, then (in the handlers) the epoch; what does not fit changes nothing.
func (r *Replica) receive(m *Message) {
	if r.role == Poisoned || r.role == Stopped || m.To.Broker != r.cfg.Self.Broker {
		return
	}
	same := m.Shard == r.shard && m.Lineage == r.d.lineage || r.cfg.Twins.MatchByName
	if m.Shard.Stream != r.shard.Stream || m.Shard.Shard != r.shard.Shard {
		return
	}
	switch m.Kind {
	case MsgFence, MsgReconcile, MsgAppend, MsgCommitMark, MsgFetch, MsgConfirm:
		if !same || m.Epoch == 0 {
			r.stale(m)
			return
		}
		r.request(m)
	case MsgFenceAnswer, MsgAppendAnswer, MsgFetchAnswer, MsgConfirmAnswer:
		if same {
			r.answer(m)
		}
	case MsgStaleRoute:
		r.onStale(m)
	}
}

func (r *Replica) request(m *Message) {
	if m.Kind == MsgFence {
		r.onFence(m)
		return
	}
	lower := m.Epoch < r.d.promise && r.cfg.Twins.LowerEpochs
	if m.Epoch != r.d.promise && !lower || r.standing {
		r.stale(m)
		return
	}
	if m.ToBoot != r.cfg.Boot || m.Instance != r.d.instance {
		return // meant for the copy that was here before
	}
	switch m.Kind {
	case MsgReconcile:
		r.onReconcile(m)
	case MsgAppend:
		r.onAppend(m)
	case MsgCommitMark:
		r.hear(m.Commit)
		r.acknowledge(m, nil)
	case MsgFetch:
		r.onFetch(m)
	case MsgConfirm:
		if r.adopted() {
			r.reply(m, Message{Kind: MsgConfirmAnswer, Round: m.Round, Last: r.durable, Adopted: true})
		}
	}
}

// answer takes an answer to this tenure. It counts only from a member's own
// storage id, for this epoch, and from the boot and instance that promised it.
func (r *Replica) answer(m *Message) {
	if !r.standing || m.Epoch != r.epoch || r.role == Promising {
		return
	}
	for i := range r.peers {
		p := &r.peers[i]
		if p.member != m.From || p.self {
			continue
		}
		if m.Kind == MsgFenceAnswer {
			r.onFenceAnswer(p, m)
			return
		}
		if !p.fenced || m.Boot != p.boot && !r.cfg.Twins.IgnoreBoot || m.Instance != p.instance && !r.cfg.Twins.IgnoreInstance {
			return
		}
		switch m.Kind {
		case MsgAppendAnswer:
			r.onAppendAnswer(p, m)
		case MsgFetchAnswer:
			r.onFetchAnswer(m)
		case MsgConfirmAnswer:
			if p.adopted && m.Adopted {
				p.confirmed = max(p.confirmed, m.Round)
			}
		}
		p.stamp = max(p.stamp, m.Stamp)
		return
	}
}

// reply answers a message. It waits for every write so far.
func (r *Replica) reply(to *Message, m Message) {
	m.To, m.Epoch, m.Instance, m.Stranger = to.From, to.Epoch, r.d.instance, r.d.stranger
	if m.After == 0 {
		m.After = r.seq
	}
	r.send(m)
}

// stale says what this copy holds instead. Nothing is written; the sender tries
// again later, or learns that its epoch is over.
func (r *Replica) stale(to *Message) {
	m := Message{Kind: MsgStaleRoute, To: to.From, Epoch: to.Epoch}
	m.Held = Held{Incarnation: r.shard.Incarnation, Lineage: r.d.lineage, Promise: r.d.promise}
	r.send(m)
}

// onStale ends a tenure that a member has promised to have outlived.
func (r *Replica) onStale(m *Message) {
	if r.standing && m.Epoch == r.epoch && m.Held.Incarnation == r.shard.Incarnation &&
		m.Held.Lineage == r.d.lineage && m.Held.Promise > r.epoch {
		r.stepDown(nil)
	}
}

// onFence promises an epoch: durable before the answer leaves, and nothing of a
// lower epoch is taken from here on. Vector, end and mark are read at this very
// moment, after the stop. What was written before is ahead of the promise in the
// log, so it is durable when the answer leaves, whoever acknowledged it.
func (r *Replica) onFence(m *Message) {
	switch {
	case m.Epoch < r.d.promise, m.Epoch == r.d.promise && r.standing:
		r.stale(m)
		return
	case r.d.tail.lsn < m.Floor:
		r.stale(m) // below the row's base: installs it first
		return
	}
	answer := Message{Kind: MsgFenceAnswer, Adopted: false}
	if m.Epoch > r.d.promise {
		r.stepDown(nil)
		r.following = following{}
		l := r.d.local()
		l.promise = m.Epoch
		before := r.synced
		r.writeLocal(l)
		if r.cfg.Twins.PromiseUnwritten {
			answer.After = max(before, 1)
		}
	}
	r.leader = m.From
	answer.Vector, answer.First, answer.Last, answer.Commit = r.vector(), r.d.start, r.d.tail.lsn, r.d.state.lsn
	r.reply(m, answer)
}

// adopted reports whether this copy holds the opening entry of the epoch that it
// promised, durably.
func (r *Replica) adopted() bool {
	e := r.d.promise
	if e == 0 || r.d.tail.epoch != e {
		return false
	}
	return r.durable >= r.d.tail.lsn || r.durable >= r.d.openingOf(e)
}
