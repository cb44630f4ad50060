package s3

import (
	"fmt"
	"time"

	"github.com/varve-io/varve/tiering/bucket"
)

// Options tunes a bucket. The zero value is for production.
type Options struct {
	// AccessKey, SecretKey and SessionToken are the credentials. When AccessKey is
	// empty they come from AWS's usual places.
	AccessKey, SecretKey, SessionToken string

	PutLimit int64 // largest object put in one request, in bytes; default 64 MiB
	PartSize int64 // bytes of a part of larger ones, at least 5 MiB; default 8 MiB
	Buffers  int   // part buffers for streams, shared by all puts; default 8

	// RequestTimeout bounds one request of no size; each byte adds to it at
	// MinRate. Defaults 15 s and 256 KiB/s.
	RequestTimeout time.Duration
	MinRate        int64 // bytes per second

	// Budgets of retries, one a class.
	Reads, Writes, Lists, Deletes Budget
	// Longest wait between two attempts of one call; default 5 s.
	MaxBackoff time.Duration

	Events Events
}

// Budget bounds the retries of one class of calls.
type Budget struct {
	// For is how long a call goes on retrying; a shorter context ends it earlier.
	// Default 20 s for reads and lists, 60 s for writes and deletes.
	For time.Duration
	// PerSecond is how many requests of the class, all calls together, are sent
	// while it fails. Default 50 for reads, 10 for the others.
	PerSecond float64
}

// Events tells what goes on, for metrics. Nil functions are not called. They must
// not block.
type Events struct {
	// Request is called after each request with its name ("PutObject"), its time and
	// its error.
	Request func(name string, took time.Duration, err error)
	// Retry is called before a request is tried again, with the error of the last
	// try and the wait.
	Retry func(name string, err error, wait time.Duration)
}

const (
	minPart  = 5 << 20 // S3's smallest part but the last
	maxParts = 10_000  // S3's most parts
	maxBatch = 1000    // S3's most keys in one DeleteObjects
	maxPut   = 5 << 30 // S3's largest single put
	abortIn  = 20 * time.Second
	empties  = 100 // listing pages without a key, in a row, before the store is called broken
)

func (o Options) withDefaults() Options {
	def(&o.PutLimit, 64<<20)
	def(&o.PartSize, 8<<20)
	def(&o.Buffers, 8)
	def(&o.RequestTimeout, 15*time.Second)
	def(&o.MinRate, 256<<10)
	def(&o.MaxBackoff, 5*time.Second)
	for b, d := range map[*Budget]Budget{
		&o.Reads:   {20 * time.Second, 50},
		&o.Lists:   {20 * time.Second, 10},
		&o.Writes:  {60 * time.Second, 10},
		&o.Deletes: {60 * time.Second, 10},
	} {
		def(&b.For, d.For)
		def(&b.PerSecond, d.PerSecond)
	}
	return o
}

func def[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

func (o Options) validate() error {
	switch {
	case (o.AccessKey == "") != (o.SecretKey == ""):
		return invalid("an access key and a secret key go together")
	case o.PartSize < minPart:
		return invalid("the part size is %d bytes; S3 takes parts of at least %d", o.PartSize, int64(minPart))
	case o.PutLimit < 1 || o.PutLimit > maxPut:
		return invalid("the limit of a single put is %d bytes; it must be 1 to %d", o.PutLimit, int64(maxPut))
	case o.Buffers < 1, o.MinRate < 1, o.RequestTimeout < 0, o.MaxBackoff < 0:
		return invalid("buffers, rates and times must be positive")
	}
	for _, b := range []Budget{o.Reads, o.Writes, o.Lists, o.Deletes} {
		if b.For < 0 || b.PerSecond < 0 {
			return invalid("a retry budget must be positive")
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return &bucket.Error{Op: "open", Kind: bucket.ErrInvalid, Err: fmt.Errorf(format, args...)}
}
