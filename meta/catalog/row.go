package catalog

import (
	"github.com/varve-io/varve/meta"
)

// MaxMembers bounds a shard's replica set.
const MaxMembers = 7

// Cluster is what the catalog knows of itself.
type Cluster struct {
	ID         meta.ClusterID
	Generation uint32           // of the claim on the bucket prefix
	Floor      meta.Incarnation // no incarnation is handed out below it
	Level      uint16           // format level everything is written by
}

// NamespaceRow is a tenant's folder of streams.
type NamespaceRow struct {
	Name     string
	Config   NamespaceConfig
	Created  meta.Micros
	Request  string   // id of the request that created it
	Revision Revision // of the last write; not stored
}

// StreamRow is one creation of a stream.
type StreamRow struct {
	Name        meta.StreamName
	Incarnation meta.Incarnation
	Shards      uint32 // 1 to meta.MaxShards
	Config      StreamConfig
	Created     meta.Micros
	Request     string   // id of the request that created it
	Revision    Revision // of the last write; not stored
}

// Shard names one of the stream's shards.
func (r StreamRow) Shard(n uint32) meta.ShardID {
	return meta.ShardID{Stream: r.Name, Incarnation: r.Incarnation, Shard: n}
}

// ShardState says which form a shard's row has.
type ShardState string

// The forms of a shard row.
const (
	ShardCreated     ShardState = "created"     // no epoch was ever granted, no members
	ShardServed      ShardState = "served"      // leader, boot and members
	ShardHibernating ShardState = "hibernating" // no members: all of it is in the bucket
)

// Base is the state a shard's log continues from: the manifest (Lineage, Mark)
// in the bucket, which holds everything up to and including Through. The zero
// value means "from nothing".
type Base struct {
	Through meta.LSN     // last LSN the base stands for
	Lineage meta.Lineage // of the manifest
	Mark    meta.LSN     // the manifest's LSN (of its last archive mark)
}

// IsZero reports whether there is no base.
func (b Base) IsZero() bool { return b == Base{} }

// ShardRow is a shard's assignment: who may try to lead, and whose word counts.
type ShardRow struct {
	ID        meta.ShardID
	State     ShardState
	Lineage   meta.Lineage
	Epoch     meta.Epoch // 0 only while created
	Base      Base
	Committed meta.LSN // committed to at least this LSN

	// Served:
	Leader  meta.Member
	Boot    meta.BootNonce
	Members []meta.Member // sorted, one a broker; holds Leader

	// Hibernating:
	End        meta.LSN    // last LSN of the epoch that was closed
	NextExpiry meta.Micros // when retention by age wakes the shard; 0 means never

	Moves    uint64   // how often the row was rewritten only to settle an unknown outcome
	Revision Revision // of the last write; not stored
}

// BrokerRow is a running broker's registration.
type BrokerRow struct {
	ID        meta.BrokerID
	Addresses []string // where peers and clients reach it, best first
	Storage   meta.StorageID
	Start     uint64 // the directory's start count
	Boot      meta.BootNonce
	Zone      string
	Version   string
	Level     uint16   // highest format level it reads and writes
	Features  []string // that it implements, sorted
	Capacity  int64    // bytes it offers; 0 means unknown
	Draining  bool
	Revision  Revision // of the last write; not stored
}

// CopyRow is what was last heard of a data directory; it outlives leases.
type CopyRow struct {
	Storage  meta.StorageID
	Broker   meta.BrokerID
	Start    uint64
	Boot     meta.BootNonce
	Synced   uint64 // WAL position in bytes
	Revision Revision
}
