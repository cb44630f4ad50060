package edge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/sdk/proto/varve/v1/varvev1connect"
	"github.com/varve-io/varve/services/internal/broker"
)

const (
	// MaxInFlight is how many batches of an appending session may wait for their
	// answers: as many as a producer's window of remembered sequences.
	MaxInFlight = 32
	// maxMessage bounds a request: a batch in base64, and what is around it.
	maxMessage = 6 << 20
	// pageBytes is about how many stored bytes one page holds: it is what a reader
	// costs that does not take its page, and larger ones are no faster. A page that
	// is larger holds one batch (or, decoded, one record).
	pageBytes = 256 << 10
	// decodedBytes is about how many bytes of records a page holds once decoded, what
	// each costs by itself included.
	decodedBytes = 512 << 10
)

// Options say what the edge stands in front of. Broker and Catalog are required.
type Options struct {
	Broker     *broker.Broker
	Catalog    *catalog.Catalog
	Authorizer Authorizer // default Loopback
	Logger     *slog.Logger
	Registry   *prometheus.Registry // where /metrics comes from, and where the edge's own go; nil: none
	Throttle   time.Duration        // longest wait for room in the log when the caller has no deadline; default 30 s
	Write      time.Duration        // longest time a client may take to accept an answer, or a page; default 60 s
	Upload     time.Duration        // longest time a request may take to arrive; default 60 s
	Arriving   int64                // bytes that all requests may hold while they arrive; default 256 MiB
	Now        func() time.Time
}

// Server answers varve.v1. Make it with [New].
type Server struct {
	opts   Options
	broker *broker.Broker
	codec  batch.Codec
	health *grpchealth.StaticChecker
	drain  context.Context // ends when the server begins to stop
	begin  context.CancelFunc
	calls  *prometheus.HistogramVec
	failed *prometheus.CounterVec

	arriving gauge // bytes of requests that are arriving
}

// New makes a server.
func New(o Options) *Server {
	if o.Authorizer == nil {
		o.Authorizer = Loopback{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Throttle <= 0 {
		o.Throttle = 30 * time.Second
	}
	if o.Write <= 0 {
		o.Write = time.Minute
	}
	if o.Upload <= 0 {
		o.Upload = time.Minute
	}
	if o.Arriving <= 0 {
		o.Arriving = 256 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{opts: o, broker: o.Broker}
	s.drain, s.begin = context.WithCancel(context.Background())
	s.calls = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "varve_rpc_seconds", Help: "Time of one unary call, or of one session.", Buckets: prometheus.ExponentialBuckets(100e-6, 4, 10),
	}, []string{"procedure"})
	s.failed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "varve_rpc_failures_total", Help: "Calls that ended in an error.",
	}, []string{"procedure", "code"})
	if o.Registry != nil {
		o.Registry.MustRegister(s.calls, s.failed)
	}
	s.health = grpchealth.NewStaticChecker(services...)
	return s
}

var services = []string{
	varvev1connect.StreamServiceName, varvev1connect.CatalogServiceName, varvev1connect.ClusterServiceName,
}

// Handler serves everything on one port.
func (s *Server) Handler() http.Handler {
	options := append(codecs(),
		// Batches are compressed once, by their producer.
		connect.WithCompression("gzip", nil, nil),
		connect.WithInterceptors(&watcher{s}),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			s.opts.Logger.Error("a handler panicked", "procedure", spec.Procedure, "panic", p, "stack", string(debug.Stack()))
			return errPanic
		}),
	)
	mux := http.NewServeMux()
	mount := func(path string, h http.Handler) { mux.Handle(path, h) }
	mount(varvev1connect.NewStreamServiceHandler(&streams{Server: s}, options...))
	mount(varvev1connect.NewCatalogServiceHandler(&catalogs{Server: s}, options...))
	mount(varvev1connect.NewClusterServiceHandler(&clusters{Server: s}, options...))
	mount(grpchealth.NewHandler(s.health, options...))
	reflector := grpcreflect.NewStaticReflector(services...)
	mount(grpcreflect.NewHandlerV1(reflector, options...))
	mount(grpcreflect.NewHandlerV1Alpha(reflector, options...))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if s.drain.Err() != nil {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /metrics", s.Metrics())
	return s.guard(mux)
}

// Metrics serves the registry in Prometheus's text format.
func (s *Server) Metrics() http.Handler {
	if s.opts.Registry == nil {
		return http.NotFoundHandler()
	}
	return promhttp.HandlerFor(s.opts.Registry, promhttp.HandlerOpts{})
}

// errPanic is of no kind, and so an internal error.
var errPanic = errors.New("a defect in the server; its log has more")

// Drain makes the health check say "not serving" and refuses new work, so that
// clients go elsewhere while what is under way is finished.
func (s *Server) Drain() {
	for _, name := range append(services, "") {
		s.health.SetStatus(name, grpchealth.StatusNotServing)
	}
	s.begin() // before the broker's readers wake, so that they see why
	s.broker.Drain()
}

// errStopping ends sessions when the server stops.
var errStopping = meta.Errorf(meta.ErrUnavailable, "the server is stopping: connect again, it or another one will answer")

// HTTP is an HTTP server for the handler: HTTP/1.1 and HTTP/2 without TLS, tuned
// so that one stalled session can't block the others of its connection.
func HTTP(h http.Handler, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          1000,
			MaxReadFrameSize:              256 << 10,
			MaxReceiveBufferPerStream:     4 << 20,
			MaxReceiveBufferPerConnection: 16 << 20,
			SendPingTimeout:               15 * time.Second,
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              time.Minute,
		},
	}
}
