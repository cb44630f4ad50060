package catalog

import (
	"context"

	"github.com/varve-io/varve/meta"
)

// Deleted says what a delete took away.
type Deleted struct {
	Stream    StreamRow
	Tombstone meta.Tombstone // as it stands afterwards
	Shards    []ShardRow     // the rows that went, with the members that hold data
}

// Delete removes a stream, all its shards' rows and their by-broker copies, and
// raises the tombstone, in one transaction. incarnation is the one the caller
// means; 0 means whichever has the name. Errors: meta.ErrNotFound;
// meta.ErrDeleted (a NotFound too) when that incarnation is gone already.
func (c *Catalog) Delete(ctx context.Context, n meta.StreamName, incarnation meta.Incarnation) (Deleted, error) {
	var mine *Deleted // an attempt whose outcome is unknown
	return change(ctx, c, "delete stream "+n.String(), func() (Deleted, error) {
		row, err := c.Stream(ctx, n)
		if mine != nil {
			switch {
			case isNotFound(err), err == nil && row.Incarnation > mine.Stream.Incarnation:
				return *mine, nil // gone: by us, or by another who wanted the same
			}
		}
		if err != nil {
			return Deleted{}, err
		}
		if incarnation != 0 && row.Incarnation != incarnation {
			gone := meta.Errorf(meta.ErrDeleted, "stream %s: incarnation %d is gone, %d has its name", n, incarnation, row.Incarnation)
			return Deleted{}, meta.Errorf(meta.ErrNotFound, "%w", gone)
		}
		incarnation = row.Incarnation // a retry never reaches a later creation
		d, err := c.deleteOnce(ctx, row)
		if isUnknown(err) {
			mine = &d
		}
		return d, err
	})
}

// deleteOnce tries the transaction once. It compares every shard row it removes,
// so that a grant under way cannot leave a member's by-broker copy behind.
func (c *Catalog) deleteOnce(ctx context.Context, row StreamRow) (Deleted, error) {
	stone, stoneAt, _, err := c.tombstone(ctx, row.Name)
	if err != nil {
		return Deleted{}, err
	}
	page, err := c.kv.Range(ctx, RangeRequest{Prefix: incarnationDir(row)})
	if err != nil {
		return Deleted{}, err
	}
	d := Deleted{Stream: row, Tombstone: meta.Tombstone{Stream: row.Name, Through: max(stone.Through, row.Incarnation)}}
	guards := append(
		unchanged(streamKey(row.Name), row.Revision, EncodeStream(row)),
		unchanged(tombstoneKey(row.Name), stoneAt, encodeTombstone(stone))...)
	ops := []Op{
		{Key: streamKey(row.Name), Delete: true},
		{Key: tombstoneKey(row.Name), Value: encodeTombstone(d.Tombstone)},
		{Key: purgeKey(row.Name, row.Incarnation), Value: encodeNumber(uint64(Level))},
	}
	for _, kv := range page.Items {
		s, err := decodeShard(kv)
		if err != nil {
			return Deleted{}, err
		}
		d.Shards = append(d.Shards, s)
		guards = append(guards, unchanged(kv.Key, kv.Mod, kv.Value)...)
		ops = append(ops, rewrite(&s, nil, c.opt.Twins.DropSilently)...)
	}
	r, err := c.commit(ctx, Transaction{If: guards, Then: ops})
	if err == nil && !r.Applied {
		err = errRaced
	}
	return d, err
}

// Tombstones lists the tombstones of a namespace's names, after the name `after`,
// at most limit (0 means 1,000); next is the cursor of the following page.
func (c *Catalog) Tombstones(ctx context.Context, namespace, after string, limit int) (rows []meta.Tombstone, next string, err error) {
	if err := meta.ValidateNamespace(namespace); err != nil {
		return nil, "", err
	}
	items, more, err := c.list(ctx, dirTombstones+namespace+"/", "", escape(after), limit)
	if err != nil {
		return nil, "", err
	}
	for _, kv := range items {
		t, err := decodeTombstone(kv)
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, t)
	}
	if more {
		next = rows[len(rows)-1].Stream.Name
	}
	return rows, next, nil
}
