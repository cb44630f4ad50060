package catalog

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/varve-io/varve/meta"
)

// MaxRow bounds one row's bytes; it is checked before a row is decoded.
const MaxRow = 64 << 10

// What a row looks like as stored: one JSON object, fields in this order, ids in
// hex. "level" is the format level by whose rules it was written.

type clusterWire struct {
	Level      uint16           `json:"level"`
	ID         string           `json:"id"`
	Generation uint32           `json:"generation"`
	Floor      meta.Incarnation `json:"floor"`
}

type namespaceWire struct {
	Level   uint16          `json:"level"`
	Name    string          `json:"name"`
	Config  NamespaceConfig `json:"config"`
	Created meta.Micros     `json:"created"`
	Request string          `json:"request"`
}

type streamWire struct {
	Level       uint16           `json:"level"`
	Namespace   string           `json:"namespace"`
	Name        string           `json:"name"`
	Incarnation meta.Incarnation `json:"incarnation"`
	Shards      uint32           `json:"shards"`
	Config      StreamConfig     `json:"config"`
	Created     meta.Micros      `json:"created"`
	Request     string           `json:"request"`
}

type tombstoneWire struct {
	Level   uint16           `json:"level"`
	Through meta.Incarnation `json:"through"`
}

type memberWire struct {
	Broker  meta.BrokerID `json:"broker"`
	Storage string        `json:"storage"`
}

type baseWire struct {
	Through meta.LSN     `json:"through"`
	Lineage meta.Lineage `json:"lineage"`
	Mark    meta.LSN     `json:"mark"`
}

type shardWire struct {
	Level      uint16         `json:"level"`
	Shard      string         `json:"shard"` // meta.ShardID.Key
	State      ShardState     `json:"state"`
	Lineage    meta.Lineage   `json:"lineage"`
	Epoch      meta.Epoch     `json:"epoch"`
	Base       *baseWire      `json:"base,omitempty"`
	Committed  meta.LSN       `json:"committed"`
	Leader     *memberWire    `json:"leader,omitempty"`
	Boot       meta.BootNonce `json:"boot,omitempty"`
	Members    []memberWire   `json:"members,omitempty"`
	End        meta.LSN       `json:"end,omitempty"`
	NextExpiry meta.Micros    `json:"next_expiry,omitempty"`
	Moves      uint64         `json:"moves,omitempty"`
}

type brokerWire struct {
	Level     uint16         `json:"level"`
	ID        meta.BrokerID  `json:"id"`
	Addresses []string       `json:"addresses"`
	Storage   string         `json:"storage"`
	Start     uint64         `json:"start"`
	Boot      meta.BootNonce `json:"boot"`
	Zone      string         `json:"zone"`
	Version   string         `json:"version"`
	Knows     uint16         `json:"knows"` // highest format level
	Features  []string       `json:"features"`
	Capacity  int64          `json:"capacity"`
	Draining  bool           `json:"draining"`
}

type copyWire struct {
	Level   uint16         `json:"level"`
	Storage string         `json:"storage"`
	Broker  meta.BrokerID  `json:"broker"`
	Start   uint64         `json:"start"`
	Boot    meta.BootNonce `json:"boot"`
	Synced  uint64         `json:"synced"`
}

// encode marshals a wire struct; none of them can fail.
func encode(wire any) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(wire); err != nil {
		panic("catalog: a row cannot be encoded: " + err.Error())
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// decode reads a row strictly: bounded, no unknown fields, and only in the form
// that encode writes. Errors are meta.ErrCorrupt and name the key.
func decode[W any](kv KeyValue, most uint16, level func(*W) uint16) (W, error) {
	var w W
	if len(kv.Value) > MaxRow {
		return w, meta.Errorf(meta.ErrCorrupt, "catalog key %q has %d bytes: at most %d", kv.Key, len(kv.Value), MaxRow)
	}
	d := json.NewDecoder(bytes.NewReader(kv.Value))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return w, meta.Errorf(meta.ErrCorrupt, "catalog key %q: %w", kv.Key, err)
	}
	if n := level(&w); n == 0 || n > most {
		return w, meta.Errorf(meta.ErrFormatLevel, "catalog key %q is written by format level %d, this program knows 1 to %d", kv.Key, n, most)
	}
	if !bytes.Equal(encode(w), kv.Value) {
		return w, meta.Errorf(meta.ErrCorrupt, "catalog key %q is not in the form rows are written in", kv.Key)
	}
	return w, nil
}

func corrupt(kv KeyValue, err error) error {
	return meta.Errorf(meta.ErrCorrupt, "catalog key %q: %w", kv.Key, err)
}

// misplaced says that a row names something else than its key.
func misplaced(kv KeyValue, names string) error {
	return meta.Errorf(meta.ErrCorrupt, "catalog key %q holds the row of %s", kv.Key, names)
}

func encodeCluster(c Cluster) []byte {
	return encode(clusterWire{Level: 1, ID: c.ID.String(), Generation: c.Generation, Floor: c.Floor})
}

func decodeCluster(kv KeyValue) (Cluster, error) {
	w, err := decode(kv, Level, func(w *clusterWire) uint16 { return w.Level })
	if err != nil {
		return Cluster{}, err
	}
	id, err := meta.ParseClusterID(w.ID)
	if err != nil {
		return Cluster{}, corrupt(kv, err)
	}
	return Cluster{ID: id, Generation: w.Generation, Floor: w.Floor}, nil
}

func encodeNamespace(n NamespaceRow) []byte {
	return encode(namespaceWire{Level: Level, Name: n.Name, Config: n.Config, Created: n.Created, Request: n.Request})
}

func decodeNamespace(kv KeyValue) (NamespaceRow, error) {
	w, err := decode(kv, Level, func(w *namespaceWire) uint16 { return w.Level })
	if err != nil {
		return NamespaceRow{}, err
	}
	if namespaceKey(w.Name) != kv.Key {
		return NamespaceRow{}, misplaced(kv, "namespace "+w.Name)
	}
	return NamespaceRow{Name: w.Name, Config: w.Config, Created: w.Created, Request: w.Request, Revision: kv.Mod}, nil
}

// EncodeStream returns a stream row's bytes as the catalog stores them; archive
// marks and manifests repeat them, opaquely.
func EncodeStream(s StreamRow) []byte {
	return encode(streamWire{
		Level: Level, Namespace: s.Name.Namespace, Name: s.Name.Name, Incarnation: s.Incarnation,
		Shards: s.Shards, Config: s.Config, Created: s.Created, Request: s.Request,
	})
}

// DecodeStream is the inverse of [EncodeStream]; Revision stays zero.
func DecodeStream(b []byte) (StreamRow, error) {
	return decodeStream(KeyValue{Key: "(stream row)", Value: b})
}

func decodeStream(kv KeyValue) (StreamRow, error) {
	w, err := decode(kv, Level, func(w *streamWire) uint16 { return w.Level })
	if err != nil {
		return StreamRow{}, err
	}
	s := StreamRow{
		Name: meta.StreamName{Namespace: w.Namespace, Name: w.Name}, Incarnation: w.Incarnation,
		Shards: w.Shards, Config: w.Config, Created: w.Created, Request: w.Request, Revision: kv.Mod,
	}
	if err := s.Name.Validate(); err != nil {
		return StreamRow{}, corrupt(kv, err)
	}
	if s.Incarnation == 0 || s.Shards == 0 || s.Shards > meta.MaxShards {
		return StreamRow{}, meta.Errorf(meta.ErrCorrupt, "catalog key %q has incarnation %d and %d shards", kv.Key, s.Incarnation, s.Shards)
	}
	if strings.HasPrefix(kv.Key, dirStreams) && streamKey(s.Name) != kv.Key {
		return StreamRow{}, misplaced(kv, "stream "+s.Name.String())
	}
	return s, nil
}

func encodeTombstone(t meta.Tombstone) []byte {
	return encode(tombstoneWire{Level: Level, Through: t.Through})
}

func decodeTombstone(kv KeyValue) (meta.Tombstone, error) {
	w, err := decode(kv, Level, func(w *tombstoneWire) uint16 { return w.Level })
	if err != nil {
		return meta.Tombstone{}, err
	}
	n, err := meta.UnescapeStreamName(strings.TrimPrefix(kv.Key, dirTombstones))
	if err != nil {
		return meta.Tombstone{}, corrupt(kv, err)
	}
	return meta.Tombstone{Stream: n, Through: w.Through}, nil
}

func memberToWire(m meta.Member) memberWire {
	return memberWire{Broker: m.Broker, Storage: m.Storage.String()}
}

func (w memberWire) member() (meta.Member, error) {
	id, err := meta.ParseStorageID(w.Storage)
	return meta.Member{Broker: w.Broker, Storage: id}, err
}

func encodeShard(s ShardRow) []byte {
	w := shardWire{
		Level: Level, Shard: s.ID.Key(), State: s.State, Lineage: s.Lineage, Epoch: s.Epoch,
		Committed: s.Committed, Boot: s.Boot, End: s.End, NextExpiry: s.NextExpiry, Moves: s.Moves,
	}
	if !s.Base.IsZero() {
		w.Base = &baseWire{Through: s.Base.Through, Lineage: s.Base.Lineage, Mark: s.Base.Mark}
	}
	if s.Leader != (meta.Member{}) {
		l := memberToWire(s.Leader)
		w.Leader = &l
	}
	for _, m := range s.Members {
		w.Members = append(w.Members, memberToWire(m))
	}
	return encode(w)
}

// decodeShard reads a row stored under shards/ or by-broker/.
func decodeShard(kv KeyValue) (ShardRow, error) {
	w, err := decode(kv, Level, func(w *shardWire) uint16 { return w.Level })
	if err != nil {
		return ShardRow{}, err
	}
	s := ShardRow{
		State: w.State, Lineage: w.Lineage, Epoch: w.Epoch, Committed: w.Committed, Boot: w.Boot,
		End: w.End, NextExpiry: w.NextExpiry, Moves: w.Moves, Revision: kv.Mod,
	}
	if s.ID, err = parseShardKey(w.Shard); err != nil {
		return ShardRow{}, corrupt(kv, err)
	}
	if !strings.HasSuffix(kv.Key, "/"+w.Shard) {
		return ShardRow{}, misplaced(kv, "shard "+w.Shard)
	}
	if w.Base != nil {
		s.Base = Base{Through: w.Base.Through, Lineage: w.Base.Lineage, Mark: w.Base.Mark}
	}
	if w.Leader != nil {
		if s.Leader, err = w.Leader.member(); err != nil {
			return ShardRow{}, corrupt(kv, err)
		}
	}
	for _, mw := range w.Members {
		m, err := mw.member()
		if err != nil {
			return ShardRow{}, corrupt(kv, err)
		}
		s.Members = append(s.Members, m)
	}
	if err := s.validate(); err != nil {
		return ShardRow{}, corrupt(kv, err)
	}
	return s, nil
}

func encodeBroker(b BrokerRow) []byte {
	w := brokerWire{
		Level: Level, ID: b.ID, Addresses: b.Addresses, Storage: b.Storage.String(), Start: b.Start, Boot: b.Boot,
		Zone: b.Zone, Version: b.Version, Knows: b.Level, Features: slices.Sorted(slices.Values(b.Features)),
		Capacity: b.Capacity, Draining: b.Draining,
	}
	if w.Addresses == nil {
		w.Addresses = []string{}
	}
	if w.Features == nil {
		w.Features = []string{}
	}
	return encode(w)
}

func decodeBroker(kv KeyValue) (BrokerRow, error) {
	w, err := decode(kv, Level, func(w *brokerWire) uint16 { return w.Level })
	if err != nil {
		return BrokerRow{}, err
	}
	id, err := meta.ParseStorageID(w.Storage)
	if err != nil {
		return BrokerRow{}, corrupt(kv, err)
	}
	if brokerKey(w.ID) != kv.Key {
		return BrokerRow{}, misplaced(kv, "broker "+string(w.ID))
	}
	return BrokerRow{
		ID: w.ID, Addresses: w.Addresses, Storage: id, Start: w.Start, Boot: w.Boot, Zone: w.Zone, Version: w.Version,
		Level: w.Knows, Features: w.Features, Capacity: w.Capacity, Draining: w.Draining, Revision: kv.Mod,
	}, nil
}

func encodeCopy(c CopyRow) []byte {
	return encode(copyWire{Level: Level, Storage: c.Storage.String(), Broker: c.Broker, Start: c.Start, Boot: c.Boot, Synced: c.Synced})
}

func decodeCopy(kv KeyValue) (CopyRow, error) {
	w, err := decode(kv, Level, func(w *copyWire) uint16 { return w.Level })
	if err != nil {
		return CopyRow{}, err
	}
	id, err := meta.ParseStorageID(w.Storage)
	if err != nil {
		return CopyRow{}, corrupt(kv, err)
	}
	if copyKey(id) != kv.Key {
		return CopyRow{}, misplaced(kv, "storage "+w.Storage)
	}
	return CopyRow{Storage: id, Broker: w.Broker, Start: w.Start, Boot: w.Boot, Synced: w.Synced, Revision: kv.Mod}, nil
}
