package vfs

import (
	"io"
	"io/fs"
	"maps"
	"syscall"
)

const pageSize = 4096

// content is sparse file content. Pages are never changed in place, so contents
// may share them.
type content struct {
	size  int64
	pages map[int64][]byte
}

func (c *content) bytes() int64 { return int64(len(c.pages)) * pageSize }

func (c *content) clone() content { return content{size: c.size, pages: maps.Clone(c.pages)} }

func (c *content) readAt(p []byte, off int64) int {
	if off >= c.size {
		return 0
	}
	p = p[:min(int64(len(p)), c.size-off)]
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := at % pageSize
		part := p[n:min(len(p), n+int(pageSize-in))]
		if page := c.pages[at/pageSize]; page != nil {
			copy(part, page[in:])
		} else {
			clear(part)
		}
		n += len(part)
	}
	return len(p)
}

func (c *content) writeAt(p []byte, off int64) {
	if c.pages == nil {
		c.pages = map[int64][]byte{}
	}
	for n := 0; n < len(p); {
		at := off + int64(n)
		in := at % pageSize
		page := make([]byte, pageSize)
		copy(page, c.pages[at/pageSize])
		n += copy(page[in:], p[n:])
		c.pages[at/pageSize] = page
	}
	c.size = max(c.size, off+int64(len(p)))
}

func (c *content) truncate(size int64) {
	if size < c.size {
		maps.DeleteFunc(c.pages, func(i int64, _ []byte) bool { return i*pageSize >= size })
		if in := size % pageSize; in != 0 && c.pages[size/pageSize] != nil {
			page := make([]byte, pageSize)
			copy(page, c.pages[size/pageSize][:in])
			c.pages[size/pageSize] = page
		}
	}
	c.size = size
}

// newPages counts the pages that a write would add.
func (c *content) newPages(off, n int64) int64 {
	var count int64
	for i := off / pageSize; i*pageSize < off+n; i++ {
		if c.pages[i] == nil {
			count++
		}
	}
	return count
}

// dataOp is one change of a file's content that is not durable yet.
type dataOp struct {
	off  int64
	data []byte // nil: truncate to off
}

func (o *dataOp) apply(c *content) {
	if o.data == nil {
		c.truncate(o.off)
		return
	}
	c.writeAt(o.data, o.off)
}

type memFile struct {
	m      *Mem
	n      *node
	name   string
	write  bool
	closed bool // guarded by m.mu
}

// open makes a handle. The caller holds mu.
func (m *Mem) open(name string, n *node, write bool) File {
	n.opens++
	return &memFile{m: m, n: n, name: name, write: write}
}

// enter takes the lock and checks the handle; the caller unlocks.
func (f *memFile) enter(op string, write bool) error {
	f.m.mu.Lock()
	switch {
	case f.closed:
		return fail(op, f.name, fs.ErrClosed)
	case write && !f.write:
		return fail(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	err := f.enter("read", false)
	defer f.m.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fail("read", f.name, syscall.EINVAL)
	}
	n := f.n.data.readAt(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.enter("write", true)
	defer f.m.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, fail("write", f.name, syscall.EINVAL)
	}
	full := len(p)
	for f.m.limit > 0 && len(p) > 0 {
		add := f.n.data.newPages(off, int64(len(p))) * pageSize
		if add == 0 || f.m.used+add <= f.m.limit {
			break
		}
		// Give up the last page of the write, then the one before, until it fits.
		end := off + int64(len(p))
		p = p[:max(0, (end-1)/pageSize*pageSize-off)]
	}
	if len(p) > 0 {
		f.m.used += f.n.data.newPages(off, int64(len(p))) * pageSize
		f.change(dataOp{off: off, data: append([]byte(nil), p...)})
	}
	if len(p) < full {
		return len(p), fail("write", f.name, syscall.ENOSPC)
	}
	return full, nil
}

// change applies an op to what the process sees and notes it. The caller holds mu.
func (f *memFile) change(o dataOp) {
	o.apply(&f.n.data)
	f.n.pending = append(f.n.pending, o)
	f.m.touch(f.n)
}

func (f *memFile) Truncate(size int64) error {
	err := f.enter("truncate", true)
	defer f.m.mu.Unlock()
	if err != nil {
		return err
	}
	if size < 0 {
		return fail("truncate", f.name, syscall.EINVAL)
	}
	before := f.n.data.bytes()
	f.change(dataOp{off: size})
	f.m.used += f.n.data.bytes() - before
	return nil
}

func (f *memFile) Sync() error {
	err := f.enter("sync", false)
	defer f.m.mu.Unlock()
	if err != nil {
		return err
	}
	for i := range f.n.pending {
		f.n.pending[i].apply(&f.n.disk)
	}
	f.n.pending = nil
	return nil
}

// FailSync does to this file what a failed fsync does: everything not yet synced
// stays readable and counts as clean, so a later Sync succeeds without it and a
// power cut takes it. [Fault] calls it.
func (f *memFile) FailSync() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.pending = nil
}

func (f *memFile) Size() (int64, error) {
	err := f.enter("size", false)
	defer f.m.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.n.data.size, nil
}

func (f *memFile) Close() error {
	err := f.enter("close", false)
	defer f.m.mu.Unlock()
	if err != nil {
		return err
	}
	f.closed = true
	f.n.opens--
	f.m.drop(f.n)
	return nil
}
