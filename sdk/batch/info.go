package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

const (
	// HeaderSize is the length of a batch's header in bytes.
	HeaderSize = 61
	// MaxBatch is the largest batch, header included, in bytes.
	MaxBatch = 4 << 20
	// MaxRaw is the most bytes that a batch's records may have once decompressed.
	MaxRaw = 16 << 20
	// MaxCount is the most records of a batch.
	MaxCount = 1 << 18
	// MaxRecord is the largest value of a record in bytes, unless a stream's
	// settings say otherwise.
	MaxRecord = 1 << 20

	minRecord = 7 // shortest record: seven varints of one byte
)

// What is wrong with a batch. Every error of this package is an ErrInvalid, and
// one of the others if it fits.
var (
	ErrInvalid     = errors.New("invalid record batch")
	ErrTooLarge    = errors.New("record batch too large")
	ErrChecksum    = errors.New("record batch checksum mismatch")
	ErrCompression = errors.New("unknown compression")
)

type invalid struct {
	kind error // nil or one of the errors above
	text string
}

func (e *invalid) Error() string { return e.text }

func (e *invalid) Is(target error) bool {
	return target == ErrInvalid || e.kind != nil && target == e.kind
}

func invalidf(kind error, format string, args ...any) error {
	return &invalid{kind: kind, text: "record batch: " + fmt.Sprintf(format, args...)}
}

// Compression is how a batch's records are packed. Numbers are Kafka's.
type Compression uint8

// The codecs. Only None and Zstd are written, all are read.
const (
	None   Compression = 0
	Gzip   Compression = 1
	Snappy Compression = 2
	LZ4    Compression = 3
	Zstd   Compression = 4
)

func (c Compression) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Snappy:
		return "snappy"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("compression %d", uint8(c))
}

// Producer is the triple that makes a batch idempotent. See [NoProducer].
type Producer struct {
	ID       int64 // 0 and up; -1 for none
	Epoch    int16 // 0 and up; -1 for none
	Sequence int32 // of the first record, 0 to 2^31-1, wrapping to 0; -1 for none
}

// NoProducer is the triple of a batch that is not idempotent.
func NoProducer() Producer { return Producer{-1, -1, -1} }

// Idempotent reports whether the triple names a producer.
func (p Producer) Idempotent() bool { return p.ID >= 0 }

func (p Producer) validate() error {
	if p == NoProducer() || p.ID >= 0 && p.Epoch >= 0 && p.Sequence >= 0 {
		return nil
	}
	return invalidf(nil, "producer id %d, epoch %d, sequence %d: want all of them at least 0, or all -1", p.ID, p.Epoch, p.Sequence)
}

// NextSequence is the sequence n records after s, wrapping from 2^31-1 to 0.
func NextSequence(s int32, n int) int32 {
	return int32((int64(s) + int64(n)) & math.MaxInt32)
}

// Info is a batch's header.
type Info struct {
	BaseOffset  int64
	LeaderEpoch int32
	Size        int // bytes of the whole batch
	CRC         uint32
	Compression Compression
	Count       int   // records, at least 1
	FirstTime   int64 // create time of the first record, ms since 1970
	MaxTime     int64 // latest create time, ms since 1970
	Producer    Producer
}

// NextOffset is the offset after the batch's last record.
func (i Info) NextOffset() int64 { return i.BaseOffset + int64(i.Count) }

// LastSequence is the sequence of the last record; -1 without a producer.
func (i Info) LastSequence() int32 {
	if !i.Producer.Idempotent() {
		return -1
	}
	return NextSequence(i.Producer.Sequence, i.Count-1)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Parse reads and checks the header of the batch that b consists of, without its
// checksum. Use it for bytes that were checked before.
func Parse(b []byte) (Info, error) {
	if len(b) < HeaderSize {
		return Info{}, invalidf(nil, "%d bytes: a header alone has %d", len(b), HeaderSize)
	}
	if len(b) > MaxBatch {
		return Info{}, invalidf(ErrTooLarge, "%d bytes: at most %d", len(b), MaxBatch)
	}
	be := binary.BigEndian
	if b[16] != 2 {
		return Info{}, invalidf(nil, "magic %d: only 2 is understood", int8(b[16]))
	}
	if n := int32(be.Uint32(b[8:])); int64(n) != int64(len(b)-12) {
		return Info{}, invalidf(nil, "claims %d bytes after its length, but has %d", n, len(b)-12)
	}
	attributes, count, last := be.Uint16(b[21:]), int32(be.Uint32(b[57:])), int32(be.Uint32(b[23:]))
	i := Info{
		BaseOffset:  int64(be.Uint64(b)),
		LeaderEpoch: int32(be.Uint32(b[12:])),
		Size:        len(b),
		CRC:         be.Uint32(b[17:]),
		Compression: Compression(attributes & 7),
		Count:       int(count),
		FirstTime:   int64(be.Uint64(b[27:])),
		MaxTime:     int64(be.Uint64(b[35:])),
		Producer:    Producer{int64(be.Uint64(b[43:])), int16(be.Uint16(b[51:])), int32(be.Uint32(b[53:]))},
	}
	switch {
	case i.Compression > Zstd:
		return Info{}, invalidf(ErrCompression, "unknown compression %d", uint8(i.Compression))
	case attributes&^7 != 0:
		return Info{}, invalidf(nil, "attributes %#x: transactions, control batches and log append times are not taken", attributes)
	case count < 1:
		return Info{}, invalidf(nil, "%d records: at least 1", count)
	case count > MaxCount:
		return Info{}, invalidf(ErrTooLarge, "%d records: at most %d", count, MaxCount)
	case last != count-1:
		return Info{}, invalidf(nil, "last offset delta %d does not fit %d records", last, count)
	case i.Compression == None && (len(b)-HeaderSize)/minRecord < i.Count:
		return Info{}, invalidf(nil, "claims %d records in %d bytes", count, len(b)-HeaderSize)
	case i.MaxTime < i.FirstTime:
		return Info{}, invalidf(nil, "latest time %d lies before its first %d", i.MaxTime, i.FirstTime)
	}
	return i, i.Producer.validate()
}

// Check is [Parse] that also verifies the checksum. It does not look into the
// records: see [Codec.Validate].
func Check(b []byte) (Info, error) {
	i, err := Parse(b)
	if err != nil {
		return Info{}, err
	}
	if got := crc32.Checksum(b[21:], castagnoli); got != i.CRC {
		return Info{}, invalidf(ErrChecksum, "checksum is %08x, but its bytes sum to %08x", i.CRC, got)
	}
	return i, nil
}

// SetBase writes the base offset and the leader epoch in place; the checksum does
// not cover them. b holds at least a header.
func SetBase(b []byte, offset int64, leaderEpoch int32) {
	binary.BigEndian.PutUint64(b, uint64(offset))
	binary.BigEndian.PutUint32(b[12:], uint32(leaderEpoch))
}

// SetProducer writes another producer triple in place and sums the batch anew. b
// was encoded by this package; p is a valid triple.
func SetProducer(b []byte, p Producer) {
	be := binary.BigEndian
	be.PutUint64(b[43:], uint64(p.ID))
	be.PutUint16(b[51:], uint16(p.Epoch))
	be.PutUint32(b[53:], uint32(p.Sequence))
	be.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
}
