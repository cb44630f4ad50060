package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// TempSuffix ends the name of a file that [WriteFile] has not finished. A crash
// can leave one; it means nothing and may be removed or overwritten.
const TempSuffix = ".tmp"

// WriteFile replaces the file at name by data, durably and in one step: a
// temporary file, fsync, rename, fsync of the directory. When it returns nil, a
// power cut leaves data; when it fails, the old content or data, never a mixture.
// One writer a name at a time.
func WriteFile(fsys FS, name string, data []byte) error {
	return WriteFileFrom(fsys, name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFileFrom is [WriteFile] for content that fill writes piece by piece.
func WriteFileFrom(fsys FS, name string, fill func(io.Writer) error) error {
	temp := name + TempSuffix
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the leftover %s: %w", temp, err)
	}
	f, err := fsys.Create(temp)
	if err != nil {
		return fmt.Errorf("creating %s: %w", temp, err)
	}
	if err = fill(&offsetWriter{f: f}); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = fsys.Remove(temp) // gives the space back; the error above is the one to tell
		return fmt.Errorf("writing %s: %w", temp, err)
	}
	if err := fsys.Rename(temp, name); err != nil {
		return fmt.Errorf("renaming %s: %w", temp, err)
	}
	if err := fsys.SyncDir(path.Dir(name)); err != nil {
		return fmt.Errorf("syncing the directory of %s: %w", name, err)
	}
	return nil
}

type offsetWriter struct {
	f  File
	at int64
}

func (w *offsetWriter) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.at)
	w.at += int64(n)
	return n, err
}

// ReadFile reads a whole file of at most most bytes. A larger one is an error
// before anything is allocated for it.
func ReadFile(fsys FS, name string, most int64) ([]byte, error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > most {
		return nil, fmt.Errorf("%s has %d bytes: at most %d are expected", name, size, most)
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !(errors.Is(err, io.EOF) && int64(n) == size) {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return b[:n], nil
}

// MkdirAllSync makes a directory and its parents and makes their names durable,
// also when they exist already: a crash may have come between the two before.
func MkdirAllSync(fsys FS, dir string) error {
	dir = path.Clean(dir)
	if err := fsys.MkdirAll(dir); err != nil {
		return fmt.Errorf("making directory %s: %w", dir, err)
	}
	for {
		parent := path.Dir(dir)
		if parent == dir {
			return nil
		}
		// A parent that we may enter but not read (such as / in a sandbox) held its
		// names before we came; so does everything above it.
		if err := fsys.SyncDir(parent); errors.Is(err, fs.ErrPermission) {
			return nil
		} else if err != nil {
			return fmt.Errorf("syncing directory %s: %w", parent, err)
		}
		dir = parent
	}
}
