package etcdkv

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/varve-io/varve/meta"
)

// syncNames makes the names of etcd's files durable: etcd syncs what it writes,
// but not the names of its first log file and of its data file, and a power cut
// right after would take the catalog with it. Every folder below dir is synced,
// dir, and what lies above, since nobody else says that those were.
func syncNames(dir string, syncDir func(string) error) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // one of etcd's temporary ones
		}
		if err != nil || !d.IsDir() {
			return err
		}
		return syncDir(path)
	})
	if err != nil {
		return meta.Errorf(meta.ErrUnavailable, "the names of its files could not be made durable: %w", err)
	}
	at, err := filepath.Abs(dir)
	for err == nil && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		// What we may enter but not read held its names before we came.
		if err = syncDir(at); errors.Is(err, fs.ErrPermission) {
			return nil
		}
	}
	if err != nil {
		return meta.Errorf(meta.ErrUnavailable, "its name could not be made durable: %w", err)
	}
	return nil
}

// syncFolder makes the names in a folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
