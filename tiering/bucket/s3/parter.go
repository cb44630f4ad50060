package s3

import (
	"context"
	"io"

	"github.com/varve-io/varve/tiering/bucket"
)

// piece is one part of a body. done is called once it isn't needed any more.
type piece struct {
	body bucket.Body
	crc  uint32
	done func()
}

// parter cuts a body into pieces, in order, by one goroutine.
type parter interface {
	next(ctx context.Context) (piece, error) // io.EOF after the last
	sum() uint32                             // CRC32C of all pieces so far
	close()                                  // gives back what next did not take
}

// sections cuts a random-access body, and buffers nothing.
type sections struct {
	body bucket.Body
	part int64
	at   int64
	crc  uint32
}

func (s *sections) next(ctx context.Context) (piece, error) {
	n := min(s.part, s.body.Size()-s.at)
	if n <= 0 {
		return piece{}, io.EOF
	}
	section := s.body.Section(s.at, n)
	total := &summing{r: section, crc: s.crc}
	crc, got, err := sum(ctx, total)
	if err != nil {
		return piece{}, err
	}
	if got != n {
		return piece{}, short(s.at+got, s.body.Size())
	}
	s.crc, s.at = total.crc, s.at+n
	return piece{body: bucket.At(section, n), crc: crc, done: func() {}}, nil
}

func (s *sections) sum() uint32 { return s.crc }
func (s *sections) close()      {}

// summing keeps a running checksum of what is read through it.
type summing struct {
	r   io.Reader
	crc uint32
}

func (s *summing) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.crc = bucket.Update(s.crc, p[:n])
	return n, err
}

// streamed cuts a stream into pieces that lie in the bucket's part buffers.
type streamed struct {
	b     *Bucket
	r     io.Reader
	ended bool // the last piece was given
	crc   uint32
}

func (s *streamed) next(ctx context.Context) (piece, error) {
	if s.ended {
		return piece{}, io.EOF
	}
	var buf []byte
	select {
	case buf = <-s.b.buffers:
	case <-ctx.Done():
		return piece{}, &verdict{kind: bucket.ErrUnavailable, err: context.Cause(ctx), advice: "all part buffers are in use", own: true}
	}
	if buf == nil {
		buf = make([]byte, s.b.opts.PartSize)
	}
	done := func() { s.b.buffers <- buf }
	n, err := io.ReadFull(s.r, buf)
	switch err {
	case nil:
	case io.EOF, io.ErrUnexpectedEOF:
		s.ended = true
	default:
		done()
		return piece{}, bodyFailed(err)
	}
	if n == 0 {
		done()
		return piece{}, io.EOF
	}
	s.crc = bucket.Update(s.crc, buf[:n])
	return piece{body: bucket.Bytes(buf[:n]), crc: bucket.Checksum(buf[:n]), done: done}, nil
}

func (s *streamed) sum() uint32 { return s.crc }
func (s *streamed) close()      {}

// pushedBack gives one piece ahead of the others.
type pushedBack struct {
	parter
	first *piece
}

func (p *pushedBack) next(ctx context.Context) (piece, error) {
	if first := p.first; first != nil {
		p.first = nil
		return *first, nil
	}
	return p.parter.next(ctx)
}

func (p *pushedBack) close() {
	if p.first != nil {
		p.first.done()
	}
	p.parter.close()
}
