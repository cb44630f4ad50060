package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/varve-io/varve/tiering/bucket"
)

// fail explains an error of the file system.
func (b *Bucket) fail(op, key string, err error) error {
	e := &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Err: err}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Kind = bucket.ErrUnavailable
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Kind, e.Advice = bucket.ErrFull, "free space on that file system"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Kind, e.Advice = bucket.ErrDenied, "give this user the right to read and write below the directory"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		e.Kind, e.Advice = bucket.ErrInvalid, "no key may be the folder of another"
	case errors.Is(err, fs.ErrClosed):
		e.Kind, e.Advice = bucket.ErrUnavailable, "the bucket was closed"
	default:
		e.Kind, e.Advice = bucket.ErrUnavailable, "look at the disk and try again"
	}
	return e
}

func (b *Bucket) failf(op, key string, kind error, format string, args ...any) error {
	return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// check refuses a bad key and an ended context.
func (b *Bucket) check(ctx context.Context, op, key string) error {
	if err := bucket.CheckKey(key); err != nil {
		return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: bucket.ErrInvalid, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return b.fail(op, key, err)
	}
	return nil
}

// missing is the error for a name that was not found: ErrNotExist only if the root
// is still the one that was opened. An unmounted or replaced root lacks every
// object, and that must not pass for a fact.
func (b *Bucket) missing(op, key string) error {
	if err := b.here(op, key); err != nil {
		return err
	}
	return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: bucket.ErrNotExist}
}

func (b *Bucket) here(op, key string) error {
	now, err := os.Stat(b.loc.Path)
	if err == nil && os.SameFile(now, b.self) {
		return nil
	}
	return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: bucket.ErrUnavailable, Err: err,
		Advice: "the directory was moved, unmounted or replaced; bring it back, and restart if it is another one"}
}

func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
