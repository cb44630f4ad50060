package edge_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectalpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// The line that the design page promises for curl.
func TestCurlLine(t *testing.T) {
	w := start(t, settings{})
	status, body := w.post(w.http1, "/varve.v1.StreamService/Append", "application/json", strings.NewReader(`{"stream":"logs/app","records":[{"value":"aGVsbG8="}]}`))
	if status != http.StatusOK || !strings.Contains(body, `"nextOffset":"1"`) {
		t.Fatalf("%d %s", status, body)
	}
	status, body = w.post(w.http1, "/varve.v1.StreamService/Read", "application/json", strings.NewReader(`{"stream":"logs/app","fromStart":true}`))
	var page struct {
		Records []struct{ Value, Offset string }
		Tail    string
		Shards  int
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s: %v", status, body, err)
	}
	if len(page.Records) != 1 || page.Records[0].Value != "aGVsbG8=" || page.Records[0].Offset != "0" || page.Tail != "1" || page.Shards != 1 {
		t.Errorf("%s", body)
	}
}

// Rows: B171
func TestEveryTransport(t *testing.T) {
	w := start(t, settings{})
	for name, c := range w.transports() {
		t.Run(name, func(t *testing.T) {
			stream := "wire/" + strings.ToLower(strings.NewReplacer(" ", "-", "/", "-").Replace(name))
			w.make(stream, 1)
			ctx := w.Context()
			if _, err := c.Append(ctx, &varvev1.AppendRequest{Stream: stream, Batch: encode(t, batch.Zstd, batch.Record{Value: []byte("one")}, batch.Record{Value: []byte("two")})}); err != nil {
				t.Fatal(err)
			}
			for _, q := range []struct {
				what string
				r    *varvev1.ReadRequest
				want int
			}{
				{"start", &varvev1.ReadRequest{Start: &varvev1.ReadRequest_FromStart{FromStart: true}}, 2},
				{"middle", &varvev1.ReadRequest{Start: &varvev1.ReadRequest_Offset{Offset: 1}}, 1},
				{"tail", &varvev1.ReadRequest{}, 0},
				{"clamped", &varvev1.ReadRequest{Start: &varvev1.ReadRequest_Offset{Offset: 99}, Clamp: true}, 0},
			} {
				q.r.Stream = stream
				p, err := c.Read(ctx, q.r)
				if err != nil || len(p.GetRecords()) != q.want || p.GetTail() != 2 || p.GetNextOffset() != 2 {
					t.Errorf("%s: %v, %v", q.what, p, err)
				}
			}
			_, err := c.Read(ctx, &varvev1.ReadRequest{Stream: stream, Start: &varvev1.ReadRequest_Offset{Offset: 99}})
			d := refused(t, err, varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE)
			if o := d.GetOffsetOutOfRange(); o.GetAsked() != 99 || o.GetStart() != 0 || o.GetEnd() != 2 {
				t.Errorf("%v", d)
			}
			tail(t, w, c, stream)
		})
	}
}

// tail follows a stream and sees a record that is appended meanwhile.
func tail(t *testing.T, w *world, c interface {
	ReadSession(context.Context, *varvev1.ReadSessionRequest) (*connect.ServerStreamForClient[varvev1.ReadSessionResponse], error)
}, stream string) {
	t.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	s, err := c.ReadSession(ctx, &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: stream, Follow: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() || len(s.Msg().GetPage().GetRecords()) != 0 || s.Msg().GetPage().GetOffset() != 2 {
		t.Fatalf("first answer: %v, %v", s.Msg(), s.Err())
	}
	w.put(stream, "three")
	for s.Receive() {
		if p := s.Msg().GetPage(); len(p.GetRecords()) > 0 {
			if got := p.GetRecords()[0]; string(got.GetValue()) != "three" || got.GetOffset() != 2 || p.GetShards() != 1 {
				t.Errorf("%v", p)
			}
			return
		}
	}
	t.Fatalf("the record never came: %v", s.Err())
}

// A stock gRPC client: calls, errors with details, health, both reflections.
func TestStockGRPC(t *testing.T) {
	w := start(t, settings{})
	conn, err := grpc.NewClient(strings.TrimPrefix(w.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := w.Context()
	w.make("g/s", 1)
	out := &varvev1.AppendResponse{}
	if err := conn.Invoke(ctx, "/varve.v1.StreamService/Append", &varvev1.AppendRequest{Stream: "g/s", Records: []*varvev1.Record{{Value: []byte("x")}}}, out); err != nil || out.GetNextOffset() != 1 {
		t.Fatalf("%v %v", out, err)
	}
	err = conn.Invoke(ctx, "/varve.v1.StreamService/Append", &varvev1.AppendRequest{Stream: "g/s", Records: []*varvev1.Record{{}}, ExpectedOffset: proto.Uint64(7)}, out)
	st := status.Convert(err)
	if st.Code() != codes.FailedPrecondition || len(st.Details()) != 1 {
		t.Fatalf("%v", err)
	}
	if d, ok := st.Details()[0].(*varvev1.ErrorDetail); !ok || d.GetConditionFailed().GetActual() != 1 || d.GetApplied() != varvev1.Applied_APPLIED_NO {
		t.Errorf("%v", st.Details())
	}
	health := healthv1.NewHealthClient(conn)
	for _, service := range []string{"", "varve.v1.StreamService", "varve.v1.CatalogService", "varve.v1.ClusterService"} {
		if h, err := health.Check(ctx, &healthv1.HealthCheckRequest{Service: service}); err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", service, h, err)
		}
	}
	r1, err := reflectv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := r1.Send(&reflectv1.ServerReflectionRequest{MessageRequest: &reflectv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if m, err := r1.Recv(); err != nil || !strings.Contains(m.String(), "varve.v1.StreamService") {
		t.Errorf("reflection: %v %v", m, err)
	}
	_ = r1.CloseSend()
	ra, err := reflectalpha.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := ra.Send(&reflectalpha.ServerReflectionRequest{MessageRequest: &reflectalpha.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "varve.v1.StreamService"}}); err != nil {
		t.Fatal(err)
	}
	if m, err := ra.Recv(); err != nil || m.GetFileDescriptorResponse() == nil {
		t.Errorf("reflection: %v %v", m, err)
	}
	w.edge.Drain()
	// The open reflection stream ends, too.
	if _, err := ra.Recv(); err == nil {
		t.Error("a stream outlives the drain")
	}
	for _, service := range []string{"", "varve.v1.StreamService"} {
		if h, err := health.Check(ctx, &healthv1.HealthCheckRequest{Service: service}); err != nil || h.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health of %q when stopping: %v %v", service, h, err)
		}
	}
	if status, _ := get(t, w, "/healthz"); status != http.StatusServiceUnavailable {
		t.Errorf("/healthz says %d when stopping", status)
	}
}

func get(t *testing.T, w *world, path string) (int, string) {
	t.Helper()
	r, err := w.http1.Get(w.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// Metrics carry no names of streams: what is kept per stream would outlive it.
func TestMetricsNameNoStream(t *testing.T) {
	w := start(t, settings{})
	w.make("secret-namespace/secret-stream", 1)
	w.put("secret-namespace/secret-stream", "x")
	if _, err := w.streams.Read(w.Context(), &varvev1.ReadRequest{Stream: "secret-namespace/none"}); err == nil {
		t.Fatal("a stream that is not there was read")
	}
	w.post(w.http1, "/varve.v1.StreamService/Secret", "application/json", strings.NewReader("{}"))
	_, body := get(t, w, "/metrics")
	if !strings.Contains(body, `varve_rpc_failures_total{code="not_found",procedure="/varve.v1.StreamService/Read"} 1`) {
		t.Errorf("the failure is not counted:\n%s", body)
	}
	if strings.Contains(strings.ToLower(body), "secret") {
		t.Errorf("a name is in the metrics")
	}
	if status, body := get(t, w, "/healthz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("%d %q", status, body)
	}
}

// Null, empty and absent survive JSON as well.
func TestJSONTellsNullFromEmpty(t *testing.T) {
	w := start(t, settings{})
	status, body := w.post(w.http1, "/varve.v1.StreamService/Append", "application/json; charset=utf-8",
		strings.NewReader(`{"stream":"a/b","records":[{},{"key":"","value":"","headers":[{"key":"h"},{"key":"h","value":""}]}]}`))
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	rs := w.read(&varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_FromStart{FromStart: true}}).GetRecords()
	if rs[0].Key != nil || rs[0].Value != nil || rs[1].Key == nil || rs[1].Value == nil || rs[1].Headers[0].Value != nil || rs[1].Headers[1].Value == nil {
		t.Errorf("%v", rs)
	}
}
