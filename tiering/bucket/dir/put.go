package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"

	"github.com/varve-io/varve/tiering/bucket"
)

// Put stores body under key; see the package documentation for the steps.
func (b *Bucket) Put(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
	if err := b.check(ctx, "put", key); err != nil {
		return bucket.Info{}, err
	}
	upload := b.session + "/" + strconv.FormatUint(b.uploads.Add(1), 10)
	defer b.root.Remove(upload) // where it still is, it is of no use
	info, err := b.write(ctx, upload, key, body, opts)
	if err != nil {
		return bucket.Info{}, err
	}
	if err := b.publish(upload, key, opts.IfAbsent); err != nil {
		return bucket.Info{}, err
	}
	if err := b.syncUp(path.Dir(key)); err != nil {
		return bucket.Info{}, b.failf("put", key, bucket.ErrUnknown, "the object has its name, but that may not be durable: %w", err)
	}
	return info, nil
}

// write writes and syncs the body to a file of its own, and checks it.
func (b *Bucket) write(ctx context.Context, upload, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
	f, err := b.root.OpenFile(upload, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		if here := b.here("put", key); here != nil {
			return bucket.Info{}, here
		}
		return bucket.Info{}, b.fail("put", key, err)
	}
	defer f.Close()
	size, crc, err := b.copy(ctx, f, key, body.Reader())
	if err != nil {
		return bucket.Info{}, err
	}
	if body.Size() >= 0 && size != body.Size() {
		return bucket.Info{}, b.failf("put", key, bucket.ErrCorrupt, "the body ended after %d of %d bytes", size, body.Size())
	}
	if opts.CRC32C != nil && *opts.CRC32C != crc {
		return bucket.Info{}, b.failf("put", key, bucket.ErrCorrupt, "the body's CRC32C is %08x, not %08x", crc, *opts.CRC32C)
	}
	checked := setChecksum(f, crc)
	if err := f.Sync(); err != nil {
		return bucket.Info{}, b.fail("put", key, err)
	}
	if err := f.Close(); err != nil {
		return bucket.Info{}, b.fail("put", key, err)
	}
	return bucket.Info{Key: key, Size: size, CRC32C: crc, Checked: checked}, nil
}

const copyBuffer = 256 << 10

// copy tells the body's errors, which are the caller's own, from the file's.
func (b *Bucket) copy(ctx context.Context, f *os.File, key string, r io.Reader) (size int64, crc uint32, err error) {
	buf := make([]byte, copyBuffer)
	for {
		if err := ctx.Err(); err != nil {
			return 0, 0, b.fail("put", key, err)
		}
		n, readErr := r.Read(buf)
		if n > 0 {
			crc = bucket.Update(crc, buf[:n])
			size += int64(n)
			if _, err := f.Write(buf[:n]); err != nil {
				return 0, 0, b.fail("put", key, err)
			}
		}
		if readErr == io.EOF {
			return size, crc, nil
		}
		if readErr != nil {
			return 0, 0, fmt.Errorf("read the body of %q: %w", key, readErr)
		}
	}
}

// publish gives an upload its key. The folder is made first; a delete elsewhere may
// remove it again while it is empty, so that is tried some times.
func (b *Bucket) publish(upload, key string, ifAbsent bool) error {
	var err error
	for range 100 {
		if err = b.root.MkdirAll(path.Dir(key), 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			break
		}
		if ifAbsent {
			err = b.root.Link(upload, key)
		} else {
			err = b.root.Rename(upload, key)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		break
	}
	if err == nil {
		return nil
	}
	if here := b.here("put", key); here != nil {
		return here
	}
	if !errors.Is(err, fs.ErrExist) {
		return b.fail("put", key, err)
	}
	if info, statErr := b.root.Lstat(key); statErr == nil && info.IsDir() {
		return b.failf("put", key, bucket.ErrInvalid, "it is the folder of other objects, and no key may be")
	}
	// The other writer's name may not be durable yet; it is, once this says so.
	if err := b.syncUp(path.Dir(key)); err != nil {
		return b.fail("put", key, err)
	}
	return &bucket.Error{Op: "put", Bucket: b.Location(), Key: key, Kind: bucket.ErrExists}
}

// syncUp makes the names in a folder durable, and those of all folders above. None
// can be left out because it was there before: whoever made it may not have synced
// it yet.
func (b *Bucket) syncUp(folder string) error {
	for {
		if err := b.syncFolder(folder); err != nil {
			return err
		}
		if folder == "." {
			return nil
		}
		folder = path.Dir(folder)
	}
}

func (b *Bucket) syncFolder(folder string) error {
	d, err := b.root.Open(folder)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}
