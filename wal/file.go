package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync/atomic"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

const (
	walDir    = "wal"
	logSuffix = ".log"
	zeroChunk = 1 << 20
)

// logFile is one file of the log. Its header says which positions it holds; a
// free file holds none. Fields but pins are guarded by the log's mutex, or not
// shared yet.
type logFile struct {
	name   string // within the wal folder
	number uint64 // in the name
	f      vfs.File
	header frame.File // zero while free
	size   int64
	live   int64 // bytes of extents in it
	pins   atomic.Int32
}

func (f *logFile) first() Position { return Position(f.header.First) }
func (f *logFile) end() Position   { return Position(f.header.First) + Position(f.size) }

// limit is where the block for the last group begins.
func (f *logFile) limit() Position { return f.end() - frame.Block }

func (f *logFile) holds(p Position) bool {
	return f.header.Salt != 0 && p >= f.first() && p < f.end()
}

func (f *logFile) offset(p Position) int64 { return int64(p - f.first()) }

// readAt reads all of b at a position.
func (f *logFile) readAt(b []byte, p Position) error {
	n, err := f.f.ReadAt(b, f.offset(p))
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = meta.Errorf(meta.ErrCorrupt, "file ends early: %d of %d bytes", n, len(b))
	}
	return fmt.Errorf("reading %s/%s at position %d: %w", walDir, f.name, p, err)
}

func fileName(number uint64) string { return fmt.Sprintf("%08d%s", number, logSuffix) }

func fileNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, logSuffix)
	if !ok {
		return 0, false
	}
	var n uint64
	if _, err := fmt.Sscanf(digits, "%d", &n); err != nil || fileName(n) != name {
		return 0, false
	}
	return n, true
}

// folder makes and prepares log files. It keeps no state that needs a lock.
type folder struct {
	fs   vfs.FS
	dir  string // the wal folder
	rand io.Reader
	size int64
	// origin is the id that the directory was made with; every header bears it.
	origin meta.StorageID
	// spare is how much a new file leaves free on the disk: the ballast's room.
	spare atomic.Int64
	// skipDirSync is the twin NoDirSync.
	skipDirSync bool
}

// create makes a free file, written with zeroes and synced, and syncs its name.
// What a failure left behind is removed.
func (d *folder) create(number uint64) (*logFile, error) {
	name := fileName(number)
	full := path.Join(d.dir, name)
	need := uint64(d.size + d.spare.Load())
	if free, err := d.fs.Free(d.dir); err == nil && free < need {
		return nil, meta.Errorf(meta.ErrExhausted, "no room for another log file: %d bytes are free on the disk of %s, %d are needed; free some space", free, d.dir, need)
	}
	f, err := d.fs.Create(full)
	if err != nil {
		return nil, fmt.Errorf("creating log file %s: %w", full, exhausted(err))
	}
	if err = writeZeroes(f, 0, d.size); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = d.syncNames()
	}
	if err != nil {
		_ = f.Close()         // the first error is the one to tell
		_ = d.fs.Remove(full) // gives the room back; a leftover is found at the next start
		return nil, fmt.Errorf("writing log file %s before its use: %w", full, exhausted(err))
	}
	return &logFile{name: name, number: number, f: f, size: d.size}, nil
}

// syncNames makes the names of log files durable.
func (d *folder) syncNames() error {
	if d.skipDirSync {
		return nil
	}
	return d.fs.SyncDir(d.dir)
}

// refill writes a free file again that a crash may have left half-written.
func (d *folder) refill(f *logFile) error {
	if err := writeZeroes(f.f, 0, f.size); err != nil {
		return err
	}
	return f.f.Sync()
}

// prepare gives a free file its next life: a new salt and its place in the log,
// durable before it is used.
func (d *folder) prepare(f *logFile, first Position) error {
	salt, err := d.random()
	if err != nil {
		return err
	}
	h := frame.File{Size: f.size, First: uint64(first), Salt: salt, Storage: d.origin}
	if _, err := f.f.WriteAt(frame.AppendFile(nil, h), 0); err != nil {
		return fmt.Errorf("writing the header of log file %s: %w", f.name, err)
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("syncing the header of log file %s: %w", f.name, err)
	}
	f.header = h
	return nil
}

// remove deletes a free file and its name.
func (d *folder) remove(f *logFile) error {
	err := errors.Join(f.f.Close(), d.fs.Remove(path.Join(d.dir, f.name)))
	if err == nil {
		err = d.syncNames()
	}
	if err != nil {
		return fmt.Errorf("removing log file %s: %w", f.name, err)
	}
	return nil
}

// random returns a number that is not 0.
func (d *folder) random() (uint64, error) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(d.rand, b[:]); err != nil {
			return 0, fmt.Errorf("drawing a random salt: %w", err)
		}
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n, nil
		}
	}
}

func writeZeroes(f vfs.File, from, to int64) error {
	zeroes := make([]byte, min(zeroChunk, max(0, to-from)))
	for from < to {
		n := min(int64(len(zeroes)), to-from)
		if _, err := f.WriteAt(zeroes[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}
