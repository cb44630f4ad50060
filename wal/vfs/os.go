package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// OS returns the operating system's file system. Files are made with mode 0600,
// directories with 0700.
func OS() FS { return osFS{} }

type osFS struct{}

// native turns a slash-separated path into the system's own.
func native(path string) string {
	if path == "" {
		return "."
	}
	return filepath.FromSlash(path)
}

func (osFS) Create(path string) (File, error) {
	return openOS(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (osFS) Open(path string) (File, error) { return openOS(path, os.O_RDWR) }

func (osFS) OpenRead(path string) (File, error) { return openOS(path, os.O_RDONLY) }

func openOS(path string, flag int) (File, error) {
	f, err := os.OpenFile(native(path), flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Remove(path string) error { return os.Remove(native(path)) }

func (osFS) Rename(oldPath, newPath string) error {
	return os.Rename(native(oldPath), native(newPath))
}

func (osFS) MkdirAll(path string) error { return os.MkdirAll(native(path), 0o700) }

func (osFS) SyncDir(path string) error {
	d, err := os.Open(native(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) List(path string) ([]string, error) {
	entries, err := os.ReadDir(native(path))
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func (osFS) Stat(path string) (os.FileInfo, error) { return os.Stat(native(path)) }

func (osFS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(native(path), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = retryIntr(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	_ = f.Close() // nothing was written; the lock's own error is the one to tell
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}

func (osFS) Free(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := retryIntr(func() error { return unix.Statfs(native(path), &st) }); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

func (osFS) Mount(path string) (string, error) {
	fi, err := os.Stat(native(path))
	if err != nil {
		return "", err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "", &os.PathError{Op: "mount", Path: path, Err: errors.ErrUnsupported}
	}
	id, err := mountID(native(path))
	if err != nil {
		return "", &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return fmt.Sprintf("dev-%x-%s", uint64(st.Dev), id), nil
}

// osFile is an *os.File with the port's Sync and Size.
type osFile struct{ *os.File }

// Sync makes data and size durable. Only the first error after a failed write-back
// is ever reported by the kernel, so it is never retried here.
func (f osFile) Sync() error {
	if err := datasync(f.File); err != nil {
		return &os.PathError{Op: "sync", Path: f.Name(), Err: err}
	}
	return nil
}

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// retryIntr repeats a system call that a signal interrupted.
func retryIntr(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
