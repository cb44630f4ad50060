package catalog

import (
	"strings"

	"github.com/varve-io/varve/meta"
)

// The key space, see the package's drawing.
const (
	keyCluster       = "cluster"
	keyLevel         = "level"
	keyRegistrations = "counters/registrations"
	keySnapshots     = "counters/snapshots"
	keyController    = "controller"

	dirNamespaces = "namespaces/"
	dirStreams    = "streams/"
	dirTombstones = "tombstones/"
	dirShards     = "shards/"
	dirByBroker   = "by-broker/"
	dirBrokers    = "brokers/"
	dirCopies     = "copies/"
	dirFeatures   = "features/"
)

func namespaceKey(ns string) string         { return dirNamespaces + ns }
func streamKey(n meta.StreamName) string    { return dirStreams + n.Escaped() }
func tombstoneKey(n meta.StreamName) string { return dirTombstones + n.Escaped() }
func shardKey(id meta.ShardID) string       { return dirShards + id.Key() }
func brokerKey(b meta.BrokerID) string      { return dirBrokers + string(b) }
func copyKey(s meta.StorageID) string       { return dirCopies + s.String() }
func featureKey(name string) string         { return dirFeatures + name }
func byBrokerDir(b meta.BrokerID) string    { return dirByBroker + string(b) + "/" }
func incarnationDir(r StreamRow) string {
	return dirShards + r.Name.Escaped() + "/" + meta.Hex(r.Incarnation) + "/"
}
func byBrokerKey(b meta.BrokerID, id meta.ShardID) string { return byBrokerDir(b) + id.Key() }

// parseShardKey is the inverse of meta.ShardID.Key.
func parseShardKey(s string) (id meta.ShardID, err error) {
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return id, meta.Invalidf("shard key %q: want NAMESPACE/NAME/INCARNATION/SHARD", s)
	}
	if id.Stream, err = meta.UnescapeStreamName(parts[0] + "/" + parts[1]); err != nil {
		return id, err
	}
	if id.Incarnation, err = meta.ParseHex[meta.Incarnation](parts[2]); err != nil {
		return id, err
	}
	n, err := meta.ParseHex[uint64](parts[3])
	if err != nil {
		return id, err
	}
	if n >= meta.MaxShards {
		return id, meta.Invalidf("shard number %d: at most %d", n, meta.MaxShards-1)
	}
	id.Shard = uint32(n)
	return id, nil
}
