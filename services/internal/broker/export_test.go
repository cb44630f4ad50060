package broker

import (
	"context"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal"
)

// Held lists the shards that are held of a name, the name's place in the maps included.
func (b *Broker) Held(n meta.StreamName) []meta.ShardID {
	b.mu.RLock()
	defer b.mu.RUnlock()
	h, ok := b.held[n]
	if !ok {
		return nil
	}
	ids := []meta.ShardID{}
	for _, s := range h.shards {
		ids = append(ids, s.id)
	}
	if len(ids) == 0 {
		ids = append(ids, meta.ShardID{Stream: n}) // a place without a shard
	}
	slices.SortFunc(ids, meta.ShardID.Compare)
	return ids
}

// Shards is how many shards are held.
func (b *Broker) Shards() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return max(len(b.shards), len(b.held))
}

// Log is the broker's log.
func (b *Broker) Log() *wal.Log { return b.log }

// Report tells the catalog how far the log is synced, as the upkeep does.
func (b *Broker) Report(ctx context.Context) error { return b.report(ctx) }

// Checkpoint writes one, as the upkeep does.
func (b *Broker) Checkpoint(ctx context.Context) error { return b.log.Checkpoint(ctx, b.capture) }

// Sweep removes a shard's garbage now.
func (b *Broker) Sweep(ctx context.Context, id meta.ShardID) error {
	s, err := b.shard(ctx, id)
	if err != nil {
		return err
	}
	return s.sweep(ctx)
}
