package dir

import (
	"context"
	"path"

	"golang.org/x/sys/unix"

	"github.com/varve-io/varve/tiering/bucket"
)

// Delete removes keys, then makes that durable, a folder at a time, and removes
// folders that are left empty.
func (b *Bucket) Delete(ctx context.Context, keys []string) error {
	var failed []bucket.KeyError
	folders := make(map[string][]string) // folder -> keys that were removed from it
	for _, key := range keys {
		if err := b.remove(ctx, key); err != nil {
			failed = append(failed, bucket.KeyError{Key: key, Err: err})
			continue
		}
		folders[path.Dir(key)] = append(folders[path.Dir(key)], key)
	}
	for folder, removed := range folders {
		if err := b.settle(folder); err != nil {
			for _, key := range removed {
				failed = append(failed, bucket.KeyError{Key: key, Err: b.failf("delete", key, bucket.ErrUnknown, "the removal may not be durable: %w", err)})
			}
		}
	}
	if failed != nil {
		return &bucket.DeleteError{Failed: failed}
	}
	return nil
}

func (b *Bucket) remove(ctx context.Context, key string) error {
	if err := b.check(ctx, "delete", key); err != nil {
		return err
	}
	info, err := b.root.Lstat(key)
	if err == nil && !info.Mode().IsRegular() {
		return nil // a folder, or not ours: there is no such object
	}
	if err == nil {
		err = b.root.Remove(key)
	}
	if isMissing(err) {
		return b.here("delete", key)
	}
	if err != nil {
		return b.fail("delete", key, err)
	}
	return nil
}

// settle removes a folder and those above as far as they are empty, and syncs the
// first that stays.
func (b *Bucket) settle(folder string) error {
	for folder != "." && b.removeEmpty(folder) {
		folder = path.Dir(folder)
	}
	for {
		err := b.syncFolder(folder)
		if !isMissing(err) || folder == "." {
			return err
		}
		folder = path.Dir(folder) // removed meanwhile
	}
}

// removeEmpty removes a folder, never a file: an object may have that name.
func (b *Bucket) removeEmpty(folder string) bool {
	parent, err := b.root.Open(path.Dir(folder))
	if err != nil {
		return false
	}
	defer parent.Close()
	return control(parent, func(fd int) error {
		return unix.Unlinkat(fd, path.Base(folder), unix.AT_REMOVEDIR)
	}) == nil
}
