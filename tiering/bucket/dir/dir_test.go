package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/buckettest"
)

func open(t *testing.T, path string) *Bucket {
	t.Helper()
	b, err := OpenPath(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestConformance(t *testing.T) {
	buckettest.Run(t, buckettest.Options{}, func(t *testing.T) bucket.Bucket { return open(t, t.TempDir()) })
}

// What a killed process left is removed at the next open; what a running one is
// writing is not.
func TestLeftovers(t *testing.T) {
	root := t.TempDir()
	dead := open(t, root)
	session := filepath.Join(root, dead.session)
	if err := os.WriteFile(filepath.Join(session, "7"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	dead.lock.Close() // as the kernel does for a killed process
	running := open(t, root)
	if _, err := os.Stat(session); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("left over: %v", err)
	}
	third := open(t, root)
	if n, err := third.Tidy(t.Context(), 0); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := running.Put(t.Context(), "a/b", bucket.Bytes([]byte("x")), bucket.PutOptions{}); err != nil {
		t.Fatal("a running process lost its folder:", err)
	}
	if got, _, err := third.Load(t.Context(), "a/b", 10); err != nil || string(got) != "x" {
		t.Fatal(string(got), err)
	}
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(root, own))
	if err != nil || len(entries) != 2 { // the lock and the third's session
		t.Fatal(entries, err)
	}
}

// Files and folders are the user's alone, and folders go with their last object.
func TestModesAndFolders(t *testing.T) {
	root := filepath.Join(t.TempDir(), "new")
	b := open(t, root)
	if _, err := b.Put(t.Context(), "a/b/c.seg", bucket.Bytes([]byte("x")), bucket.PutOptions{IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), []string{"a/b/c.seg"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("an empty folder stays: %v", err)
	}
}

// A root that went away has no missing objects, and no empty listing.
func TestRootGone(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	b := open(t, root)
	if _, err := b.Put(t.Context(), "a", bucket.Bytes(nil), bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root, root+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	_, headErr := b.Head(t.Context(), "b")
	deleteErr := b.Delete(t.Context(), []string{"b"})
	var listErr error
	for _, err := range b.List(t.Context(), "", "") {
		listErr = err
	}
	for _, err := range []error{headErr, deleteErr, listErr} {
		if !errors.Is(err, bucket.ErrUnavailable) || errors.Is(err, bucket.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
}

// Links lead nowhere outside, pipes don't block, and foreign files are not listed
// where they can't be keys.
func TestStrangeFiles(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, root)
	err := errors.Join(os.Symlink(outside, filepath.Join(root, "link")), os.Symlink(filepath.Dir(outside), filepath.Join(root, "folder")),
		syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600), os.WriteFile(filepath.Join(root, "no key"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"link", "folder/secret", "pipe"} {
		if got, _, err := b.Load(t.Context(), key, 100); err == nil {
			t.Errorf("%s: read %q", key, got)
		}
	}
	if _, err := b.Put(t.Context(), "folder/x", bucket.Bytes(nil), bucket.PutOptions{}); err == nil {
		t.Error("put through a link that leads outside")
	}
	for info, err := range b.List(t.Context(), "", "") {
		t.Errorf("listed %q, %v", info.Key, err)
	}
}

// A bit that flipped on disk is found by the checksum kept with the file.
func TestRot(t *testing.T) {
	root := t.TempDir()
	b := open(t, root)
	if _, err := b.Put(t.Context(), "x", bucket.Bytes([]byte("some bytes")), bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(root, "x"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("S"), 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, _, err := b.Load(t.Context(), "x", 100); !errors.Is(err, bucket.ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
	if err := os.Truncate(filepath.Join(root, "x"), 3); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "x", 0, 10); !errors.Is(err, bucket.ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
}

// A relative path is where it was when the bucket was opened.
func TestRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	b, err := Open(t.Context(), "dir:some/bucket")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	t.Chdir(t.TempDir())
	if _, err := b.Put(t.Context(), "a/b", bucket.Bytes([]byte("x")), bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), b.Location())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Head(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "s3://varve"); !errors.Is(err, bucket.ErrInvalid) {
		t.Fatal(err)
	}
}

// Rows: E10
// The root's own name is synced when it is opened, and every name above it: also one
// that a process made which died before it did so.
func TestE10_TheRootsOwnName(t *testing.T) {
	var synced []string
	sync := func(folder string) error {
		synced = append(synced, folder)
		switch folder {
		case "/srv":
			return &fs.PathError{Op: "open", Path: folder, Err: syscall.EACCES}
		case "/":
			return &fs.PathError{Op: "sync", Path: folder, Err: syscall.EROFS}
		}
		return nil
	}
	if err := syncAbove("/srv/varve/objects", sync); err != nil || !slices.Equal(synced, []string{"/srv/varve", "/srv", "/"}) {
		t.Fatal(synced, err)
	}
	broken := func(string) error { return syscall.EIO }
	if err := syncAbove("/srv/varve", broken); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if err := syncPath(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			store, err := OpenPath(b.Context(), b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := store.Put(b.Context(), fmt.Sprintf("streams/a/b/c/d/%d", i), bucket.Bytes(p), bucket.PutOptions{IfAbsent: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
