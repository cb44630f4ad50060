package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/edge"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/dir"
	"github.com/varve-io/varve/tiering/bucket/s3"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

// node is a server's parts, in the order in which they are made.
type node struct {
	cfg      *run.Config
	logger   *slog.Logger
	registry *prometheus.Registry
	disk     vfs.FS             // of the log
	alarms   prometheus.Counter // about the bucket

	kv      *etcdkv.Store
	catalog *catalog.Catalog
	gate    *gate // the bucket
	store   *tiering.Store
	group   *run.Group
	broker  *broker.Broker
	edge    *edge.Server
	https   []*http.Server
	stopped bool // the broker was closed
}

// serve runs a server until ctx ends (a graceful stop) or a part fails. ready is
// called with the address once requests are answered. When it returns, nothing of
// the server is left: no listener, lock or goroutine.
func serve(ctx context.Context, cfg *run.Config, logger *slog.Logger, ready func(address string)) error {
	n := &node{cfg: cfg, logger: logger, registry: run.Registry(), disk: vfs.OS()}
	return n.run(ctx, ready)
}

func (n *node) run(ctx context.Context, ready func(address string)) (err error) {
	cfg, logger := n.cfg, n.logger
	// The address is taken first: it is the cheapest thing to find taken.
	listeners, err := n.listen()
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
		err = errors.Join(err, n.close())
	}()
	if err := n.open(ctx); err != nil {
		return cmp.Or(context.Cause(ctx), err) // a signal during the start is no failure
	}
	n.serve(listeners)
	logger.Info("serving", "address", listeners[0].Addr().String(), "data", cfg.Data, "objects", n.gate.Location())
	ready(listeners[0].Addr().String())
	select {
	case <-ctx.Done():
		logger.Info("stopping", "why", context.Cause(ctx).Error())
		return n.drain()
	case <-n.group.Context().Done():
		n.hangUp(failing)
		return n.group.Wait()
	case <-n.kv.Failed():
		n.hangUp(failing)
		return meta.Errorf(meta.ErrPoisoned, "the catalog's storage in %s failed: %w", filepath.Join(cfg.Data, "catalog"), n.kv.Err())
	}
}

// listen takes the addresses.
func (n *node) listen() ([]net.Listener, error) {
	var list []net.Listener
	for _, address := range []string{n.cfg.Listen, n.cfg.Admin} {
		if address == "" {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			for _, open := range list {
				_ = open.Close()
			}
			return nil, fmt.Errorf("listening on %s: %w; a server may be running already, or say another address", address, err)
		}
		list = append(list, l)
		// A name may mean more than it says.
		if a, ok := l.Addr().(*net.TCPAddr); ok && !n.cfg.Insecure && !a.IP.IsLoopback() {
			for _, open := range list {
				_ = open.Close()
			}
			return nil, &run.UsageError{Err: fmt.Errorf("%s means %s, which is reachable from other machines, and anyone there could read and write; say --insecure if that is what you want", address, a)}
		}
	}
	return list, nil
}

// open brings up catalog, bucket, log and edge.
func (n *node) open(ctx context.Context) error {
	if err := os.MkdirAll(n.cfg.Data, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	n.group = run.NewGroup(context.WithoutCancel(ctx))
	if err := n.openCatalog(ctx); err != nil {
		return err
	}
	var mode wal.Mode
	if n.cfg.Fsync == "periodic" {
		mode = wal.Periodic
	}
	cluster, err := n.catalog.Cluster(ctx)
	if err != nil {
		return err
	}
	n.broker, err = broker.Open(ctx, broker.Options{
		Group: n.group, Catalog: n.catalog, Store: n.store,
		Log: wal.Options{
			FS: n.disk, Dir: n.cfg.Data, Cluster: cluster.ID, Broker: meta.BrokerID(n.cfg.Broker),
			Mode: mode, Interval: n.cfg.FsyncInterval, Budget: int64(n.cfg.WALBudget), FileSize: int64(n.cfg.WALFileSize),
			BootID: wal.BootID(), WitnessDir: runtimeDir(n.cfg),
		},
		Addresses:  []string{n.cfg.Listen},
		Defaults:   catalog.StreamConfig{SegmentBytes: int64(n.cfg.SegmentSize), SegmentAge: n.cfg.SegmentAge},
		AutoCreate: n.cfg.AutoCreate,
		Purge:      n.cfg.SweepInterval,
		Logger:     n.logger, Metrics: n.registry,
	})
	if err != nil {
		return err
	}
	n.edge = edge.New(edge.Options{Broker: n.broker, Catalog: n.catalog, Logger: n.logger, Registry: n.registry})
	return nil
}

// runtimeDir is where the witness of a log in periodic mode lies: a directory that
// a reboot empties. "" means none, and then such a log is believed only after a
// clean stop.
func runtimeDir(cfg *run.Config) string {
	if cfg.Runtime != "" || cfg.Fsync != "periodic" {
		return cfg.Runtime
	}
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/run"} {
		if dir != "" && unix.Access(dir, unix.W_OK) == nil {
			return dir
		}
	}
	return ""
}

// openCatalog starts etcd, opens the bucket and joins the two.
func (n *node) openCatalog(ctx context.Context) (err error) {
	// A start of etcd can't be cut short without leaving half of it running; it has
	// its own bound.
	n.kv, err = etcdkv.Open(context.WithoutCancel(ctx), etcdkv.Options{
		Dir: filepath.Join(n.cfg.Data, "catalog"), SegmentBytes: 2 << 20, Log: n.logger.With("part", "etcd"),
	})
	if err != nil {
		return err
	}
	b, err := openBucket(ctx, n.cfg)
	if err != nil {
		return err
	}
	n.gate = &gate{Bucket: b}
	return n.join(ctx, n.kv)
}

func openBucket(ctx context.Context, cfg *run.Config) (bucket.Bucket, error) {
	address, err := cfg.ObjectsOrDefault()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, &run.UsageError{Err: fmt.Errorf("--objects %q: %w", address, err)}
	}
	switch u.Scheme {
	case "dir":
		return dir.Open(ctx, address)
	case "s3":
		return s3.Open(ctx, address, s3.Options{})
	default:
		return nil, &run.UsageError{Err: fmt.Errorf("--objects %q: the scheme is dir or s3", address)}
	}
}

func (n *node) storeEvents() tiering.Events {
	n.alarms = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "varve_store_alarms_total", Help: "Objects found damaged or missing, and claims on the bucket's prefix found missing or lost.",
	})
	n.registry.MustRegister(n.alarms)
	return tiering.Events{
		UploadRetry: func(key string, err error, wait time.Duration) {
			n.logger.Warn("an upload failed; trying again", "object", key, "error", err, "in", wait)
		},
		UploadGivenUp: func(key string, err error) { n.logger.Warn("an upload was given up", "object", key, "error", err) },
		Damaged: func(key string, err error) {
			n.alarms.Inc()
			n.logger.Error("alarm: an object of the bucket is damaged or missing", "object", key, "error", err)
		},
		ClaimLost: func(err error) {
			n.alarms.Inc()
			n.gate.open.Store(false)
			n.logger.Error("alarm: this cluster no longer owns the bucket's prefix; nothing is archived or deleted any more", "error", err)
		},
		UnknownKey: func(key string) {
			n.logger.Warn("the bucket holds a key that belongs to nothing known; it is left alone", "object", key)
		},
		DeleteFailed: func(key string, err error) {
			n.logger.Warn("an object could not be deleted; trying again", "object", key, "error", err)
		},
	}
}

// serve answers on the listeners: requests on the first, metrics and profiles on
// the second.
func (n *node) serve(listeners []net.Listener) {
	n.start(listeners[0], n.edge.Handler())
	if len(listeners) > 1 {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", n.edge.Metrics())
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		n.start(listeners[1], mux)
	}
}

func (n *node) start(l net.Listener, h http.Handler) {
	server := edge.HTTP(h, n.logger)
	n.https = append(n.https, server)
	n.group.Go("http "+l.Addr().String(), func(context.Context) error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
}

// drain stops in order: no new work, what is under way is answered, the parts end.
// Clients may take half of the time; the rest is for the log.
func (n *node) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.ShutdownTimeout)
	defer cancel()
	n.hangUp(n.cfg.ShutdownTimeout / 2)
	n.group.Stop()
	err := n.group.Wait()
	n.stopped = true
	return errors.Join(err, n.broker.Close(ctx))
}

// failing is how long clients may take to hear that the server fails.
const failing = 2 * time.Second

// hangUp takes no new work and waits for what is under way to be answered; clients
// that do not end in time are cut.
func (n *node) hangUp(wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	n.edge.Drain()
	for _, s := range n.https {
		if err := s.Shutdown(ctx); err != nil {
			n.logger.Warn("clients that would not end in time are cut")
			_ = s.Close()
		}
	}
}

// close gives back what is open. After a graceful stop the broker is closed; after
// a failure it is left as a crash would leave it: its log has failed, or nothing
// was offered to anybody.
func (n *node) close() error {
	for _, s := range n.https {
		_ = s.Close()
	}
	if n.broker != nil && !n.stopped {
		n.broker.Kill()
	}
	if n.group != nil {
		n.group.Stop()
		_ = n.group.Wait() // its error has been returned by serve
	}
	if n.store != nil {
		_ = n.store.Close()
	}
	if n.gate != nil {
		_ = n.gate.Close()
	}
	if n.kv != nil {
		return n.kv.Close()
	}
	return nil
}
