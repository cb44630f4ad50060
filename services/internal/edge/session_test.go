package edge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/edge"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

type appender = connect.BidiStreamForClientSimple[varvev1.AppendSessionRequest, varvev1.AppendSessionResponse]

// open begins an appending session and takes the first answer.
func open(t testing.TB, ctx context.Context, w *world, o *varvev1.AppendSessionOpen) *appender {
	t.Helper()
	s, err := w.streams.AppendSession(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&varvev1.AppendSessionRequest{Open: o}); err != nil {
		t.Fatal(err)
	}
	m, err := s.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if m.GetOpened().GetMaxInFlight() != edge.MaxInFlight || m.GetOpened().GetShards() == 0 || m.GetOpened().GetLineage() == 0 {
		t.Fatalf("%v", m)
	}
	return s
}

func one(t testing.TB, value string) *varvev1.AppendSessionRequest {
	return &varvev1.AppendSessionRequest{Batch: encode(t, batch.None, batch.Record{Value: []byte(value)})}
}

// Each request gets one answer, in order; errors don't end the session; what is
// sent before the client half-closes is answered.
func TestAppendSessionAnswersInOrder(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	s := open(t, w.Context(), w, &varvev1.AppendSessionOpen{Stream: "a/b"})
	const n = 200
	go func() {
		for i := range n {
			r := one(t, fmt.Sprint(i))
			if i%10 == 3 {
				r.ExpectedOffset = proto.Uint64(1 << 40) // refused
			}
			if i%10 == 7 {
				r.Batch = r.Batch[:20] // no batch
			}
			if err := s.Send(r); err != nil {
				t.Errorf("send %d: %v", i, err)
			}
		}
		if err := s.CloseRequest(); err != nil {
			t.Error(err)
		}
	}()
	next := uint64(0)
	for i := range n {
		m, err := s.Receive()
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		switch i % 10 {
		case 3:
			if m.GetError().GetReason() != varvev1.Reason_REASON_CONDITION_FAILED || m.GetError().GetApplied() != varvev1.Applied_APPLIED_NO {
				t.Fatalf("answer %d: %v", i, m)
			}
		case 7:
			if m.GetError().GetReason() != varvev1.Reason_REASON_INVALID_ARGUMENT {
				t.Fatalf("answer %d: %v", i, m)
			}
		default:
			if r := m.GetResult(); r == nil || r.GetFirstOffset() != next || r.GetTail() <= next {
				t.Fatalf("answer %d: %v, want offset %d", i, m, next)
			}
			next++
		}
	}
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last answer: %v", err)
	}
	if got := w.values("a/b"); len(got) != int(next) {
		t.Errorf("%d records, want %d", len(got), next)
	}
}

// A request inside an opened session that opens it again ends it, with a detail
// that leaves the outcome of what is unanswered open.
func TestAppendSessionProtocolErrors(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	for name, first := range map[string]*varvev1.AppendSessionRequest{
		"no open":         one(t, "x"),
		"open and batch":  {Open: &varvev1.AppendSessionOpen{Stream: "a/b"}, Batch: []byte{1}},
		"open and offset": {Open: &varvev1.AppendSessionOpen{Stream: "a/b"}, ExpectedOffset: proto.Uint64(0)},
		"unknown shard":   {Open: &varvev1.AppendSessionOpen{Stream: "a/b", Shard: 1}},
		"unknown level":   {Open: &varvev1.AppendSessionOpen{Stream: "a/b", Ack: 77}},
	} {
		s, err := w.streams.AppendSession(w.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(first)
		_, err = s.Receive()
		if err == nil {
			t.Errorf("%s: went well", name)
			continue
		}
		refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
		_ = s.CloseRequest()
	}
	s := open(t, w.Context(), w, &varvev1.AppendSessionOpen{Stream: "a/b"})
	_ = s.Send(&varvev1.AppendSessionRequest{Open: &varvev1.AppendSessionOpen{Stream: "a/b"}})
	_, err := s.Receive()
	if err == nil {
		t.Fatal("opened twice")
	}
	if d := detailOf(t, err); d.GetReason() != varvev1.Reason_REASON_INVALID_ARGUMENT || d.GetApplied() != varvev1.Applied_APPLIED_UNKNOWN {
		t.Errorf("%v", d)
	}
}

// Rows: B162
func TestB162_QuietSessionsStayOpen(t *testing.T) {
	const patience = 50 * time.Millisecond // of the server with clients that do not take answers
	w := start(t, settings{edge: edge.Options{Write: patience, Upload: patience}})
	w.make("a/b", 1)
	for name, c := range w.transports() {
		ctx, cancel := context.WithCancel(w.Context())
		before := w.put("a/b", "before").GetNextOffset()
		r, err := c.ReadSession(ctx, &varvev1.ReadSessionRequest{
			Heartbeat: durationpb.New(time.Minute), Read: &varvev1.ReadRequest{Stream: "a/b", Follow: true}})
		if err != nil || !r.Receive() {
			t.Fatalf("%s: %v", name, err)
		}
		s := open(t, ctx, w, &varvev1.AppendSessionOpen{Stream: "a/b"})
		time.Sleep(4 * patience) // the quiet itself; a slow machine makes it longer
		if err := s.Send(one(t, "after")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m, err := s.Receive(); err != nil || m.GetResult().GetFirstOffset() != before {
			t.Fatalf("%s: the appending session: %v %v", name, m, err)
		}
		if !r.Receive() || string(r.Msg().GetPage().GetRecords()[0].GetValue()) != "after" {
			t.Fatalf("%s: the reading session: %v %v", name, r.Msg(), r.Err())
		}
		cancel()
		_ = r.Close()
		_ = s.CloseRequest()
	}
}

// Heartbeats say that a session lives, with the figures of now.
func TestReadSessionHeartbeat(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	w.put("a/b", "x")
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	r, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Heartbeat: durationpb.New(time.Second), Read: &varvev1.ReadRequest{Stream: "a/b", Follow: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 2 {
		if !r.Receive() {
			t.Fatal(r.Err())
		}
	}
	if m := r.Msg(); !m.GetHeartbeat() || m.GetPage().GetTail() != 1 || m.GetPage().GetNextOffset() != 1 || len(m.GetPage().GetRecords()) != 0 {
		t.Errorf("%v", m)
	}
	for _, h := range []time.Duration{0, time.Second - 1, time.Minute + 1, -1} {
		s, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Heartbeat: durationpb.New(h), Read: &varvev1.ReadRequest{Stream: "a/b"}})
		if err == nil {
			if s.Receive() {
				t.Errorf("a heartbeat of %v is taken", h)
			}
			err = s.Err()
			_ = s.Close()
		}
		refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	}
}

// A session that waits for the bucket sends its first answer and heartbeats.
func TestReadSessionLivesWhileTheBucketIsSlow(t *testing.T) {
	w := start(t, settings{node: uncached()})
	w.make("a/b", 1)
	w.archive("a/b", "cold")
	w.put("a/b", "warm")
	w.cold("a/b")
	hold := w.Faults.Hold(fault.Fault{Op: fault.Get})
	r, err := w.streams.ReadSession(w.Context(), &varvev1.ReadSessionRequest{
		Heartbeat: durationpb.New(time.Second), Read: &varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_FromStart{FromStart: true}}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !r.Receive() || r.Msg().GetPage().GetTail() != 2 || len(r.Msg().GetPage().GetRecords()) != 0 {
		t.Fatalf("first answer: %v %v", r.Msg(), r.Err())
	}
	if !r.Receive() || !r.Msg().GetHeartbeat() {
		t.Fatalf("no heartbeat: %v %v", r.Msg(), r.Err())
	}
	hold.Release()
	for r.Receive() {
		if p := r.Msg().GetPage(); len(p.GetRecords()) > 0 {
			if string(p.GetRecords()[0].GetValue()) != "cold" {
				t.Errorf("%v", p)
			}
			return
		}
	}
	t.Errorf("the record never came: %v", r.Err())
}

// Rows: B168
func TestB168_DeletedStreamEndsItsSessions(t *testing.T) {
	w := start(t, settings{})
	st := w.make("a/b", 1)
	w.put("a/b", "x")
	ctx := w.Context()
	r, err := w.streams.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: "a/b", Follow: true}})
	if err != nil || !r.Receive() {
		t.Fatalf("%v", err)
	}
	s := open(t, ctx, w, &varvev1.AppendSessionOpen{Stream: "a/b"})
	if _, err := w.catalog.DeleteStream(ctx, &varvev1.DeleteStreamRequest{Stream: "a/b"}); err != nil {
		t.Fatal(err)
	}
	for r.Receive() {
	}
	if d := refused(t, r.Err(), varvev1.Reason_REASON_STREAM_DELETED); d.GetStreamDeleted().GetIncarnation() != st.GetIncarnation() || d.GetStreamDeleted().GetStream() != "a/b" || d.GetRetryable() {
		t.Errorf("%v", d)
	}
	again := w.make("a/b", 1)
	if err := s.Send(one(t, "late")); err != nil {
		t.Fatal(err)
	}
	// The session is bound to the incarnation: nothing goes to the new stream.
	if m, err := s.Receive(); err != nil || m.GetError().GetReason() != varvev1.Reason_REASON_STREAM_DELETED || m.GetError().GetStreamDeleted().GetIncarnation() != st.GetIncarnation() {
		t.Errorf("%v %v", m, err)
	}
	_ = s.CloseRequest()
	_, err = w.streams.Read(ctx, &varvev1.ReadRequest{Stream: "a/b", Incarnation: &st.Incarnation})
	if d := refused(t, err, varvev1.Reason_REASON_STREAM_DELETED); d.GetStreamDeleted().GetCurrent() != again.GetIncarnation() {
		t.Errorf("%v", d)
	}
	if got := w.values("a/b"); len(got) != 0 {
		t.Errorf("the new stream holds %q", got)
	}
}

// Rows: N12
func TestN12_RequestsNameTheIncarnation(t *testing.T) {
	w := start(t, settings{})
	ctx := w.Context()
	old := w.make("a/b", 1)
	w.put("a/b", "old")
	// Behind the edge's back, so that what it has cached is stale.
	id := meta.StreamName{Namespace: "a", Name: "b"}
	if _, err := w.Catalog.Delete(ctx, id, 0); err != nil {
		t.Fatal(err)
	}
	fresh, err := w.catalog.CreateStream(ctx, &varvev1.CreateStreamRequest{Stream: "a/b"})
	if err != nil {
		t.Fatal(err)
	}
	now := fresh.GetStream().GetIncarnation()
	// By name: resolved again, lands once in the new one.
	w.Eventually("an append by name", func() bool {
		out, err := w.streams.Append(ctx, &varvev1.AppendRequest{Stream: "a/b", Records: []*varvev1.Record{{Value: []byte("new")}}})
		if err != nil {
			return false // nothing was applied: the tombstone is on its way
		}
		if out.GetIncarnation() != now || out.GetFirstOffset() != 0 {
			t.Fatalf("%v, want incarnation %d", out, now)
		}
		return true
	})
	// By incarnation: never redirected, on any call.
	for name, f := range map[string]func() error{
		"append": func() error {
			_, err := w.streams.Append(ctx, &varvev1.AppendRequest{Stream: "a/b", Incarnation: &old.Incarnation, Records: []*varvev1.Record{{}}})
			return err
		},
		"read": func() error {
			_, err := w.streams.Read(ctx, &varvev1.ReadRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
		"tail": func() error {
			_, err := w.streams.CheckTail(ctx, &varvev1.CheckTailRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
		"trim": func() error {
			_, err := w.streams.Trim(ctx, &varvev1.TrimRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
		"fence": func() error {
			_, err := w.streams.Fence(ctx, &varvev1.FenceRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
		"update": func() error {
			_, err := w.catalog.UpdateStream(ctx, &varvev1.UpdateStreamRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
		"delete": func() error {
			_, err := w.catalog.DeleteStream(ctx, &varvev1.DeleteStreamRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
		"describe": func() error {
			_, err := w.clusters.DescribeShard(ctx, &varvev1.DescribeShardRequest{Stream: "a/b", Incarnation: &old.Incarnation})
			return err
		},
	} {
		err := f()
		if err == nil {
			t.Errorf("%s: redirected", name)
			continue
		}
		if d := refused(t, err, varvev1.Reason_REASON_STREAM_DELETED); d.GetStreamDeleted().GetIncarnation() != old.GetIncarnation() {
			t.Errorf("%s: %v", name, d)
		}
	}
	if got := w.values("a/b"); len(got) != 1 || got[0] != "new" {
		t.Errorf("%q", got)
	}
}

// Stopping: what is under way is answered, and every session ends with an error
// that may be tried again.
func TestDrainEndsSessions(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	w.put("a/b", "x")
	ctx := w.Context()
	var readers []*connect.ServerStreamForClient[varvev1.ReadSessionResponse]
	for name, c := range w.transports() {
		r, err := c.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: "a/b", Follow: true}})
		if err != nil || !r.Receive() {
			t.Fatalf("%s: %v", name, err)
		}
		readers = append(readers, r)
	}
	idle := open(t, ctx, w, &varvev1.AppendSessionOpen{Stream: "a/b"})
	unopened, err := w.streams.AppendSession(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := unopened.Send(nil); err != nil { // only headers
		t.Fatal(err)
	}
	busy := open(t, ctx, w, &varvev1.AppendSessionOpen{Stream: "a/b"})
	if err := busy.Send(one(t, "under way")); err != nil {
		t.Fatal(err)
	}
	if m, err := busy.Receive(); err != nil || m.GetResult() == nil {
		t.Fatalf("%v %v", m, err)
	}
	w.edge.Drain()
	within(t, "shutdown", func() {
		if err := w.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, r := range readers {
		for r.Receive() {
		}
		if d := detailOf(t, r.Err()); d.GetReason() != varvev1.Reason_REASON_UNAVAILABLE || !d.GetRetryable() {
			t.Errorf("%v", d)
		}
		_ = r.Close()
	}
	for name, s := range map[string]*appender{"idle": idle, "busy": busy, "unopened": unopened} {
		_, err := s.Receive()
		if d := detailOf(t, err); d.GetReason() != varvev1.Reason_REASON_UNAVAILABLE || !d.GetRetryable() {
			t.Errorf("%s: %v", name, d)
		}
	}
}
