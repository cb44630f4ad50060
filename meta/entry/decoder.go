package entry

import (
	"encoding/binary"

	"github.com/varve-io/varve/meta"
)

// Decoder reads little-endian fields off a byte slice. The first failure sticks:
// later reads return zeroes, and [Decoder.Finish] reports it. Lengths are checked
// against what is left before anything is taken. Slices alias the input.
type Decoder struct {
	buf []byte
	err error
}

// NewDecoder reads b from its start.
func NewDecoder(b []byte) *Decoder { return &Decoder{buf: b} }

// Err is the first failure, if any.
func (d *Decoder) Err() error { return d.err }

// Rest is the number of bytes not yet read.
func (d *Decoder) Rest() int { return len(d.buf) }

// Fail records a failure unless there is one already.
func (d *Decoder) Fail(format string, args ...any) {
	if d.err == nil {
		d.err = meta.Errorf(meta.ErrCorrupt, format, args...)
	}
	d.buf = nil
}

// Bytes takes the next n bytes.
func (d *Decoder) Bytes(n int) []byte {
	if n < 0 || n > len(d.buf) {
		d.Fail("cut short: want %d bytes, have %d", n, len(d.buf))
		return nil
	}
	b := d.buf[:n:n]
	d.buf = d.buf[n:]
	return b
}

// U8 takes one byte.
func (d *Decoder) U8() uint8 {
	if b := d.Bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// U16 takes two bytes.
func (d *Decoder) U16() uint16 {
	if b := d.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 takes four bytes.
func (d *Decoder) U32() uint32 {
	if b := d.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U64 takes eight bytes.
func (d *Decoder) U64() uint64 {
	if b := d.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Bool takes one byte that must be 0 or 1.
func (d *Decoder) Bool() bool {
	switch v := d.U8(); v {
	case 0, 1:
		return v == 1
	default:
		d.Fail("byte %d is not a yes or no", v)
		return false
	}
}

// Length32 takes a 32-bit length or count of at most most.
func (d *Decoder) Length32(most int) int {
	n := d.U32()
	if uint64(n) > uint64(most) {
		d.Fail("length %d is above %d", n, most)
		return 0
	}
	return int(n)
}

// String16 takes a string with a 16-bit length of at most most bytes.
func (d *Decoder) String16(most int) string {
	n := int(d.U16())
	if n > most {
		d.Fail("string of %d bytes: at most %d", n, most)
		return ""
	}
	return string(d.Bytes(n))
}

// SegmentRef takes what [AppendSegmentRef] wrote.
func (d *Decoder) SegmentRef() meta.SegmentRef {
	s := meta.SegmentRef{Key: d.String16(1024), Size: int64(d.U64()), CRC: d.U32()}
	s.IndexAt, s.IndexLen = int64(d.U64()), int64(d.U64())
	s.FirstLSN, s.NextLSN = meta.LSN(d.U64()), meta.LSN(d.U64())
	s.FirstOffset, s.NextOffset = meta.Offset(d.U64()), meta.Offset(d.U64())
	s.FirstTime, s.LastTime = meta.Micros(d.U64()), meta.Micros(d.U64())
	s.FirstEpoch, s.LastEpoch = meta.Epoch(d.U64()), meta.Epoch(d.U64())
	if d.err == nil && (s.NextLSN <= s.FirstLSN || s.NextOffset < s.FirstOffset || s.NextOffset > meta.MaxOffset ||
		s.Size < 0 || s.IndexAt < 0 || s.IndexLen < 0 || s.IndexAt > s.Size || s.IndexLen > s.Size-s.IndexAt ||
		s.LastTime < s.FirstTime || s.LastEpoch < s.FirstEpoch) {
		d.Fail("segment %q has ranges that go backwards", s.Key)
	}
	return s
}

// Finish returns the first failure, or an error when bytes are left, with what
// was being read in front.
func (d *Decoder) Finish(what string) error {
	if d.err == nil && len(d.buf) > 0 {
		d.Fail("%d bytes left over", len(d.buf))
	}
	if d.err != nil {
		return meta.Errorf(meta.ErrCorrupt, "%s: %w", what, d.err)
	}
	return nil
}

// AppendString16 writes a string of at most 65535 bytes with a 16-bit length.
func AppendString16(b []byte, s string) []byte {
	if len(s) > 0xffff {
		panic("entry: string is longer than 65535 bytes")
	}
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}
