package minio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Module is the MinIO server that is run, as `go install` takes it.
const Module = "github.com/minio/minio@" + Version

// Version is its pinned version.
const Version = "v0.0.0-20260212201848-7aac2a2c5b7c"

// Install returns the path of the pinned server's binary, and builds it first if
// the cache has none. That takes some minutes and needs the Go tool and the
// module proxy; ctx bounds it. While another process builds it, Install waits.
func Install(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory for the MinIO server: %w; set XDG_CACHE_HOME or HOME", err)
	}
	return install(ctx, filepath.Join(cache, "varve", "bin"), buildInto)
}

// install does Install's work in dir; build makes the file minio in a directory.
func install(ctx context.Context, dir string, build func(ctx context.Context, dir string) error) (string, error) {
	path := filepath.Join(dir, "minio")
	stamp := path + "-" + Version // names the version that lies at path
	if installed(path, stamp) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a cache directory for the MinIO server: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "minio.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if installed(path, stamp) {
		return path, nil
	}
	if adopt(ctx, path) {
		return path, writeStamp(stamp)
	}
	// Built next door and renamed, so that a build that is cut off leaves nothing
	// that looks like a binary.
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("make a directory for building the MinIO server: %w", err)
	}
	defer os.RemoveAll(work)
	if err := build(ctx, work); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(work, "minio"), path); err != nil {
		return "", fmt.Errorf("put the MinIO server in place: %w", err)
	}
	return path, writeStamp(stamp)
}

func installed(path, stamp string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o100 == 0 {
		return false
	}
	_, err = os.Stat(stamp)
	return err == nil
}

// adopt says whether the binary at path was built by hand from the pinned
// module.
func adopt(ctx context.Context, path string) bool {
	out, err := exec.CommandContext(ctx, "go", "version", "-m", path).Output()
	return err == nil && bytes.Contains(out, []byte("\tgithub.com/minio/minio\t"+Version+"\t"))
}

func writeStamp(stamp string) error {
	if err := os.WriteFile(stamp, []byte(Module+"\n"), 0o600); err != nil {
		return fmt.Errorf("note the version of the MinIO server: %w", err)
	}
	return nil
}

func buildInto(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "install", Module)
	cmd.Dir = dir // outside of any module, so that no go.mod interferes
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install the MinIO server: go install %s: %w: %s; check that `go` is in PATH and GOPROXY can be reached, or build it by hand with GOBIN set to that directory",
			Module, err, tail(out, 600))
	}
	return nil
}

func tail(b []byte, n int) []byte {
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return bytes.TrimSpace(b)
}

// lockFile takes an exclusive lock that ends with the process at the latest.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the MinIO installation: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another process that installs the MinIO server: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
