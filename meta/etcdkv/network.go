package etcdkv

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Network makes a member one of several, and lets brokers without a member of
// their own reach it ([Connect]).
type Network struct {
	ListenClients string            // URL brokers connect to, such as "http://10.0.0.1:2379"
	ListenPeers   string            // URL the other members connect to
	Members       map[string]string // name to peer URL of every member, this one included
	Join          bool              // the cluster runs already and knows of this member
	// For https URLs: files in PEM form. Both sides must show a certificate of the CA.
	Certificate, Key, CA string
}

func (n Network) validate(name string) error {
	for what, u := range map[string]string{"clients": n.ListenClients, "peers": n.ListenPeers} {
		p, err := url.Parse(u)
		if err != nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https" {
			return meta.Invalidf("catalog: the URL to listen on for %s is %q: want http://HOST:PORT or https://HOST:PORT", what, u)
		}
		if p.Scheme == "https" && (n.Certificate == "" || n.Key == "" || n.CA == "") {
			return meta.Invalidf("catalog: %s wants certificate, key and CA", u)
		}
	}
	if n.Members[name] == "" {
		return meta.Invalidf("catalog: member %q does not stand in the list of members", name)
	}
	return nil
}

// network starts etcd with its network front.
func network(opt Options, log *zap.Logger) (*etcdserver.EtcdServer, func(), error) {
	n := opt.Network
	clients, err := url.Parse(n.ListenClients)
	if err != nil {
		return nil, nil, err
	}
	peers, err := url.Parse(n.ListenPeers)
	if err != nil {
		return nil, nil, err
	}
	mine, err := url.Parse(n.Members[opt.Name])
	if err != nil {
		return nil, nil, err
	}
	var members []string
	for name, u := range n.Members {
		members = append(members, name+"="+u)
	}
	slices.Sort(members)
	info := transport.TLSInfo{CertFile: n.Certificate, KeyFile: n.Key, TrustedCAFile: n.CA, ClientCertAuth: n.CA != ""}
	c := embed.NewConfig()
	c.Name, c.Dir = opt.Name, opt.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*clients}, []url.URL{*clients}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peers}, []url.URL{*mine}
	c.InitialCluster, c.InitialClusterToken = strings.Join(members, ","), "varve"
	if n.Join {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.ClientTLSInfo, c.PeerTLSInfo = info, info
	c.EnableGRPCGateway = false
	c.TickMs, c.ElectionMs = uint(opt.Tick/time.Millisecond), uint(10*opt.Tick/time.Millisecond)
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModeRevision, fmt.Sprint(opt.KeepRevisions)
	c.QuotaBackendBytes = opt.ceiling()
	c.MaxTxnOps, c.MaxRequestBytes = catalog.MaxOps, maxRequest
	c.UnsafeNoFsync = opt.NoSync
	c.WatchProgressNotifyInterval = progress
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, nil, err
	}
	return e.Server, e.Close, nil
}

// ConnectOptions say where the catalog's members are. Only Endpoints is needed.
type ConnectOptions struct {
	Endpoints []string // of one or more members, "http://10.0.0.1:2379"
	TLS       *tls.Config
	Prefix    string        // "" means "varve/", as in Options
	Timeout   time.Duration // until the first answer; 0 means 10 s
}

// Connect opens the catalog's store on members in other processes, or on an etcd
// that somebody else runs; that one must allow transactions of catalog.MaxOps
// operations and catalog.MaxRequestBytes. meta.ErrUnavailable when none answers.
func Connect(ctx context.Context, opt ConnectOptions) (*Store, error) {
	set(&opt.Timeout, 10*time.Second)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: opt.Endpoints, TLS: opt.TLS, Logger: zap.NewNop(), DialTimeout: opt.Timeout,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		MaxCallSendMsgSize: maxRequest,
		DialOptions:        []grpc.DialOption{grpc.WithDisableServiceConfig()},
	})
	if err != nil {
		return nil, meta.Errorf(meta.ErrUnavailable, "catalog at %q: %w", opt.Endpoints, err)
	}
	s := newStore(Options{Prefix: opt.Prefix}.withDefaults(), client, &failure{done: make(chan struct{})})
	ctx, cancel := context.WithTimeout(ctx, opt.Timeout)
	defer cancel()
	if _, _, _, err := s.Get(ctx, "cluster"); err != nil {
		s.Close()
		return nil, meta.Errorf(meta.ErrUnavailable, "catalog at %q does not answer: %w", opt.Endpoints, err)
	}
	return s, nil
}
