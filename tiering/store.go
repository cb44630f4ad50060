package tiering

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/segment"
)

// Options shape a [Store]. Bucket and Cluster are required; zero elsewhere means
// the default.
type Options struct {
	Bucket  bucket.Bucket  // the prefix is the bucket's; closed by whoever made it
	Cluster meta.ClusterID // whose claims are ours

	CacheBytes int64 // memory for blocks and indexes; default 256 MiB, negative for none
	Downloads  int   // requests for cold reads at once; default 32
	ReadAhead  int   // blocks fetched ahead of a scan; default 4, negative for none
	BlockSize  int   // of segments written; default segment.DefaultBlockSize

	GetTimeout    time.Duration // of one request that reads, or puts a small object; default 30 s
	FetchFor      time.Duration // how long a download is tried in all; default 2 min
	UploadTimeout time.Duration // of one attempt to upload a segment; default 10 min
	RetryMax      time.Duration // longest pause between attempts; default 30 s

	DeleteWindow time.Duration // how long after a check of the claim a delete may be sent; default 5 s
	Grace        time.Duration // how long retired objects are kept for reads elsewhere; default 1 min, negative for none

	Now    func() time.Time // default time.Now; for the grace and the delete window
	Rand   io.Reader        // for object ids; default crypto/rand
	Events Events
	Twins  Twins
}

// Twins switch single rules off, for tests that must then fail.
type Twins struct {
	GarbageByAge time.Duration // above 0: any unnamed object is garbage once it was seen for that long
	CacheByName  bool          // cache keys leave the incarnation out
}

// Events are called as things happen; nil ones are skipped. They must not block.
type Events struct {
	UploadRetry   func(key string, err error, wait time.Duration) // an attempt failed and another follows
	UploadGivenUp func(key string, err error)                     // the object may exist and is nobody's
	Damaged       func(key string, err error)                     // an object did not verify, or is missing
	ClaimLost     func(err error)                                 // a check found the claim gone; nothing is deleted any more
	UnknownKey    func(key string)                                // a sweep met a key that belongs to nothing known
	Deleted       func(key string)
	DeleteFailed  func(key string, err error)
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 256 << 20
	}
	num(&o.Downloads, 32)
	num(&o.ReadAhead, 4)
	num(&o.BlockSize, segment.DefaultBlockSize)
	def(&o.GetTimeout, 30*time.Second)
	def(&o.FetchFor, 2*time.Minute)
	def(&o.UploadTimeout, 10*time.Minute)
	def(&o.RetryMax, 30*time.Second)
	def(&o.DeleteWindow, 5*time.Second)
	def(&o.Grace, time.Minute)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Bucket == nil:
		return meta.Invalidf("tiering: no bucket given")
	case o.Cluster == meta.ClusterID{}:
		return meta.Invalidf("tiering: no cluster id given")
	case o.Downloads < 1:
		return meta.Invalidf("tiering: %d downloads at once: want 1 or more", o.Downloads)
	case o.GetTimeout < 0 || o.FetchFor < 0 || o.UploadTimeout < 0 || o.RetryMax < 0 || o.DeleteWindow < 0:
		return meta.Invalidf("tiering: a timeout is negative")
	}
	return nil
}

// Store is everything of one cluster in one bucket. Make it with [New].
type Store struct {
	opt     Options
	bucket  bucket.Bucket
	ctx     context.Context // of downloads; ends with Close
	cancel  context.CancelFunc
	permits chan struct{}
	cache   *cache
	count   counters
	held    atomic.Int64 // bytes of the blocks that readers keep

	mu      sync.Mutex // guards what follows; never held over a request
	claim   claimState
	readers map[*Reader]struct{}
	uploads map[*upload]struct{}
	givenUp map[string]struct{}  // keys of uploads that no mark will ever name
	seen    map[string]time.Time // when a sweep first found a retired object; zero once it is deleted
}

// New makes a store. It sends no request.
func New(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Store{
		opt: o, bucket: o.Bucket, ctx: ctx, cancel: cancel,
		permits: make(chan struct{}, o.Downloads),
		readers: make(map[*Reader]struct{}),
		uploads: make(map[*upload]struct{}),
		givenUp: make(map[string]struct{}),
		seen:    make(map[string]time.Time),
	}
	s.cache = newCache(o.CacheBytes, &s.count)
	return s, nil
}

// Close ends running downloads and waits for them. Readers fail afterwards.
func (s *Store) Close() error {
	s.cancel()
	s.cache.close()
	return nil
}

// Stats are counts since the store was made, but for the last two.
type Stats struct {
	Gets, GetBytes         uint64 // ranged reads that were answered
	GetRetries             uint64
	Damaged                uint64 // reads that did not verify
	CacheHits, CacheMisses uint64
	Evictions              uint64
	Uploads, UploadBytes   uint64 // segments, whole and verified
	UploadRetries          uint64
	UploadsGivenUp         uint64
	Manifests              uint64 // put, or found there already
	Deleted, DeleteFailed  uint64
	CacheBytes, InFlight   int64 // of now: bytes cached, downloads running
}

type counters struct {
	gets, getBytes, getRetries, damaged  atomic.Uint64
	hits, misses, evictions              atomic.Uint64
	uploads, uploadBytes, uploadRetries  atomic.Uint64
	givenUp, manifests, deleted, refused atomic.Uint64
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	c := &s.count
	st := Stats{
		Gets: c.gets.Load(), GetBytes: c.getBytes.Load(), GetRetries: c.getRetries.Load(), Damaged: c.damaged.Load(),
		CacheHits: c.hits.Load(), CacheMisses: c.misses.Load(), Evictions: c.evictions.Load(),
		Uploads: c.uploads.Load(), UploadBytes: c.uploadBytes.Load(), UploadRetries: c.uploadRetries.Load(),
		UploadsGivenUp: c.givenUp.Load(), Manifests: c.manifests.Load(),
		Deleted: c.deleted.Load(), DeleteFailed: c.refused.Load(),
	}
	st.CacheBytes, st.InFlight = s.cache.usage()
	return st
}
