package batch

import (
	"encoding/binary"
	"math"
)

// Builder gathers records into a batch. The zero value is ready; not safe for
// concurrent use.
type Builder struct {
	buf            []byte // header, then encoded records
	count          int
	first, maxTime int64
}

// Count is the number of records so far.
func (b *Builder) Count() int { return b.count }

// Size is the length of the batch in bytes if it were sealed now, uncompressed.
func (b *Builder) Size() int { return max(len(b.buf), HeaderSize) }

// SizeWith is [Builder.Size] after adding r.
func (b *Builder) SizeWith(r *Record) int {
	var delta int64
	if b.count > 0 {
		delta = r.Time - b.first
	}
	n := recordSize(r, delta, b.count)
	return b.Size() + varintLen(int64(n)) + n
}

// Add copies r into the batch. On error nothing was added: the batch would exceed
// [MaxRaw] or [MaxCount] ([ErrTooLarge]), or the record's time lies more than 2^63
// ms from the first one's.
func (b *Builder) Add(r *Record) error {
	var delta int64
	if b.count > 0 {
		delta = r.Time - b.first
		if (delta < 0) != (r.Time < b.first) {
			return invalidf(nil, "times %d and %d are too far apart for one batch", b.first, r.Time)
		}
	}
	if b.count >= MaxCount {
		return invalidf(ErrTooLarge, "more than %d records", MaxCount)
	}
	n := recordSize(r, delta, b.count)
	if b.Size()-HeaderSize+varintLen(int64(n))+n > MaxRaw {
		return invalidf(ErrTooLarge, "records have more than %d bytes", MaxRaw)
	}
	if len(b.buf) == 0 {
		b.buf = append(b.buf, make([]byte, HeaderSize)...)
	}
	if b.count == 0 {
		b.first, b.maxTime = r.Time, r.Time
	}
	b.buf = appendRecord(b.buf, r, delta, b.count, n)
	b.maxTime = max(b.maxTime, r.Time)
	b.count++
	return nil
}

// Seal encodes the batch and empties the builder. With [None] the result takes the
// builder's memory over; else that is kept for the next batch, and the batch is
// stored uncompressed where that is shorter. The base offset is 0 and the leader
// epoch -1. Only None and [Zstd] are written.
func (c *Codec) Seal(b *Builder, compression Compression, p Producer) ([]byte, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	if b.count == 0 {
		return nil, invalidf(nil, "0 records: at least 1")
	}
	out := b.buf
	switch compression {
	case None:
	case Zstd:
		packed, err := c.pack(b.buf[:HeaderSize], b.buf[HeaderSize:])
		if err != nil {
			return nil, err
		}
		if len(packed) < len(b.buf) {
			out = packed
		} else {
			compression = None
		}
	default:
		return nil, invalidf(ErrCompression, "%s is not written: use none or zstd", compression)
	}
	if len(out) > MaxBatch {
		return nil, invalidf(ErrTooLarge, "%d bytes: at most %d", len(out), MaxBatch)
	}
	fillHeader(out, compression, b)
	SetProducer(out, p)
	if compression == None {
		b.buf = nil
	}
	b.Reset()
	return out, nil
}

func fillHeader(out []byte, compression Compression, b *Builder) {
	be := binary.BigEndian
	SetBase(out, 0, -1)
	be.PutUint32(out[8:], uint32(len(out)-12))
	out[16] = 2
	be.PutUint16(out[21:], uint16(compression))
	be.PutUint32(out[23:], uint32(b.count-1))
	be.PutUint64(out[27:], uint64(b.first))
	be.PutUint64(out[35:], uint64(b.maxTime))
	be.PutUint32(out[57:], uint32(b.count))
}

// Reset empties the builder and keeps its memory.
func (b *Builder) Reset() { *b = Builder{buf: b.buf[:0]} }

// Grow makes room for so many bytes of records.
func (b *Builder) Grow(bytes int) {
	if want := HeaderSize + bytes; cap(b.buf) < want && want > 0 && want <= math.MaxInt32 {
		b.buf = append(make([]byte, 0, want), b.buf...)
	}
}
