package segment

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

const (
	// Version is the layout this build writes and reads.
	Version = 1
	// DefaultBlockSize is where a block ends, in bytes, unless the options say otherwise.
	DefaultBlockSize = 1 << 20
	// TailSize is how many bytes from the end to ask for when nothing is known
	// about an object but its size.
	TailSize = 256 << 10
	// FooterSize is the length of the fixed part at the end, in bytes.
	FooterSize = 64
	// MaxState bounds the folded shard state, in bytes.
	MaxState = entry.MaxPayload
	// MaxIndex bounds index and footer together, in bytes.
	MaxIndex = 64 << 20

	maxBlock    = 16 << 20
	maxIdentity = 2*(2+meta.MaxNameLen) + 5*8 + 4
	blockSize   = 60
	fixedHeader = 16

	headMagic = "VARVESEG"
	tailMagic = "VARVEEND"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Identity says whose history a segment holds and which part of it.
type Identity struct {
	Shard             meta.ShardID
	Level             uint16 // format level of the cluster when it was written
	Lineage           meta.Lineage
	Epoch             meta.Epoch // of the leader that wrote it
	FirstLSN, NextLSN meta.LSN   // the range sealed, commands included
}

// Validate checks names, level and range. Errors are [meta.ErrInvalid].
func (id *Identity) Validate() error {
	if err := id.Shard.Stream.Validate(); err != nil {
		return err
	}
	switch {
	case id.Shard.Incarnation == 0 || id.Shard.Shard >= meta.MaxShards:
		return meta.Invalidf("segment of %s: incarnation 0 or shard above %d", id.Shard, meta.MaxShards-1)
	case id.Epoch == 0:
		return meta.Invalidf("segment of %s: epoch 0 writes nothing", id.Shard)
	case id.FirstLSN == 0 || id.NextLSN <= id.FirstLSN:
		return meta.Invalidf("segment of %s: LSN range [%d, %d) is empty", id.Shard, id.FirstLSN, id.NextLSN)
	}
	return nil
}

func (id *Identity) append(b []byte) []byte {
	le := binary.LittleEndian
	b = entry.AppendString16(b, id.Shard.Stream.Namespace)
	b = entry.AppendString16(b, id.Shard.Stream.Name)
	b = le.AppendUint64(b, uint64(id.Shard.Incarnation))
	b = le.AppendUint32(b, id.Shard.Shard)
	b = le.AppendUint64(b, uint64(id.Lineage))
	b = le.AppendUint64(b, uint64(id.Epoch))
	b = le.AppendUint64(b, uint64(id.FirstLSN))
	return le.AppendUint64(b, uint64(id.NextLSN))
}

func decodeIdentity(b []byte, level uint16) (Identity, error) {
	d := entry.NewDecoder(b)
	id := Identity{Level: level}
	id.Shard.Stream = meta.StreamName{Namespace: d.String16(meta.MaxNameLen), Name: d.String16(meta.MaxNameLen)}
	id.Shard.Incarnation, id.Shard.Shard = meta.Incarnation(d.U64()), d.U32()
	id.Lineage, id.Epoch = meta.Lineage(d.U64()), meta.Epoch(d.U64())
	id.FirstLSN, id.NextLSN = meta.LSN(d.U64()), meta.LSN(d.U64())
	if err := d.Finish("segment identity"); err != nil {
		return Identity{}, err
	}
	if err := id.Validate(); err != nil {
		return Identity{}, meta.Errorf(meta.ErrCorrupt, "segment identity: %w", err)
	}
	return id, nil
}

// Block is one stretch of entries: the unit of checksums and of ranged reads.
type Block struct {
	At      int64  // where it starts in the object
	Len     uint32 // bytes
	CRC     uint32 // CRC32C of those bytes
	Entries uint32

	FirstLSN, LastLSN       meta.LSN
	FirstOffset, NextOffset meta.Offset // next is exclusive
	FirstTime, LastTime     meta.Micros
}

func (k *Block) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, k.Len)
	b = le.AppendUint32(b, k.CRC)
	b = le.AppendUint32(b, k.Entries)
	for _, n := range [...]uint64{
		uint64(k.FirstLSN), uint64(k.LastLSN), uint64(k.FirstOffset), uint64(k.NextOffset),
		uint64(k.FirstTime), uint64(k.LastTime),
	} {
		b = le.AppendUint64(b, n)
	}
	return b
}

func decodeBlock(d *entry.Decoder) Block {
	return Block{
		Len: d.U32(), CRC: d.U32(), Entries: d.U32(),
		FirstLSN: meta.LSN(d.U64()), LastLSN: meta.LSN(d.U64()),
		FirstOffset: meta.Offset(d.U64()), NextOffset: meta.Offset(d.U64()),
		FirstTime: meta.Micros(d.U64()), LastTime: meta.Micros(d.U64()),
	}
}

func encodeHeader(id *Identity) []byte {
	le := binary.LittleEndian
	body := id.append(nil)
	b := append(make([]byte, 0, fixedHeader+len(body)+4), headMagic...)
	b = le.AppendUint16(b, Version)
	b = le.AppendUint16(b, id.Level)
	b = le.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// headerLen reads how long a header is from its first [fixedHeader] bytes.
func headerLen(b []byte) (int, error) {
	if len(b) < fixedHeader || string(b[:8]) != headMagic {
		return 0, meta.Errorf(meta.ErrCorrupt, "object does not begin with the magic of a segment")
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != Version {
		return 0, meta.Errorf(meta.ErrFormatLevel, "segment has version %d: this build reads %d; start a newer build", v, Version)
	}
	n := binary.LittleEndian.Uint32(b[12:])
	if n > maxIdentity {
		return 0, meta.Errorf(meta.ErrCorrupt, "segment header claims an identity of %d bytes: at most %d", n, maxIdentity)
	}
	return fixedHeader + int(n) + 4, nil
}

// decodeHeader reads a whole header; b is exactly as long as [headerLen] said.
func decodeHeader(b []byte) (Identity, error) {
	n, err := headerLen(b)
	if err != nil {
		return Identity{}, err
	}
	if len(b) != n {
		return Identity{}, meta.Errorf(meta.ErrCorrupt, "segment header has %d bytes: want %d", len(b), n)
	}
	if got, want := crc32.Checksum(b[:n-4], castagnoli), binary.LittleEndian.Uint32(b[n-4:]); got != want {
		return Identity{}, meta.Errorf(meta.ErrCorrupt, "segment header sums to %08x: it says %08x", got, want)
	}
	return decodeIdentity(b[fixedHeader:n-4], binary.LittleEndian.Uint16(b[10:]))
}
