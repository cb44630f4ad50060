package wal

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"math"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// A checkpoint file, all numbers little-endian:
//
//	0      4       6    8        16
//	+------+-------+----+--------+------+------------------------+---------+-------+-----+
//	|"vCKP"|version| 0  | replay | next | section ...            | u32 0   | u64   | CRC |
//	|      |  = 1  |    | from   | shard| each: u32 length, body | (end)   | count | 32C |
//	+------+-------+----+--------+------+------------------------+---------+-------+-----+
//
// Sections stand by shard number, strictly rising. A body:
//
//	u64 shard number | u16 length, namespace | u16 length, name | u64 incarnation | u32 shard |
//	u64 position | u64 start LSN | u64 end LSN | u64 end offset | u64 end time |
//	u32 count, extents | u32 length, blob
//
// and an extent: u64 position | u32 bytes | u64 first LSN | u64 next LSN | u64 offset | u64 time.
//
// The CRC32C at the end covers all before it. The superblock holds the size and that
// same CRC32C, and both are checked over the file before any of it is parsed. (A CRC
// over the bytes *and* their CRC is the same for every file, so it would tell nothing.)
const (
	checkpointDir     = "checkpoints"
	checkpointSuffix  = ".checkpoint"
	maxCheckpointName = 16 + len(checkpointSuffix)
	checkpointMagic   = 'v' | 'C'<<8 | 'K'<<16 | 'P'<<24
	checkpointVersion = 1
	checkpointHead    = 24
	checkpointTail    = 4 + 8 + 4
	extentSize        = 8 + 4 + 4*8
	maxSection        = 1 << 30
	checkpointBuffer  = 256 << 10
)

// checkpointHeader is what a checkpoint says about the whole directory.
type checkpointHeader struct {
	Replay Position    // replay starts here
	Next   ShardNumber // every shard number ever given is below
}

// checkpointSection is one shard in a checkpoint.
type checkpointSection struct {
	Number    ShardNumber
	ID        meta.ShardID
	Position  Position    // records placed before it are in this section, the others are not
	Start     meta.LSN    // first local entry
	End       meta.LSN    // the LSN after the last one; at least Start
	EndOffset meta.Offset // of the next record
	EndTime   meta.Micros // append time of the last entry
	Extents   []Extent
	Blob      []byte // the shard's state, opaque; at most [MaxData]
}

func (s *checkpointSection) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(s.Number))
	b = entry.AppendString16(b, s.ID.Stream.Namespace)
	b = entry.AppendString16(b, s.ID.Stream.Name)
	b = le.AppendUint64(b, uint64(s.ID.Incarnation))
	b = le.AppendUint32(b, s.ID.Shard)
	b = le.AppendUint64(b, uint64(s.Position))
	b = le.AppendUint64(b, uint64(s.Start))
	b = le.AppendUint64(b, uint64(s.End))
	b = le.AppendUint64(b, uint64(s.EndOffset))
	b = le.AppendUint64(b, uint64(s.EndTime))
	b = le.AppendUint32(b, uint32(len(s.Extents)))
	for _, x := range s.Extents {
		b = le.AppendUint64(b, uint64(x.Position))
		b = le.AppendUint32(b, x.Bytes)
		b = le.AppendUint64(b, uint64(x.First))
		b = le.AppendUint64(b, uint64(x.Next))
		b = le.AppendUint64(b, uint64(x.Offset))
		b = le.AppendUint64(b, uint64(x.Time))
	}
	b = le.AppendUint32(b, uint32(len(s.Blob)))
	return append(b, s.Blob...)
}

// decode is the strict inverse of append. The blob aliases b, and the extents take
// the place of those that s had.
func (s *checkpointSection) decode(b []byte) error {
	d := entry.NewDecoder(b)
	*s = checkpointSection{Number: ShardNumber(d.U64()), Extents: s.Extents[:0]}
	s.ID.Stream.Namespace = d.String16(meta.MaxNameLen)
	s.ID.Stream.Name = d.String16(meta.MaxNameLen)
	s.ID.Incarnation, s.ID.Shard = meta.Incarnation(d.U64()), d.U32()
	s.Position, s.Start, s.End = Position(d.U64()), meta.LSN(d.U64()), meta.LSN(d.U64())
	s.EndOffset, s.EndTime = meta.Offset(d.U64()), meta.Micros(d.U64())
	for range d.Length32(d.Rest() / extentSize) {
		s.Extents = append(s.Extents, Extent{Position: Position(d.U64()), Bytes: d.U32(),
			First: meta.LSN(d.U64()), Next: meta.LSN(d.U64()), Offset: meta.Offset(d.U64()), Time: meta.Micros(d.U64())})
	}
	s.Blob = d.Bytes(d.Length32(MaxData))
	if err := d.Finish("section"); err != nil {
		return err
	}
	return s.check()
}

// check refuses what no log can have.
func (s *checkpointSection) check() error {
	switch {
	case s.Number == 0:
		return meta.Errorf(meta.ErrCorrupt, "a section has no shard number")
	case s.End < s.Start:
		return meta.Errorf(meta.ErrCorrupt, "section of shard %d (%s) ends at LSN %d, before its start %d", s.Number, s.ID, s.End, s.Start)
	case len(s.Blob) > MaxData:
		return meta.Errorf(meta.ErrInvalid, "state of shard %d (%s) has %d bytes: at most %d", s.Number, s.ID, len(s.Blob), MaxData)
	case len(s.Extents) > (maxSection-MaxData)/(2*extentSize):
		return meta.Errorf(meta.ErrInvalid, "shard %d (%s) has %d extents", s.Number, s.ID, len(s.Extents))
	}
	if err := s.ID.Stream.Validate(); err != nil {
		return meta.Errorf(meta.ErrCorrupt, "section of shard %d: %w", s.Number, err)
	}
	return nil
}

// checkpointWriter streams a checkpoint: one section in memory at a time.
type checkpointWriter struct {
	w     *bufio.Writer
	sum   hash.Hash32
	size  int64
	count uint64
	last  ShardNumber
	next  ShardNumber
	buf   []byte
}

func (c *checkpointWriter) write(b []byte) error {
	c.sum.Write(b)
	c.size += int64(len(b))
	_, err := c.w.Write(b)
	return err
}

func newCheckpointWriter(w io.Writer, h checkpointHeader) (*checkpointWriter, error) {
	c := &checkpointWriter{w: bufio.NewWriterSize(w, checkpointBuffer), sum: crc32.New(castagnoli), next: h.Next}
	le := binary.LittleEndian
	b := le.AppendUint32(nil, checkpointMagic)
	b = le.AppendUint16(b, checkpointVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(h.Replay))
	return c, c.write(le.AppendUint64(b, uint64(h.Next)))
}

// section appends one shard. Numbers must rise strictly and lie below the header's Next.
func (c *checkpointWriter) section(s *checkpointSection) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.Number <= c.last || s.Number >= c.next {
		return fmt.Errorf("checkpoint section of shard number %d after %d, with %d as the next free one", s.Number, c.last, c.next)
	}
	c.last = s.Number
	c.count++
	c.buf = s.append(append(c.buf[:0], 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(c.buf, uint32(len(c.buf)-4))
	return c.write(c.buf)
}

// finish writes the end and returns the file's size and CRC.
func (c *checkpointWriter) finish() (size int64, crc uint32, err error) {
	le := binary.LittleEndian
	b := le.AppendUint64(le.AppendUint32(nil, 0), c.count)
	if err := c.write(b); err != nil {
		return 0, 0, err
	}
	crc = c.sum.Sum32()
	if err := c.write(le.AppendUint32(nil, crc)); err != nil {
		return 0, 0, err
	}
	return c.size, crc, c.w.Flush()
}

// readCheckpoint parses a checkpoint of that many bytes and calls visit for every
// section, in order. The section and what it points to are valid during the call
// only. Nothing larger than the file is ever allocated.
func readCheckpoint(r io.Reader, size int64, visit func(checkpointHeader, *checkpointSection) error) (checkpointHeader, error) {
	p := &checkpointParser{r: bufio.NewReaderSize(r, checkpointBuffer), left: size, sum: crc32.New(castagnoli)}
	return p.parse(visit)
}

type checkpointParser struct {
	r    *bufio.Reader
	left int64
	sum  hash.Hash32
	buf  []byte
}

// take reads the next n bytes into the parser's buffer.
func (p *checkpointParser) take(n int64) ([]byte, error) {
	if n > p.left {
		return nil, meta.Errorf(meta.ErrCorrupt, "checkpoint is cut short: want %d bytes, have %d", n, p.left)
	}
	if int64(cap(p.buf)) < n {
		p.buf = make([]byte, n, min(n+n/4, math.MaxInt))
	}
	p.buf = p.buf[:n]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return nil, fmt.Errorf("reading the checkpoint: %w", err)
	}
	p.left -= n
	p.sum.Write(p.buf)
	return p.buf, nil
}

func (p *checkpointParser) parse(visit func(checkpointHeader, *checkpointSection) error) (h checkpointHeader, err error) {
	le := binary.LittleEndian
	b, err := p.take(checkpointHead)
	if err != nil {
		return h, err
	}
	switch {
	case le.Uint32(b) != checkpointMagic:
		return h, meta.Errorf(meta.ErrCorrupt, "checkpoint does not begin as one")
	case le.Uint16(b[4:]) != checkpointVersion:
		return h, meta.Errorf(meta.ErrFormatLevel, "checkpoint has version %d: this build reads %d", le.Uint16(b[4:]), checkpointVersion)
	case le.Uint16(b[6:]) != 0:
		return h, meta.Errorf(meta.ErrCorrupt, "checkpoint's reserved bytes are not zero")
	}
	h = checkpointHeader{Replay: Position(le.Uint64(b[8:])), Next: ShardNumber(le.Uint64(b[16:]))}
	var s checkpointSection
	var last ShardNumber
	for count := uint64(0); ; count++ {
		if b, err = p.take(4); err != nil {
			return h, err
		}
		n := int64(le.Uint32(b))
		if n == 0 {
			return h, p.end(count)
		}
		if n > maxSection {
			return h, meta.Errorf(meta.ErrCorrupt, "checkpoint section claims %d bytes: at most %d", n, maxSection)
		}
		if b, err = p.take(n); err != nil {
			return h, err
		}
		if err := s.decode(b); err != nil {
			return h, err
		}
		if s.Number <= last || s.Number >= h.Next {
			return h, meta.Errorf(meta.ErrCorrupt, "checkpoint section of shard number %d after %d, with %d as the next free one", s.Number, last, h.Next)
		}
		last = s.Number
		if err := visit(h, &s); err != nil {
			return h, err
		}
	}
}

func (p *checkpointParser) end(count uint64) error {
	b, err := p.take(8)
	if err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b); n != count {
		return meta.Errorf(meta.ErrCorrupt, "checkpoint counts %d sections but has %d", n, count)
	}
	want := p.sum.Sum32()
	if b, err = p.take(4); err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint32(b); got != want {
		return meta.Errorf(meta.ErrCorrupt, "checkpoint has checksum %08x: its bytes sum to %08x", got, want)
	}
	if p.left != 0 {
		return meta.Errorf(meta.ErrCorrupt, "checkpoint has %d bytes behind its end", p.left)
	}
	return nil
}
