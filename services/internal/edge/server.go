package edge

import (
	"context"
	"log/slog"
	"net/http"
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
	// writeTimeout is how long a client may take to accept one page.
	writeTimeout = 60 * time.Second
	// pageBytes is about how many bytes one page of a session holds.
	pageBytes = 1 << 20
	// maxPage bounds what one unary read holds.
	maxPage = 4 << 20
)

// Options say what the edge stands in front of. Broker and Catalog are required.
type Options struct {
	Broker     *broker.Broker
	Catalog    *catalog.Catalog
	Authorizer Authorizer // default Loopback
	Logger     *slog.Logger
	Registry   *prometheus.Registry // where /metrics comes from, and where the edge's own go; nil: none
	Throttle   time.Duration        // longest wait for room in the log when the caller has no deadline; default 30 s
	Write      time.Duration        // longest time a client may take to accept one page; default 60 s
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
		o.Write = writeTimeout
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
	options := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		// Batches are compressed once, by their producer.
		connect.WithCompression("gzip", nil, nil),
		connect.WithInterceptors(&watcher{s}),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			s.opts.Logger.Error("a handler panicked", "procedure", spec.Procedure, "panic", p)
			return connect.NewError(connect.CodeInternal, errPanic)
		}),
	}
	mux := http.NewServeMux()
	mount := func(path string, h http.Handler) { mux.Handle(path, h) }
	mount(varvev1connect.NewStreamServiceHandler(&streams{Server: s}, options...))
	mount(varvev1connect.NewCatalogServiceHandler(&catalogs{Server: s}, options...))
	mount(varvev1connect.NewClusterServiceHandler(&clusters{Server: s}, options...))
	mount(grpchealth.NewHandler(s.health, options...))
	reflector := grpcreflect.NewStaticReflector(services...)
	mount(grpcreflect.NewHandlerV1(reflector, options...))
	mount(grpcreflect.NewHandlerV1Alpha(reflector, options...))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.Handle("GET /metrics", s.Metrics())
	return withController(mux)
}

// Metrics serves the registry in Prometheus's text format.
func (s *Server) Metrics() http.Handler {
	if s.opts.Registry == nil {
		return http.NotFoundHandler()
	}
	return promhttp.HandlerFor(s.opts.Registry, promhttp.HandlerOpts{})
}

var errPanic = meta.Errorf(meta.ErrUnknown, "a defect in the server; its log has more")

// Drain makes the health check say "not serving" and refuses new work, so that
// clients go elsewhere while what is under way is finished.
func (s *Server) Drain() {
	for _, name := range append(services, "") {
		s.health.SetStatus(name, grpchealth.StatusNotServing)
	}
	s.broker.Drain()
	s.begin()
}

// errStopping ends sessions when the server stops.
var errStopping = meta.Errorf(meta.ErrUnavailable, "the server is stopping: connect again, it or another one will answer")

// untilDrain makes a session's receiving end when the server begins to stop; what
// it has received is still answered.
func (s *Server) untilDrain(ctx context.Context) (stop func() bool) {
	c, ok := ctx.Value(controllerKey{}).(*http.ResponseController)
	if !ok {
		return func() bool { return true }
	}
	return context.AfterFunc(s.drain, func() { _ = c.SetReadDeadline(time.Now()) })
}

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
			MaxReceiveBufferPerConnection: 64 << 20,
			SendPingTimeout:               15 * time.Second,
			PingTimeout:                   15 * time.Second,
		},
	}
}

type controllerKey struct{}

// withController lets handlers bound their writes.
func withController(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// bound gives the client some time to accept the next message.
func (s *Server) bound(ctx context.Context) {
	if c, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		_ = c.SetWriteDeadline(time.Now().Add(s.opts.Write)) // a transport without deadlines has none
	}
}

// watcher measures calls.
type watcher struct{ s *Server }

func (w *watcher) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		out, err := next(ctx, r)
		err = wire(err)
		w.done(r.Spec().Procedure, start, err)
		return out, err
	}
}

func (w *watcher) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (w *watcher) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error {
		start := time.Now()
		err := wire(next(ctx, c))
		w.done(c.Spec().Procedure, start, err)
		return err
	}
}

func (w *watcher) done(procedure string, start time.Time, err error) {
	w.s.calls.WithLabelValues(procedure).Observe(time.Since(start).Seconds())
	if err != nil {
		code := connect.CodeOf(err)
		w.s.failed.WithLabelValues(procedure, code.String()).Inc()
		if code == connect.CodeInternal || code == connect.CodeDataLoss {
			w.s.opts.Logger.Error("a call failed", "procedure", procedure, "error", err)
		}
	}
}
