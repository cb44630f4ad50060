package etcdkv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
)

// The data file is a bbolt file. This walker reads it without mapping it and
// trusts no length or reference in it, where bbolt itself would panic:
//
//	page   u64 id | u16 flags | u16 count | u32 overflow | elements | data
//	meta   u32 magic | u32 version | u32 page size | u32 flags | u64 root |
//	       u64 sequence | u64 freelist | u64 pages | u64 transaction | u64 FNV-1a
//	branch element  u32 position | u32 key length | u64 page
//	leaf element    u32 flags | u32 position | u32 key length | u32 value length
//
// Positions count from their element. The two meta pages are written in turn; the
// valid one of the higher transaction holds. A bucket is a leaf element with flag
// 1 whose value begins with its root page (0: the page follows inline) and sequence.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	pageHeader  = 16
	element     = 16
	bucketHead  = 16

	branchPage = 0x01
	leafPage   = 0x02
	freePage   = 0x10
	noFreelist = ^uint64(0)
)

// boltFile walks one data file.
type boltFile struct {
	r        io.ReaderAt
	size     int64
	pageSize int64
	root     uint64
	pages    uint64 // high water mark
	used     []bool
	visit    func(bucket string, key, value []byte) error
}

// walkBolt checks the file's structure and visits every key of every top-level
// bucket, in order.
func walkBolt(r io.ReaderAt, size int64, visit func(bucket string, key, value []byte) error) error {
	f := &boltFile{r: r, size: size, visit: visit}
	free, err := f.readMeta()
	if err != nil {
		return err
	}
	if f.pages < 3 || f.pages > uint64(size/f.pageSize) {
		return fmt.Errorf("it has %d bytes, too few for its %d pages of %d", size, f.pages, f.pageSize)
	}
	f.used = make([]bool, f.pages)
	f.used[0], f.used[1] = true, true
	if free != noFreelist {
		if _, err := f.page(free, freePage); err != nil {
			return fmt.Errorf("free list: %w", err)
		}
	}
	return f.tree(f.root, "", nil, nil, 0)
}

func (f *boltFile) readMeta() (free uint64, err error) {
	best := uint64(0)
	found := false
	// A meta page says its own page size; the second one lies one page on.
	for _, ps := range []int64{0, 4096, 1024, 2048, 8192, 16384, 32768, 65536} {
		b := make([]byte, pageHeader+64)
		if _, err := f.r.ReadAt(b, ps); err != nil {
			continue
		}
		le := binary.LittleEndian
		m := b[pageHeader:]
		h := fnv.New64a()
		h.Write(m[:56])
		if le.Uint32(m) != boltMagic || le.Uint32(m[4:]) != boltVersion || le.Uint64(m[56:]) != h.Sum64() {
			continue
		}
		size := int64(le.Uint32(m[8:]))
		if size < 1024 || size > 1<<16 || size&(size-1) != 0 || ps != 0 && ps != size {
			continue
		}
		if tx := le.Uint64(m[48:]); !found || tx > best {
			best, found = tx, true
			f.pageSize, f.root, free, f.pages = size, le.Uint64(m[16:]), le.Uint64(m[32:]), le.Uint64(m[40:])
		}
	}
	if !found {
		return 0, fmt.Errorf("neither of its two meta pages verifies")
	}
	return free, nil
}

// page reads a page with its overflow, once.
func (f *boltFile) page(id uint64, want uint16) ([]byte, error) {
	if id >= f.pages {
		return nil, fmt.Errorf("page %d lies beyond the last, %d", id, f.pages)
	}
	head := make([]byte, pageHeader)
	if _, err := f.r.ReadAt(head, int64(id)*f.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	le := binary.LittleEndian
	flags, over := le.Uint16(head[8:]), uint64(le.Uint32(head[12:]))
	if got := le.Uint64(head); got != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, got)
	}
	if want != 0 && flags != want || want == 0 && flags != branchPage && flags != leafPage {
		return nil, fmt.Errorf("page %d has flags %#x", id, flags)
	}
	if over >= f.pages-id {
		return nil, fmt.Errorf("page %d runs over %d pages, beyond the last", id, over)
	}
	for n := id; n <= id+over; n++ {
		if f.used[n] {
			return nil, fmt.Errorf("page %d is used twice", n)
		}
		f.used[n] = true
	}
	b := make([]byte, int64(over+1)*f.pageSize)
	if _, err := f.r.ReadAt(b, int64(id)*f.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return b, nil
}

// tree walks a bucket's pages; keys must lie in [low, high).
func (f *boltFile) tree(id uint64, bucket string, low, high []byte, depth int) error {
	if depth > 32 {
		return fmt.Errorf("page %d lies too deep", id)
	}
	b, err := f.page(id, 0)
	if err != nil {
		return err
	}
	if err := f.elements(b, bucket, low, high, depth); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (f *boltFile) elements(b []byte, bucket string, low, high []byte, depth int) error {
	le := binary.LittleEndian
	flags, count := le.Uint16(b[8:]), int(le.Uint16(b[10:]))
	if pageHeader+count*element > len(b) {
		return fmt.Errorf("%d elements do not fit", count)
	}
	if flags == branchPage && count == 0 {
		return fmt.Errorf("a branch without elements")
	}
	type item struct {
		key, value []byte
		flags      uint32
		child      uint64
	}
	items := make([]item, count)
	var last []byte
	for i := range items {
		at := pageHeader + i*element
		e := b[at:]
		var it item
		var pos, klen, vlen uint64
		if flags == branchPage {
			pos, klen, it.child = uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])), le.Uint64(e[8:])
		} else {
			it.flags = le.Uint32(e)
			pos, klen, vlen = uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
		}
		start := uint64(at) + pos
		if start < uint64(pageHeader+count*element) || start+klen+vlen > uint64(len(b)) {
			return fmt.Errorf("element %d lies outside", i)
		}
		it.key, it.value = b[start:start+klen], b[start+klen:start+klen+vlen]
		if i > 0 && bytes.Compare(last, it.key) >= 0 || klen == 0 && flags == leafPage {
			return fmt.Errorf("element %d is out of order", i)
		}
		if flags == leafPage && low != nil && bytes.Compare(it.key, low) < 0 || high != nil && bytes.Compare(it.key, high) >= 0 {
			return fmt.Errorf("element %d does not belong there", i)
		}
		last = it.key
		items[i] = it
	}
	for i, it := range items {
		switch {
		case flags == branchPage:
			h := high
			if i+1 < len(items) {
				h = items[i+1].key
			}
			l := it.key
			if i == 0 {
				l = low
			}
			if err := f.tree(it.child, bucket, l, h, depth+1); err != nil {
				return err
			}
		case it.flags == 1:
			if err := f.bucket(it.key, it.value, bucket, depth); err != nil {
				return err
			}
		case it.flags == 0 && bucket != "":
			if err := f.visit(bucket, it.key, it.value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("element %d has flags %#x", i, it.flags)
		}
	}
	return nil
}

func (f *boltFile) bucket(name, head []byte, in string, depth int) error {
	if in != "" {
		return fmt.Errorf("bucket %q lies in bucket %q", name, in)
	}
	if len(head) < bucketHead {
		return fmt.Errorf("bucket %q has a short header", name)
	}
	root := binary.LittleEndian.Uint64(head)
	if root != 0 {
		return f.tree(root, string(name), nil, nil, depth+1)
	}
	inline := head[bucketHead:]
	if len(inline) < pageHeader || binary.LittleEndian.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("bucket %q has a damaged inline page", name)
	}
	if err := f.elements(inline, string(name), nil, nil, depth+1); err != nil {
		return fmt.Errorf("bucket %q: %w", name, err)
	}
	return nil
}
