package bucket

import (
	"bytes"
	"io"
)

// Body is what a Put stores: bytes in memory, a file or other random-access
// source of known size, or a stream that can be read once and whose end is not
// known ahead. The zero value is an empty object.
type Body struct {
	at     io.ReaderAt
	size   int64
	stream io.Reader
}

// Bytes makes a body of p, which must not change until Put returns.
func Bytes(p []byte) Body { return Body{at: bytes.NewReader(p), size: int64(len(p))} }

// At makes a body of the bytes [0,size) of r. A retried request reads them
// again, so nothing is buffered. r must not change until Put returns, and must
// allow concurrent reads.
func At(r io.ReaderAt, size int64) Body { return Body{at: r, size: size} }

// Stream makes a body of all that r holds. It is read once, by one goroutine at
// a time, and buffered a part at a time. An error other than io.EOF fails the
// put, which then stores nothing and returns that error.
func Stream(r io.Reader) Body { return Body{stream: r, size: -1} }

// Size is the body's size in bytes, or -1 for a stream.
func (b Body) Size() int64 { return b.size }

// Section returns a reader of n bytes from offset on. Only for bodies that are
// not streams.
func (b Body) Section(offset, n int64) *io.SectionReader {
	at := b.at
	if at == nil {
		at = bytes.NewReader(nil)
	}
	return io.NewSectionReader(at, offset, n)
}

// Reader returns a reader of the whole body. A stream has only one.
func (b Body) Reader() io.Reader {
	if b.stream != nil {
		return b.stream
	}
	return b.Section(0, b.size)
}
