package frame

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

const (
	// Block is the alignment of groups and the size of a file header's block.
	Block = 4096
	// HeaderSize is the length of a frame's header.
	HeaderSize = 20
	// MaxSize bounds a frame, header and body, before anything is allocated.
	MaxSize = 8 << 20
	// MaxBody bounds a frame's body.
	MaxBody = MaxSize - HeaderSize
)

// Kind says what a frame's body is.
type Kind uint8

// The kinds of version 1. Numbers are for ever.
const (
	Entry      Kind = 1 // an entry
	Truncate   Kind = 2 // the last LSN kept
	State      Kind = 3 // opaque
	Base       Kind = 4 // LSN, opaque rest
	Forget     Kind = 5 // nothing
	Bind       Kind = 6 // the shard's identity
	Relocation Kind = 7 // the position it was copied from, then the entry
)

var kindNames = [...]string{Entry: "entry", Truncate: "truncate", State: "state", Base: "base", Forget: "forget", Bind: "bind", Relocation: "relocation"}

// Known reports whether this build can apply frames of that kind.
func (k Kind) Known() bool { return k >= Entry && int(k) < len(kindNames) }

func (k Kind) String() string {
	if k.Known() {
		return kindNames[k]
	}
	return "unknown kind"
}

// RelocationHeader is how many bytes of a relocation's body stand before the entry.
const RelocationHeader = 8

// Header is a frame's header.
type Header struct {
	Length int // of the body
	Kind   Kind
	Shard  uint64
	CRC    uint32
}

// Size is the length of the whole frame.
func (h Header) Size() int { return HeaderSize + h.Length }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum is the CRC32C of a body.
func Sum(body []byte) uint32 { return crc32.Checksum(body, castagnoli) }

// mix adds the n low bytes of a number to a checksum. crc32.Update wants a slice,
// and one of these few bytes would be an allocation a frame.
func mix(crc uint32, v uint64, n int) uint32 {
	crc = ^crc
	for range n {
		crc = castagnoli[byte(crc)^byte(v)] ^ crc>>8
		v >>= 8
	}
	return ^crc
}

// salted starts a checksum with a file's salt and a position.
func salted(salt, position uint64) uint32 { return mix(mix(0, salt, 8), position, 8) }

// Put writes the header of a frame whose body of that length and sum follows.
// dst holds at least [HeaderSize] bytes.
func Put(dst []byte, salt, position uint64, kind Kind, shard uint64, length int, bodySum uint32) {
	binary.LittleEndian.PutUint32(dst[0:], uint32(length))
	binary.LittleEndian.PutUint32(dst[4:], uint32(kind))
	binary.LittleEndian.PutUint64(dst[8:], shard)
	binary.LittleEndian.PutUint32(dst[16:], frameSum(dst, salt, position, bodySum))
}

func frameSum(h []byte, salt, position uint64, bodySum uint32) uint32 {
	return mix(crc32.Update(salted(salt, position), castagnoli, h[:16]), uint64(bodySum), 4)
}

// Peek reads a header without verifying its checksum. Length, kind and shard are
// within bounds when the error is nil; an unknown kind is not an error here.
// Errors are [meta.ErrCorrupt].
func Peek(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, meta.Errorf(meta.ErrCorrupt, "frame header has %d bytes: want %d", len(b), HeaderSize)
	}
	n := binary.LittleEndian.Uint32(b)
	if n > MaxBody {
		return Header{}, meta.Errorf(meta.ErrCorrupt, "frame claims a body of %d bytes: at most %d", n, MaxBody)
	}
	h := Header{Length: int(n), Kind: Kind(b[4]), Shard: binary.LittleEndian.Uint64(b[8:]), CRC: binary.LittleEndian.Uint32(b[16:])}
	if b[5]|b[6]|b[7] != 0 || h.Kind == 0 || h.Shard == 0 {
		return Header{}, meta.Errorf(meta.ErrCorrupt, "no frame begins here")
	}
	return h, nil
}

// Decode verifies the frame at the start of b, which holds all of it, and returns
// its header and its body. The body aliases b. Errors are [meta.ErrCorrupt].
func Decode(b []byte, salt, position uint64) (Header, []byte, error) {
	h, err := Peek(b)
	if err != nil {
		return Header{}, nil, err
	}
	if len(b) < h.Size() {
		return Header{}, nil, meta.Errorf(meta.ErrCorrupt, "frame is cut short: %d of %d bytes", len(b), h.Size())
	}
	body := b[HeaderSize:h.Size():h.Size()]
	var sum uint32
	switch {
	case h.Kind == Entry && len(body) >= entry.HeaderSize:
		sum = entry.Sum(body)
	default:
		sum = Sum(body)
	}
	if want := frameSum(b, salt, position, sum); want != h.CRC {
		return Header{}, nil, meta.Errorf(meta.ErrCorrupt, "frame has checksum %08x: its bytes sum to %08x", h.CRC, want)
	}
	if h.Kind == Entry {
		if _, n, err := entry.Decode(body); err != nil {
			return Header{}, nil, err
		} else if n != len(body) {
			return Header{}, nil, meta.Errorf(meta.ErrCorrupt, "frame's body has %d bytes, its entry %d", len(body), n)
		}
	}
	return h, body, nil
}
