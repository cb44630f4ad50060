package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"text/tabwriter"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Report is everything that can be said about one object.
type Report struct {
	Index   *Index
	Records uint64  // offsets that the batches hold
	State   []byte  // the folded shard state
	Faults  []error // each a [meta.ErrCorrupt]; empty when all of it verifies
}

// Inspect reads a whole object, one block at a time, and checks all there is:
// header against index, each block, each entry's own checksum and order, and the
// state. An error means that not even the index could be read; other damage is
// listed in the report.
func Inspect(r io.ReaderAt, size int64) (*Report, error) {
	x, err := ReadIndex(r, size)
	if err != nil {
		return nil, err
	}
	rep := &Report{Index: x}
	fault := func(err error) { rep.Faults = append(rep.Faults, err) }
	if id, err := readHeader(r, int(x.headerLen)); err != nil {
		fault(err)
	} else if id != x.Identity {
		fault(meta.Errorf(meta.ErrCorrupt, "header says %+v: index says %+v", id, x.Identity))
	}
	for i := range x.Blocks {
		rep.block(r, i, fault)
	}
	if rep.State, err = ReadState(r, x); err != nil {
		fault(err)
	}
	return rep, nil
}

func (rep *Report) block(r io.ReaderAt, i int, fault func(error)) {
	k := &rep.Index.Blocks[i]
	data := make([]byte, k.Len)
	if err := readFull(r, data, k.At); err != nil {
		fault(meta.Errorf(meta.ErrCorrupt, "block %d at %d: %w", i, k.At, err))
		return
	}
	if err := k.Verify(data); err != nil {
		fault(err)
	}
	var n uint32
	last, next := k.FirstLSN-1, k.FirstOffset
	for len(data) > 0 {
		e, size, err := entry.Decode(data)
		if err != nil {
			fault(meta.Errorf(meta.ErrCorrupt, "block %d: %w", i, err))
			return
		}
		end, err := NextOffset(&e)
		if err != nil || e.LSN <= last || e.Offset < next {
			fault(meta.Errorf(meta.ErrCorrupt, "block %d: entry LSN %d offset %d does not follow LSN %d offset %d (%v)", i, e.LSN, e.Offset, last, next, err))
			return
		}
		rep.Records += uint64(end - e.Offset)
		last, next, n, data = e.LSN, end, n+1, data[size:]
	}
	if n != k.Entries || last != k.LastLSN || next != k.NextOffset {
		fault(meta.Errorf(meta.ErrCorrupt, "block %d ends at LSN %d offset %d after %d entries: the index says %d, %d, %d", i, last, next, n, k.LastLSN, k.NextOffset, k.Entries))
	}
}

// ReadIndex reads the index off the end of an object, in one read or, when it is
// larger than [TailSize], two.
func ReadIndex(r io.ReaderAt, size int64) (*Index, error) {
	want := min(size, TailSize)
	for range 2 {
		tail := make([]byte, want)
		if err := readFull(r, tail, size-want); err != nil {
			return nil, meta.Errorf(meta.ErrCorrupt, "end of segment: %w", err)
		}
		x, err := ParseTail(tail, size)
		short, ok := err.(*ShortTail)
		if !ok {
			return x, err
		}
		want = short.Need
	}
	return nil, meta.Errorf(meta.ErrCorrupt, "segment index changed its length while it was read")
}

// ReadState reads and verifies the folded shard state. Errors are [meta.ErrCorrupt].
func ReadState(r io.ReaderAt, x *Index) ([]byte, error) {
	b := make([]byte, x.StateLen)
	if err := readFull(r, b, x.StateAt); err != nil {
		return nil, meta.Errorf(meta.ErrCorrupt, "segment state at %d: %w", x.StateAt, err)
	}
	return b, x.VerifyState(b)
}

// VerifyState checks the state's bytes. Errors are [meta.ErrCorrupt].
func (x *Index) VerifyState(b []byte) error {
	if got := crc32.Checksum(b, castagnoli); len(b) != int(x.StateLen) || got != x.StateCRC {
		return meta.Errorf(meta.ErrCorrupt, "segment state of %d bytes sums to %08x: want %d bytes and %08x", len(b), got, x.StateLen, x.StateCRC)
	}
	return nil
}

func readHeader(r io.ReaderAt, n int) (Identity, error) {
	if n < fixedHeader {
		return Identity{}, meta.Errorf(meta.ErrCorrupt, "segment header of %d bytes", n)
	}
	b := make([]byte, n)
	if err := readFull(r, b, 0); err != nil {
		return Identity{}, meta.Errorf(meta.ErrCorrupt, "segment header: %w", err)
	}
	if v := binary.LittleEndian.Uint32(b[12:]); int64(v)+fixedHeader+4 != int64(n) {
		return Identity{}, meta.Errorf(meta.ErrCorrupt, "segment header says %d bytes of identity: the footer says %d", v, n-fixedHeader-4)
	}
	return decodeHeader(b)
}

func readFull(r io.ReaderAt, b []byte, at int64) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read %d of %d bytes at %d: %w", n, len(b), at, err)
	}
	return nil
}

// WriteTo prints the report for people.
func (rep *Report) WriteTo(out io.Writer) (int64, error) {
	x := rep.Index
	count := &counter{out: out}
	w := tabwriter.NewWriter(count, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "shard\t%s\nlineage\t%s\nwritten in epoch\t%d\nformat level\t%d\nbytes\t%d\n", x.Shard, meta.Hex(x.Lineage), x.Epoch, x.Level, x.Size)
	fmt.Fprintf(w, "LSN\t%d to %d\noffset\t%d to %d (%d records)\n", x.FirstLSN, x.NextLSN-1, x.FirstOffset, x.NextOffset-1, rep.Records)
	fmt.Fprintf(w, "append time\t%s to %s\nepochs\t%d to %d\nstate\t%d bytes\n", x.FirstTime.Time(), x.LastTime.Time(), x.FirstEpoch, x.LastEpoch, x.StateLen)
	fmt.Fprintf(w, "\nblock\tat\tbytes\tcrc\tentries\tfirst LSN\tfirst offset\tfirst append time\n")
	for i, k := range x.Blocks {
		fmt.Fprintf(w, "%d\t%d\t%d\t%08x\t%d\t%d\t%d\t%s\n", i, k.At, k.Len, k.CRC, k.Entries, k.FirstLSN, k.FirstOffset, k.FirstTime.Time())
	}
	for _, f := range rep.Faults {
		fmt.Fprintf(w, "\nDAMAGED: %v", f)
	}
	if len(rep.Faults) == 0 {
		fmt.Fprintf(w, "\nall checksums verify\n")
	} else {
		fmt.Fprintln(w)
	}
	err := w.Flush()
	return count.n, err
}

type counter struct {
	out io.Writer
	n   int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.out.Write(b)
	c.n += int64(n)
	return n, err
}
