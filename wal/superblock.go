package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"
	"sync/atomic"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/vfs"
)

// A superblock slot, all numbers little-endian:
//
//	0      4       6    8          16      24        40        56            72
//	+------+-------+----+----------+-------+---------+---------+-------------+--------+
//	|"vSUP"|version| 0  | sequence | start | cluster | storage | predecessor | origin |
//	|      |  = 1  |    |          | count | id      | id      |             |        |
//	+------+-------+----+----------+-------+---------+---------+-------------+--------+
//	88             96        104   108                                            end-4
//	+--------------+---------+-----+-------------------+------------+------------+-----+
//	| checkpoint:  | size    | CRC | u16 length,       | u16 length,| u16 count, | CRC |
//	| position     |         |     | name ("" = none)  | broker id  | ancestors  |     |
//	+--------------+---------+-----+-------------------+------------+------------+-----+
//
// The last four bytes of a slot are the CRC32C of all before, in every version.
//
// Odd sequences stand in superblock.a, even ones in superblock.b; each replaces
// its file in one step, so on disk stand {1}, {1, 2}, {3, 2}, {3, 4} and so on,
// whatever crashes, and anything else is damage.
const (
	superblockMagic   = 'v' | 'S'<<8 | 'U'<<16 | 'P'<<24
	superblockVersion = 1
	superblockLeast   = 108 + 2 + 2 + 2 + 4
)

var superblockSlots = [2]string{"superblock.a", "superblock.b"}

// checkpointRef names a checkpoint: a file and what its bytes must be.
type checkpointRef struct {
	Name   string   // within the folder checkpoints; empty means none
	Size   int64    // bytes
	CRC    uint32   // CRC32C of its bytes as they lie on disk, and what stands at its end
	Replay Position // where replay starts
}

// superblock is the root of a data directory.
type superblock struct {
	Sequence    uint64
	Start       uint64 // starts of this storage id so far
	Cluster     meta.ClusterID
	Broker      meta.BrokerID
	Storage     meta.StorageID
	Predecessor meta.StorageID // the id before; zero means none
	Ancestors   Ancestors
	Origin      meta.StorageID // the id that the directory was made with; its log files bear it for ever
	Checkpoint  checkpointRef
}

func (s *superblock) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, superblockLeast+64)
	b = le.AppendUint32(b, superblockMagic)
	b = le.AppendUint16(b, superblockVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, s.Sequence)
	b = le.AppendUint64(b, s.Start)
	b = append(b, s.Cluster[:]...)
	b = append(b, s.Storage[:]...)
	b = append(b, s.Predecessor[:]...)
	b = append(b, s.Origin[:]...)
	b = le.AppendUint64(b, uint64(s.Checkpoint.Replay))
	b = le.AppendUint64(b, uint64(s.Checkpoint.Size))
	b = le.AppendUint32(b, s.Checkpoint.CRC)
	b = entry.AppendString16(b, s.Checkpoint.Name)
	b = entry.AppendString16(b, string(s.Broker))
	b = s.Ancestors.append(b)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// unreadable is why a slot can't be believed. It is a [meta.ErrCorrupt], or a
// [meta.ErrFormatLevel] when an unknown version is why.
type unreadable struct {
	Slot    string
	Version uint16 // not 0 when the slot verifies but has a version unknown here
	Why     string
}

func (u *unreadable) Error() string {
	if u.Version != 0 {
		return fmt.Sprintf("superblock slot %s has version %d: this build reads %d; start the build that wrote it", u.Slot, u.Version, superblockVersion)
	}
	return fmt.Sprintf("superblock slot %s is unreadable (%s) and may be the newest: "+
		"nothing was changed; restore it, or move the data directory away to come back as a new copy that peers repair", u.Slot, u.Why)
}

func (u *unreadable) Unwrap() error {
	if u.Version != 0 {
		return meta.ErrFormatLevel
	}
	return meta.ErrCorrupt
}

// decodeSuperblock is the strict inverse of encode; slot is for the error, which
// is an *unreadable.
func decodeSuperblock(slot string, b []byte) (*superblock, error) {
	bad := func(format string, args ...any) (*superblock, error) {
		return nil, &unreadable{Slot: slot, Why: fmt.Sprintf(format, args...)}
	}
	le := binary.LittleEndian
	if len(b) < 4+2+4 {
		return bad("it has %d bytes", len(b))
	}
	body, sum := b[:len(b)-4], le.Uint32(b[len(b)-4:])
	switch {
	case le.Uint32(b) != superblockMagic:
		return bad("it does not begin as one")
	case crc32.Checksum(body, castagnoli) != sum:
		return bad("its bytes sum to %08x, not %08x", crc32.Checksum(body, castagnoli), sum)
	case le.Uint16(b[4:]) != superblockVersion:
		return nil, &unreadable{Slot: slot, Version: le.Uint16(b[4:]), Why: "unknown version"}
	}
	d := entry.NewDecoder(body[6:])
	if d.U16() != 0 {
		d.Fail("reserved bytes are not zero")
	}
	s := &superblock{Sequence: d.U64(), Start: d.U64()}
	copy(s.Cluster[:], d.Bytes(16))
	copy(s.Storage[:], d.Bytes(16))
	copy(s.Predecessor[:], d.Bytes(16))
	copy(s.Origin[:], d.Bytes(16))
	s.Checkpoint.Replay = Position(d.U64())
	s.Checkpoint.Size = int64(d.U64())
	s.Checkpoint.CRC = d.U32()
	s.Checkpoint.Name = d.String16(maxCheckpointName)
	s.Broker = meta.BrokerID(d.String16(meta.MaxNameLen))
	s.Ancestors = decodeAncestors(d)
	if err := d.Finish("fields"); err != nil {
		return bad("%v", err)
	}
	c := s.Checkpoint
	switch {
	case s.Sequence == 0 || s.Storage.IsZero() || s.Origin.IsZero() || s.Cluster.IsZero() || s.Broker.Validate() != nil:
		return bad("it names nothing")
	case c.Size < 0 || c.Name == "" && c != (checkpointRef{}) || c.Name != "" && !isCheckpointName(c.Name):
		return bad("it names an impossible checkpoint")
	}
	return s, nil
}

// superblocks reads and writes the two slots of one directory. One goroutine
// writes at a time; a second one at the same time panics.
type superblocks struct {
	fs      vfs.FS
	dir     string
	current superblock // as of the last write that succeeded; Sequence 0 means empty
	busy    atomic.Bool
}

// openSuperblocks reads both slots. A directory without any is *empty*: current
// has sequence 0. Any slot that does not verify, and any pair of slots that our
// writes can't leave, is unreadable: an *unreadable error, and nothing is changed.
func openSuperblocks(fsys vfs.FS, dir string) (*superblocks, error) {
	s := &superblocks{fs: fsys, dir: dir}
	var found [2]*superblock
	for i, slot := range superblockSlots {
		name := path.Join(dir, slot)
		b, err := vfs.ReadFile(fsys, name, maxSmallFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading superblock slot %s: %w", name, err)
		}
		if found[i], err = decodeSuperblock(name, b); err != nil {
			return nil, err
		}
		if found[i].slot() != i {
			return nil, &unreadable{Slot: name, Why: fmt.Sprintf("sequence %d belongs into the other slot", found[i].Sequence)}
		}
	}
	a, b := found[0], found[1]
	switch {
	case a == nil && b == nil:
		return s, nil
	case b == nil && a.Sequence == 1:
		s.current = *a
	case a == nil || b == nil:
		missing, there := 0, b
		if a != nil {
			missing, there = 1, a
		}
		return nil, &unreadable{Slot: path.Join(dir, superblockSlots[missing]), Why: fmt.Sprintf("missing, while the other has sequence %d", there.Sequence)}
	case a.Sequence == b.Sequence+1:
		s.current = *a
	case b.Sequence == a.Sequence+1:
		s.current = *b
	default:
		return nil, &unreadable{Slot: path.Join(dir, superblockSlots[0]), Why: fmt.Sprintf("sequences %d and %d do not follow each other", a.Sequence, b.Sequence)}
	}
	return s, nil
}

// slot is the index of the slot that holds a superblock of that sequence.
func (s *superblock) slot() int { return int((s.Sequence - 1) % 2) }

// write makes next durable as the newest superblock, with the next sequence.
// After an error either the old one or next is on disk, and write may be tried
// again, with next or another.
func (s *superblocks) write(next superblock) error {
	if !s.busy.CompareAndSwap(false, true) {
		panic("wal: two writers of one superblock")
	}
	defer s.busy.Store(false)
	next.Sequence = s.current.Sequence + 1
	name := path.Join(s.dir, superblockSlots[next.slot()])
	if err := vfs.WriteFile(s.fs, name, next.encode()); err != nil {
		return fmt.Errorf("writing superblock %d: %w", next.Sequence, err)
	}
	s.current = next
	return nil
}
