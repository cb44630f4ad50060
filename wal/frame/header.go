package frame

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/varve-io/varve/meta"
)

const (
	// GroupSize is the length of a group header.
	GroupSize = 44
	// FileSize is the length of one copy of a file header.
	FileSize = 52
	// FileCopy is where the second copy of a file header stands.
	FileCopy = 2048

	version = 1

	magicFile  = 'v' | 'L'<<8 | 'O'<<16 | 'G'<<24
	magicGroup = 'v' | 'G'<<8 | 'R'<<16 | 'P'<<24
)

// File is a file header.
type File struct {
	Size    int64  // of the whole file, a multiple of [Block]
	First   uint64 // position of the file's first byte
	Salt    uint64 // not 0
	Storage meta.StorageID
}

// AppendFile encodes the header's whole block, both copies.
func AppendFile(dst []byte, f File) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, Block)...)
	b := dst[at:]
	binary.LittleEndian.PutUint32(b[0:], magicFile)
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint64(b[8:], uint64(f.Size))
	binary.LittleEndian.PutUint64(b[16:], f.First)
	binary.LittleEndian.PutUint64(b[24:], f.Salt)
	copy(b[32:48], f.Storage[:])
	binary.LittleEndian.PutUint32(b[48:], Sum(b[:48]))
	copy(b[FileCopy:], b[:FileSize])
	return dst
}

// DecodeFile reads a header block; the first copy that verifies counts. An
// unknown version is a [meta.ErrFormatLevel], anything else [meta.ErrCorrupt].
func DecodeFile(b []byte) (File, error) {
	if len(b) < Block {
		return File{}, meta.Errorf(meta.ErrCorrupt, "file header has %d bytes: want %d", len(b), Block)
	}
	f, err := decodeFile(b[:FileSize])
	if err == nil {
		return f, nil
	}
	if f, err2 := decodeFile(b[FileCopy : FileCopy+FileSize]); err2 == nil {
		return f, nil
	}
	return File{}, err
}

func decodeFile(b []byte) (File, error) {
	if binary.LittleEndian.Uint32(b) != magicFile {
		return File{}, meta.Errorf(meta.ErrCorrupt, "no log file header: it begins with %x", b[:4])
	}
	// The checksum comes first, in every version: a torn header is no new version.
	if want, got := Sum(b[:48]), binary.LittleEndian.Uint32(b[48:]); want != got {
		return File{}, meta.Errorf(meta.ErrCorrupt, "log file header has checksum %08x: its bytes sum to %08x", got, want)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != version {
		return File{}, meta.Errorf(meta.ErrFormatLevel, "log file has version %d: this build reads %d", v, version)
	}
	f := File{
		Size:    int64(binary.LittleEndian.Uint64(b[8:])),
		First:   binary.LittleEndian.Uint64(b[16:]),
		Salt:    binary.LittleEndian.Uint64(b[24:]),
		Storage: meta.StorageID(b[32:48]),
	}
	if f.Size < 2*Block || f.Size > 1<<30 || f.Size%Block != 0 || f.First%Block != 0 || f.Salt == 0 ||
		f.First+uint64(f.Size) < f.First || binary.LittleEndian.Uint16(b[6:]) != 0 {
		return File{}, meta.Errorf(meta.ErrCorrupt, "log file header is out of bounds: size %d, first position %d", f.Size, f.First)
	}
	return f, nil
}

// Group is a group header.
type Group struct {
	Position uint64 // of this header, a multiple of [Block]
	Previous uint64 // where the log ended before this group
	Synced   uint64 // everything before it was on disk when this was written
	Next     uint64 // salt of the next file; 0 if the log goes on in this one
}

// PutGroup writes a group header at the start of dst, which holds at least
// [GroupSize] bytes.
func PutGroup(dst []byte, salt uint64, g Group) {
	binary.LittleEndian.PutUint32(dst[0:], magicGroup)
	binary.LittleEndian.PutUint32(dst[4:], version)
	binary.LittleEndian.PutUint64(dst[8:], g.Position)
	binary.LittleEndian.PutUint64(dst[16:], g.Previous)
	binary.LittleEndian.PutUint64(dst[24:], g.Synced)
	binary.LittleEndian.PutUint64(dst[32:], g.Next)
	binary.LittleEndian.PutUint32(dst[40:], groupSum(dst, salt, g.Position))
}

func groupSum(b []byte, salt, position uint64) uint32 {
	return crc32.Update(salted(salt, position), castagnoli, b[:40])
}

// DecodeGroup verifies the group header at the start of b, which stands at
// position. An unknown version that verifies is a [meta.ErrFormatLevel], anything
// else [meta.ErrCorrupt].
func DecodeGroup(b []byte, salt, position uint64) (Group, error) {
	if len(b) < GroupSize {
		return Group{}, meta.Errorf(meta.ErrCorrupt, "group header has %d bytes: want %d", len(b), GroupSize)
	}
	if binary.LittleEndian.Uint32(b) != magicGroup {
		return Group{}, meta.Errorf(meta.ErrCorrupt, "no group begins here")
	}
	if want, got := groupSum(b, salt, position), binary.LittleEndian.Uint32(b[40:]); want != got {
		return Group{}, meta.Errorf(meta.ErrCorrupt, "group header has checksum %08x: its bytes sum to %08x", got, want)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != version {
		return Group{}, meta.Errorf(meta.ErrFormatLevel, "group has version %d: this build reads %d", v, version)
	}
	g := Group{
		Position: binary.LittleEndian.Uint64(b[8:]),
		Previous: binary.LittleEndian.Uint64(b[16:]),
		Synced:   binary.LittleEndian.Uint64(b[24:]),
		Next:     binary.LittleEndian.Uint64(b[32:]),
	}
	if g.Position != position || g.Previous > position || g.Synced > position {
		return Group{}, meta.Errorf(meta.ErrCorrupt, "group header is out of bounds: position %d, previous %d, synced %d", g.Position, g.Previous, g.Synced)
	}
	return g, nil
}

// Align rounds a position up to the next place where a group may start.
func Align(position uint64) uint64 { return (position + Block - 1) &^ (Block - 1) }
