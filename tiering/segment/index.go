package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"
	"sort"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Index is what the end of a segment says about it. Read-only.
type Index struct {
	Identity
	Vector                  meta.Vector
	FirstOffset, NextOffset meta.Offset
	FirstTime, LastTime     meta.Micros
	FirstEpoch, LastEpoch   meta.Epoch
	Blocks                  []Block

	StateAt  int64
	StateLen uint32
	StateCRC uint32

	Size      int64 // of the whole object
	headerLen uint32
}

// ShortTail says that the bytes given to [ParseTail] do not hold the whole index.
type ShortTail struct{ Need int64 } // bytes from the end that would do

func (e *ShortTail) Error() string {
	return fmt.Sprintf("segment index needs the last %d bytes", e.Need)
}

func (x *Index) ref(indexAt, indexLen int64) meta.SegmentRef {
	return meta.SegmentRef{
		Size: indexAt + indexLen, IndexAt: indexAt, IndexLen: indexLen,
		FirstLSN: x.FirstLSN, NextLSN: x.NextLSN,
		FirstOffset: x.FirstOffset, NextOffset: x.NextOffset,
		FirstTime: x.FirstTime, LastTime: x.LastTime,
		FirstEpoch: x.FirstEpoch, LastEpoch: x.LastEpoch,
	}
}

// encode returns index and footer of an object whose index starts at that place.
func (x *Index) encode(at int64) []byte {
	le := binary.LittleEndian
	id := x.Identity.append(nil)
	b := le.AppendUint32(nil, uint32(len(id)))
	b = append(b, id...)
	for _, n := range [...]uint64{
		uint64(x.FirstOffset), uint64(x.NextOffset), uint64(x.FirstTime), uint64(x.LastTime),
		uint64(x.FirstEpoch), uint64(x.LastEpoch),
	} {
		b = le.AppendUint64(b, n)
	}
	b = le.AppendUint32(b, uint32(len(x.Vector)))
	for _, p := range x.Vector {
		b = le.AppendUint64(b, uint64(p.Epoch))
		b = le.AppendUint64(b, uint64(p.LSN))
	}
	b = le.AppendUint32(b, uint32(len(x.Blocks)))
	for i := range x.Blocks {
		b = x.Blocks[i].append(b)
	}
	f := append(make([]byte, 0, FooterSize), tailMagic...)
	f = le.AppendUint16(f, Version)
	f = le.AppendUint16(f, x.Level)
	f = le.AppendUint32(f, crc32.Checksum(b, castagnoli))
	f = le.AppendUint64(f, uint64(at))
	f = le.AppendUint64(f, uint64(len(b)))
	f = le.AppendUint64(f, uint64(x.StateAt))
	f = le.AppendUint32(f, x.StateLen)
	f = le.AppendUint32(f, x.StateCRC)
	f = le.AppendUint64(f, uint64(at)+uint64(len(b))+FooterSize)
	f = le.AppendUint32(f, x.headerLen)
	f = le.AppendUint32(f, crc32.Checksum(f, castagnoli))
	return append(b, f...)
}

// ParseTail reads the index from the last len(tail) bytes of an object of that
// size. It returns a [ShortTail] when they do not reach back far enough, and a
// [meta.ErrCorrupt] when they do not verify. Nothing returned aliases tail.
func ParseTail(tail []byte, size int64) (*Index, error) {
	if size < int64(len(tail)) || len(tail) < FooterSize {
		return nil, meta.Errorf(meta.ErrCorrupt, "segment of %d bytes with a tail of %d: the footer alone has %d", size, len(tail), FooterSize)
	}
	le := binary.LittleEndian
	f := tail[len(tail)-FooterSize:]
	if string(f[:8]) != tailMagic {
		return nil, meta.Errorf(meta.ErrCorrupt, "object does not end with the magic of a segment")
	}
	if v := le.Uint16(f[8:]); v != Version {
		return nil, meta.Errorf(meta.ErrFormatLevel, "segment has version %d: this build reads %d; start a newer build", v, Version)
	}
	if got, want := crc32.Checksum(f[:60], castagnoli), le.Uint32(f[60:]); got != want {
		return nil, meta.Errorf(meta.ErrCorrupt, "segment footer sums to %08x: it says %08x", got, want)
	}
	at, n := le.Uint64(f[16:]), le.Uint64(f[24:])
	if le.Uint64(f[48:]) != uint64(size) || n > MaxIndex || at > uint64(size) || at+n+FooterSize != uint64(size) {
		return nil, meta.Errorf(meta.ErrCorrupt, "segment footer places an index of %d bytes at %d in %d: the object has %d", n, at, le.Uint64(f[48:]), size)
	}
	if need := int64(n) + FooterSize; need > int64(len(tail)) {
		return nil, &ShortTail{Need: need}
	}
	body := tail[len(tail)-FooterSize-int(n) : len(tail)-FooterSize]
	if got, want := crc32.Checksum(body, castagnoli), le.Uint32(f[12:]); got != want {
		return nil, meta.Errorf(meta.ErrCorrupt, "segment index sums to %08x: it says %08x", got, want)
	}
	x := &Index{Size: size, headerLen: le.Uint32(f[56:]), StateLen: le.Uint32(f[40:]), StateCRC: le.Uint32(f[44:])}
	if x.headerLen > fixedHeader+maxIdentity+4 || x.StateLen > MaxState || le.Uint64(f[32:])+uint64(x.StateLen) != at {
		return nil, meta.Errorf(meta.ErrCorrupt, "segment footer places a state of %d bytes at %d: the index is at %d", x.StateLen, le.Uint64(f[32:]), at)
	}
	x.StateAt = int64(le.Uint64(f[32:]))
	if err := x.decode(body, le.Uint16(f[10:])); err != nil {
		return nil, err
	}
	return x, x.validate()
}

func (x *Index) decode(b []byte, level uint16) (err error) {
	d := entry.NewDecoder(b)
	if x.Identity, err = decodeIdentity(d.Bytes(d.Length32(maxIdentity)), level); err != nil {
		return err
	}
	x.FirstOffset, x.NextOffset = meta.Offset(d.U64()), meta.Offset(d.U64())
	x.FirstTime, x.LastTime = meta.Micros(d.U64()), meta.Micros(d.U64())
	x.FirstEpoch, x.LastEpoch = meta.Epoch(d.U64()), meta.Epoch(d.U64())
	if n := d.Length32(min(meta.MaxVector, d.Rest()/16)); n > 0 {
		x.Vector = make(meta.Vector, n)
		for i := range x.Vector {
			x.Vector[i] = meta.EpochStart{Epoch: meta.Epoch(d.U64()), LSN: meta.LSN(d.U64())}
		}
	}
	x.Blocks = make([]Block, d.Length32(d.Rest()/blockSize))
	at := int64(x.headerLen)
	for i := range x.Blocks {
		x.Blocks[i] = decodeBlock(d)
		x.Blocks[i].At = at
		at += int64(x.Blocks[i].Len)
	}
	if d.Err() == nil && at != x.StateAt {
		d.Fail("blocks end at %d: the state is at %d", at, x.StateAt)
	}
	return d.Finish("segment index")
}

// validate checks that the parts are in order and agree with each other.
func (x *Index) validate() error {
	bad := func(format string, args ...any) error {
		return meta.Errorf(meta.ErrCorrupt, "segment index: %w", fmt.Errorf(format, args...))
	}
	if err := x.Vector.Validate(); err != nil {
		return bad("%w", err)
	}
	n := len(x.Blocks)
	if n == 0 || x.FirstEpoch == 0 || x.LastEpoch < x.FirstEpoch || x.LastEpoch > x.Epoch || x.NextOffset > meta.MaxOffset {
		return bad("%d blocks, epochs %d to %d written in %d, next offset %d", n, x.FirstEpoch, x.LastEpoch, x.Epoch, x.NextOffset)
	}
	prev := Block{LastLSN: x.FirstLSN - 1, NextOffset: x.FirstOffset, LastTime: x.FirstTime}
	for i, k := range x.Blocks {
		if k.Len == 0 || k.Len > maxBlock || k.Entries == 0 ||
			k.FirstLSN <= prev.LastLSN || k.LastLSN < k.FirstLSN || k.LastLSN >= x.NextLSN ||
			k.FirstOffset < prev.NextOffset || k.NextOffset <= k.FirstOffset ||
			k.FirstTime < prev.LastTime || k.LastTime < k.FirstTime {
			return bad("block %d does not follow the one before it", i)
		}
		prev = k
	}
	if x.Blocks[0].FirstOffset != x.FirstOffset || x.Blocks[0].FirstTime != x.FirstTime ||
		prev.NextOffset != x.NextOffset || prev.LastTime != x.LastTime {
		return bad("blocks span another range than the segment")
	}
	return nil
}

// ByOffset returns the block that holds the first record at or after an offset;
// len(x.Blocks) when there is none.
func (x *Index) ByOffset(o meta.Offset) int {
	return sort.Search(len(x.Blocks), func(i int) bool { return x.Blocks[i].NextOffset > o })
}

// ByTime returns the block that holds the first record whose append time is not
// before t; len(x.Blocks) when there is none.
func (x *Index) ByTime(t meta.Micros) int {
	return sort.Search(len(x.Blocks), func(i int) bool { return x.Blocks[i].LastTime >= t })
}

// ByLSN returns the block that holds the first batch at or after an LSN;
// len(x.Blocks) when there is none.
func (x *Index) ByLSN(n meta.LSN) int {
	return sort.Search(len(x.Blocks), func(i int) bool { return x.Blocks[i].LastLSN >= n })
}

// Verify checks a block's bytes against its length and checksum. Errors are
// [meta.ErrCorrupt].
func (k *Block) Verify(data []byte) error {
	if len(data) != int(k.Len) {
		return meta.Errorf(meta.ErrCorrupt, "block at %d has %d bytes: want %d", k.At, len(data), k.Len)
	}
	if got := crc32.Checksum(data, castagnoli); got != k.CRC {
		return meta.Errorf(meta.ErrCorrupt, "block at %d sums to %08x: the index says %08x", k.At, got, k.CRC)
	}
	return nil
}

// Entries walks the entries of a block that was verified, without summing each
// again. Payloads alias data. It ends after the first error.
func Entries(data []byte) iter.Seq2[entry.Entry, error] {
	return func(yield func(entry.Entry, error) bool) {
		for len(data) > 0 {
			h, n, err := entry.Peek(data)
			if err == nil && n > len(data) {
				err = meta.Errorf(meta.ErrCorrupt, "entry LSN %d runs past the end of its block", h.LSN)
			}
			if err != nil {
				yield(entry.Entry{}, err)
				return
			}
			if !yield(entry.Entry{Header: h, Payload: data[entry.HeaderSize:n:n]}, nil) {
				return
			}
			data = data[n:]
		}
	}
}
