package broker

import (
	"fmt"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/wal"
)

// recovered is a shard as the log gave it back.
type recovered struct {
	id     meta.ShardID
	state  *replica.Durable
	broken error // its entries can't be read
}

// replay folds the log into the shards' durable states, by the same Apply that
// the live core uses.
type replay struct {
	shards map[wal.ShardNumber]*recovered
}

func (r *replay) Section(n wal.ShardNumber, id meta.ShardID, blob []byte) error {
	d, err := replica.DecodeDurable(blob)
	if err != nil {
		return fmt.Errorf("checkpoint: shard %s: %w", id, err)
	}
	r.shards[n] = &recovered{id: id, state: d}
	return nil
}

func (r *replay) Bound(n wal.ShardNumber, id meta.ShardID) error {
	r.shards[n] = &recovered{id: id, state: replica.NewDurable()}
	return nil
}

func (r *replay) Record(n wal.ShardNumber, rec wal.Record) error {
	if rec.Kind == wal.Forget {
		delete(r.shards, n)
		return nil
	}
	s, ok := r.shards[n]
	if !ok {
		return meta.Errorf(meta.ErrCorrupt, "log: a record for shard number %d, which nothing names", n)
	}
	out := replica.Record{Entry: rec.Entry, LSN: rec.LSN, Data: rec.Data}
	switch rec.Kind {
	case wal.Entry:
		out.Kind = replica.KindEntry
	case wal.Truncate:
		out.Kind = replica.KindTruncate
	case wal.State:
		out.Kind = replica.KindState
	case wal.Base:
		out.Kind = replica.KindBase
	default:
		return meta.Errorf(meta.ErrCorrupt, "log: shard %s: a record of unknown kind %d", s.id, rec.Kind)
	}
	if err := s.state.Apply(&out); err != nil {
		return fmt.Errorf("log: shard %s: %w", s.id, err)
	}
	return nil
}

func (r *replay) Broken(n wal.ShardNumber, why error) error {
	s, ok := r.shards[n]
	if !ok {
		return meta.Errorf(meta.ErrCorrupt, "log: shard number %d is broken, and nothing names it: %w", n, why)
	}
	s.broken = why
	s.state.Break()
	return nil
}
