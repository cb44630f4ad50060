package edge_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/edge"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

// The server reads no further request while max_in_flight of them wait.
// Rows: C5
func TestC5_InFlightIsBounded(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	w.put("a/b", "first")
	hold := w.Faults.Hold(fault.Fault{Op: fault.Put, Key: "streams/"}) // nothing at level archive is answered
	s := open(t, w.Context(), w, &varvev1.AppendSessionOpen{Stream: "a/b", Ack: varvev1.Ack_ACK_ARCHIVE})
	const n = edge.MaxInFlight + 20
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range n {
			if err := s.Send(one(t, fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		}
	}()
	<-hold.Arrived()
	<-sent
	tail := func() uint64 {
		e, err := w.streams.CheckTail(w.Context(), &varvev1.CheckTailRequest{Stream: "a/b"})
		if err != nil {
			t.Fatal(err)
		}
		return e.GetTail()
	}
	w.Eventually("all that may be in flight", func() bool { return tail() == 1+edge.MaxInFlight })
	for range 50 { // each a round trip, in which one more could have been read
		if got := tail(); got != 1+edge.MaxInFlight {
			t.Fatalf("%d are in flight, at most %d may be", got-1, edge.MaxInFlight)
		}
	}
	hold.Release()
	for i := range n {
		m, err := s.Receive()
		if err != nil || m.GetResult().GetFirstOffset() != uint64(1+i) {
			t.Fatalf("answer %d: %v %v", i, m, err)
		}
	}
	_ = s.CloseRequest()
	_, _ = s.Receive()
}

// Rows: C5, B165
func TestB165_SessionsLeaveNothingBehind(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	w.put("a/b", "x")
	run := func(n int) {
		for i := range n {
			ctx, cancel := context.WithCancel(context.Background())
			switch i % 5 {
			case 0: // to its end
				r, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_FromStart{FromStart: true}}})
				if err != nil {
					t.Fatal(err)
				}
				for r.Receive() {
				}
				_ = r.Close()
			case 1: // cancelled
				r, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: "a/b", Follow: true}})
				if err != nil || !r.Receive() {
					t.Fatal(err)
				}
				cancel()
				_ = r.Close()
			case 2: // refused
				r, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_Offset{Offset: 9}}})
				if err == nil && r.Receive() {
					t.Fatal("not refused")
				}
				if r != nil {
					_ = r.Close()
				}
			case 3: // half-closed before it is opened
				s, err := w.streams.AppendSession(ctx)
				if err != nil {
					t.Fatal(err)
				}
				_ = s.CloseRequest()
				if _, err := s.Receive(); err == nil {
					t.Fatal("not refused")
				}
			case 4: // out of time, with an open session
				timed, stop := context.WithTimeout(ctx, 2*time.Millisecond)
				if s, err := w.streams.AppendSession(timed); err == nil {
					_ = s.Send(&varvev1.AppendSessionRequest{Open: &varvev1.AppendSessionOpen{Stream: "a/b"}})
					for err == nil {
						_, err = s.Receive()
					}
				}
				stop()
			}
			cancel()
		}
	}
	run(100)
	before := runtime.NumGoroutine()
	run(10_000)
	w.Eventually("the goroutines of the start", func() bool { return runtime.NumGoroutine() <= before+5 })
}

// Rows: C5, B172
func TestB172_ClientsThatDoNotReadAreBounded(t *testing.T) {
	w := start(t, settings{node: roomy(), edge: edge.Options{Write: 300 * time.Millisecond}})
	w.make("a/b", 1)
	big := make([]byte, 1<<20)
	for range 8 {
		w.put("a/b", string(big))
	}
	runtime.GC()
	var before, during runtime.MemStats
	runtime.ReadMemStats(&before)
	const readers = 50
	stalled := make([]*connect.ServerStreamForClient[varvev1.ReadSessionResponse], readers)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range stalled {
		r, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{
			Stream: "a/b", Start: &varvev1.ReadRequest_FromStart{FromStart: true}, Follow: true, Format: varvev1.Format_FORMAT_BATCHES}})
		if err != nil {
			t.Fatal(err)
		}
		stalled[i] = r // and never receives
	}
	// Others go on meanwhile, on the same connection.
	for range 20 {
		w.put("a/b", "small")
	}
	runtime.ReadMemStats(&during)
	if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > readers*(8<<20) {
		t.Errorf("%d stalled readers hold %d MiB", readers, grown>>20)
	}
	// Each is cut once it has not taken a page in time.
	goroutines := func() bool {
		n := 0
		buf := make([]byte, 8<<20)
		buf = buf[:runtime.Stack(buf, true)]
		for i := 0; ; n++ {
			k := index(buf[i:], "(*reading).session")
			if k < 0 {
				break
			}
			i += k + 1
		}
		return n == 0
	}
	w.Eventually("the stalled sessions to be cut", goroutines)
	cancel()
	for _, r := range stalled {
		_ = r.Close()
	}
}

func index(b []byte, s string) int {
	for i := 0; i+len(s) <= len(b); i++ {
		if string(b[i:i+len(s)]) == s {
			return i
		}
	}
	return -1
}

// An uploader that stalls is cut, and its bytes are given back; many at once are
// refused with a way to go on, and others are served meanwhile.
// Rows: C5
func TestC5_StalledUploads(t *testing.T) {
	w := start(t, settings{edge: edge.Options{Upload: 200 * time.Millisecond, Arriving: 1 << 20}})
	w.make("a/b", 1)
	for _, c := range []*http.Client{w.http1, w.http2} {
		pr, pw := io.Pipe()
		go func() { _, _ = pw.Write([]byte(`{"stream":"a/b","records":[`)) }() // and no more
		status, body := w.post(c, "/varve.v1.StreamService/Append", "application/json", pr)
		if d := detailJSON(t, body); status != http.StatusServiceUnavailable || !d.GetRetryable() || d.GetApplied() != varvev1.Applied_APPLIED_NO {
			t.Errorf("%d %v", status, d)
		}
		_ = pw.Close()
	}
	_, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Records: []*varvev1.Record{{Value: make([]byte, 3<<20)}}})
	if d := refused(t, err, varvev1.Reason_REASON_THROTTLED); !d.GetRetryable() || d.GetThrottled().GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("%v", d)
	}
	for range 20 { // each is booked and given back
		w.put("a/b", string(make([]byte, 512<<10)))
	}
	// An idle session is no upload.
	s := open(t, w.Context(), w, &varvev1.AppendSessionOpen{Stream: "a/b"})
	for range 10 {
		if err := s.Send(one(t, string(make([]byte, 512<<10)))); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Receive(); err != nil || m.GetResult() == nil {
			t.Fatalf("%v %v", m, err)
		}
	}
	_ = s.CloseRequest()
}

// A client that asks for one large answer and does not take it is cut, too.
// Rows: C5
func TestC5_UnaryAnswerNotTaken(t *testing.T) {
	w := start(t, settings{node: roomy(), edge: edge.Options{Write: 100 * time.Millisecond}})
	w.make("a/b", 1)
	w.put("a/b", string(make([]byte, 3<<20)))
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	const body = `{"stream":"a/b","fromStart":true}`
	if _, err := fmt.Fprintf(conn, "POST /varve.v1.StreamService/Read HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	within(t, "the server's shutdown, which waits for all answers", func() {
		one := make([]byte, 1)
		_, _ = conn.Read(one) // the answer has begun, or the server has given up already
		if err := w.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	if n, _ := io.Copy(io.Discard, conn); n >= 4<<20 {
		t.Errorf("all %d bytes of the answer came", n)
	}
}
