package meta

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
)

// MaxShards is the most shards a stream may have, so that its creation and its
// deletion each stay one catalog transaction.
const MaxShards = 64

// ShardID is a shard's whole identity: comparable, usable as a map key.
type ShardID struct {
	Stream      StreamName
	Incarnation Incarnation
	Shard       uint32
}

// String is for people: "logs/app@000645f1a2b3c4d5/0".
func (s ShardID) String() string {
	return fmt.Sprintf("%s@%s/%d", s.Stream, Hex(s.Incarnation), s.Shard)
}

// Key is the form used in catalog and bucket keys:
// "<namespace>/<escaped name>/<incarnation>/<shard>", numbers in hex.
func (s ShardID) Key() string {
	return s.Stream.Escaped() + "/" + Hex(s.Incarnation) + "/" + Hex(uint64(s.Shard))
}

// Compare orders shards by name, incarnation, number.
func (s ShardID) Compare(o ShardID) int {
	if c := s.Stream.Compare(o.Stream); c != 0 {
		return c
	}
	if c := cmp.Compare(s.Incarnation, o.Incarnation); c != 0 {
		return c
	}
	return cmp.Compare(s.Shard, o.Shard)
}

// BrokerID names a broker (a process's place in the cluster): 1 to 200
// characters of a-z 0-9 . _ -.
type BrokerID string

// Validate checks the rule for names.
func (b BrokerID) Validate() error { return validateName("broker", string(b), false) }

// StorageID names one copy of the data: the content of a data directory, not
// the machine that holds it. The zero value means "none".
type StorageID [16]byte

// ClusterID names a cluster. The zero value means "none".
type ClusterID [16]byte

// BootNonce is random per process start; zero means "none".
type BootNonce uint64

func (s StorageID) String() string { return hex.EncodeToString(s[:]) }
func (c ClusterID) String() string { return hex.EncodeToString(c[:]) }

// IsZero reports whether no storage id is set.
func (s StorageID) IsZero() bool { return s == StorageID{} }

// IsZero reports whether no cluster id is set.
func (c ClusterID) IsZero() bool { return c == ClusterID{} }

// ParseStorageID reads 32 lower-case hex digits.
func ParseStorageID(s string) (StorageID, error) {
	b, err := parse16(s)
	return StorageID(b), err
}

// ParseClusterID reads 32 lower-case hex digits.
func ParseClusterID(s string) (ClusterID, error) {
	b, err := parse16(s)
	return ClusterID(b), err
}

func parse16(s string) (id [16]byte, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) || hex.EncodeToString(b) != s {
		return id, Invalidf("id %q: want 32 lower-case hex digits", clip(s))
	}
	copy(id[:], b)
	return id, nil
}

// Member is one copy in a shard's replica set: a broker and the storage it had
// when it was admitted. A broker that holds another storage id is a stranger.
type Member struct {
	Broker  BrokerID
	Storage StorageID
}

func (m Member) String() string { return string(m.Broker) + "/" + m.Storage.String()[:8] }

// Compare orders members by broker, then storage id.
func (m Member) Compare(o Member) int {
	if c := cmp.Compare(m.Broker, o.Broker); c != 0 {
		return c
	}
	return bytes.Compare(m.Storage[:], o.Storage[:])
}

// Tombstone says that every incarnation of a name up to Through is deleted. One
// per name, kept for ever, and it only goes up.
type Tombstone struct {
	Stream  StreamName
	Through Incarnation
}

// Covers reports whether the tombstone deletes that incarnation.
func (t Tombstone) Covers(i Incarnation) bool { return i <= t.Through }
