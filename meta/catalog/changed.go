package catalog

import (
	"context"
	"errors"
)

// Area is a part of the catalog that one can wait for.
type Area uint8

// The areas.
const (
	AreaBrokers    Area = iota + 1 // registrations
	AreaShards                     // assignments of every shard
	AreaStreams                    // streams of every namespace
	AreaNamespaces                 // namespaces and their settings
	AreaController                 // the election
)

func (a Area) prefix() string {
	return [...]string{"", dirBrokers, dirShards, dirStreams, dirNamespaces, keyController}[a]
}

// Revision is the catalog's revision now. Read it before the rows that [Catalog.Changed]
// is to watch over, so that nothing falls between.
func (c *Catalog) Revision(ctx context.Context) (Revision, error) {
	_, _, at, err := c.kv.Get(ctx, keyCluster)
	return at, err
}

// Changed waits until something in an area changes after a revision, and returns a
// revision up to which the caller, who now reads the area, has been told: pass it
// the next time. A gap (a compaction, a rewind, a dropped watch) counts as a change,
// so that the wait never sleeps through one.
func (c *Catalog) Changed(ctx context.Context, a Area, after Revision) (Revision, error) {
	now, err := c.Revision(ctx)
	if err != nil {
		return after, err
	}
	if now < after {
		return now, nil
	}
	w := c.kv.Watch(ctx, a.prefix(), after+1)
	defer w.Close()
	select {
	case <-ctx.Done():
		return after, ctx.Err()
	case ch, ok := <-w.C():
		if ok {
			return ch.Revision, nil
		}
	}
	if ctx.Err() != nil {
		return after, ctx.Err()
	}
	if err := w.Err(); errors.Is(err, ErrClosed) {
		return after, err
	}
	return now, nil
}
