package catalog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"

	"github.com/varve-io/varve/meta"
)

// Export is the catalog at one revision: what a snapshot keeps of it. Leases, and
// what hangs on them, are not in it, nor are copies.
type Export struct {
	Revision   Revision
	Cluster    Cluster
	Features   []string
	Namespaces []NamespaceRow
	Streams    []StreamRow
	Tombstones []meta.Tombstone
	Shards     []ShardRow
}

// exportDirs are what an export holds, in the order an import writes it.
var exportDirs = [...]string{dirFeatures, dirNamespaces, dirTombstones, dirStreams, dirShards}

// Export reads the catalog at one revision. A compaction while it reads makes it
// start over.
func (c *Catalog) Export(ctx context.Context) (Export, error) {
	for {
		e, err := c.exportOnce(ctx)
		if errors.Is(err, ErrCompacted) {
			continue
		}
		return e, err
	}
}

func (c *Catalog) exportOnce(ctx context.Context) (Export, error) {
	page, err := c.kv.Range(ctx, RangeRequest{Prefix: keyCluster})
	if err != nil {
		return Export{}, err
	}
	e := Export{Revision: page.Revision}
	if len(page.Items) == 0 || page.Items[0].Key != keyCluster {
		return Export{}, meta.Errorf(meta.ErrNotFound, "the catalog has no cluster row")
	}
	if e.Cluster, err = decodeCluster(page.Items[0]); err != nil {
		return Export{}, err
	}
	e.Cluster.Level = c.Level()
	for _, dir := range exportDirs {
		items, _, err := readOnce(ctx, c.kv, dir, e.Revision)
		if err != nil {
			return Export{}, err
		}
		for _, kv := range items {
			if err := e.add(dir, kv); err != nil {
				return Export{}, err
			}
		}
	}
	return e, nil
}

// add decodes one row into the export.
func (e *Export) add(dir string, kv KeyValue) (err error) {
	switch dir {
	case dirFeatures:
		e.Features = append(e.Features, kv.Key[len(dirFeatures):])
	case dirNamespaces:
		err = push(&e.Namespaces, kv, decodeNamespace)
	case dirTombstones:
		err = push(&e.Tombstones, kv, decodeTombstone)
	case dirStreams:
		err = push(&e.Streams, kv, decodeStream)
	case dirShards:
		err = push(&e.Shards, kv, decodeShard)
	}
	return err
}

func push[T any](to *[]T, kv KeyValue, decode func(KeyValue) (T, error)) error {
	v, err := decode(kv)
	if err == nil {
		*to = append(*to, v)
	}
	return err
}

// An encoded export:
//
//	+----------------+---------+----------------------------+------------------+
//	| "VARVECAT"     | u16 LE  | lines: key, TAB, row, LF   | u32 LE, CRC32C   |
//	| magic          | version | sorted by directory, key   | of all before    |
//	+----------------+---------+----------------------------+------------------+
//
// The first line is "revision", the second "cluster", the third "level".
const (
	exportMagic   = "VARVECAT"
	exportVersion = 1
	// MaxExport bounds an encoded export's bytes.
	MaxExport = 4 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the export's bytes, the same for the same catalog.
func (e Export) Encode() []byte {
	b := binary.LittleEndian.AppendUint16([]byte(exportMagic), exportVersion)
	line := func(key string, row []byte) {
		b = append(append(append(append(b, key...), '\t'), row...), '\n')
	}
	line("revision", encodeNumber(uint64(e.Revision)))
	line(keyCluster, encodeCluster(e.Cluster))
	line(keyLevel, encodeNumber(uint64(e.Cluster.Level)))
	for _, f := range slices.Sorted(slices.Values(e.Features)) {
		line(featureKey(f), encodeNumber(uint64(e.Cluster.Level)))
	}
	for _, n := range e.Namespaces {
		line(namespaceKey(n.Name), encodeNamespace(n))
	}
	for _, t := range e.Tombstones {
		line(tombstoneKey(t.Stream), encodeTombstone(t))
	}
	for _, s := range e.Streams {
		line(streamKey(s.Name), EncodeStream(s))
	}
	for _, s := range e.Shards {
		line(shardKey(s.ID), encodeShard(s))
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// DecodeExport reads an encoded export. Revisions of rows stay zero. Errors are
// meta.ErrCorrupt, or meta.ErrFormatLevel for a later version.
func DecodeExport(b []byte) (Export, error) {
	var e Export
	const head, tail = len(exportMagic) + 2, 4
	if len(b) < head+tail || string(b[:len(exportMagic)]) != exportMagic {
		return e, meta.Errorf(meta.ErrCorrupt, "catalog export: it does not begin with %q", exportMagic)
	}
	if v := binary.LittleEndian.Uint16(b[len(exportMagic):]); v != exportVersion {
		return e, meta.Errorf(meta.ErrFormatLevel, "catalog export of version %d: this program reads version %d", v, exportVersion)
	}
	body := b[:len(b)-tail]
	if binary.LittleEndian.Uint32(b[len(body):]) != crc32.Checksum(body, castagnoli) {
		return e, meta.Errorf(meta.ErrCorrupt, "catalog export: its checksum does not match")
	}
	for line := range bytes.Lines(body[head:]) {
		key, row, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte("\t"))
		if !ok {
			return e, meta.Errorf(meta.ErrCorrupt, "catalog export: a line without a row")
		}
		if err := e.line(KeyValue{Key: string(key), Value: row}); err != nil {
			return e, err
		}
	}
	if !bytes.Equal(e.Encode(), b) {
		return e, meta.Errorf(meta.ErrCorrupt, "catalog export: it is not in the order exports are written in")
	}
	return e, nil
}

func (e *Export) line(kv KeyValue) error {
	switch kv.Key {
	case "revision":
		n, err := decodeNumber(kv)
		e.Revision = Revision(n)
		return err
	case keyLevel:
		n, err := decodeNumber(kv)
		e.Cluster.Level = uint16(n)
		return err
	case keyCluster:
		cl, err := decodeCluster(kv)
		e.Cluster = cl
		return err
	}
	for _, dir := range exportDirs {
		if len(kv.Key) > len(dir) && kv.Key[:len(dir)] == dir {
			return e.add(dir, kv)
		}
	}
	return meta.Errorf(meta.ErrCorrupt, "catalog export: unknown key %q", clip(kv.Key))
}

// Import writes an export's features, namespaces, tombstones and streams into a
// cluster. The caller has prepared the shard rows (a restore makes them hibernating,
// in a new lineage) and raised the incarnation floor. It can be repeated after an
// interruption: rows that are there already, the same, are left alone; a name that
// holds something else is a meta.ErrExists. A stream that a tombstone covers is
// refused (meta.ErrDeleted).
func (c *Catalog) Import(ctx context.Context, e Export) error {
	for _, f := range e.Features {
		if err := c.importRow(ctx, featureKey(f), encodeNumber(uint64(c.Level()))); err != nil {
			return err
		}
	}
	for _, n := range e.Namespaces {
		if err := c.importRow(ctx, namespaceKey(n.Name), encodeNamespace(n)); err != nil {
			return err
		}
	}
	dead := make(map[meta.StreamName]meta.Incarnation, len(e.Tombstones))
	for _, t := range e.Tombstones {
		dead[t.Stream] = t.Through
		if err := c.RaiseTombstone(ctx, t); err != nil {
			return err
		}
	}
	type creation struct {
		name        meta.StreamName
		incarnation meta.Incarnation
	}
	shards := make(map[creation][]ShardRow, len(e.Streams))
	for _, row := range e.Shards {
		of := creation{row.ID.Stream, row.ID.Incarnation}
		shards[of] = append(shards[of], row)
	}
	for _, s := range e.Streams {
		if dead[s.Name] >= s.Incarnation {
			return meta.Errorf(meta.ErrDeleted, "stream %s, incarnation %s, is covered by its tombstone", s.Name, meta.Hex(s.Incarnation))
		}
		ops := []Op{{Key: streamKey(s.Name), Value: EncodeStream(s)}}
		for _, row := range shards[creation{s.Name, s.Incarnation}] {
			ops = append(ops, rewrite(nil, &row, false)...)
		}
		if err := c.importOps(ctx, ops); err != nil {
			return err
		}
	}
	return nil
}

// RaiseTombstone makes a tombstone reach at least as far as t. Lower changes
// nothing; one that would cover the stream that has the name is a meta.ErrExists.
func (c *Catalog) RaiseTombstone(ctx context.Context, t meta.Tombstone) error {
	_, err := change(ctx, c, "raise the tombstone of "+t.Stream.String(), func() (struct{}, error) {
		old, mod, _, err := c.tombstone(ctx, t.Stream)
		if err != nil || old.Through >= t.Through {
			return struct{}{}, err
		}
		now, err := c.Stream(ctx, t.Stream)
		switch {
		case err != nil && !isNotFound(err):
			return struct{}{}, err
		case err == nil && t.Covers(now.Incarnation):
			return struct{}{}, meta.Errorf(meta.ErrExists, "stream %s, incarnation %s, lives: delete it instead", t.Stream, meta.Hex(now.Incarnation))
		}
		r, err := c.commit(ctx, Transaction{
			If: append(
				unchanged(tombstoneKey(t.Stream), mod, encodeTombstone(old)),
				unchanged(streamKey(t.Stream), now.Revision, EncodeStream(now))...),
			Then: []Op{{Key: tombstoneKey(t.Stream), Value: encodeTombstone(t)}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		return struct{}{}, err
	})
	return err
}

func (c *Catalog) importRow(ctx context.Context, key string, value []byte) error {
	return c.importOps(ctx, []Op{{Key: key, Value: value}})
}

// importOps writes rows that must be absent, or there already with the same bytes.
func (c *Catalog) importOps(ctx context.Context, ops []Op) error {
	t := Transaction{Then: ops}
	for _, op := range ops {
		t.If = append(t.If, Compare{Kind: CompareMod, Key: op.Key})
	}
	_, err := change(ctx, c, "import "+ops[0].Key, func() (struct{}, error) {
		r, err := c.commit(ctx, t)
		if err != nil || r.Applied {
			return struct{}{}, err
		}
		for _, op := range ops {
			if found, there := r.Found[op.Key]; !there || !bytes.Equal(found.Value, op.Value) {
				return struct{}{}, meta.Errorf(meta.ErrExists, "the catalog already holds something else under %s: an import never overwrites", op.Key)
			}
		}
		return struct{}{}, nil
	})
	return err
}
