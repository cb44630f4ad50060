package tiering

import (
	"bytes"
	"encoding/json"

	"github.com/varve-io/varve/meta"
)

// This file holds how the objects spell their fields. Incarnations and lineages
// are hex strings, since JSON numbers above 2^53 don't survive every reader.

type hexNumber uint64

func (h hexNumber) MarshalJSON() ([]byte, error) { return []byte(`"` + meta.Hex(h) + `"`), nil }

func (h *hexNumber) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	n, err := meta.ParseHex[hexNumber](s)
	*h = n
	return err
}

func strictly(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

type shardText struct {
	Namespace   string    `json:"namespace"`
	Name        string    `json:"name"`
	Incarnation hexNumber `json:"incarnation"`
	Shard       uint32    `json:"shard"`
}

func spellShard(s meta.ShardID) shardText {
	return shardText{s.Stream.Namespace, s.Stream.Name, hexNumber(s.Incarnation), s.Shard}
}

func (t shardText) id() meta.ShardID {
	return meta.ShardID{
		Stream:      meta.StreamName{Namespace: t.Namespace, Name: t.Name},
		Incarnation: meta.Incarnation(t.Incarnation), Shard: t.Shard,
	}
}

type idText struct {
	Lineage hexNumber `json:"lineage"`
	Mark    meta.LSN  `json:"mark"`
}

func spellID(id ManifestID) idText { return idText{hexNumber(id.Lineage), id.Mark} }
func (t idText) id() ManifestID    { return ManifestID{meta.Lineage(t.Lineage), t.Mark} }

type pairText struct {
	Epoch meta.Epoch `json:"epoch"`
	LSN   meta.LSN   `json:"lsn"`
}

// segmentText is a reference: ranges are [first, next) for LSN and offset, [first,
// last] for append time (microseconds) and epoch.
type segmentText struct {
	Key    string         `json:"key"`
	Size   int64          `json:"size"`
	CRC    uint32         `json:"crc32c"`
	Index  [2]int64       `json:"index"` // place and length
	LSN    [2]meta.LSN    `json:"lsn"`
	Offset [2]meta.Offset `json:"offset"`
	Time   [2]meta.Micros `json:"time"`
	Epoch  [2]meta.Epoch  `json:"epoch"`
}

func spellSegments(refs []meta.SegmentRef) []segmentText {
	out := make([]segmentText, len(refs))
	for i, r := range refs {
		out[i] = segmentText{
			Key: r.Key, Size: r.Size, CRC: r.CRC, Index: [2]int64{r.IndexAt, r.IndexLen},
			LSN: [2]meta.LSN{r.FirstLSN, r.NextLSN}, Offset: [2]meta.Offset{r.FirstOffset, r.NextOffset},
			Time: [2]meta.Micros{r.FirstTime, r.LastTime}, Epoch: [2]meta.Epoch{r.FirstEpoch, r.LastEpoch},
		}
	}
	return out
}

func readSegments(in []segmentText) []meta.SegmentRef {
	if len(in) == 0 {
		return nil
	}
	out := make([]meta.SegmentRef, len(in))
	for i, t := range in {
		out[i] = meta.SegmentRef{
			Key: t.Key, Size: t.Size, CRC: t.CRC, IndexAt: t.Index[0], IndexLen: t.Index[1],
			FirstLSN: t.LSN[0], NextLSN: t.LSN[1], FirstOffset: t.Offset[0], NextOffset: t.Offset[1],
			FirstTime: t.Time[0], LastTime: t.Time[1], FirstEpoch: t.Epoch[0], LastEpoch: t.Epoch[1],
		}
	}
	return out
}

type indexText struct {
	Key      string         `json:"key"`
	Size     int64          `json:"size"`
	CRC      uint32         `json:"crc32c"`
	Depth    int            `json:"depth"`
	Segments uint64         `json:"segments"`
	Bytes    uint64         `json:"bytes"`
	LSN      [2]meta.LSN    `json:"lsn"`
	Offset   [2]meta.Offset `json:"offset"`
	Time     [2]meta.Micros `json:"time"`
}

func spellIndexes(refs []IndexRef) []indexText {
	out := make([]indexText, len(refs))
	for i, r := range refs {
		out[i] = indexText{
			r.Key, r.Size, r.CRC, r.Depth, r.Segments, r.Bytes, [2]meta.LSN{r.FirstLSN, r.NextLSN},
			[2]meta.Offset{r.FirstOffset, r.NextOffset}, [2]meta.Micros{r.FirstTime, r.LastTime},
		}
	}
	return out
}

func readIndexes(in []indexText) []IndexRef {
	if len(in) == 0 {
		return nil
	}
	out := make([]IndexRef, len(in))
	for i, t := range in {
		out[i] = IndexRef{
			t.Key, t.Size, t.CRC, t.Depth, t.Segments, t.Bytes, t.LSN[0], t.LSN[1],
			t.Offset[0], t.Offset[1], t.Time[0], t.Time[1],
		}
	}
	return out
}

type manifestText struct {
	Shard       shardText     `json:"shard"`
	Lineage     hexNumber     `json:"lineage"`
	Mark        meta.LSN      `json:"mark"`
	Epoch       meta.Epoch    `json:"epoch"`
	Parent      *idText       `json:"parent,omitempty"`
	Level       uint16        `json:"level"`
	ArchivedEnd meta.LSN      `json:"archived_end"`
	StartOffset meta.Offset   `json:"start_offset"`
	NextOffset  meta.Offset   `json:"next_offset"`
	Vector      []pairText    `json:"vector"`
	Row         []byte        `json:"row"`
	State       []byte        `json:"state"`
	Older       []indexText   `json:"older"`
	Segments    []segmentText `json:"segments"`
}

type manifestJSON struct{ m *Manifest }

func (j *manifestJSON) MarshalJSON() ([]byte, error) {
	m := j.m
	t := manifestText{
		Shard: spellShard(m.Shard), Lineage: hexNumber(m.Lineage), Mark: m.Mark, Epoch: m.Epoch, Level: m.Level,
		ArchivedEnd: m.ArchivedEnd, StartOffset: m.StartOffset, NextOffset: m.NextOffset,
		Vector: make([]pairText, len(m.Vector)), Row: spellBytes(m.Row), State: spellBytes(m.State),
		Older: spellIndexes(m.Older), Segments: spellSegments(m.Segments),
	}
	if !m.Parent.IsZero() {
		p := spellID(m.Parent)
		t.Parent = &p
	}
	for i, p := range m.Vector {
		t.Vector[i] = pairText(p)
	}
	return json.Marshal(&t)
}

func (j *manifestJSON) UnmarshalJSON(b []byte) error {
	var t manifestText
	if err := strictly(b, &t); err != nil {
		return err
	}
	*j.m = Manifest{
		Shard: t.Shard.id(), Lineage: meta.Lineage(t.Lineage), Mark: t.Mark, Epoch: t.Epoch, Level: t.Level,
		ArchivedEnd: t.ArchivedEnd, StartOffset: t.StartOffset, NextOffset: t.NextOffset,
		Row: readBytes(t.Row), State: readBytes(t.State), Older: readIndexes(t.Older), Segments: readSegments(t.Segments),
	}
	if t.Parent != nil {
		j.m.Parent = t.Parent.id()
	}
	for _, p := range t.Vector {
		j.m.Vector = append(j.m.Vector, meta.EpochStart(p))
	}
	return nil
}

// spellBytes and readBytes make "no bytes" one thing on either side.
func spellBytes(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func readBytes(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

type indexObjectText struct {
	Shard    shardText     `json:"shard"`
	ID       idText        `json:"manifest"`
	Depth    int           `json:"depth"`
	Segments []segmentText `json:"segments,omitempty"`
	Indexes  []indexText   `json:"indexes,omitempty"`
}

func (x *indexObject) encode() ([]byte, error) {
	if err := x.validate(); err != nil {
		return nil, err
	}
	return encodeDocument(indexMagic, &indexObjectText{
		spellShard(x.Shard), spellID(x.ID), x.Depth, spellSegments(x.Segments), spellIndexes(x.Indexes),
	})
}

func decodeIndexObject(b []byte) (*indexObject, error) {
	var t indexObjectText
	if err := decodeDocument(indexMagic, b, &t); err != nil {
		return nil, err
	}
	x := &indexObject{t.Shard.id(), t.ID.id(), t.Depth, readSegments(t.Segments), readIndexes(t.Indexes)}
	return x, x.validate()
}
