package tiering

import (
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/varve-io/varve/meta"
)

// Folders at the top of a prefix.
const (
	claimFolder     = "claims/"
	manifestFolder  = "manifests/"
	streamFolder    = "streams/"
	tombstoneFolder = "tombstones/"

	jsonSuffix    = ".json"
	indexSuffix   = ".index.json"
	segmentSuffix = ".seg"
)

// ManifestID names one manifest of a shard. The zero value means "none".
type ManifestID struct {
	Lineage meta.Lineage
	Mark    meta.LSN // LSN of the mark it was built from
}

// IsZero reports whether no manifest is named.
func (id ManifestID) IsZero() bool { return id == ManifestID{} }

// ManifestKey is where a shard's manifest lies.
func ManifestKey(shard meta.ShardID, id ManifestID) string {
	return manifestPrefix(shard) + meta.Hex(id.Lineage) + "-" + meta.Hex(id.Mark) + jsonSuffix
}

func manifestPrefix(shard meta.ShardID) string { return manifestFolder + shard.Key() + "/" }

func segmentPrefix(shard meta.ShardID) string { return streamFolder + shard.Key() + "/" }

func indexKey(shard meta.ShardID, id ManifestID, depth int) string {
	return manifestPrefix(shard) + meta.Hex(id.Lineage) + "-" + meta.Hex(id.Mark) + "-" + meta.Hex(uint64(depth)) + indexSuffix
}

// SegmentKey is what a segment's key says.
type SegmentKey struct {
	Shard   meta.ShardID
	Lineage meta.Lineage
	Epoch   meta.Epoch // of the leader that uploaded it
	Base    meta.LSN   // first LSN of its range
	ID      uuid.UUID
}

func (k SegmentKey) String() string {
	return segmentPrefix(k.Shard) + meta.Hex(k.Lineage) + "-" + meta.Hex(k.Epoch) + "-" + meta.Hex(k.Base) + "-" + k.ID.String() + segmentSuffix
}

// ParseSegmentKey is the strict inverse of [SegmentKey.String].
func ParseSegmentKey(key string) (SegmentKey, error) {
	shard, file, err := parseShardFolder(key, streamFolder)
	if err != nil {
		return SegmentKey{}, err
	}
	k := SegmentKey{Shard: shard}
	name, ok := strings.CutSuffix(file, segmentSuffix)
	parts := strings.SplitN(name, "-", 4)
	if !ok || len(parts) != 4 {
		return SegmentKey{}, meta.Invalidf("key %q is no segment's", key)
	}
	var e1, e2, e3, e4 error
	k.Lineage, e1 = meta.ParseHex[meta.Lineage](parts[0])
	k.Epoch, e2 = meta.ParseHex[meta.Epoch](parts[1])
	k.Base, e3 = meta.ParseHex[meta.LSN](parts[2])
	k.ID, e4 = uuid.Parse(parts[3])
	if e1 != nil || e2 != nil || e3 != nil || e4 != nil || k.String() != key {
		return SegmentKey{}, meta.Invalidf("key %q is no segment's", key)
	}
	return k, nil
}

// manifestFile is what a key in a shard's manifest folder says. Depth is -1 for a
// manifest and the depth of an index object otherwise.
type manifestFile struct {
	Shard meta.ShardID
	ID    ManifestID
	Depth int
}

func parseManifestKey(key string) (manifestFile, error) {
	shard, file, err := parseShardFolder(key, manifestFolder)
	if err != nil {
		return manifestFile{}, err
	}
	f := manifestFile{Shard: shard, Depth: -1}
	bad := meta.Invalidf("key %q is no manifest's", key)
	name, index := strings.CutSuffix(file, indexSuffix)
	if !index {
		name = strings.TrimSuffix(file, jsonSuffix)
	}
	parts := strings.Split(name, "-")
	if index {
		if len(parts) != 3 {
			return manifestFile{}, bad
		}
		depth, err := meta.ParseHex[uint64](parts[2])
		if err != nil || depth > maxDepth {
			return manifestFile{}, bad
		}
		f.Depth, parts = int(depth), parts[:2]
	}
	if len(parts) != 2 {
		return manifestFile{}, bad
	}
	var e1, e2 error
	f.ID.Lineage, e1 = meta.ParseHex[meta.Lineage](parts[0])
	f.ID.Mark, e2 = meta.ParseHex[meta.LSN](parts[1])
	want := ManifestKey(shard, f.ID)
	if index {
		want = indexKey(shard, f.ID, f.Depth)
	}
	if e1 != nil || e2 != nil || want != key {
		return manifestFile{}, bad
	}
	return f, nil
}

// parseShardFolder splits "<folder><namespace>/<name>/<incarnation>/<shard>/<file>".
func parseShardFolder(key, folder string) (meta.ShardID, string, error) {
	bad := meta.Invalidf("key %q does not lie in a shard's folder below %s", key, folder)
	rest, ok := strings.CutPrefix(key, folder)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 {
		return meta.ShardID{}, "", bad
	}
	name, err := meta.UnescapeStreamName(parts[0] + "/" + parts[1])
	if err != nil {
		return meta.ShardID{}, "", bad
	}
	inc, err := meta.ParseHex[meta.Incarnation](parts[2])
	if err != nil {
		return meta.ShardID{}, "", bad
	}
	shard, err := meta.ParseHex[uint64](parts[3])
	if err != nil || shard >= meta.MaxShards {
		return meta.ShardID{}, "", bad
	}
	return meta.ShardID{Stream: name, Incarnation: inc, Shard: uint32(shard)}, parts[4], nil
}

func claimKey(generation uint32, cluster meta.ClusterID) string {
	return claimFolder + meta.Hex(uint64(generation)) + "-" + cluster.String() + jsonSuffix
}

func tombstoneKey(stream meta.StreamName, inc meta.Incarnation) string {
	return tombstoneFolder + stream.Escaped() + "/" + meta.Hex(inc) + jsonSuffix
}

func parseTombstoneKey(key string) (meta.Tombstone, error) {
	bad := meta.Invalidf("key %q is no tombstone's", key)
	rest, ok := strings.CutPrefix(key, tombstoneFolder)
	at := strings.LastIndexByte(rest, '/')
	if !ok || at < 0 {
		return meta.Tombstone{}, bad
	}
	name, err := meta.UnescapeStreamName(rest[:at])
	if err != nil {
		return meta.Tombstone{}, bad
	}
	inc, err := meta.ParseHex[meta.Incarnation](strings.TrimSuffix(rest[at+1:], jsonSuffix))
	if err != nil || tombstoneKey(name, inc) != key {
		return meta.Tombstone{}, bad
	}
	return meta.Tombstone{Stream: name, Through: inc}, nil
}

func hex32(n uint32) string {
	s := strconv.FormatUint(uint64(n), 16)
	return strings.Repeat("0", 8-len(s)) + s
}

// within reports whether a key lies in a folder, given with its slash.
func within(key, folder string) bool { return strings.HasPrefix(key, folder) }
