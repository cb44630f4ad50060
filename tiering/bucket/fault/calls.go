package fault

import (
	"context"
	"io"
	"iter"
	"slices"
	"time"

	"github.com/varve-io/varve/tiering/bucket"
)

// Put passes on to the bucket below, with the faults scripted for it.
func (b *Bucket) Put(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
	c := Call{Op: Put, Key: key}
	r := b.begin(c)
	var info bucket.Info
	do := func(ctx context.Context) (err error) {
		info, err = b.inner.Put(ctx, key, body, opts)
		return err
	}
	if r != nil && r.Late && r.hold != nil {
		// The bytes under way are a copy: the caller's are its own again.
		p, err := io.ReadAll(body.Reader())
		if err != nil {
			return bucket.Info{}, err
		}
		body = bucket.Bytes(p)
		if err := b.landLate(ctx, r, c, do); err != nil {
			return bucket.Info{}, err
		}
		return info, nil
	}
	if err := b.before(ctx, r, c); err != nil {
		return bucket.Info{}, err
	}
	if err := b.after(r, c, do(ctx)); err != nil {
		return bucket.Info{}, err
	}
	return info, nil
}

// landLate runs a held call that takes effect even when its caller is gone.
func (b *Bucket) landLate(ctx context.Context, r *rule, c Call, do func(context.Context) error) error {
	done := make(chan error, 1)
	far := context.WithoutCancel(ctx)
	b.late.Go(func() {
		err := b.before(far, r, c)
		if err == nil {
			err = b.after(r, c, do(far))
		}
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return b.fail(c, bucket.ErrUnknown, context.Cause(ctx))
	}
}

// Get passes on to the bucket below, with the faults scripted for it.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	c := Call{Op: Get, Key: key, Offset: offset, Length: length}
	r := b.begin(c)
	if err := b.before(ctx, r, c); err != nil {
		return nil, err
	}
	p, err := b.inner.Get(ctx, key, offset, length)
	if err := b.after(r, c, err); err != nil {
		return nil, err
	}
	return r.spoil(p), nil
}

// Load passes on to the bucket below, with the faults scripted for it.
func (b *Bucket) Load(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	c := Call{Op: Load, Key: key}
	r := b.begin(c)
	if err := b.before(ctx, r, c); err != nil {
		return nil, bucket.Info{}, err
	}
	p, info, err := b.inner.Load(ctx, key, limit)
	if err := b.after(r, c, err); err != nil {
		return nil, bucket.Info{}, err
	}
	return r.spoil(p), info, nil
}

func (r *rule) spoil(p []byte) []byte {
	if r == nil {
		return p
	}
	if r.Short > 0 {
		p = p[:max(0, int64(len(p))-r.Short)]
	}
	if r.Corrupt && len(p) > 0 {
		p[len(p)/2] ^= 0x10
	}
	return p
}

// Head passes on to the bucket below, with the faults scripted for it.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Info, error) {
	c := Call{Op: Head, Key: key}
	r := b.begin(c)
	if err := b.before(ctx, r, c); err != nil {
		return bucket.Info{}, err
	}
	info, err := b.inner.Head(ctx, key)
	if err := b.after(r, c, err); err != nil {
		return bucket.Info{}, err
	}
	return info, nil
}

// List passes on to the bucket below. A fault's After comes once all keys were
// yielded, as when the last page can't be had.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		c := Call{Op: List, Key: prefix}
		r := b.begin(c)
		if err := b.before(ctx, r, c); err != nil {
			yield(bucket.Info{}, err)
			return
		}
		for info, err := range b.inner.List(ctx, prefix, after) {
			if !yield(info, err) || err != nil {
				return
			}
		}
		if err := b.after(r, c, nil); err != nil {
			yield(bucket.Info{}, err)
		}
	}
}

// Delete passes on to the bucket below, with the faults scripted for it.
func (b *Bucket) Delete(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	keys = slices.Clone(keys)
	c := Call{Op: Delete, Key: keys[0], Keys: keys}
	r := b.begin(c)
	do := func(ctx context.Context) error { return b.refuse(ctx, r, keys) }
	var err error
	if r != nil && r.Late && r.hold != nil {
		err = b.landLate(ctx, r, c, do)
	} else if err = b.before(ctx, r, c); err == nil {
		err = b.after(r, c, do(ctx))
	}
	if err == nil || bucket.Remaining(err) != nil {
		return err
	}
	failed := make([]bucket.KeyError, len(keys))
	for i, k := range keys {
		failed[i] = bucket.KeyError{Key: k, Err: err}
	}
	return &bucket.DeleteError{Failed: failed}
}

// refuse deletes all keys but those that the fault refuses.
func (b *Bucket) refuse(ctx context.Context, r *rule, keys []string) error {
	if r == nil || r.Refuse == nil {
		return b.inner.Delete(ctx, keys)
	}
	kind := r.Before
	if kind == nil {
		kind = bucket.ErrDenied
	}
	var rest []string
	var failed []bucket.KeyError
	for _, k := range keys {
		if slices.Contains(r.Refuse, k) {
			failed = append(failed, bucket.KeyError{Key: k, Err: b.fail(Call{Op: Delete, Key: k}, kind, nil)})
		} else {
			rest = append(rest, k)
		}
	}
	err := b.inner.Delete(ctx, rest)
	for _, k := range bucket.Remaining(err) {
		failed = append(failed, bucket.KeyError{Key: k, Err: err})
	}
	if failed == nil {
		return err
	}
	return &bucket.DeleteError{Failed: failed}
}

// Tidy passes on to the bucket below, with the faults scripted for it.
func (b *Bucket) Tidy(ctx context.Context, age time.Duration) (int, error) {
	c := Call{Op: Tidy}
	r := b.begin(c)
	if err := b.before(ctx, r, c); err != nil {
		return 0, err
	}
	n, err := b.inner.Tidy(ctx, age)
	return n, b.after(r, c, err)
}

// Location is that of the bucket below.
func (b *Bucket) Location() string { return b.inner.Location() }

// Close waits for calls that land late and closes the bucket below. Held calls have
// to be released before.
func (b *Bucket) Close() error {
	b.late.Wait()
	return b.inner.Close()
}
