package batch

import (
	"encoding/binary"
	"math"
)

// Record is one record.
type Record struct {
	Key, Value []byte // nil is null
	Headers    []Header
	Time       int64 // create time, ms since 1970
	Offset     int64 // set by decoding: base offset + place in the batch
}

// Header is a header of a record.
type Header struct {
	Key   string
	Value []byte // nil is null
}

// recordSize is the length of the encoded record without its length prefix.
func recordSize(r *Record, timeDelta int64, index int) int {
	n := 1 + varintLen(timeDelta) + varintLen(int64(index)) + bytesLen(r.Key) + bytesLen(r.Value) + varintLen(int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		n += varintLen(int64(len(h.Key))) + len(h.Key) + bytesLen(h.Value)
	}
	return n
}

func bytesLen(b []byte) int {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + len(b)
}

func varintLen(v int64) int {
	n := 1
	for u := uint64(v)<<1 ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// appendRecord encodes a record whose size is [recordSize].
func appendRecord(b []byte, r *Record, timeDelta int64, index, size int) []byte {
	b = binary.AppendVarint(b, int64(size))
	b = append(b, 0)
	b = binary.AppendVarint(b, timeDelta)
	b = binary.AppendVarint(b, int64(index))
	b = appendBytes(b, r.Key)
	b = appendBytes(b, r.Value)
	b = binary.AppendVarint(b, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		b = binary.AppendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendBytes(b, h.Value)
	}
	return b
}

func appendBytes(b, v []byte) []byte {
	if v == nil {
		return append(b, 1) // -1
	}
	return append(binary.AppendVarint(b, int64(len(v))), v...)
}

// scanner takes fields off a record's bytes. The first failure sticks.
type scanner struct {
	buf []byte
	bad string // what failed; empty while all is well
}

func (s *scanner) fail(what string) {
	if s.bad == "" {
		s.bad = what
	}
	s.buf = nil
}

func (s *scanner) varint() int64 {
	v, n := binary.Varint(s.buf)
	switch {
	case n <= 0:
		s.fail("a number is cut short or too long")
		return 0
	case n > 1 && s.buf[n-1] == 0:
		s.fail("a number is longer than it needs to be")
		return 0
	}
	s.buf = s.buf[n:]
	return v
}

// length takes a length or count of 0 or more, or -1 if that is allowed, of things
// that have at least each bytes.
func (s *scanner) length(least int64, each int) int {
	n := s.varint()
	if n < least || n > math.MaxInt32 || n > int64(len(s.buf)/each) {
		s.fail("a length does not fit what is there")
		return int(least)
	}
	return int(n)
}

// bytes takes bytes with a length in front; nil for null.
func (s *scanner) bytes() []byte {
	n := s.length(-1, 1)
	if n < 0 {
		return nil
	}
	b := s.buf[:n:n]
	s.buf = s.buf[n:]
	if b == nil {
		b = []byte{}
	}
	return b
}

// record takes the next record: that of the given place in the batch. With keep
// off, header names are not copied out and r.Headers stays empty. Slices alias buf.
func (s *scanner) record(r *Record, info *Info, index int, keep bool) {
	n := s.length(0, 1)
	if s.bad != "" {
		return
	}
	in := scanner{buf: s.buf[:n:n]}
	s.buf = s.buf[n:]
	if len(in.buf) < minRecord-1 {
		in.fail("it is shorter than any record")
	} else {
		if in.buf[0] != 0 {
			in.fail("its attributes are not 0")
		}
		in.buf = in.buf[min(1, len(in.buf)):]
	}
	delta := in.varint()
	if in.varint() != int64(index) {
		in.fail("its offset delta is not its place in the batch")
	}
	t := info.FirstTime + delta
	if (t < info.FirstTime) != (delta < 0) || t > info.MaxTime || index == 0 && delta != 0 {
		in.fail("its time does not fit the batch's times")
	}
	*r = Record{Key: in.bytes(), Value: in.bytes(), Time: t, Offset: info.BaseOffset + int64(index)}
	headers := in.length(0, 2)
	if keep && headers > 0 {
		r.Headers = make([]Header, headers)
	}
	for i := range headers {
		at := in.length(0, 1)
		if in.bad != "" {
			break
		}
		name := in.buf[:at]
		in.buf = in.buf[at:]
		value := in.bytes()
		if keep {
			r.Headers[i] = Header{Key: string(name), Value: value}
		}
	}
	if len(in.buf) > 0 {
		in.fail("bytes are left over")
	}
	if in.bad != "" {
		s.fail(in.bad)
	}
}
