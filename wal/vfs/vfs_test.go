package vfs_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/varve-io/varve/wal/vfs"
)

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, f vfs.File, off int64, s string) {
	t.Helper()
	n, err := f.WriteAt([]byte(s), off)
	if err != nil || n != len(s) {
		t.Fatalf("WriteAt(%q, %d) = %d, %v", s, off, n, err)
	}
}

func create(t *testing.T, fsys vfs.FS, name, s string) vfs.File {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	put(t, f, 0, s)
	return f
}

// content reads a whole file; "<none>" when there is none.
func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	b, err := vfs.ReadFile(fsys, name, 1<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return "<none>"
	}
	must(t, err)
	return string(b)
}

// conform is what every file system must do. dir exists and is empty.
func conform(t *testing.T, fsys vfs.FS, dir string) {
	at := func(parts ...string) string { return path.Join(append([]string{dir}, parts...)...) }

	t.Run("files", func(t *testing.T) {
		f := create(t, fsys, at("f"), "hello")
		if _, err := fsys.Create(at("f")); !errors.Is(err, fs.ErrExist) {
			t.Errorf("creating it twice: %v", err)
		}
		put(t, f, 8, "gap")
		b := make([]byte, 16)
		n, err := f.ReadAt(b, 0)
		if n != 11 || err != io.EOF || string(b[:n]) != "hello\x00\x00\x00gap" {
			t.Errorf("ReadAt = %d %v %q", n, err, b[:n])
		}
		if n, err := f.ReadAt(b[:5], 0); n != 5 || err != nil && err != io.EOF {
			t.Errorf("a full read = %d, %v", n, err)
		}
		if n, err := f.ReadAt(b, 100); n != 0 || err != io.EOF {
			t.Errorf("a read behind the end = %d, %v", n, err)
		}
		must(t, f.Truncate(3))
		must(t, f.Truncate(6))
		if got := content(t, fsys, at("f")); got != "hel\x00\x00\x00" {
			t.Errorf("after cutting and growing: %q", got)
		}
		if size, err := f.Size(); size != 6 || err != nil {
			t.Errorf("Size = %d, %v", size, err)
		}
		must(t, f.Sync())
		must(t, f.Close())
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("writing a closed file: %v", err)
		}
		if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("closing twice: %v", err)
		}
		info, err := fsys.Stat(at("f"))
		must(t, err)
		if info.Mode() != 0o600 || info.Size() != 6 || info.Name() != "f" || info.IsDir() {
			t.Errorf("Stat = %v %d %q", info.Mode(), info.Size(), info.Name())
		}
		must(t, fsys.Remove(at("f")))
	})

	t.Run("read only", func(t *testing.T) {
		must(t, create(t, fsys, at("f"), "x").Close())
		f, err := fsys.OpenRead(at("f"))
		must(t, err)
		if _, err := f.WriteAt([]byte("y"), 0); err == nil {
			t.Error("a file opened for reading took a write")
		}
		must(t, f.Close())
		must(t, fsys.Remove(at("f")))
	})

	t.Run("missing", func(t *testing.T) {
		_, open := fsys.Open(at("none"))
		_, read := fsys.OpenRead(at("none"))
		_, stat := fsys.Stat(at("none"))
		_, list := fsys.List(at("none"))
		_, under := fsys.Create(at("none", "f"))
		_, lock := fsys.Lock(at("none", "f"))
		_, free := fsys.Free(at("none"))
		_, mount := fsys.Mount(at("none"))
		for _, err := range []error{open, read, stat, list, under, lock, free, mount,
			fsys.Remove(at("none")), fsys.Rename(at("none"), at("x")), fsys.SyncDir(at("none"))} {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("want not exist, got %v", err)
			}
		}
	})

	t.Run("names", func(t *testing.T) {
		must(t, fsys.MkdirAll(at("d", "e")))
		must(t, fsys.MkdirAll(at("d", "e")))
		info, err := fsys.Stat(at("d", "e"))
		must(t, err)
		if !info.IsDir() || info.Mode().Perm() != 0o700 {
			t.Errorf("directory is %v", info.Mode())
		}
		for _, name := range []string{"c", "a", "b"} {
			must(t, create(t, fsys, at("d", name), name).Close())
		}
		if names, err := fsys.List(at("d")); err != nil || !slices.Equal(names, []string{"a", "b", "c", "e"}) {
			t.Errorf("List = %q, %v", names, err)
		}
		open, err := fsys.OpenRead(at("d", "b"))
		must(t, err)
		must(t, fsys.Rename(at("d", "a"), at("d", "b")))
		must(t, fsys.Rename(at("d", "b"), at("d", "b")))
		if got := content(t, fsys, at("d", "b")); got != "a" {
			t.Errorf("after the rename: %q", got)
		}
		b := make([]byte, 1)
		if _, err := open.ReadAt(b, 0); (err != nil && err != io.EOF) || string(b) != "b" {
			t.Errorf("the replaced file reads %q, %v", b, err)
		}
		must(t, open.Close())
		must(t, fsys.Rename(at("d", "b"), at("d", "e", "moved")))
		if err := fsys.Remove(at("d")); err == nil {
			t.Error("removed a directory that isn't empty")
		}
		for _, d := range []string{at("d", "e"), at("d"), dir} {
			must(t, fsys.SyncDir(d))
		}
		for _, name := range []string{at("d", "c"), at("d", "e", "moved"), at("d", "e"), at("d")} {
			must(t, fsys.Remove(name))
		}
		if names, err := fsys.List(dir); err != nil || len(names) != 0 {
			t.Errorf("left over: %q, %v", names, err)
		}
	})

	t.Run("lock", func(t *testing.T) {
		l, err := fsys.Lock(at("LOCK"))
		must(t, err)
		if _, err := fsys.Lock(at("LOCK")); !errors.Is(err, vfs.ErrLocked) {
			t.Errorf("locking twice: %v", err)
		}
		must(t, l.Close())
		again, err := fsys.Lock(at("LOCK"))
		must(t, err)
		must(t, again.Close())
		must(t, fsys.Remove(at("LOCK")))
	})

	t.Run("room and mount", func(t *testing.T) {
		if n, err := fsys.Free(dir); n == 0 || err != nil {
			t.Errorf("Free = %d, %v", n, err)
		}
		a, err := fsys.Mount(dir)
		must(t, err)
		must(t, fsys.MkdirAll(at("d")))
		if b, err := fsys.Mount(at("d")); a == "" || a != b || err != nil {
			t.Errorf("Mount = %q, below it %q, %v", a, b, err)
		}
		must(t, fsys.Remove(at("d")))
	})

	t.Run("recipes", func(t *testing.T) {
		must(t, vfs.MkdirAllSync(fsys, at("r", "s")))
		must(t, vfs.WriteFile(fsys, at("r", "f"), []byte("one")))
		must(t, create(t, fsys, at("r", "f"+vfs.TempSuffix), "left by a crash").Close())
		must(t, vfs.WriteFile(fsys, at("r", "f"), []byte("two")))
		if got := content(t, fsys, at("r", "f")); got != "two" {
			t.Errorf("WriteFile left %q", got)
		}
		if _, err := vfs.ReadFile(fsys, at("r", "f"), 2); err == nil {
			t.Error("ReadFile took more than it was told")
		}
		for _, name := range []string{at("r", "f"), at("r", "s"), at("r")} {
			must(t, fsys.Remove(name))
		}
	})
}

func TestConform(t *testing.T) {
	t.Run("OS", func(t *testing.T) { conform(t, vfs.OS(), t.TempDir()) })
	t.Run("OSRelative", func(t *testing.T) {
		t.Chdir(t.TempDir())
		conform(t, vfs.OS(), ".")
	})
	t.Run("OSBare", func(t *testing.T) {
		t.Chdir(t.TempDir())
		must(t, os.Mkdir("data", 0o700))
		conform(t, vfs.OS(), "data")
	})
	t.Run("Mem", func(t *testing.T) {
		m := vfs.NewMem(1)
		must(t, m.MkdirAll("data"))
		conform(t, m, "data")
	})
	t.Run("MemBelow", func(t *testing.T) {
		m := vfs.NewMem(1)
		must(t, m.MkdirAll("/a/b"))
		conform(t, m, "a/b")
	})
	t.Run("MemCrashed", func(t *testing.T) {
		m := vfs.NewMem(1)
		must(t, vfs.MkdirAllSync(m, "a/b"))
		conform(t, m.CrashClone(vfs.CrashOptions{}), "/a/b")
	})
	t.Run("MemKilled", func(t *testing.T) {
		m := vfs.NewMem(1)
		must(t, m.MkdirAll("a/b"))
		conform(t, m.KillClone(), "a/b")
	})
	t.Run("FaultOS", func(t *testing.T) { conform(t, vfs.NewFault(vfs.OS()), t.TempDir()) })
	t.Run("FaultMem", func(t *testing.T) {
		m := vfs.NewMem(1)
		must(t, m.MkdirAll("data"))
		conform(t, vfs.NewFault(vfs.NewFault(m)), "data/.")
	})
}
