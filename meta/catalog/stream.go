package catalog

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/varve-io/varve/meta"
)

// CreateStream describes a stream to create.
type CreateStream struct {
	Name    meta.StreamName
	Shards  uint32 // 0: as the namespace says
	Config  StreamConfig
	Request string // the client's id for this request; repeating it gets the same stream
}

// Create makes a stream and its shards' rows in one transaction, under the next
// incarnation of its name. created is false when the same request had made it
// before. Errors: meta.ErrExists, meta.ErrNotFound (the namespace),
// meta.ErrInvalid.
func (c *Catalog) Create(ctx context.Context, want CreateStream) (row StreamRow, created bool, err error) {
	if err := want.validate(); err != nil {
		return StreamRow{}, false, err
	}
	mine := want.Request
	if mine == "" {
		mine = token()
	}
	tried := false
	row, err = change(ctx, c, "create stream "+want.Name.String(), func() (StreamRow, error) {
		kv, found, _, err := c.kv.Get(ctx, streamKey(want.Name))
		if err != nil {
			return StreamRow{}, err
		}
		if found {
			old, err := decodeStream(kv)
			if err == nil && old.Request != mine {
				err = meta.Errorf(meta.ErrExists, "stream %s exists already", want.Name)
			}
			created = tried
			return old, err
		}
		row, err := c.createOnce(ctx, want, mine)
		tried = tried || isUnknown(err)
		created = err == nil
		return row, err
	})
	return row, created && err == nil, err
}

func (w CreateStream) validate() error {
	if err := w.Name.Validate(); err != nil {
		return err
	}
	if w.Shards > meta.MaxShards {
		return meta.Invalidf("stream %s: %d shards: want 1 to %d", w.Name, w.Shards, meta.MaxShards)
	}
	if len(w.Request) > meta.MaxNameLen {
		return meta.Invalidf("request id has %d bytes: at most %d", len(w.Request), meta.MaxNameLen)
	}
	return w.Config.Validate()
}

// createOnce reads what a create depends on and tries the transaction once. Two
// creates of one name, a create and a delete, and an attempt that lands late all
// meet in its comparisons: the name is absent and the tombstone is the one read.
func (c *Catalog) createOnce(ctx context.Context, want CreateStream, request string) (StreamRow, error) {
	ns, err := c.Namespace(ctx, want.Name.Namespace)
	if err != nil {
		return StreamRow{}, err
	}
	ckv, found, _, err := c.kv.Get(ctx, keyCluster)
	if err != nil {
		return StreamRow{}, err
	}
	if !found {
		return StreamRow{}, meta.Errorf(meta.ErrNotFound, "the catalog has no cluster row")
	}
	cluster, err := decodeCluster(ckv)
	if err != nil {
		return StreamRow{}, err
	}
	stone, stoneAt, now, err := c.tombstone(ctx, want.Name)
	if err != nil {
		return StreamRow{}, err
	}
	shards := want.Shards
	if shards == 0 {
		shards = max(ns.Config.Shards, 1)
	}
	clock := meta.MicrosOf(c.opt.Now())
	row := StreamRow{
		Name: want.Name, Incarnation: c.incarnation(clock, now, stone.Through, cluster.Floor),
		Shards: shards, Config: want.Config, Created: clock, Request: request,
	}
	ops := []Op{{Key: streamKey(row.Name), Value: EncodeStream(row)}}
	for n := range shards {
		s := ShardRow{ID: row.Shard(n), State: ShardCreated, Lineage: meta.NewLineage(max(cluster.Generation, 1), 0)}
		ops = append(ops, rewrite(nil, &s, false)...)
	}
	r, err := c.commit(ctx, Transaction{
		If: slices.Concat(
			unchanged(streamKey(row.Name), 0, nil),
			unchanged(tombstoneKey(row.Name), stoneAt, encodeTombstone(stone)),
			unchanged(namespaceKey(ns.Name), ns.Revision, encodeNamespace(ns)),
			unchanged(keyCluster, ckv.Mod, ckv.Value),
		),
		Then: ops,
	})
	if err == nil && !r.Applied {
		err = errRaced
	}
	row.Revision = r.Revision
	return row, err
}

// incarnation is the next number for a name: never one that was handed out
// before, whatever the clock does and even if the store was rewound.
func (c *Catalog) incarnation(clock meta.Micros, now Revision, dead, floor meta.Incarnation) meta.Incarnation {
	if c.opt.Twins.RevisionNotClock {
		return meta.Incarnation(now)
	}
	return max(meta.Incarnation(max(clock, 1)), dead+1, floor)
}

// tombstone reads a name's tombstone; without one, Through and the revision it
// stands at are 0.
func (c *Catalog) tombstone(ctx context.Context, n meta.StreamName) (t meta.Tombstone, mod, now Revision, err error) {
	kv, found, now, err := c.kv.Get(ctx, tombstoneKey(n))
	if err != nil || !found {
		return meta.Tombstone{Stream: n}, 0, now, err
	}
	t, err = decodeTombstone(kv)
	return t, kv.Mod, now, err
}

// Tombstone reads a name's tombstone; Through is 0 when nothing was ever deleted.
func (c *Catalog) Tombstone(ctx context.Context, n meta.StreamName) (meta.Tombstone, error) {
	if err := n.Validate(); err != nil {
		return meta.Tombstone{}, err
	}
	t, _, _, err := c.tombstone(ctx, n)
	return t, err
}

// Stream reads the stream that has the name now. Errors: meta.ErrNotFound, or
// meta.ErrDeleted (which is also a NotFound) when the name had one before.
func (c *Catalog) Stream(ctx context.Context, n meta.StreamName) (StreamRow, error) {
	if err := n.Validate(); err != nil {
		return StreamRow{}, err
	}
	kv, found, _, err := c.kv.Get(ctx, streamKey(n))
	if err != nil {
		return StreamRow{}, err
	}
	if found {
		return decodeStream(kv)
	}
	t, _, _, err := c.tombstone(ctx, n)
	if err != nil {
		return StreamRow{}, err
	}
	if t.Through > 0 {
		gone := meta.Errorf(meta.ErrDeleted, "stream %s was deleted", n)
		return StreamRow{}, meta.Errorf(meta.ErrNotFound, "%w", gone)
	}
	return StreamRow{}, meta.Errorf(meta.ErrNotFound, "stream %s does not exist: create it first", n)
}

// UpdateStream replaces a stream's settings. at is the revision the caller read;
// 0 means whatever is there. Errors: meta.ErrNotFound, meta.ErrConflict.
func (c *Catalog) UpdateStream(ctx context.Context, n meta.StreamName, cfg StreamConfig, at Revision) (StreamRow, error) {
	if err := cfg.Validate(); err != nil {
		return StreamRow{}, err
	}
	return change(ctx, c, "update stream "+n.String(), func() (StreamRow, error) {
		row, err := c.Stream(ctx, n)
		if err != nil || row.Config == cfg {
			return row, err
		}
		if at != 0 && row.Revision != at {
			return row, meta.Errorf(meta.ErrConflict, "stream %s was changed by somebody else: read it again", n)
		}
		read := unchanged(streamKey(n), row.Revision, EncodeStream(row))
		row.Config = cfg
		r, err := c.commit(ctx, Transaction{
			If:   read,
			Then: []Op{{Key: streamKey(n), Value: EncodeStream(row)}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		row.Revision = r.Revision
		return row, err
	})
}

// Streams lists a namespace's streams whose names begin with prefix, in the byte
// order of their escaped names ('/' as '~'), from the first one after `after`, at
// most limit (0 means 1,000). next is the cursor of the following page, "" at the end.
func (c *Catalog) Streams(ctx context.Context, namespace, prefix, after string, limit int) (rows []StreamRow, next string, err error) {
	if err := meta.ValidateNamespace(namespace); err != nil {
		return nil, "", err
	}
	dir := dirStreams + namespace + "/"
	items, more, err := c.list(ctx, dir, escape(prefix), escape(after), limit)
	if err != nil {
		return nil, "", err
	}
	for _, kv := range items {
		row, err := decodeStream(kv)
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, row)
	}
	if more {
		next = rows[len(rows)-1].Name.Name
	}
	return rows, next, nil
}

func escape(name string) string { return strings.ReplaceAll(name, "/", "~") }

func isNotFound(err error) bool { return errors.Is(err, meta.ErrNotFound) }
func isUnknown(err error) bool  { return errors.Is(err, meta.ErrUnknown) }
