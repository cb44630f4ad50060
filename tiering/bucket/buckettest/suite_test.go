package buckettest

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/mem"
)

// wrong is a store that breaks one promise.
type wrong struct {
	bucket.Bucket
	put    func(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error)
	get    func(p []byte, err error) ([]byte, error)
	list   func(infos []bucket.Info) []bucket.Info
	delete func(ctx context.Context, keys []string) error
}

func (w *wrong) Put(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
	if w.put == nil {
		return w.Bucket.Put(ctx, key, body, opts)
	}
	return w.put(ctx, key, body, opts)
}

func (w *wrong) Get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	p, err := w.Bucket.Get(ctx, key, offset, length)
	if w.get == nil {
		return p, err
	}
	return w.get(p, err)
}

func (w *wrong) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	if w.list == nil {
		return w.Bucket.List(ctx, prefix, after)
	}
	return func(yield func(bucket.Info, error) bool) {
		var infos []bucket.Info
		for info, err := range w.Bucket.List(ctx, prefix, after) {
			if err != nil {
				yield(info, err)
				return
			}
			infos = append(infos, info)
		}
		for _, info := range w.list(infos) {
			if !yield(info, nil) {
				return
			}
		}
	}
}

func (w *wrong) Delete(ctx context.Context, keys []string) error {
	if w.delete == nil {
		return w.Bucket.Delete(ctx, keys)
	}
	return w.delete(ctx, keys)
}

// Each broken promise is found by the check that stands for it.
func TestSuiteFindsBrokenPromises(t *testing.T) {
	for check, broken := range map[string]func(inner bucket.Bucket) *wrong{
		"IfAbsent": func(in bucket.Bucket) *wrong { // overwrites
			return &wrong{put: func(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
				opts.IfAbsent = false
				return in.Put(ctx, key, body, opts)
			}}
		},
		"OneWinner": func(in bucket.Bucket) *wrong { // looks, then writes
			return &wrong{put: func(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
				opts.IfAbsent = false
				if _, err := in.Head(ctx, key); err == nil {
					return bucket.Info{}, bucket.ErrExists
				}
				time.Sleep(time.Millisecond)
				return in.Put(ctx, key, body, opts)
			}}
		},
		"BadChecksum": func(in bucket.Bucket) *wrong {
			return &wrong{put: func(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
				opts.CRC32C = nil
				return in.Put(ctx, key, body, opts)
			}}
		},
		"Ranges": func(bucket.Bucket) *wrong {
			return &wrong{get: func(p []byte, err error) ([]byte, error) { return p[:max(0, len(p)-1)], err }}
		},
		"Missing": func(bucket.Bucket) *wrong {
			return &wrong{get: func(p []byte, err error) ([]byte, error) {
				if errors.Is(err, bucket.ErrNotExist) {
					err = bucket.ErrUnavailable
				}
				return p, err
			}}
		},
		"ListOrder": func(bucket.Bucket) *wrong {
			return &wrong{list: func(infos []bucket.Info) []bucket.Info {
				slices.SortFunc(infos, func(a, b bucket.Info) int {
					return slices.Compare(strings.Split(a.Key, "/"), strings.Split(b.Key, "/"))
				})
				return infos
			}}
		},
		"ListPages": func(bucket.Bucket) *wrong {
			return &wrong{list: func(infos []bucket.Info) []bucket.Info { return infos[:min(1000, len(infos))] }}
		},
		"DeleteMany": func(in bucket.Bucket) *wrong {
			return &wrong{delete: func(ctx context.Context, keys []string) error { return in.Delete(ctx, keys[:min(1000, len(keys))]) }}
		},
		"Delete": func(in bucket.Bucket) *wrong {
			return &wrong{delete: func(ctx context.Context, keys []string) error {
				for _, k := range keys {
					if _, err := in.Head(ctx, k); err != nil {
						return err
					}
				}
				return in.Delete(ctx, keys)
			}}
		},
	} {
		t.Run(check, func(t *testing.T) {
			for _, c := range Checks(Options{}) {
				if c.Name != check {
					continue
				}
				if err := c.Run(t.Context(), mem.New("right")); err != nil {
					t.Fatal("a good store is refused:", err)
				}
				inner := mem.New("wrong")
				w := broken(inner)
				w.Bucket = inner
				if err := c.Run(t.Context(), w); err == nil {
					t.Fatal("the broken promise is not found")
				}
				return
			}
			t.Fatal("no such check")
		})
	}
}
