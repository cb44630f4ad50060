package edge

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/varve-io/varve/meta"
)

// body reads a request and bounds it. In the protocols with envelopes each message
// has five bytes in front (flags, length), and the bound is a message's; else the
// whole body is one message.
//
//	between --(a byte)--> inside --(the last byte)--> between
//	   |                    |
//	  end: fine            end, or no byte in time: an error that says so
//
// What it returns as an error is a finished answer: connect passes it on.
type body struct {
	src       io.ReadCloser
	s         *Server
	enveloped bool
	single    bool // a second message is one too many
	failed    error

	head     [5]byte
	have     int   // of head
	left     int64 // of the message under way
	held     int64 // bytes booked
	messages int
	late     *time.Timer // cuts a body that does not arrive
}

// Read is io.Reader's.
func (b *body) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	n, err := b.src.Read(p)
	if n > 0 {
		if why := b.take(p[:n]); why != nil {
			return 0, b.fail(why)
		}
	}
	switch {
	case err == nil || errors.Is(err, io.EOF) && b.whole():
		return n, err
	case b.s.drain.Err() != nil:
		return n, b.fail(errStopping)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, b.fail(meta.Errorf(meta.ErrUnavailable, "the request did not arrive within %v", b.s.opts.Upload))
	case b.enveloped && b.single && b.messages == 0 && b.have == 0:
		return n, b.fail(meta.Invalidf("the request holds no message"))
	default:
		return n, b.fail(meta.Invalidf("the request ends inside a message: %w", unexpected(err)))
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Close is io.Closer's.
func (b *body) Close() error { return b.src.Close() }

// fail makes every further read fail the same way.
func (b *body) fail(err error) error {
	b.failed = wire(err)
	return b.failed
}

// whole reports whether the body may end here.
func (b *body) whole() bool {
	if !b.enveloped {
		return true
	}
	return b.have == 0 && (b.messages > 0 || !b.single)
}

// take looks at bytes that came.
func (b *body) take(p []byte) error {
	if !b.enveloped {
		if b.held+int64(len(p)) > maxMessage {
			return tooLarge()
		}
		return b.book(len(p))
	}
	for len(p) > 0 {
		if b.have < len(b.head) {
			if b.have == 0 {
				b.begin()
			}
			n := copy(b.head[b.have:], p)
			b.have += n
			p = p[n:]
			if b.have < len(b.head) {
				return nil
			}
			if err := b.header(); err != nil {
				return err
			}
		}
		n := min(b.left, int64(len(p)))
		if err := b.book(int(n)); err != nil {
			return err
		}
		p = p[n:]
		if b.left -= n; b.left == 0 {
			b.have = 0
			b.messages++
			b.late.Stop()
		}
	}
	return nil
}

// begin starts on a message: the one before has been dealt with.
func (b *body) begin() {
	b.release()
	b.late.Reset(b.s.opts.Upload)
}

func (b *body) header() error {
	size := int64(binary.BigEndian.Uint32(b.head[1:]))
	switch {
	case b.head[0] != 0:
		return meta.Invalidf("a message has flags %#x: compressed requests are not taken", b.head[0])
	case size > maxMessage:
		return tooLarge()
	case b.single && b.messages > 0:
		return meta.Invalidf("the request holds more than one message")
	}
	b.left = size
	return nil
}

func tooLarge() error {
	return meta.Invalidf("the request has more than %d bytes: send less at once", maxMessage)
}

// book counts bytes against what all requests may hold while they arrive.
func (b *body) book(n int) error {
	b.held += int64(n)
	if b.s.arriving.add(int64(n)) > b.s.opts.Arriving {
		return &meta.Throttled{RetryAfter: time.Second, Why: "too many bytes of requests are arriving at once"}
	}
	return nil
}

// release gives back what was booked.
func (b *body) release() {
	b.s.arriving.add(-b.held)
	b.held = 0
}

// gauge counts bytes.
type gauge struct{ n atomic.Int64 }

func (g *gauge) add(n int64) int64 { return g.n.Add(n) }
