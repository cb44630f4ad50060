package edge_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/sdk/proto/varve/v1/varvev1connect"
	"github.com/varve-io/varve/services/internal/edge"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }

// world is a node with its edge on a real listener.
type world struct {
	*servicetest.Node
	t      testing.TB
	edge   *edge.Server
	server *http.Server
	url    string
	http1  *http.Client
	http2  *http.Client

	streams  varvev1connect.StreamServiceClient
	catalog  varvev1connect.CatalogServiceClient
	clusters varvev1connect.ClusterServiceClient
}

type settings struct {
	node servicetest.Options
	edge edge.Options
}

func start(t testing.TB, s settings) *world {
	t.Helper()
	w := &world{Node: servicetest.Start(t, s.node), t: t}
	s.edge.Broker, s.edge.Catalog = w.Broker, w.Catalog
	if s.edge.Registry == nil {
		s.edge.Registry = prometheus.NewRegistry()
	}
	s.edge.Logger = slog.New(slog.DiscardHandler)
	w.edge = edge.New(s.edge)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.server = edge.HTTP(w.edge.Handler(), s.edge.Logger)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = w.server.Serve(l)
	}()
	w.url = "http://" + l.Addr().String()
	w.http1, w.http2 = client(false), client(true)
	t.Cleanup(func() {
		w.http1.CloseIdleConnections()
		w.http2.CloseIdleConnections()
		w.edge.Drain()
		_ = w.server.Close()
		<-served
	})
	w.streams = varvev1connect.NewStreamServiceClient(w.http2, w.url)
	w.catalog = varvev1connect.NewCatalogServiceClient(w.http2, w.url)
	w.clusters = varvev1connect.NewClusterServiceClient(w.http2, w.url)
	return w
}

func client(two bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!two)
	p.SetUnencryptedHTTP2(two)
	return &http.Client{Transport: &http.Transport{Protocols: p, DisableCompression: true}}
}

// transports are the ways in which a client may speak.
func (w *world) transports() map[string]varvev1connect.StreamServiceClient {
	out := map[string]varvev1connect.StreamServiceClient{}
	for name, o := range map[string][]connect.ClientOption{
		"connect": nil, "json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		out[name+" on HTTP/2"] = varvev1connect.NewStreamServiceClient(w.http2, w.url, o...)
		if name != "grpc" {
			out[name+" on HTTP/1"] = varvev1connect.NewStreamServiceClient(w.http1, w.url, o...)
		}
	}
	return out
}

// make creates a stream over the wire, its namespace too.
func (w *world) make(name string, shards uint32) *varvev1.Stream {
	w.t.Helper()
	ns, _, _ := strings.Cut(name, "/")
	if _, err := w.catalog.CreateNamespace(w.Context(), &varvev1.CreateNamespaceRequest{Namespace: ns}); err != nil && connect.CodeOf(err) != connect.CodeAlreadyExists {
		w.t.Fatal(err)
	}
	out, err := w.catalog.CreateStream(w.Context(), &varvev1.CreateStreamRequest{Stream: name, Shards: shards, Settings: &varvev1.StreamSettings{MaxRecordBytes: proto.Uint64(4 << 20)}})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.GetStream()
}

// put appends plain records, one batch.
func (w *world) put(name string, values ...string) *varvev1.AppendResponse {
	w.t.Helper()
	r := &varvev1.AppendRequest{Stream: name}
	for _, v := range values {
		r.Records = append(r.Records, &varvev1.Record{Value: []byte(v)})
	}
	out, err := w.streams.Append(w.Context(), r)
	if err != nil {
		w.t.Fatalf("append: %v", err)
	}
	return out
}

// archive appends plain records and waits until the bucket has them.
func (w *world) archive(name string, values ...string) {
	w.t.Helper()
	r := &varvev1.AppendRequest{Stream: name, Ack: varvev1.Ack_ACK_ARCHIVE}
	for _, v := range values {
		r.Records = append(r.Records, &varvev1.Record{Value: []byte(v)})
	}
	if _, err := w.streams.Append(w.Context(), r); err != nil {
		w.t.Fatalf("append: %v", err)
	}
}

func (w *world) read(r *varvev1.ReadRequest) *varvev1.ReadResponse {
	w.t.Helper()
	out, err := w.streams.Read(w.Context(), r)
	if err != nil {
		w.t.Fatalf("read: %v", err)
	}
	return out
}

// values reads a whole stream.
func (w *world) values(name string) []string {
	w.t.Helper()
	var out []string
	r := &varvev1.ReadRequest{Stream: name, Start: &varvev1.ReadRequest_FromStart{FromStart: true}}
	for {
		p := w.read(r)
		for _, rec := range p.GetRecords() {
			out = append(out, string(rec.GetValue()))
		}
		if p.GetNextOffset() == p.GetTail() {
			return out
		}
		r.Start = &varvev1.ReadRequest_Offset{Offset: p.GetNextOffset()}
	}
}

// detailOf returns an error's detail, or fails.
func detailOf(t testing.TB, err error) *varvev1.ErrorDetail {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) {
		t.Fatalf("%v is no Connect error", err)
	}
	for _, d := range ce.Details() {
		if v, err := d.Value(); err == nil {
			if out, ok := v.(*varvev1.ErrorDetail); ok {
				return out
			}
		}
	}
	t.Fatalf("%v has no detail", err)
	return nil
}

// refused checks an error's reason and that nothing was applied.
func refused(t testing.TB, err error, want varvev1.Reason) *varvev1.ErrorDetail {
	t.Helper()
	if err == nil {
		t.Fatalf("it went well, want %v", want)
	}
	d := detailOf(t, err)
	if d.GetReason() != want || d.GetApplied() != varvev1.Applied_APPLIED_NO || d.GetMessage() == "" {
		t.Fatalf("%v: detail %v, want %v, not applied", err, d, want)
	}
	return d
}

var codec batch.Codec

func encode(t testing.TB, c batch.Compression, records ...batch.Record) []byte {
	t.Helper()
	b, err := codec.Encode(records, c, batch.NoProducer())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// post sends a body as it is and returns the answer.
func (w *world) post(c *http.Client, path, contentType string, body io.Reader) (int, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	out, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer out.Body.Close()
	b, err := io.ReadAll(out.Body)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.t.Fatal(err)
	}
	return out.StatusCode, string(b)
}

// within fails the test when f takes longer than any good run does.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(servicetest.Patience):
		t.Fatalf("hangs: %s", what)
	}
}

// cold waits until the stream's first record comes from the bucket. The node must
// have been started with [uncached].
func (w *world) cold(name string) {
	w.t.Helper()
	w.Eventually("reads from the bucket", func() bool {
		before := w.Faults.Count(fault.Get)
		w.read(&varvev1.ReadRequest{Stream: name, Start: &varvev1.ReadRequest_FromStart{FromStart: true}, MaxRecords: proto.Uint64(1)})
		return w.Faults.Count(fault.Get) > before
	})
}

// roomy are a node's options for tests with the largest batches.
func roomy() servicetest.Options {
	o := uncached()
	o.FileSize, o.Budget = 8<<20, 128<<20
	return o
}

// uncached are a node's options for tests of cold reads.
func uncached() servicetest.Options {
	return servicetest.Options{Tiering: func(o *tiering.Options) { o.CacheBytes, o.ReadAhead = -1, -1 }}
}
