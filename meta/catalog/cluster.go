package catalog

import (
	"context"

	"github.com/varve-io/varve/meta"
)

// Initialize writes the cluster's row into an empty store, once. With a cluster
// already there it changes nothing and returns what is stored; it is up to the
// caller to compare ids. A store that holds other keys but no cluster is refused.
func Initialize(ctx context.Context, kv KV, want Cluster) (Cluster, error) {
	if want.ID.IsZero() || want.Level == 0 {
		return Cluster{}, meta.Invalidf("a cluster needs an id and a format level of at least 1")
	}
	_, err := kv.Commit(ctx, Transaction{
		If: []Compare{{Kind: CompareEmpty, Key: ""}},
		Then: []Op{
			{Key: keyCluster, Value: encodeCluster(want)},
			{Key: keyLevel, Value: encodeNumber(uint64(want.Level))},
			{Key: keyRegistrations, Value: encodeNumber(0)},
			{Key: keySnapshots, Value: encodeNumber(0)},
		},
	})
	if err != nil {
		return Cluster{}, err
	}
	return readCluster(ctx, kv)
}

// Cluster reads the cluster's row and level.
func (c *Catalog) Cluster(ctx context.Context) (Cluster, error) { return readCluster(ctx, c.kv) }

func readCluster(ctx context.Context, kv KV) (Cluster, error) {
	row, found, _, err := kv.Get(ctx, keyCluster)
	if err != nil {
		return Cluster{}, err
	}
	if !found {
		return Cluster{}, meta.Errorf(meta.ErrNotFound, "the catalog has no cluster row")
	}
	cl, err := decodeCluster(row)
	if err != nil {
		return Cluster{}, err
	}
	level, found, _, err := kv.Get(ctx, keyLevel)
	if err != nil {
		return Cluster{}, err
	}
	if !found {
		return Cluster{}, meta.Errorf(meta.ErrCorrupt, "the catalog has a cluster row but no format level")
	}
	n, err := decodeNumber(level)
	cl.Level = uint16(n)
	return cl, err
}

// RaiseFloor raises the incarnation floor, as a restore does before it registers
// any stream. Lower values change nothing.
func (c *Catalog) RaiseFloor(ctx context.Context, floor meta.Incarnation) error {
	_, err := change(ctx, c, "raise the incarnation floor", func() (struct{}, error) {
		kv, found, _, err := c.kv.Get(ctx, keyCluster)
		if err != nil {
			return struct{}{}, err
		}
		if !found {
			return struct{}{}, meta.Errorf(meta.ErrNotFound, "the catalog has no cluster row")
		}
		cl, err := decodeCluster(kv)
		if err != nil || cl.Floor >= floor {
			return struct{}{}, err
		}
		cl.Floor = floor
		r, err := c.commit(ctx, Transaction{
			If:   unchanged(keyCluster, kv.Mod, kv.Value),
			Then: []Op{{Key: keyCluster, Value: encodeCluster(cl)}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		return struct{}{}, err
	})
	return err
}

// NextSnapshot hands out the next snapshot number, from 1; numbers may be lost,
// never repeated.
func (c *Catalog) NextSnapshot(ctx context.Context) (uint64, error) {
	return change(ctx, c, "take a snapshot number", func() (uint64, error) {
		n, guard, put, err := c.counter(ctx, keySnapshots)
		if err != nil {
			return 0, err
		}
		r, err := c.commit(ctx, Transaction{If: guard, Then: []Op{put}})
		if err == nil && !r.Applied {
			err = errRaced
		}
		return n + 1, err
	})
}

// counter reads a counter and prepares its increment.
func (c *Catalog) counter(ctx context.Context, key string) (now uint64, guard []Compare, put Op, err error) {
	kv, found, _, err := c.kv.Get(ctx, key)
	if err != nil {
		return 0, guard, put, err
	}
	if found {
		if now, err = decodeNumber(kv); err != nil {
			return 0, guard, put, err
		}
	}
	return now, unchanged(key, kv.Mod, kv.Value), Op{Key: key, Value: encodeNumber(now + 1)}, nil
}

// RaiseLevel moves the cluster to a higher format level, one way. It is refused
// with meta.ErrInvalid while a registered broker does not know the level, and
// compares the registration counter it looked at; afterwards the registration of
// a broker without it is refused.
func (c *Catalog) RaiseLevel(ctx context.Context, to uint16) error {
	if to > c.opt.MaxLevel {
		return meta.Errorf(meta.ErrFormatLevel, "this program knows format levels up to %d, not %d", c.opt.MaxLevel, to)
	}
	_, err := change(ctx, c, "raise the format level", func() (struct{}, error) {
		none := struct{}{}
		if err := c.ReloadLevel(ctx); err != nil {
			return none, err
		}
		if c.Level() >= to {
			return none, nil
		}
		_, guard, _, err := c.counter(ctx, keyRegistrations)
		if err != nil {
			return none, err
		}
		brokers, err := c.Brokers(ctx)
		if err != nil {
			return none, err
		}
		for _, b := range brokers {
			if b.Level < to {
				return none, meta.Invalidf("broker %s knows format levels up to %d only: upgrade it, or stop it for good, before level %d is finalized", b.ID, b.Level, to)
			}
		}
		r, err := c.commit(ctx, Transaction{If: guard, Then: []Op{{Key: keyLevel, Value: encodeNumber(uint64(to))}}})
		if err != nil {
			return none, err
		}
		if !r.Applied {
			return none, errRaced
		}
		c.level.Store(uint32(to))
		return none, nil
	})
	return err
}
