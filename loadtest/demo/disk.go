package main

import (
	"context"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// allocated is how many bytes of disk the files under dir take: blocks, not
// lengths. A file that goes away meanwhile counts as nothing.
func allocated(dir string) int64 {
	var total int64
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		var s syscall.Stat_t
		if syscall.Lstat(path, &s) == nil {
			total += s.Blocks * 512
		}
		return nil
	})
	return total
}

// A DiskMeter samples what a directory takes on disk.
type DiskMeter struct {
	last, most, samples atomic.Int64
}

// Run samples dir at every interval until ctx ends.
func (m *DiskMeter) Run(ctx context.Context, dir string, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		n := allocated(dir)
		m.last.Store(n)
		m.most.Store(max(m.most.Load(), n))
		m.samples.Add(1)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
