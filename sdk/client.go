package sdk

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"

	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/sdk/proto/varve/v1/varvev1connect"
)

// Options say how to reach servers. The zero value is good for most.
type Options struct {
	// TLS is used for https addresses; nil means the system's roots.
	TLS *tls.Config
	// HTTPClient replaces the package's own, which speaks HTTP/2 only (cleartext for
	// http addresses) with windows made for streaming.
	HTTPClient connect.HTTPClient
	// MinBackoff and MaxBackoff bound the pause between two tries; it grows and is
	// drawn at random from the first try on. Default 50 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// Ping is how long a connection may be silent before it is checked, and how long
	// the check may take. A half-open one is noticed after twice that. Default 10 s.
	Ping time.Duration
	// ConnectTimeout bounds how long a session may take to open. Default 10 s.
	ConnectTimeout time.Duration
	// Heartbeat is how often the server is to show that a waiting read session
	// lives, 1 s to 60 s; after three of them without a sign the session is made
	// anew. Default 5 s.
	Heartbeat time.Duration
	// Events is told what happens; every field may be nil.
	Events Events
	// Connect are further options for the Connect clients, interceptors for example.
	Connect []connect.ClientOption
}

// Events are told what the client does by itself. Functions must not block.
type Events struct {
	// Retry is called before each pause between two tries.
	Retry func(err error, pause time.Duration)
}

func (e Events) retry(err error, pause time.Duration) {
	if e.Retry != nil {
		e.Retry(err, pause)
	}
}

func (o Options) withDefaults() Options {
	for _, d := range [...]struct {
		v    *time.Duration
		what time.Duration
	}{
		{&o.MinBackoff, 50 * time.Millisecond},
		{&o.MaxBackoff, 5 * time.Second},
		{&o.Ping, 10 * time.Second},
		{&o.ConnectTimeout, 10 * time.Second},
		{&o.Heartbeat, 5 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.what
		}
	}
	o.MaxBackoff = max(o.MaxBackoff, o.MinBackoff)
	return o
}

// Client talks to a cluster. Safe for concurrent use.
type Client struct {
	options Options
	servers []string // base URLs
	codec   batch.Codec
	http    connect.HTTPClient

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	owned  sync.WaitGroup // goroutines of producers and readers

	mu        sync.Mutex
	closed    bool
	endpoints map[string]*endpoint
}

// endpoint is one server's services.
type endpoint struct {
	streams varvev1connect.StreamServiceClient
	catalog varvev1connect.CatalogServiceClient
	cluster varvev1connect.ClusterServiceClient
}

// Dial makes a client for a server, or several with commas between: "host:port",
// "http://host:port" or "https://host:port". It connects when there is something to
// do. At most one Options is looked at. The error is [ErrInvalid].
func Dial(servers string, options ...Options) (*Client, error) {
	var o Options
	if len(options) > 0 {
		o = options[0]
	}
	c := &Client{options: o.withDefaults(), endpoints: map[string]*endpoint{}}
	for s := range strings.SplitSeq(servers, ",") {
		base, err := baseURL(strings.TrimSpace(s))
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, base)
	}
	c.http = c.options.HTTPClient
	if c.http == nil {
		c.http = newHTTPClient(c.options)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

func baseURL(s string) (string, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return "", invalidf("dial", "server address %q: want HOST:PORT, http://HOST:PORT or https://HOST:PORT", s)
	}
	return u.Scheme + "://" + u.Host, nil
}

// newHTTPClient makes a client that speaks HTTP/2 only. The connection's window
// is well above the stream's, or one reader that stalls would stall them all.
func newHTTPClient(o Options) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: o.TLS.Clone(),
		Proxy:           http.ProxyFromEnvironment,
		DialContext:     (&net.Dialer{Timeout: o.ConnectTimeout}).DialContext,
		IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:              256 << 10,
			MaxReceiveBufferPerStream:     4 << 20,
			MaxReceiveBufferPerConnection: 64 << 20,
			SendPingTimeout:               o.Ping,
			PingTimeout:                   o.Ping,
		},
	}}
}

// Close ends all that is under way, producers and reads included, and waits for it.
// Close producers first for their records to be delivered.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.owned.Wait()
	if h, ok := c.http.(*http.Client); ok && c.options.HTTPClient == nil {
		h.CloseIdleConnections()
	}
	return nil
}

// start runs f in a goroutine that Close waits for. It reports false after Close.
func (c *Client) start(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.owned.Go(f)
	return true
}

// at returns the services of the server with that base URL.
func (c *Client) at(base string) *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.endpoints[base]
	if e == nil {
		// Batches are compressed once, by the producer; gzip would cost twenty times
		// the CPU of all the rest.
		o := append([]connect.ClientOption{
			connect.WithAcceptCompression("gzip", nil, nil),
			connect.WithReadMaxBytes(maxMessage),
		}, c.options.Connect...)
		e = &endpoint{
			streams: varvev1connect.NewStreamServiceClient(c.http, base, o...),
			catalog: varvev1connect.NewCatalogServiceClient(c.http, base, o...),
			cluster: varvev1connect.NewClusterServiceClient(c.http, base, o...),
		}
		c.endpoints[base] = e
	}
	return e
}

// maxMessage bounds what is received in one message: a page of records, decoded.
const maxMessage = 32 << 20

// route chooses the server for a series of tries: first any, then the leader that
// an error named, then the next one.
type route struct {
	client *Client
	next   int
	leader string // base URL; empty when not known
	pause  *backoff.ExponentialBackOff
}

func (c *Client) newRoute() *route {
	r := &route{client: c, pause: &backoff.ExponentialBackOff{
		InitialInterval: c.options.MinBackoff, MaxInterval: c.options.MaxBackoff,
		Multiplier: 2, RandomizationFactor: 0.9,
	}}
	r.pause.Reset()
	return r
}

// server returns the services to use now.
func (r *route) server() *endpoint {
	if r.leader != "" {
		return r.client.at(r.leader)
	}
	return r.client.at(r.client.servers[r.next%len(r.client.servers)])
}

// worked makes the next pause a short one.
func (r *route) worked() { r.pause.Reset() }

// failed waits before the next try and chooses its server. The error is ctx's.
func (r *route) failed(ctx context.Context, e *Error) error {
	if r.leader == "" {
		r.next++
	}
	r.leader = ""
	if address := e.Detail.GetNotLeader().GetAddress(); address != "" {
		if base, err := baseURL(address); err == nil {
			r.leader = base
		}
	}
	pause := max(r.pause.NextBackOff(), e.RetryAfter())
	r.client.options.Events.retry(e, pause)
	return sleep(ctx, pause)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// randomID is a random producer id: 63 bits.
func randomID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:]) >> 1)
}
