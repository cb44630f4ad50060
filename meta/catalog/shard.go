package catalog

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/varve-io/varve/meta"
)

// validate checks that the row's fields fit its state.
func (s ShardRow) validate() error {
	switch s.State {
	case ShardCreated:
		if s.Epoch != 0 || len(s.Members) != 0 || s.Leader != (meta.Member{}) {
			return meta.Invalidf("shard %s was just created but has epoch %d and %d members", s.ID, s.Epoch, len(s.Members))
		}
	case ShardServed:
		if s.Epoch == 0 {
			return meta.Invalidf("shard %s is served in epoch 0", s.ID)
		}
		if err := validateMembers(s.Members); err != nil {
			return err
		}
		if !slices.Contains(s.Members, s.Leader) {
			return meta.Invalidf("shard %s: leader %s is no member", s.ID, s.Leader)
		}
	case ShardHibernating:
		if s.Epoch == 0 || len(s.Members) != 0 || s.Leader != (meta.Member{}) {
			return meta.Invalidf("shard %s hibernates with epoch %d and %d members", s.ID, s.Epoch, len(s.Members))
		}
	default:
		return meta.Invalidf("shard %s: unknown state %q", s.ID, s.State)
	}
	if s.Lineage == 0 {
		return meta.Invalidf("shard %s has no lineage", s.ID)
	}
	return nil
}

// validateMembers wants 1 to MaxMembers members, sorted, each broker and each
// storage once, none of them blank.
func validateMembers(ms []meta.Member) error {
	if len(ms) == 0 || len(ms) > MaxMembers {
		return meta.Invalidf("%d members: want 1 to %d", len(ms), MaxMembers)
	}
	for i, m := range ms {
		if err := m.Broker.Validate(); err != nil {
			return err
		}
		if m.Storage.IsZero() {
			return meta.Invalidf("member %s has no storage id", m.Broker)
		}
		if i > 0 && cmp.Compare(ms[i-1].Broker, m.Broker) >= 0 {
			return meta.Invalidf("members %s and %s are not in order, or one broker stands twice", ms[i-1], m)
		}
		for _, o := range ms[:i] {
			if o.Storage == m.Storage {
				return meta.Invalidf("storage %s is the member of two brokers", m.Storage)
			}
		}
	}
	return nil
}

func sorted(ms []meta.Member) []meta.Member {
	ms = slices.Clone(ms)
	slices.SortFunc(ms, meta.Member.Compare)
	return ms
}

// same reports whether two rows say the same, whatever revision they stand at
// and however often they were rewritten to settle an outcome.
func (s ShardRow) same(o ShardRow) bool {
	s.Moves, o.Moves = 0, 0
	return bytes.Equal(encodeShard(s), encodeShard(o))
}

// Member returns the member of that broker, if there is one.
func (s ShardRow) Member(b meta.BrokerID) (meta.Member, bool) {
	for _, m := range s.Members {
		if m.Broker == b {
			return m, true
		}
	}
	return meta.Member{}, false
}

// MayForget reports whether this row alone lets a copy of the shard be forgotten
// that follows a lineage, promised an epoch and knows a commit mark. Everything
// else needs a tombstone or an operator's word; the copy is kept and reported.
func (s ShardRow) MayForget(lineage meta.Lineage, promise meta.Epoch, mark meta.LSN) bool {
	end := s.Committed
	if s.State == ShardHibernating {
		end = max(end, s.End)
	}
	return s.State != ShardCreated && s.Lineage >= lineage && s.Epoch >= promise && end >= mark
}

// Route is what a broker holds of a name: the answer to "which is the newer".
type Route struct {
	Incarnation meta.Incarnation
	Lineage     meta.Lineage
	Epoch       meta.Epoch
}

// Compare orders routes by incarnation, then lineage, then epoch.
func (r Route) Compare(o Route) int {
	return cmp.Or(cmp.Compare(r.Incarnation, o.Incarnation), cmp.Compare(r.Lineage, o.Lineage), cmp.Compare(r.Epoch, o.Epoch))
}

// Takes reports whether a holder of r, with the name deleted through dead, moves
// to o: never to a lower incarnation, never to one a tombstone covers, and within
// one incarnation only forward.
func (r Route) Takes(o Route, dead meta.Incarnation) bool {
	return o.Incarnation > dead && o.Compare(r) >= 0
}

// Route is the row's place in that order.
func (s ShardRow) Route() Route {
	return Route{Incarnation: s.ID.Incarnation, Lineage: s.Lineage, Epoch: s.Epoch}
}

// rewrite is the operations that turn one shard row into the next: the row, and
// the copy for each member's broker. from is nil for a new row, to for a removal.
func rewrite(from, to *ShardRow, keepIndex bool) []Op {
	var ops []Op
	var value []byte
	if to != nil {
		value = encodeShard(*to)
		ops = append(ops, Op{Key: shardKey(to.ID), Value: value})
		for _, m := range to.Members {
			ops = append(ops, Op{Key: byBrokerKey(m.Broker, to.ID), Value: value})
		}
	} else {
		ops = append(ops, Op{Key: shardKey(from.ID), Delete: true})
	}
	if from == nil || keepIndex {
		return ops
	}
	for _, m := range from.Members {
		if to != nil {
			if _, still := to.Member(m.Broker); still {
				continue
			}
		}
		ops = append(ops, Op{Key: byBrokerKey(m.Broker, from.ID), Delete: true})
	}
	return ops
}
