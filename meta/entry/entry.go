package entry

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/varve-io/varve/meta"
)

const (
	// HeaderSize is the length of an entry's header in bytes.
	HeaderSize = 56
	// MaxPayload bounds a payload, before anything is allocated from a length.
	MaxPayload = 5 << 20
	// MaxSize bounds a whole entry.
	MaxSize = HeaderSize + MaxPayload

	// Format is the version of this layout.
	Format = 1
	// Level is the highest format level this build understands.
	Level = 1

	magic = 'v' | 'E'<<8
)

// Kind says what an entry is.
type Kind uint8

// The kinds of level 1. Numbers are for ever.
const (
	Batch   Kind = 1 // a Kafka record batch, stored as it came
	Open    Kind = 2 // the opening entry of an epoch
	Fence   Kind = 3 // sets the stream's fence token
	Trim    Kind = 4 // moves the start offset
	Mark    Kind = 5 // archive mark
	Confirm Kind = 6 // "the manifest of that mark is in the bucket"
	Close   Kind = 7 // ends appends in this epoch
)

var kindNames = [...]string{Batch: "batch", Open: "open", Fence: "fence", Trim: "trim", Mark: "mark", Confirm: "confirm", Close: "close"}

// Known reports whether this build can apply entries of that kind.
func (k Kind) Known() bool { return k >= Batch && int(k) < len(kindNames) }

func (k Kind) String() string {
	if k.Known() {
		return kindNames[k]
	}
	return "unknown kind"
}

// Header is an entry without its payload.
type Header struct {
	Kind    Kind
	Level   uint16
	Lineage meta.Lineage
	Epoch   meta.Epoch
	LSN     meta.LSN
	Offset  meta.Offset
	Time    meta.Micros // append time
}

// Entry is a header and its payload. Payload may alias a buffer owned by someone
// else: whoever keeps an entry says for how long.
type Entry struct {
	Header
	Payload []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Size is the length of the encoded entry.
func (e *Entry) Size() int { return HeaderSize + len(e.Payload) }

// Append encodes the entry at the end of dst. It sums the payload once and
// copies it once. The payload must be at most [MaxPayload] bytes.
func (e *Entry) Append(dst []byte) []byte {
	dst, _ = e.AppendSum(dst)
	return dst
}

// AppendSum is [Entry.Append] that also returns the entry's CRC, for frames that
// want to vouch for it without summing the payload again.
func (e *Entry) AppendSum(dst []byte) ([]byte, uint32) {
	if len(e.Payload) > MaxPayload {
		panic("entry: payload is larger than MaxPayload")
	}
	at := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	h := dst[at : at+HeaderSize]
	binary.LittleEndian.PutUint16(h[0:], magic)
	h[2] = Format
	h[3] = byte(e.Kind)
	binary.LittleEndian.PutUint16(h[4:], e.Level)
	binary.LittleEndian.PutUint32(h[8:], uint32(len(e.Payload)))
	binary.LittleEndian.PutUint64(h[16:], uint64(e.Lineage))
	binary.LittleEndian.PutUint64(h[24:], uint64(e.Epoch))
	binary.LittleEndian.PutUint64(h[32:], uint64(e.LSN))
	binary.LittleEndian.PutUint64(h[40:], uint64(e.Offset))
	binary.LittleEndian.PutUint64(h[48:], uint64(e.Time))
	crc := sum(h, e.Payload)
	binary.LittleEndian.PutUint32(h[12:], crc)
	return append(dst, e.Payload...), crc
}

func sum(h, payload []byte) uint32 {
	crc := crc32.Update(0, castagnoli, h[:12])
	crc = crc32.Update(crc, castagnoli, h[16:HeaderSize])
	return crc32.Update(crc, castagnoli, payload)
}

// Peek reads a header and the whole entry's length without verifying the
// checksum. It checks magic, format, reserved bytes and bounds, so the length it
// returns is at most [MaxSize]; b may be shorter than that length. Errors are
// [meta.ErrCorrupt].
func Peek(b []byte) (Header, int, error) {
	if len(b) < HeaderSize {
		return Header{}, 0, meta.Errorf(meta.ErrCorrupt, "entry header has %d bytes: want %d", len(b), HeaderSize)
	}
	if m := binary.LittleEndian.Uint16(b); m != magic {
		return Header{}, 0, meta.Errorf(meta.ErrCorrupt, "entry begins with %04x: not the magic of an entry", m)
	}
	if b[2] != Format {
		return Header{}, 0, meta.Errorf(meta.ErrCorrupt, "entry has format %d: this build reads %d", b[2], Format)
	}
	if r := binary.LittleEndian.Uint16(b[6:]); r != 0 {
		return Header{}, 0, meta.Errorf(meta.ErrCorrupt, "entry's reserved bytes are %04x: want zero", r)
	}
	n := binary.LittleEndian.Uint32(b[8:])
	if n > MaxPayload {
		return Header{}, 0, meta.Errorf(meta.ErrCorrupt, "entry claims a payload of %d bytes: at most %d", n, MaxPayload)
	}
	h := Header{
		Kind:    Kind(b[3]),
		Level:   binary.LittleEndian.Uint16(b[4:]),
		Lineage: meta.Lineage(binary.LittleEndian.Uint64(b[16:])),
		Epoch:   meta.Epoch(binary.LittleEndian.Uint64(b[24:])),
		LSN:     meta.LSN(binary.LittleEndian.Uint64(b[32:])),
		Offset:  meta.Offset(binary.LittleEndian.Uint64(b[40:])),
		Time:    meta.Micros(binary.LittleEndian.Uint64(b[48:])),
	}
	return h, HeaderSize + int(n), nil
}

// Sum is the CRC stored in an encoded header, unverified. b holds at least
// [HeaderSize] bytes.
func Sum(b []byte) uint32 { return binary.LittleEndian.Uint32(b[12:]) }

// Decode reads and verifies the entry at the start of b and returns it with its
// encoded length. The payload aliases b. It does not judge kind or level: see
// [Header.Understood]. Errors are [meta.ErrCorrupt].
func Decode(b []byte) (Entry, int, error) {
	h, n, err := Peek(b)
	if err != nil {
		return Entry{}, 0, err
	}
	if len(b) < n {
		return Entry{}, 0, meta.Errorf(meta.ErrCorrupt, "entry LSN %d is cut short: %d of %d bytes", h.LSN, len(b), n)
	}
	payload := b[HeaderSize:n:n]
	if got, want := sum(b[:HeaderSize], payload), Sum(b); got != want {
		return Entry{}, 0, meta.Errorf(meta.ErrCorrupt, "entry LSN %d has checksum %08x: its bytes sum to %08x", h.LSN, want, got)
	}
	return Entry{Header: h, Payload: payload}, n, nil
}

// Understood returns an error when this build may not apply the entry: an unknown
// kind, or a level above [Level]. The shard stops; the entry is never skipped.
func (h *Header) Understood() error {
	if h.Level > Level {
		return meta.Errorf(meta.ErrFormatLevel, "entry LSN %d has format level %d: this build knows up to %d; start a newer build", h.LSN, h.Level, Level)
	}
	if !h.Kind.Known() {
		return meta.Errorf(meta.ErrFormatLevel, "entry LSN %d has unknown kind %d: start a build that knows it", h.LSN, h.Kind)
	}
	return nil
}
