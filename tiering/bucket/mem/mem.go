package mem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/varve-io/varve/tiering/bucket"
)

// Bucket is an in-memory [bucket.Bucket]. Make it with [New].
type Bucket struct {
	name string

	mu      sync.Mutex
	objects map[string]object
	keys    []string // sorted
}

type object struct {
	data []byte // never changed
	crc  uint32
}

var _ bucket.Bucket = (*Bucket)(nil)

// New returns an empty bucket; name stands in its messages.
func New(name string) *Bucket {
	return &Bucket{name: name, objects: make(map[string]object)}
}

// Location is "mem:" and the name.
func (b *Bucket) Location() string { return "mem:" + b.name }

// Close does nothing; the objects stay.
func (b *Bucket) Close() error { return nil }

// Put stores a copy of body.
func (b *Bucket) Put(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
	if err := b.check(ctx, "put", key); err != nil {
		return bucket.Info{}, err
	}
	data, err := io.ReadAll(&contextReader{ctx, body.Reader()})
	if err != nil {
		return bucket.Info{}, fmt.Errorf("read the body of %q: %w", key, err)
	}
	if body.Size() >= 0 && int64(len(data)) != body.Size() {
		return bucket.Info{}, b.fail("put", key, bucket.ErrCorrupt, "the body ended after %d of %d bytes", len(data), body.Size())
	}
	crc := bucket.Checksum(data)
	if opts.CRC32C != nil && *opts.CRC32C != crc {
		return bucket.Info{}, b.fail("put", key, bucket.ErrCorrupt, "the body's CRC32C is %08x, not %08x", crc, *opts.CRC32C)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.folder(key); err != nil {
		return bucket.Info{}, err
	}
	if _, taken := b.objects[key]; taken && opts.IfAbsent {
		return bucket.Info{}, b.fail("put", key, bucket.ErrExists, "")
	} else if !taken {
		i, _ := slices.BinarySearch(b.keys, key)
		b.keys = slices.Insert(b.keys, i, key)
	}
	b.objects[key] = object{data, crc}
	return bucket.Info{Key: key, Size: int64(len(data)), CRC32C: crc, Checked: true}, nil
}

// folder refuses a key that is the folder of another, or lies in one.
func (b *Bucket) folder(key string) error {
	for i := range len(key) {
		if key[i] == '/' {
			if _, taken := b.objects[key[:i]]; taken {
				return b.fail("put", key, bucket.ErrInvalid, "%q is an object, so it can't be a folder", key[:i])
			}
		}
	}
	i, _ := slices.BinarySearch(b.keys, key+"/")
	if i < len(b.keys) && strings.HasPrefix(b.keys[i], key+"/") {
		return b.fail("put", key, bucket.ErrInvalid, "it is the folder of %q", b.keys[i])
	}
	return nil
}

// Get returns a copy of a range.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := b.check(ctx, "get", key); err != nil {
		return nil, err
	}
	if offset < 0 || length < 0 {
		return nil, b.fail("get", key, bucket.ErrInvalid, "offset %d, length %d", offset, length)
	}
	if length == 0 {
		return []byte{}, nil
	}
	o, err := b.object("get", key)
	if err != nil {
		return nil, err
	}
	if offset > int64(len(o.data)) || length > int64(len(o.data))-offset {
		return nil, b.fail("get", key, bucket.ErrCorrupt, "it has %d bytes; asked for %d from %d on", len(o.data), length, offset)
	}
	return slices.Clone(o.data[offset : offset+length]), nil
}

// Load returns a copy of a whole object.
func (b *Bucket) Load(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	if err := b.check(ctx, "load", key); err != nil {
		return nil, bucket.Info{}, err
	}
	o, err := b.object("load", key)
	if err != nil {
		return nil, bucket.Info{}, err
	}
	if int64(len(o.data)) > limit {
		return nil, bucket.Info{}, b.fail("load", key, bucket.ErrTooLarge, "it has %d bytes, the limit is %d", len(o.data), limit)
	}
	data := slices.Clone(o.data)
	if data == nil {
		data = []byte{}
	}
	return data, o.info(key), nil
}

// Head describes an object.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Info, error) {
	if err := b.check(ctx, "head", key); err != nil {
		return bucket.Info{}, err
	}
	o, err := b.object("head", key)
	if err != nil {
		return bucket.Info{}, err
	}
	return o.info(key), nil
}

const page = 1000

// List yields keys in order. It holds no lock while the caller works.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		if err := bucket.CheckPrefix(prefix); err != nil {
			yield(bucket.Info{}, &bucket.Error{Op: "list", Bucket: b.Location(), Key: prefix, Kind: bucket.ErrInvalid, Err: err})
			return
		}
		for {
			if err := ctx.Err(); err != nil {
				yield(bucket.Info{}, b.fail("list", prefix, bucket.ErrUnavailable, "%w", err))
				return
			}
			infos := b.listPage(prefix, after)
			for _, info := range infos {
				if !yield(info, nil) {
					return
				}
			}
			if len(infos) < page {
				return
			}
			after = infos[len(infos)-1].Key
		}
	}
}

func (b *Bucket) listPage(prefix, after string) []bucket.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := sort.Search(len(b.keys), func(i int) bool { return b.keys[i] >= prefix && b.keys[i] > after })
	var out []bucket.Info
	for ; i < len(b.keys) && len(out) < page && strings.HasPrefix(b.keys[i], prefix); i++ {
		out = append(out, bucket.Info{Key: b.keys[i], Size: int64(len(b.objects[b.keys[i]].data))})
	}
	return out
}

// Delete removes keys.
func (b *Bucket) Delete(ctx context.Context, keys []string) error {
	var failed []bucket.KeyError
	for _, key := range keys {
		if err := b.check(ctx, "delete", key); err != nil {
			failed = append(failed, bucket.KeyError{Key: key, Err: err})
			continue
		}
		b.mu.Lock()
		if _, ok := b.objects[key]; ok {
			delete(b.objects, key)
			i, _ := slices.BinarySearch(b.keys, key)
			b.keys = slices.Delete(b.keys, i, i+1)
		}
		b.mu.Unlock()
	}
	if failed != nil {
		return &bucket.DeleteError{Failed: failed}
	}
	return nil
}

// Tidy finds nothing: an interrupted put leaves nothing.
func (b *Bucket) Tidy(ctx context.Context, _ time.Duration) (int, error) { return 0, ctx.Err() }

func (b *Bucket) object(op, key string) (object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.objects[key]
	if !ok {
		return object{}, b.fail(op, key, bucket.ErrNotExist, "")
	}
	return o, nil
}

func (o object) info(key string) bucket.Info {
	return bucket.Info{Key: key, Size: int64(len(o.data)), CRC32C: o.crc, Checked: true}
}

func (b *Bucket) check(ctx context.Context, op, key string) error {
	if err := bucket.CheckKey(key); err != nil {
		return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: bucket.ErrInvalid, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return b.fail(op, key, bucket.ErrUnavailable, "%w", err)
	}
	return nil
}

func (b *Bucket) fail(op, key string, kind error, format string, args ...any) error {
	e := &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: kind}
	if format != "" {
		e.Err = fmt.Errorf(format, args...)
	}
	return e
}

// contextReader stops a copy when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, errors.Join(bucket.ErrUnavailable, err)
	}
	return r.r.Read(p)
}
