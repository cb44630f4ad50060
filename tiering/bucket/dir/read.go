package dir

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/varve-io/varve/tiering/bucket"
)

// Get returns exactly the bytes asked for.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := b.check(ctx, "get", key); err != nil {
		return nil, err
	}
	if offset < 0 || length < 0 {
		return nil, b.failf("get", key, bucket.ErrInvalid, "offset %d, length %d", offset, length)
	}
	if length == 0 {
		return []byte{}, nil
	}
	f, size, err := b.openObject("get", key)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if offset > size || length > size-offset {
		return nil, b.failf("get", key, bucket.ErrCorrupt, "it has %d bytes; asked for %d from %d on", size, length, offset)
	}
	p := make([]byte, length)
	if err := b.readAt(f, key, p, offset); err != nil {
		return nil, err
	}
	return p, nil
}

func (b *Bucket) readAt(f *os.File, key string, p []byte, offset int64) error {
	n, err := f.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return b.failf("get", key, bucket.ErrCorrupt, "the file was cut while it was read: %d of %d bytes", n, len(p))
	}
	return b.fail("get", key, err)
}

// Load returns a whole object. One whose checksum doesn't match is read once more.
func (b *Bucket) Load(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	if err := b.check(ctx, "load", key); err != nil {
		return nil, bucket.Info{}, err
	}
	f, size, err := b.openObject("load", key)
	if err != nil {
		return nil, bucket.Info{}, err
	}
	defer f.Close()
	if size > limit {
		return nil, bucket.Info{}, b.failf("load", key, bucket.ErrTooLarge, "it has %d bytes, the limit is %d", size, limit)
	}
	info := b.info(f, key, size)
	p := make([]byte, size)
	for try := 1; ; try++ {
		if err := b.readAt(f, key, p, 0); err != nil {
			return nil, bucket.Info{}, err
		}
		crc := bucket.Checksum(p)
		if !info.Checked || crc == info.CRC32C {
			return p, info, nil
		}
		if try == 2 {
			return nil, bucket.Info{}, b.failf("load", key, bucket.ErrCorrupt, "its CRC32C is %08x, stored was %08x", crc, info.CRC32C)
		}
	}
}

// Head describes an object.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Info, error) {
	if err := b.check(ctx, "head", key); err != nil {
		return bucket.Info{}, err
	}
	f, size, err := b.openObject("head", key)
	if err != nil {
		return bucket.Info{}, err
	}
	defer f.Close()
	return b.info(f, key, size), nil
}

func (b *Bucket) info(f *os.File, key string, size int64) bucket.Info {
	crc, checked := checksum(f)
	return bucket.Info{Key: key, Size: size, CRC32C: crc, Checked: checked}
}

func (b *Bucket) openObject(op, key string) (*os.File, int64, error) {
	// Anything but a regular file, say a pipe, could block the open.
	info, err := b.root.Lstat(key)
	if isMissing(err) || err == nil && !info.Mode().IsRegular() {
		return nil, 0, b.missing(op, key)
	}
	if err != nil {
		return nil, 0, b.fail(op, key, err)
	}
	f, err := b.root.Open(key)
	if isMissing(err) {
		return nil, 0, b.missing(op, key)
	}
	if err != nil {
		return nil, 0, b.fail(op, key, err)
	}
	if info, err = f.Stat(); err != nil {
		f.Close()
		return nil, 0, b.fail(op, key, err)
	}
	return f, info.Size(), nil
}
