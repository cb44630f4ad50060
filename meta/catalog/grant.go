package catalog

import (
	"context"
	"slices"

	"github.com/varve-io/varve/meta"
)

// Shard reads a shard's row; meta.ErrNotFound, or meta.ErrDeleted (a NotFound
// too) when a tombstone covers its incarnation.
func (c *Catalog) Shard(ctx context.Context, id meta.ShardID) (ShardRow, error) {
	kv, found, _, err := c.kv.Get(ctx, shardKey(id))
	if err != nil {
		return ShardRow{}, err
	}
	if found {
		return decodeShard(kv)
	}
	t, _, _, err := c.tombstone(ctx, id.Stream)
	if err != nil {
		return ShardRow{}, err
	}
	if t.Covers(id.Incarnation) {
		gone := meta.Errorf(meta.ErrDeleted, "stream %s, incarnation %s, was deleted", id.Stream, meta.Hex(id.Incarnation))
		return ShardRow{}, meta.Errorf(meta.ErrNotFound, "%w", gone)
	}
	return ShardRow{}, meta.Errorf(meta.ErrNotFound, "shard %s does not exist", id)
}

// Shards reads the rows of all shards of one creation of a stream.
func (c *Catalog) Shards(ctx context.Context, s StreamRow) ([]ShardRow, error) {
	p, err := c.kv.Range(ctx, RangeRequest{Prefix: incarnationDir(s)})
	if err != nil {
		return nil, err
	}
	return decodeShards(p.Items)
}

func decodeShards(items []KeyValue) ([]ShardRow, error) {
	rows := make([]ShardRow, 0, len(items))
	for _, kv := range items {
		s, err := decodeShard(kv)
		if err != nil {
			return nil, err
		}
		rows = append(rows, s)
	}
	return rows, nil
}

// AllShards lists the rows of every shard, in key order, for the controller.
// after is the last shard of the page before (nil for the first); at is its
// revision, 0 for the present: pages of one listing show one moment.
func (c *Catalog) AllShards(ctx context.Context, after *meta.ShardID, at Revision, limit int) (rows []ShardRow, seen Revision, more bool, err error) {
	r := RangeRequest{Prefix: dirShards, Limit: limit, Revision: at}
	if after != nil {
		r.After = shardKey(*after)
	}
	p, err := c.kv.Range(ctx, r)
	if err != nil {
		return nil, 0, false, err
	}
	rows, err = decodeShards(p.Items)
	return rows, p.Revision, p.More, err
}

// Granted is the row that grants the next epoch of a shard. form is the replica
// set of a shard that has none (just created, or hibernating); for a served one it
// must be nil: its members are copied from the row as they stand there. Pure.
func Granted(row ShardRow, leader meta.Member, boot meta.BootNonce, form []meta.Member) (ShardRow, error) {
	if boot == 0 {
		return ShardRow{}, meta.Invalidf("shard %s: a grant names the leader's boot", row.ID)
	}
	next := row
	next.Members = slices.Clone(row.Members)
	if row.State != ShardServed {
		next.Members = sorted(form)
		next.State, next.NextExpiry = ShardServed, 0
		next.Committed, next.End = max(row.Committed, row.End), 0
	} else if form != nil {
		return ShardRow{}, meta.Invalidf("shard %s has members already: a grant never changes them", row.ID)
	}
	next.Epoch = row.Epoch + 1
	next.Leader, next.Boot = leader, boot
	if err := next.validate(); err != nil {
		return ShardRow{}, err
	}
	return next, nil
}

// Grant writes [Granted], comparing the revision the row was read at. Errors:
// meta.ErrConflict (read again), meta.ErrUnknown (call Settle with the row that
// was read and the one returned).
func (c *Catalog) Grant(ctx context.Context, row ShardRow, leader meta.Member, boot meta.BootNonce, form []meta.Member) (ShardRow, error) {
	next, err := Granted(row, leader, boot, form)
	if err != nil {
		return ShardRow{}, err
	}
	if c.opt.Twins.GrantFromRegistrations {
		if next, err = c.membersFromRegistrations(ctx, next); err != nil {
			return ShardRow{}, err
		}
	}
	return c.writeShard(ctx, row, next, c.opt.Twins.GrantUnguarded)
}

// membersFromRegistrations is what a grant must never do.
func (c *Catalog) membersFromRegistrations(ctx context.Context, row ShardRow) (ShardRow, error) {
	brokers, err := c.Brokers(ctx)
	for _, b := range brokers {
		for i, m := range row.Members {
			if m.Broker == b.ID {
				row.Members[i].Storage = b.Storage
			}
		}
		if row.Leader.Broker == b.ID {
			row.Leader.Storage = b.Storage
		}
	}
	return row, err
}

// writeShard replaces a row that was read by its successor.
func (c *Catalog) writeShard(ctx context.Context, row, next ShardRow, unguarded bool) (ShardRow, error) {
	if err := next.validate(); err != nil {
		return ShardRow{}, err
	}
	t := Transaction{Then: rewrite(&row, &next, false)}
	if !unguarded {
		t.If = unchanged(shardKey(row.ID), row.Revision, encodeShard(row))
	}
	r, err := c.commit(ctx, t)
	if err != nil {
		return next, err
	}
	if !r.Applied {
		if _, there := r.Found[shardKey(row.ID)]; !there {
			return ShardRow{}, meta.Errorf(meta.ErrNotFound, "shard %s is gone: its stream was deleted", row.ID)
		}
		return ShardRow{}, meta.Errorf(meta.ErrConflict, "shard %s was changed by somebody else since it was read", row.ID)
	}
	next.Revision = r.Revision
	return next, nil
}

// ChangeMembers replaces the members, at the word of the epoch's leader, who must
// stay one. The caller has made sure of the joint majorities before. Errors as in Grant.
func (c *Catalog) ChangeMembers(ctx context.Context, row ShardRow, by meta.Member, boot meta.BootNonce, members []meta.Member, committed meta.LSN) (ShardRow, error) {
	if row.State != ShardServed || row.Leader != by || row.Boot != boot {
		return ShardRow{}, meta.Errorf(meta.ErrConflict, "shard %s: only the leader of epoch %d, %s, may change its members", row.ID, row.Epoch, row.Leader)
	}
	next := row
	next.Members = sorted(members)
	next.Committed = max(row.Committed, committed)
	return c.writeShard(ctx, row, next, false)
}

// Hibernate takes the replica set away from a shard whose leader has closed the
// epoch and put all of it in the bucket: base is that manifest, end the epoch's
// last LSN, expiry when retention by age wants it awake (0: never). Errors as in Grant.
func (c *Catalog) Hibernate(ctx context.Context, row ShardRow, by meta.Member, boot meta.BootNonce, base Base, end meta.LSN, expiry meta.Micros) (ShardRow, error) {
	if row.State != ShardServed || row.Leader != by || row.Boot != boot {
		return ShardRow{}, meta.Errorf(meta.ErrConflict, "shard %s: only the leader of epoch %d, %s, may hibernate it", row.ID, row.Epoch, row.Leader)
	}
	if end < row.Committed || base.Through > end {
		return ShardRow{}, meta.Invalidf("shard %s: end %d is below what is committed (%d) or below the base (%d)", row.ID, end, row.Committed, base.Through)
	}
	next := row
	next.State, next.Base, next.End, next.NextExpiry = ShardHibernating, base, end, expiry
	next.Committed = max(row.Committed, end)
	next.Leader, next.Boot, next.Members = meta.Member{}, 0, nil
	return c.writeShard(ctx, row, next, false)
}

// Abandonment is an operator's word that a shard goes on from what one copy, or
// the bucket, still has.
type Abandonment struct {
	// Survivor is the copy the shard goes on from, under the storage id its
	// directory has now; it becomes the lone member.
	Survivor meta.Member
	Boot     meta.BootNonce
	Base     Base // what it goes on from when it holds no log
	// CanServe is the caller's finding, from asking every copy, that a majority of
	// the row's members could still elect a leader. Then the abandon is refused. The
	// catalog has nothing to find that out with: whoever calls must have asked.
	CanServe bool
	Why      string // what CanServe rests on, for the error
}

// Abandoned is the row that re-forms a shard: next lineage, next epoch, one
// member. Pure.
func Abandoned(row ShardRow, a Abandonment) (ShardRow, error) {
	switch {
	case row.State != ShardServed:
		return ShardRow{}, meta.Invalidf("shard %s is %s: there is nothing to abandon", row.ID, row.State)
	case a.CanServe:
		return ShardRow{}, meta.Invalidf("shard %s can still be served by its members (%s): start those brokers instead", row.ID, a.Why)
	case a.Boot == 0:
		return ShardRow{}, meta.Invalidf("shard %s: an abandon names the boot of the copy that goes on", row.ID)
	case row.Lineage.Counter() == ^uint32(0):
		return ShardRow{}, meta.Invalidf("shard %s has no lineage left in generation %d", row.ID, row.Lineage.Generation())
	}
	next := row
	next.Lineage, next.Epoch = row.Lineage+1, row.Epoch+1
	next.Members, next.Leader, next.Boot = []meta.Member{a.Survivor}, a.Survivor, a.Boot
	next.Committed = 0 // what was committed in the old lineage may be what is given up
	if !a.Base.IsZero() {
		next.Base = a.Base
	}
	return next, next.validate()
}

// Abandon writes [Abandoned], comparing the row's revision. Errors as in Grant.
func (c *Catalog) Abandon(ctx context.Context, row ShardRow, a Abandonment) (ShardRow, error) {
	next, err := Abandoned(row, a)
	if err != nil {
		return ShardRow{}, err
	}
	return c.writeShard(ctx, row, next, false)
}

// NoteCommitted raises the row's "committed to at least". Errors as in Grant.
func (c *Catalog) NoteCommitted(ctx context.Context, row ShardRow, lsn meta.LSN) (ShardRow, error) {
	if lsn <= row.Committed {
		return row, nil
	}
	next := row
	next.Committed = lsn
	return c.writeShard(ctx, row, next, false)
}
