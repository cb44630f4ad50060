package vfs

import (
	"errors"
	"io"
	"os"
)

// ErrLocked says that another process, or another part of this one, holds a lock.
var ErrLocked = errors.New("locked by another process")

// File is an open file. Offsets are explicit, so one handle serves one writer and
// many readers at once.
type File interface {
	// ReadAt follows io.ReaderAt: fewer bytes than asked come with io.EOF or
	// another error.
	io.ReaderAt
	// WriteAt writes at an offset and grows the file as needed; a gap reads as
	// zeroes. It returns how much was written when it fails half-way.
	io.WriterAt
	io.Closer
	// Sync makes the file's data and size durable (fdatasync). It says nothing
	// about the file's name: see [FS.SyncDir].
	Sync() error
	// Truncate changes the file's size.
	Truncate(size int64) error
	// Size is the file's current size in bytes.
	Size() (int64, error)
}

// FS is the part of a file system that the log needs. Paths are slash-separated;
// a bare relative path works. Errors satisfy errors.Is with fs.ErrNotExist,
// fs.ErrExist and syscall.ENOSPC where those apply.
type FS interface {
	// Create makes a new file for reading and writing, mode 0600. It fails with
	// fs.ErrExist when the name is taken.
	Create(path string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(path string) (File, error)
	// OpenRead opens an existing file for reading.
	OpenRead(path string) (File, error)
	// Remove deletes a file or an empty directory. Open handles keep reading.
	Remove(path string) error
	// Rename replaces newPath by oldPath in one step: a crash leaves the one or
	// the other. Open handles follow the file.
	Rename(oldPath, newPath string) error
	// MkdirAll makes a directory and its parents, mode 0700. Each new name is
	// durable only once its parent was synced: see [MkdirAllSync].
	MkdirAll(path string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(path string) error
	// List returns the names in a directory, sorted.
	List(path string) ([]string, error)
	// Stat describes a file or directory.
	Stat(path string) (os.FileInfo, error)
	// Lock takes an exclusive lock on a path, making the file if there is none. It
	// is held until the closer is closed or the process ends. It doesn't wait:
	// a lock that someone else holds is [ErrLocked].
	Lock(path string) (io.Closer, error)
	// Free returns the bytes still available on the file system that holds path.
	Free(path string) (uint64, error)
	// Mount names the mount that holds path. The name says nothing beyond this
	// boot of the machine; a file system that was unmounted and mounted again has
	// another one where the kernel can tell.
	Mount(path string) (string, error)
}
