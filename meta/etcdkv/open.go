package etcdkv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
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

// Store is the catalog's store on an embedded etcd member, or on ones elsewhere.
type Store struct {
	opt    Options
	server *etcdserver.EtcdServer // nil when it is in another process
	stop   func()                 // stops the server
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
	m, err := start(ctx, opt, f)
	if err != nil {
		return nil, err
	}
	s := newStore(opt, v3client.New(m.server), f)
	s.server, s.stop = m.server, m.stop
	s.wg.Go(s.maintainLoop)
	return s, nil
}

func newStore(opt Options, client *clientv3.Client, f *failure) *Store {
	s := &Store{opt: opt, client: client, failed: f, stop: func() {}, full: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// running is a server and how to stop it.
type running struct {
	server *etcdserver.EtcdServer
	stop   func()
}

// start makes the server on a goroutine of its own, as etcd's fatal messages end
// the goroutine they come from.
func start(ctx context.Context, opt Options, f *failure) (running, error) {
	var m running
	err := meta.Errorf(meta.ErrCorrupt, "etcd gave up")
	made := make(chan struct{})
	go func() {
		defer close(made)
		defer func() {
			if p := recover(); p != nil {
				if err, _ = p.(error); err == nil {
					err = meta.Errorf(meta.ErrCorrupt, "etcd gave up: %v", p)
				}
			}
		}()
		if opt.Network != nil {
			if m.server, m.stop, err = network(opt, logger(opt.Log, f)); err != nil {
				return
			}
			if err = syncNames(opt.Dir, opt.syncDir); err != nil {
				m.stop()
			}
			return
		}
		if m.server, err = etcdserver.NewServer(serverConfig(opt, logger(opt.Log, f))); err != nil {
			return
		}
		// Before the data file holds anything that a log without a name would lack.
		if err = syncNames(opt.Dir, opt.syncDir); err != nil {
			m.server.Cleanup()
			return
		}
		m.stop = m.server.HardStop
		m.server.Start()
	}()
	select {
	case <-made:
	case <-f.done: // a helper goroutine of etcd's ended; what waits for it never will
		return running{}, damaged(opt.Dir, f.err)
	case <-ctx.Done():
		return running{}, meta.Errorf(meta.ErrUnavailable, "catalog in %s: not started in time: %w", opt.Dir, ctx.Err())
	}
	if f.failed() {
		return running{}, damaged(opt.Dir, f.err)
	}
	var busy *net.OpError
	if errors.As(err, &busy) || errors.Is(err, meta.ErrUnavailable) {
		return running{}, meta.Errorf(meta.ErrUnavailable, "catalog in %s: %w", opt.Dir, err)
	}
	if err != nil {
		return running{}, damaged(opt.Dir, err)
	}
	select {
	case <-m.server.ReadyNotify():
		return m, nil
	case <-m.server.StopNotify():
		return running{}, damaged(opt.Dir, fmt.Errorf("etcd stopped during its start"))
	case <-f.done:
		return running{}, damaged(opt.Dir, f.err)
	case <-ctx.Done():
		m.stop()
		return running{}, meta.Errorf(meta.ErrUnavailable, "catalog in %s: not ready in time: %w", opt.Dir, ctx.Err())
	}
}

// progress is how often an idle watch hears of the revision. One that is lower than
// what the watch has seen says that an older catalog was put in place.
const progress = 2 * time.Second

func serverConfig(opt Options, log *zap.Logger) config.ServerConfig {
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
		MaxRequestBytes:             maxRequest,
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
		WatchProgressNotifyInterval: progress,
		CompactHashCheckTime:        d.CompactHashCheckTime,
		WarningApplyDuration:        d.WarningApplyDuration,
		WarningUnaryRequestDuration: d.WarningUnaryRequestDuration,
		DowngradeCheckTime:          d.DowngradeCheckTime,
		MaxLearners:                 membership.DefaultMaxLearners,
		V2Deprecation:               config.V2DeprDefault,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(opt.Name, log),
		Metrics:                     "basic",
	}
}

// damaged says why etcd's files can't be used. A disk that is full or out of reach
// does not damage them, and nobody should be told to put them away for that.
func damaged(dir string, why error) error {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(why, full) {
			return meta.Errorf(meta.ErrExhausted, "the catalog in %s can't be opened, as its disk is full: free some space there, and start again; its files are not damaged (%w)", dir, why)
		}
	}
	for _, away := range []error{syscall.EIO, syscall.EROFS, fs.ErrPermission, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(why, away) {
			return meta.Errorf(meta.ErrUnavailable, "the catalog in %s can't be opened: %w; see to that and start again, nothing says that its files are damaged", dir, why)
		}
	}
	return meta.Errorf(meta.ErrCorrupt, "the catalog's files in %s are damaged: %w; "+
		"nothing was changed. Put back a backup of that directory", dir, why)
}

// Failed is closed when etcd met something it cannot go on from, such as a
// failing disk. Err then says what; the process should exit.
func (s *Store) Failed() <-chan struct{} { return s.failed.done }

// Err is the reason behind Failed, or nil.
func (s *Store) Err() error {
	if s.failed.failed() {
		return s.failed.err
	}
	return nil
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
		s.stop()
	}()
	select {
	case <-stopped:
		return nil
	case <-s.failed.done: // its goroutines are gone; a stop would wait for ever
		return s.failed.err
	}
}
