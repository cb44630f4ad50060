package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/varve-io/varve/tiering/bucket"
)

// Options says what differs between stores.
type Options struct {
	// Large is the size of the largest object that is tried; 3 MiB when zero.
	Large int64
	// FoldersUnchecked says that the store can't refuse a key that is the folder
	// of another.
	FoldersUnchecked bool
	// ChecksumsOptional says that the store may keep no checksums.
	ChecksumsOptional bool
}

// Check is one promise.
type Check struct {
	Name string
	Run  func(ctx context.Context, b bucket.Bucket) error
}

// Run checks all promises, each on a bucket (or prefix) of its own, empty, that open
// returns and closes when the test ends.
func Run(t *testing.T, opts Options, open func(t *testing.T) bucket.Bucket) {
	for _, c := range Checks(opts) {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(t.Context(), open(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Checks returns the suite.
func Checks(opts Options) []Check {
	if opts.Large == 0 {
		opts.Large = 3 << 20
	}
	s := &suite{opts}
	return []Check{
		{"RoundTrip", s.roundTrip},
		{"Ranges", s.ranges},
		{"Missing", s.missing},
		{"IfAbsent", s.ifAbsent},
		{"OneWinner", s.oneWinner},
		{"Overwrite", s.overwrite},
		{"BadChecksum", s.badChecksum},
		{"BadBody", s.badBody},
		{"Limit", s.limit},
		{"Keys", s.keys},
		{"HostileNames", s.hostileNames},
		{"Folders", s.folders},
		{"ListOrder", s.listOrder},
		{"ListPages", s.listPages},
		{"ListStops", s.listStops},
		{"Delete", s.delete},
		{"DeleteMany", s.deleteMany},
		{"Cancelled", s.cancelled},
		{"OwnBuffers", s.ownBuffers},
		{"Concurrent", s.concurrent},
		{"Errors", s.errors},
		{"Tidy", s.tidy},
	}
}

type suite struct{ opts Options }

// random is n bytes that depend on seed only.
func random(seed, n int64) []byte {
	p := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = src.Read(p) // never fails
	return p
}

func put(ctx context.Context, b bucket.Bucket, key string, p []byte) error {
	_, err := b.Put(ctx, key, bucket.Bytes(p), bucket.PutOptions{})
	return err
}

// putAll puts an object with its key's bytes under each key, some at a time.
func putAll(ctx context.Context, b bucket.Bucket, keys []string) error {
	return each(len(keys), func(i int) error { return put(ctx, b, keys[i], []byte(keys[i])) })
}

// each runs f for 0..n-1, 16 at a time.
func each(n int, f func(i int) error) error {
	errs := make(chan error, n)
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		go func() {
			errs <- f(i)
			<-slots
		}()
	}
	var all error
	for range n {
		all = errors.Join(all, <-errs)
	}
	return all
}

// holds says what is wrong with the object at key, which has to be want.
func (s *suite) holds(ctx context.Context, b bucket.Bucket, key string, want []byte) error {
	got, info, err := b.Load(ctx, key, int64(len(want)))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) || got == nil {
		return fmt.Errorf("%s: loaded %d bytes that are not the %d stored", key, len(got), len(want))
	}
	if err := s.describes(info, key, want); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if info, err = b.Head(ctx, key); err != nil {
		return err
	}
	if err := s.describes(info, key, want); err != nil {
		return fmt.Errorf("head: %w", err)
	}
	return nil
}

func (s *suite) describes(info bucket.Info, key string, want []byte) error {
	if info.Key != key || info.Size != int64(len(want)) {
		return fmt.Errorf("%s of %d bytes is described as %+v", key, len(want), info)
	}
	if info.Checked && info.CRC32C != bucket.Checksum(want) {
		return fmt.Errorf("%s: checksum %08x, want %08x", key, info.CRC32C, bucket.Checksum(want))
	}
	if !info.Checked && !s.opts.ChecksumsOptional {
		return fmt.Errorf("%s: the store keeps no checksum", key)
	}
	return nil
}

// absent says whether key is reported as missing by every call.
func absent(ctx context.Context, b bucket.Bucket, key string) error {
	_, headErr := b.Head(ctx, key)
	_, _, loadErr := b.Load(ctx, key, 1<<20)
	_, getErr := b.Get(ctx, key, 0, 1)
	for _, err := range []error{headErr, loadErr, getErr} {
		if !errors.Is(err, bucket.ErrNotExist) {
			return fmt.Errorf("%s should be missing, got %v", key, err)
		}
	}
	return nil
}

// list collects a listing.
func list(ctx context.Context, b bucket.Bucket, prefix, after string) ([]string, error) {
	var keys []string
	for info, err := range b.List(ctx, prefix, after) {
		if err != nil {
			return keys, err
		}
		keys = append(keys, info.Key)
	}
	return keys, nil
}

func want(err, kind error, what string, args ...any) error {
	if errors.Is(err, kind) {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %v", fmt.Sprintf(what, args...), err, kind)
}

func same(what string, got, want []string) error {
	if strings.Join(got, "\n") == strings.Join(want, "\n") {
		return nil
	}
	return fmt.Errorf("%s: got %d keys %.300q, want %d keys %.300q", what, len(got), got, len(want), want)
}
