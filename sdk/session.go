package sdk

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

type appendStream = connect.BidiStreamForClientSimple[varvev1.AppendSessionRequest, varvev1.AppendSessionResponse]

// session is one open AppendSession. One goroutine sends; another receives and
// hands answers over.
type session struct {
	stream  *appendStream
	cancel  func()
	opened  *varvev1.AppendSessionOpened
	answers chan *varvev1.AppendSessionResponse // closed when the session ended
	err     error                               // why it ended; valid once answers is closed
}

// dial opens a session. The session lives until ctx ends or close is called.
func (p *Producer) dial(ctx context.Context, e *endpoint, shard uint32, incarnation uint64) (*session, *Error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := e.streams.AppendSession(ctx)
	if err != nil {
		cancel()
		return nil, p.undialed(err)
	}
	s := &session{stream: stream, answers: make(chan *varvev1.AppendSessionResponse, 2*maxInFlight)}
	// The HTTP/2 transport does not look at the context while it waits for more of the
	// request, so closing that is part of cancelling.
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = stream.CloseRequest()
	})
	s.cancel = func() { cancel(); <-closed }
	timeout := time.AfterFunc(p.client.options.ConnectTimeout, cancel)
	s.opened, err = p.handshake(stream, &varvev1.AppendSessionOpen{
		Stream: p.stream, Incarnation: optional(incarnation), Shard: shard, FenceToken: p.o.FenceToken, Ack: p.o.Ack,
	})
	if !timeout.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		s.cancel()
		_ = stream.CloseResponse()
		return nil, p.undialed(err)
	}
	go s.receive()
	return s, nil
}

// undialed makes an error of what kept a session from opening.
func (p *Producer) undialed(err error) *Error {
	e := errorOf(p.op(), err)
	if e.Detail == nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		e = &Error{Op: p.op(), Retryable: true, Err: errors.New("the server did not open the session in time")}
	}
	e.Applied = AppliedNo // no record was sent
	return e
}

func (p *Producer) handshake(stream *appendStream, open *varvev1.AppendSessionOpen) (*varvev1.AppendSessionOpened, error) {
	// A failed Send says only that the stream is over; Receive says why.
	if err := stream.Send(&varvev1.AppendSessionRequest{Open: open}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	first, err := stream.Receive()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the server ended the session before it was open")
		}
		return nil, err
	}
	opened := first.GetOpened()
	if opened == nil {
		if d := first.GetError(); d != nil {
			return nil, ofDetail(p.op(), d, nil)
		}
		return nil, errors.New("the server's first answer does not open the session")
	}
	return opened, nil
}

// receive never blocks on the channel: it has room for more answers than there can
// be batches in flight.
func (s *session) receive() {
	defer close(s.answers)
	for {
		m, err := s.stream.Receive()
		if err != nil {
			s.err = err
			return
		}
		select {
		case s.answers <- m:
		default:
			s.err = errors.New("the server answered more than it was asked")
			return
		}
	}
}

// end says why the session ended. Call it once answers is closed.
func (s *session) end(op string) *Error {
	if s.err == nil || errors.Is(s.err, io.EOF) {
		return &Error{Op: op, Retryable: true, Err: errors.New("the server ended the session")}
	}
	return errorOf(op, s.err)
}

// close ends the session and waits for its receiver.
func (s *session) close() {
	s.cancel()
	for range s.answers {
	}
	_ = s.stream.CloseResponse()
}
