package etcdkv

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Store is an embedded etcd member as the catalog's store.
type Store struct {
	opt    Options
	server *etcdserver.EtcdServer
	client *clientv3.Client
	failed *failure

	ctx    context.Context // ends with Close, or when etcd fails
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // maintenance and watches
	full   chan struct{}  // asks for maintenance; holds one
	unseen atomic.Int64   // bytes written since the size in use was last looked at

	mu     sync.Mutex
	closed bool
}

// Open starts the member in opt.Dir and waits until it serves. Errors:
// meta.ErrCorrupt when its files are damaged, meta.ErrUnavailable when another
// process uses them or it does not get ready in time.
func Open(ctx context.Context, opt Options) (*Store, error) {
	opt = opt.withDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	if err := check(opt.Dir, opt.Prefix); err != nil {
		return nil, err
	}
	if opt.SegmentBytes != 0 && wal.SegmentSizeBytes != opt.SegmentBytes {
		wal.SegmentSizeBytes = opt.SegmentBytes
	}
	ctx, cancel := context.WithTimeout(ctx, opt.StartTimeout)
	defer cancel()
	f := &failure{done: make(chan struct{})}
	server, err := start(ctx, opt, f)
	if err != nil {
		return nil, err
	}
	s := &Store{opt: opt, server: server, client: v3client.New(server), failed: f, full: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.wg.Go(s.maintainLoop)
	return s, nil
}

// start makes the server on a goroutine of its own, as etcd's fatal messages end
// the goroutine they come from.
func start(ctx context.Context, opt Options, f *failure) (*etcdserver.EtcdServer, error) {
	cfg, err := serverConfig(opt, logger(opt.Log, f))
	if err != nil {
		return nil, err
	}
	var server *etcdserver.EtcdServer
	err = meta.Errorf(meta.ErrCorrupt, "etcd gave up")
	made := make(chan struct{})
	go func() {
		defer close(made)
		defer func() {
			if p := recover(); p != nil {
				err = meta.Errorf(meta.ErrCorrupt, "etcd gave up: %v", p)
			}
		}()
		server, err = etcdserver.NewServer(cfg)
	}()
	select {
	case <-made:
	case <-f.done: // a helper goroutine of etcd's ended; what waits for it never will
		return nil, damaged(opt.Dir, f.err)
	case <-ctx.Done():
		return nil, meta.Errorf(meta.ErrUnavailable, "catalog in %s: not started in time: %w", opt.Dir, ctx.Err())
	}
	select {
	case <-f.done:
		return nil, damaged(opt.Dir, f.err)
	default:
	}
	if err != nil {
		return nil, damaged(opt.Dir, err)
	}
	server.Start()
	select {
	case <-server.ReadyNotify():
		return server, nil
	case <-server.StopNotify():
		return nil, damaged(opt.Dir, fmt.Errorf("etcd stopped during its start"))
	case <-f.done:
		return nil, damaged(opt.Dir, f.err)
	case <-ctx.Done():
		server.HardStop()
		return nil, meta.Errorf(meta.ErrUnavailable, "catalog in %s: not ready in time: %w", opt.Dir, ctx.Err())
	}
}

func serverConfig(opt Options, log *zap.Logger) (config.ServerConfig, error) {
	// Nobody dials or listens on it: there is no other member.
	nowhere := types.URLs{url.URL{Scheme: "http", Host: "127.0.0.1:1"}}
	d := embed.NewConfig()
	return config.ServerConfig{
		Name:                        opt.Name,
		DataDir:                     opt.Dir,
		ClientURLs:                  nowhere,
		PeerURLs:                    nowhere,
		InitialPeerURLsMap:          types.URLsMap{opt.Name: nowhere},
		InitialClusterToken:         "varve",
		NewCluster:                  true,
		SnapshotCount:               d.SnapshotCount,
		SnapshotCatchUpEntries:      d.SnapshotCatchUpEntries,
		MaxSnapFiles:                d.MaxSnapFiles,
		MaxWALFiles:                 d.MaxWalFiles,
		TickMs:                      uint(opt.Tick / time.Millisecond),
		ElectionTicks:               10,
		InitialElectionTickAdvance:  true,
		AutoCompactionMode:          embed.CompactorModeRevision,
		AutoCompactionRetention:     time.Duration(opt.KeepRevisions),
		QuotaBackendBytes:           opt.ceiling(),
		MaxTxnOps:                   catalog.MaxOps,
		MaxRequestBytes:             catalog.MaxRequestBytes + 1<<20,
		MaxConcurrentStreams:        d.MaxConcurrentStreams,
		StrictReconfigCheck:         true,
		AuthToken:                   d.AuthToken,
		BcryptCost:                  d.BcryptCost,
		TokenTTL:                    d.AuthTokenTTL,
		CORS:                        d.CORS,
		HostWhitelist:               d.HostWhitelist,
		PreVote:                     true,
		Logger:                      log,
		UnsafeNoFsync:               opt.NoSync,
		CompactHashCheckTime:        d.CompactHashCheckTime,
		WarningApplyDuration:        d.WarningApplyDuration,
		WarningUnaryRequestDuration: d.WarningUnaryRequestDuration,
		DowngradeCheckTime:          d.DowngradeCheckTime,
		MaxLearners:                 membership.DefaultMaxLearners,
		V2Deprecation:               config.V2DeprDefault,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(opt.Name, log),
		Metrics:                     "basic",
	}, nil
}

func damaged(dir string, why error) error {
	return meta.Errorf(meta.ErrCorrupt, "the catalog's files in %s are damaged: %w; "+
		"nothing was changed. Put back a backup of that directory, or move it away and run `varve restore --from` the bucket", dir, why)
}

// Failed is closed when etcd met something it cannot go on from, such as a
// failing disk. Err then says what; the process should exit.
func (s *Store) Failed() <-chan struct{} { return s.failed.done }

// Err is the reason behind Failed, or nil.
func (s *Store) Err() error {
	select {
	case <-s.failed.done:
		return s.failed.err
	default:
		return nil
	}
}

// Close stops the member and waits for it. Calls under way fail.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel(catalog.ErrClosed)
	s.wg.Wait()
	s.client.Close()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.server.HardStop()
	}()
	select {
	case <-stopped:
		return nil
	case <-s.failed.done: // its goroutines are gone; a stop would wait for ever
		return s.failed.err
	}
}
