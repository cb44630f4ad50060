package segment

import (
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Options shape a [Writer]. The zero value is what production uses.
type Options struct {
	BlockSize int // bytes after which a block ends; 0 means [DefaultBlockSize]
}

func (o Options) withDefaults() Options {
	if o.BlockSize == 0 {
		o.BlockSize = DefaultBlockSize
	}
	return o
}

func (o Options) validate() error {
	if o.BlockSize < 1 || o.BlockSize > maxBlock/2 {
		return meta.Invalidf("segment block size %d: want 1 to %d bytes", o.BlockSize, maxBlock/2)
	}
	return nil
}

// Writer writes a segment in one pass. It holds one block, 60 bytes for each
// block before it, and nothing else.
type Writer struct {
	out  io.Writer
	opt  Options
	ix   Index
	size int64  // bytes written
	crc  uint32 // of those
	buf  []byte // the open block
	cur  Block
	last meta.LSN
	err  error
}

// NewWriter writes the header. The vector is the shard's as of id.NextLSN; pairs
// at or above that are dropped. Errors of out stick and are returned as they are;
// others are [meta.ErrInvalid].
func NewWriter(out io.Writer, id Identity, vector meta.Vector, o Options) (*Writer, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := id.Validate(); err != nil {
		return nil, err
	}
	if err := vector.Validate(); err != nil {
		return nil, err
	}
	w := &Writer{out: out, opt: o, last: id.FirstLSN - 1}
	w.ix.Identity = id
	for _, p := range vector {
		if p.LSN < id.NextLSN {
			w.ix.Vector = append(w.ix.Vector, p)
		}
	}
	head := encodeHeader(&id)
	w.ix.headerLen = uint32(len(head))
	w.write(head)
	return w, w.err
}

func (w *Writer) write(b []byte) {
	if w.err != nil || len(b) == 0 {
		return
	}
	n, err := w.out.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	w.size += int64(n)
	w.crc = crc32.Update(w.crc, castagnoli, b[:n])
	w.err = err
}

// Add takes the next entry of the range, in log order. Commands are checked for
// order and left out. The payload is copied. An entry that does not continue the
// log (LSN, offset or append time going back, another lineage, a batch whose
// header does not fit its entry) is a [meta.ErrCorrupt], and the writer is dead.
func (w *Writer) Add(e entry.Entry) error {
	if w.err != nil {
		return w.err
	}
	if w.err = w.check(&e); w.err != nil {
		return w.err
	}
	w.last = e.LSN
	if e.Kind != entry.Batch {
		return nil
	}
	next, err := NextOffset(&e)
	if err != nil {
		w.err = err
		return err
	}
	if len(w.buf) > 0 && len(w.buf)+e.Size() > w.opt.BlockSize {
		w.flush()
	}
	if w.buf == nil {
		w.buf = make([]byte, 0, max(w.opt.BlockSize, e.Size()))
	}
	if len(w.buf) == 0 {
		w.cur = Block{At: w.size, FirstLSN: e.LSN, FirstOffset: e.Offset, FirstTime: e.Time}
	}
	if w.ix.FirstEpoch == 0 {
		w.ix.FirstOffset, w.ix.FirstTime, w.ix.FirstEpoch = e.Offset, e.Time, e.Epoch
	}
	w.buf = e.Append(w.buf)
	w.cur.Entries++
	w.cur.LastLSN, w.cur.NextOffset, w.cur.LastTime = e.LSN, next, e.Time
	w.ix.NextOffset, w.ix.LastTime, w.ix.LastEpoch = next, e.Time, e.Epoch
	return w.err
}

func (w *Writer) check(e *entry.Entry) error {
	id := &w.ix.Identity
	switch {
	case e.LSN <= w.last || e.LSN >= id.NextLSN:
		return meta.Errorf(meta.ErrCorrupt, "segment of %s: LSN %d after %d in range [%d, %d)", id.Shard, e.LSN, w.last, id.FirstLSN, id.NextLSN)
	case e.Epoch < w.ix.LastEpoch || e.Epoch > id.Epoch || e.Epoch == 0:
		return meta.Errorf(meta.ErrCorrupt, "segment of %s: LSN %d has epoch %d after %d, written in %d", id.Shard, e.LSN, e.Epoch, w.ix.LastEpoch, id.Epoch)
	case e.Lineage > id.Lineage:
		return meta.Errorf(meta.ErrCorrupt, "segment of %s: LSN %d has lineage %s above %s", id.Shard, e.LSN, meta.Hex(e.Lineage), meta.Hex(id.Lineage))
	case e.Offset < w.ix.NextOffset:
		return meta.Errorf(meta.ErrCorrupt, "segment of %s: LSN %d has offset %d below %d", id.Shard, e.LSN, e.Offset, w.ix.NextOffset)
	case w.ix.FirstEpoch != 0 && e.Time < w.ix.LastTime:
		return meta.Errorf(meta.ErrCorrupt, "segment of %s: LSN %d has append time %d before %d", id.Shard, e.LSN, e.Time, w.ix.LastTime)
	}
	return nil
}

func (w *Writer) flush() {
	w.cur.Len = uint32(len(w.buf))
	w.cur.CRC = crc32.Checksum(w.buf, castagnoli)
	w.write(w.buf)
	w.ix.Blocks = append(w.ix.Blocks, w.cur)
	w.buf = w.buf[:0]
}

// Finish writes what is left, the state, the index and the footer, and returns
// the reference of what was written, without a key. A range without a batch makes
// no segment: that is a [meta.ErrInvalid], and a mark without one is what to use.
func (w *Writer) Finish(state []byte) (meta.SegmentRef, error) {
	if w.err == nil && w.ix.FirstEpoch == 0 {
		w.err = meta.Invalidf("segment of %s: no batch in LSN range [%d, %d)", w.ix.Shard, w.ix.FirstLSN, w.ix.NextLSN)
	}
	if w.err == nil && len(state) > MaxState {
		w.err = meta.Invalidf("segment of %s: state of %d bytes, at most %d", w.ix.Shard, len(state), MaxState)
	}
	if w.err != nil {
		return meta.SegmentRef{}, w.err
	}
	w.flush()
	w.ix.StateAt, w.ix.StateLen, w.ix.StateCRC = w.size, uint32(len(state)), crc32.Checksum(state, castagnoli)
	w.write(state)
	tail := w.ix.encode(w.size)
	ref := w.ix.ref(w.size, int64(len(tail)))
	w.write(tail)
	if w.err != nil {
		return meta.SegmentRef{}, w.err
	}
	ref.CRC = w.crc
	w.err = meta.Invalidf("segment writer is finished")
	return ref, nil
}

const (
	kafkaHeader    = 61 // bytes of a magic 2 batch header
	kafkaMagicAt   = 16
	kafkaDeltaAt   = 23
	kafkaMagicTwo  = 2
	maxOffsetDelta = 1<<31 - 1
)

// NextOffset is the offset after the last record of a batch entry. Errors are
// [meta.ErrCorrupt].
func NextOffset(e *entry.Entry) (meta.Offset, error) {
	p := e.Payload
	if len(p) < kafkaHeader || p[kafkaMagicAt] != kafkaMagicTwo {
		return 0, meta.Errorf(meta.ErrCorrupt, "entry LSN %d: its payload of %d bytes is no magic 2 record batch", e.LSN, len(p))
	}
	if base := binary.BigEndian.Uint64(p); meta.Offset(base) != e.Offset {
		return 0, meta.Errorf(meta.ErrCorrupt, "entry LSN %d has offset %d: its batch says %d", e.LSN, e.Offset, base)
	}
	delta := binary.BigEndian.Uint32(p[kafkaDeltaAt:])
	if delta > maxOffsetDelta || e.Offset > meta.MaxOffset-1-meta.Offset(delta) {
		return 0, meta.Errorf(meta.ErrCorrupt, "entry LSN %d: offset %d and delta %d overflow", e.LSN, e.Offset, delta)
	}
	return e.Offset + meta.Offset(delta) + 1, nil
}
