package dir

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/varve-io/varve/tiering/bucket"
)

// own is the folder of the store's own names; no key starts with a dot.
const own = ".varve"

// Bucket is a [bucket.Bucket] in a directory. Make it with [Open].
type Bucket struct {
	loc     bucket.Location
	root    *os.Root
	self    os.FileInfo // the root when it was opened
	session string      // folder of this process's uploads
	lock    *os.File    // held as long as the session is in use
	uploads atomic.Uint64
}

var _ bucket.Bucket = (*Bucket)(nil)

// Open opens the bucket at a URL, dir:///path or dir:path, and makes the directory
// (mode 0700) if it is missing. It removes what processes that are gone left behind
// of their uploads.
func Open(ctx context.Context, rawURL string) (*Bucket, error) {
	loc, err := bucket.ParseLocation(rawURL)
	if err != nil {
		return nil, err
	}
	if loc.Scheme != "dir" {
		return nil, &bucket.Error{Op: "open", Bucket: loc.String(), Kind: bucket.ErrInvalid, Advice: "write dir:///path"}
	}
	return OpenPath(ctx, loc.Path)
}

// OpenPath is [Open] for a path, absolute or relative.
func OpenPath(ctx context.Context, path string) (*Bucket, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("find the directory %q: %w", path, err)
	}
	b := &Bucket{loc: bucket.Location{Scheme: "dir", Path: abs}}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Bucket) open(ctx context.Context) (err error) {
	if err := os.MkdirAll(b.loc.Path, 0o700); err != nil {
		return b.fail("open", "", err)
	}
	if err := syncAbove(b.loc.Path, syncPath); err != nil {
		return b.fail("open", "", err)
	}
	if b.root, err = os.OpenRoot(b.loc.Path); err != nil {
		return b.fail("open", "", err)
	}
	defer func() {
		if err != nil {
			b.root.Close()
		}
	}()
	if b.self, err = b.root.Stat("."); err != nil {
		return b.fail("open", "", err)
	}
	if err := b.root.MkdirAll(own, 0o700); err != nil {
		return b.fail("open", own, err)
	}
	leave, err := b.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := b.sweep(); err != nil {
		return b.fail("open", own, err)
	}
	b.session = own + "/" + rand.Text()
	if err := b.root.Mkdir(b.session, 0o700); err != nil {
		return b.fail("open", b.session, err)
	}
	if b.lock, err = b.root.OpenFile(b.session+"/lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return b.fail("open", b.session, err)
	}
	if err := flock(b.lock, true); err != nil {
		b.lock.Close()
		return b.fail("open", b.session, err)
	}
	return nil
}

// syncAbove makes the name of a folder durable, and those of all above it: what a
// power cut takes of them it takes of every object. Folders that may not be opened,
// or can't be synced, were not made by us.
func syncAbove(folder string, sync func(string) error) error {
	for folder != filepath.Dir(folder) {
		folder = filepath.Dir(folder)
		err := sync(folder)
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	return nil
}

func syncPath(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// enter keeps other processes from entering, leaving or sweeping. Between the
// making of a session folder and the taking of its lock, a sweep would take it for
// one that is left over.
func (b *Bucket) enter(ctx context.Context) (leave func(), err error) {
	f, err := b.root.OpenFile(own+"/lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, b.fail("open", own, err)
	}
	// The lock is held for a few file operations only, so waiting for it in the
	// kernel is short; ctx is looked at before.
	if err := ctx.Err(); err != nil {
		f.Close()
		return nil, b.fail("open", own, err)
	}
	if err := flock(f, false); err != nil {
		f.Close()
		return nil, b.fail("open", own, err)
	}
	return func() { f.Close() }, nil
}

func flock(f *os.File, now bool) error {
	how := unix.LOCK_EX
	if now {
		how |= unix.LOCK_NB
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// sweep removes the sessions that no process holds and returns how many uploads
// were in them. The caller is the one that entered.
func (b *Bucket) sweep() (int, error) {
	entries, err := b.readDir(own)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		session := own + "/" + e.Name()
		f, err := b.root.OpenFile(session+"/lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return n, err
		}
		err = flock(f, true)
		if errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			continue // in use
		}
		if err == nil {
			var files []fs.DirEntry
			if files, err = b.readDir(session); err == nil {
				n += len(files) - 1
				err = b.root.RemoveAll(session)
			}
		}
		f.Close()
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Location is the bucket's URL.
func (b *Bucket) Location() string { return b.loc.String() }

// Close removes the folder of this process's uploads. Objects stay.
func (b *Bucket) Close() error {
	leave, err := b.enter(context.Background())
	if err == nil {
		err = b.root.RemoveAll(b.session)
		leave()
	}
	return errors.Join(err, b.lock.Close(), b.root.Close())
}
