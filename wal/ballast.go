package wal

import (
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"

	"github.com/varve-io/varve/wal/vfs"
)

const (
	ballastFile  = "ballast"
	smallBallast = 64 << 10
)

// ballast is a file that takes room for two checkpoints, so that a full disk
// leaves room for what frees some: it is given up when a checkpoint, a superblock
// or a run state meets a full disk, and made again later. One goroutine at a time.
type ballast struct {
	fs   vfs.FS
	name string
	// spare is told the size that the ballast has or should have, so that log files
	// never take its room while it is given up.
	spare *atomic.Int64
}

// ballastFor is room for two checkpoints of that many bytes.
func ballastFor(bytes int64) int64 { return max(2*bytes, smallBallast) }

// with runs f, and again without the ballast if the disk was full.
func (b *ballast) with(f func() error) error {
	err := f()
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	if b.fs.Remove(b.name) != nil {
		return exhausted(err) // there was nothing to give up
	}
	return exhausted(f())
}

// renew sees to a ballast of at least twice that many bytes. A disk that has no
// room for it has none; that is no failure.
func (b *ballast) renew(bytes int64) {
	want := ballastFor(bytes)
	b.spare.Store(want)
	if info, err := b.fs.Stat(b.name); err == nil {
		if info.Size() >= want && info.Size() <= 4*want {
			return
		}
		if b.fs.Remove(b.name) != nil {
			return
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return
	}
	f, err := b.fs.Create(b.name)
	if err != nil {
		return
	}
	err = writeZeroes(f, 0, want)
	if err == nil {
		err = f.Sync()
	}
	if errors.Join(err, f.Close()) != nil {
		_ = b.fs.Remove(b.name) // half a ballast is worse than none
	}
}
