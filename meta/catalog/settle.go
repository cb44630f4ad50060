package catalog

import (
	"context"
	"errors"

	"github.com/varve-io/varve/meta"
)

// Outcome is what became of a write whose answer was lost.
type Outcome uint8

// The outcomes.
const (
	Landed     Outcome = iota + 1 // the row says what was wanted
	Failed                        // it never happened and never will
	Superseded                    // the row moved on by another's write; ours cannot land any more
)

func (o Outcome) String() string {
	return [...]string{"not settled", "landed", "failed", "superseded"}[o]
}

// Settle finds out what became of a write of next over row that ended in
// meta.ErrUnknown, and returns the row as it is now. While the row still stands at
// the revision that was read, the write may be under way and land later; so that
// is not "failed" before this call has itself moved the revision, after which the
// write's comparison cannot hold. Only then may anything be assumed.
//
// Superseded says that the row differs from both: ours landed and was replaced, or
// never landed; either way the returned row is what holds. Errors:
// meta.ErrNotFound when the stream was deleted meanwhile; others mean "still not
// settled": call again.
func (c *Catalog) Settle(ctx context.Context, row, next ShardRow) (Outcome, ShardRow, error) {
	type answer struct {
		o   Outcome
		row ShardRow
	}
	a, err := change(ctx, c, "settle shard "+row.ID.String(), func() (answer, error) {
		now, err := c.Shard(ctx, row.ID)
		if err != nil {
			return answer{}, err
		}
		switch {
		case now.Revision == row.Revision && c.opt.Twins.AbortOnRead:
			return answer{Failed, now}, nil
		case now.Revision == row.Revision:
			// Move it. If the late write comes first, the comparison fails and the
			// next reading finds it; if this comes first, the late one fails.
			moved := now
			moved.Moves++
			moved, err = c.writeShard(ctx, now, moved, false)
			if errors.Is(err, meta.ErrConflict) {
				err = errRaced
			}
			return answer{Failed, moved}, err
		case now.same(next):
			return answer{Landed, now}, nil
		case now.same(row):
			return answer{Failed, now}, nil // moved by an earlier attempt to settle
		}
		return answer{Superseded, now}, nil
	})
	return a.o, a.row, err
}
