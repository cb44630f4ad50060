package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket"
)

const (
	claimWait  = 5 * time.Second // for the bucket, before a known cluster starts without it
	claimRetry = 5 * time.Second // between two attempts in the background
)

// gate lets nothing be written to the bucket or deleted from it while it is not
// known that its prefix belongs to this cluster; claims pass. What meets a closed
// gate is tried again later, like anything that meets an outage.
type gate struct {
	bucket.Bucket
	open atomic.Bool
}

var errNotClaimed = meta.Errorf(bucket.ErrUnavailable, "the bucket's prefix is not known to be this cluster's: nothing is written there until it is")

// Put is bucket.Bucket's.
func (g *gate) Put(ctx context.Context, key string, body bucket.Body, o bucket.PutOptions) (bucket.Info, error) {
	if !g.open.Load() && !strings.HasPrefix(key, "claims/") {
		return bucket.Info{}, errNotClaimed
	}
	return g.Bucket.Put(ctx, key, body, o)
}

// Delete is bucket.Bucket's.
func (g *gate) Delete(ctx context.Context, keys []string) error {
	if !g.open.Load() {
		return errNotClaimed
	}
	return g.Bucket.Delete(ctx, keys)
}

// join makes sure that catalog, bucket and data directory belong to one cluster.
//
//	new catalog:  learn the bucket's next generation -> write the catalog -> claim
//	known one:    claim; where the bucket is away, start without it and go on trying
//
// An outage of the bucket keeps no known broker down: its log serves, and the gate
// keeps what would be archived or deleted back.
func (n *node) join(ctx context.Context, kv catalog.KV) error {
	want := catalog.Cluster{Level: catalog.Level}
	if _, err := rand.Read(want.ID[:]); err != nil {
		return err
	}
	var err error
	n.catalog, err = catalog.Open(ctx, kv, catalog.Options{})
	switch known := n.catalog; {
	case err == nil:
		if want, err = known.Cluster(ctx); err != nil {
			return err
		}
	case !errors.Is(err, meta.ErrNotFound):
		return err
	}
	n.store, err = tiering.New(tiering.Options{
		Bucket: n.gate, Cluster: want.ID, CacheBytes: int64(n.cfg.CacheMemory), Grace: n.cfg.SweepGrace,
		Events: n.storeEvents(),
	})
	if err != nil {
		return err
	}
	if n.catalog != nil {
		return n.reclaim(ctx, want)
	}
	// The catalog is written before the claim, so that a stop in between leaves
	// nothing in the bucket that nobody knows.
	if want.Generation, err = n.store.NextGeneration(ctx); err != nil {
		return fmt.Errorf("a new cluster must first claim its bucket %s: %w", n.gate.Location(), err)
	}
	if want, err = catalog.Initialize(ctx, kv, want); err != nil {
		return err
	}
	if err := n.claim(ctx, want); err != nil {
		return err
	}
	n.catalog, err = catalog.Open(ctx, kv, catalog.Options{})
	return err
}

// reclaim claims for a cluster that is known, now or in the background.
func (n *node) reclaim(ctx context.Context, want catalog.Cluster) error {
	waitCtx, cancel := context.WithTimeout(ctx, claimWait)
	defer cancel()
	err := n.claim(waitCtx, want)
	if err == nil || final(err) || ctx.Err() != nil {
		return err
	}
	n.logger.Warn("the bucket is away: starting without it, from the log alone; nothing is archived or deleted until it is back", "objects", n.gate.Location(), "error", err)
	n.group.Go("claim", func(ctx context.Context) error {
		for {
			select {
			case <-time.After(claimRetry):
			case <-ctx.Done():
				return nil
			}
			switch err := n.claim(ctx, want); {
			case err == nil:
				n.logger.Info("the bucket is back", "objects", n.gate.Location())
				return nil
			case ctx.Err() != nil:
				return nil
			case final(err):
				return err
			}
		}
	})
	return nil
}

// final reports whether trying again is of no use.
func final(err error) bool {
	return errors.Is(err, meta.ErrForeign) || errors.Is(err, meta.ErrCorrupt) || errors.Is(err, meta.ErrInvalid)
}

// claim claims the prefix, once, and opens the gate.
func (n *node) claim(ctx context.Context, want catalog.Cluster) error {
	claimed, err := n.store.Claim(ctx, tiering.ClaimOptions{Level: want.Level})
	if err != nil {
		return fmt.Errorf("claiming %s: %w", n.gate.Location(), err)
	}
	if claimed.Generation != want.Generation {
		return meta.Errorf(meta.ErrForeign, "the claim on %s has generation %d, the catalog in %s has %d: this catalog and this bucket do not belong together",
			n.gate.Location(), claimed.Generation, n.cfg.Data, want.Generation)
	}
	if claimed.Fresh && n.catalog != nil {
		n.alarms.Inc()
		n.logger.Error("alarm: a known cluster found no claim of its own in the bucket and made it anew; unless its very first start was interrupted, this is not the bucket that holds its past", "objects", n.gate.Location())
	}
	n.gate.open.Store(true)
	return nil
}
