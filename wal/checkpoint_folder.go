package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"path"
	"strings"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// checkpoints is the folder of checkpoint files. One goroutine at a time uses it.
type checkpoints struct {
	fs   vfs.FS
	dir  string
	next uint64 // number of the next file; never one that was used before
}

// openCheckpoints opens the folder of a data directory, making it if there is none.
func openCheckpoints(fsys vfs.FS, dataDir string) (*checkpoints, error) {
	c := &checkpoints{fs: fsys, dir: path.Join(dataDir, checkpointDir), next: 1}
	if err := vfs.MkdirAllSync(fsys, c.dir); err != nil {
		return nil, err
	}
	names, err := fsys.List(c.dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if n, ok := checkpointNumber(name); ok {
			c.next = max(c.next, n+1)
		}
	}
	return c, nil
}

func checkpointNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, checkpointSuffix)
	n, err := meta.ParseHex[uint64](digits)
	return n, ok && err == nil
}

func isCheckpointName(name string) bool {
	_, ok := checkpointNumber(name)
	return ok
}

// load reads the named checkpoint: first its size and checksum over the bytes on
// disk, then its sections. A reference to none calls nothing. A file that is
// missing or different is a [meta.ErrCorrupt] and refuses the start.
func (c *checkpoints) load(ref checkpointRef, visit func(*checkpointSection) error) (checkpointHeader, error) {
	if ref.Name == "" {
		return checkpointHeader{Next: 1}, nil
	}
	name := path.Join(c.dir, ref.Name)
	damaged := func(format string, args ...any) error {
		return meta.Errorf(meta.ErrCorrupt, "checkpoint %s, which the superblock names, %w: nothing was changed; "+
			"restore it, or move the data directory away to come back as a new copy that peers repair", name, fmt.Errorf(format, args...))
	}
	f, err := c.fs.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) {
		return checkpointHeader{}, damaged("is missing")
	}
	if err != nil {
		return checkpointHeader{}, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return checkpointHeader{}, err
	}
	if size != ref.Size {
		return checkpointHeader{}, damaged("has %d bytes instead of %d", size, ref.Size)
	}
	sum, err := checkpointSum(f, size)
	if err != nil {
		return checkpointHeader{}, fmt.Errorf("reading checkpoint %s: %w", name, err)
	}
	if sum != ref.CRC {
		return checkpointHeader{}, damaged("sums to %08x instead of %08x", sum, ref.CRC)
	}
	h, err := readCheckpoint(io.NewSectionReader(f, 0, size), size, func(_ checkpointHeader, s *checkpointSection) error { return visit(s) })
	if err != nil {
		return h, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	if h.Replay != ref.Replay {
		return h, damaged("starts its replay at %d instead of %d", h.Replay, ref.Replay)
	}
	return h, nil
}

// checkpointSum is the CRC32C of a file but for the CRC at its end, which the
// parser compares.
func checkpointSum(f io.ReaderAt, size int64) (uint32, error) {
	sum := crc32.New(castagnoli)
	_, err := io.CopyBuffer(sum, io.NewSectionReader(f, 0, max(0, size-4)), make([]byte, checkpointBuffer))
	return sum.Sum32(), err
}

// write makes a new checkpoint durable and returns what a superblock has to name.
// Sections come by shard number, strictly rising; each may be reused after yield
// returned. No file's name is ever used twice.
func (c *checkpoints) write(h checkpointHeader, sections iter.Seq2[*checkpointSection, error]) (checkpointRef, error) {
	ref := checkpointRef{Name: meta.Hex(c.next) + checkpointSuffix, Replay: h.Replay}
	c.next++
	err := vfs.WriteFileFrom(c.fs, path.Join(c.dir, ref.Name), func(w io.Writer) error {
		cw, err := newCheckpointWriter(w, h)
		if err != nil {
			return err
		}
		for s, err := range sections {
			if err == nil {
				err = cw.section(s)
			}
			if err != nil {
				return err
			}
		}
		ref.Size, ref.CRC, err = cw.finish()
		return err
	})
	if err != nil {
		return checkpointRef{}, fmt.Errorf("checkpoint %s: %w", ref.Name, err)
	}
	return ref, nil
}

// prune removes every checkpoint but the one that the durable superblock names,
// and what crashes left half-written. Files that are not ours stay.
func (c *checkpoints) prune(keep checkpointRef) error {
	names, err := c.fs.List(c.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == keep.Name || !isCheckpointName(strings.TrimSuffix(name, vfs.TempSuffix)) {
			continue
		}
		if err := c.fs.Remove(path.Join(c.dir, name)); err != nil {
			return fmt.Errorf("removing an old checkpoint: %w", err)
		}
	}
	return nil
}
