package broker

import (
	"context"
	"errors"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal"
)

const (
	upkeepEvery     = time.Second
	reportEvery     = 5 * time.Second  // synced position, to the catalog
	checkpointQuiet = 30 * time.Second // between checkpoints while something was written
	checkpointLazy  = 10 * time.Minute // while that is little beside the checkpoint itself
	sectionBytes    = 400              // about what a shard takes in a checkpoint
	// checkpointLeast is what a checkpoint is not worth, however long ago the last one
	// was: the bare header that vouches for its own last group moves the log's end by
	// up to half of it, and an idle broker must come to rest.
	checkpointLeast = 8 << 10
)

// upkeep writes checkpoints, which give log files back, and reports how far the
// log is synced.
func (b *Broker) upkeep(ctx context.Context) error {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	var (
		last     = time.Now()
		at       = b.log.Status().End
		drops    uint64
		reported = time.Now()
	)
	for {
		select {
		case <-tick.C:
		case <-b.wakeUp:
		case <-ctx.Done():
			return nil
		}
		st, now := b.log.Status(), b.drops.Load()
		written := int64(st.End - at)
		due := written >= max(st.Budget/8, 1<<20) ||
			now != drops && st.Used > st.Budget/4 ||
			b.pressure.Load() && time.Since(last) >= checkpointQuiet || // also when nothing could be written: it copies small tails out of the way
			written > checkpointLeast && time.Since(last) >= b.quiet(written)
		b.forgetBuried()
		b.rest()
		b.routes.age(b.opts.Now())
		if due {
			if err := b.log.Checkpoint(ctx, b.capture); err != nil {
				if errors.Is(err, meta.ErrPoisoned) || ctx.Err() != nil {
					return nil // guard ends the broker
				}
				b.opts.Logger.Warn("checkpoint failed; trying again", "error", err)
			} else {
				at, drops, last = b.log.Status().End, now, time.Now()
			}
		}
		if time.Since(reported) >= reportEvery {
			reported = time.Now()
			if err := b.report(ctx); err != nil {
				return err
			}
		}
	}
}

// quiet is how long a checkpoint waits after so many bytes were written: it states
// every shard, so that a trickle into one of many streams would cost more to state
// than to replay.
func (b *Broker) quiet(written int64) time.Duration {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if written*4 < int64(len(b.shards))*sectionBytes {
		return checkpointLazy
	}
	return checkpointQuiet
}

// report tells the catalog how far the log is synced. Another start of the same
// directory having reported in means that this process is the copy that must stop.
func (b *Broker) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reportEvery)
	defer cancel()
	err := b.opts.Catalog.NoteSynced(ctx, b.copyRow())
	if errors.Is(err, meta.ErrStranger) {
		return err
	}
	if err != nil && ctx.Err() == nil {
		b.opts.Logger.Warn("the catalog did not take the log's position; trying again", "error", err)
	}
	return nil
}

// capture gives a checkpoint every shard's state.
func (b *Broker) capture(yield func(wal.ShardNumber, []byte) bool) {
	for _, s := range b.all() {
		if !s.encode(yield) {
			return
		}
	}
}

// onPressure is called by the log when it fills up.
func (b *Broker) onPressure(used, budget int64) {
	b.pressure.Store(true)
	b.kick()
}

// kick wakes the archive scheduler and the upkeep.
func (b *Broker) kick() {
	poke(b.sealUp)
	poke(b.wakeUp)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
