package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"
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

// Rows: E10
func TestE10_NamesAreDurableOnlyAfterSyncDir(t *testing.T) {
	for name, step := range map[string]struct {
		do   func(m *vfs.Mem) error // one change of names below d, where "old" holds "O" and "keep" holds "K"
		lost map[string]string
		kept map[string]string
	}{
		"create": {func(m *vfs.Mem) error {
			f, err := m.Create("d/new")
			if err == nil {
				_, err = f.WriteAt([]byte("N"), 0)
			}
			return errors.Join(err, f.Sync())
		}, map[string]string{"d/new": "<none>"}, map[string]string{"d/new": "N"}},
		"remove": {func(m *vfs.Mem) error { return m.Remove("d/old") },
			map[string]string{"d/old": "O"}, map[string]string{"d/old": "<none>"}},
		"rename": {func(m *vfs.Mem) error { return m.Rename("d/old", "d/new") },
			map[string]string{"d/old": "O", "d/new": "<none>"}, map[string]string{"d/old": "<none>", "d/new": "O"}},
		"replace": {func(m *vfs.Mem) error { return m.Rename("d/old", "d/keep") },
			map[string]string{"d/old": "O", "d/keep": "K"}, map[string]string{"d/old": "<none>", "d/keep": "O"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem(1)
			must(t, m.MkdirAll("d"))
			must(t, create(t, m, "d/old", "O").Sync())
			must(t, create(t, m, "d/keep", "K").Sync())
			if got := content(t, m.CrashClone(vfs.CrashOptions{}), "d/old"); got != "<none>" {
				t.Fatalf("a name survived without any SyncDir: %q", got)
			}
			must(t, m.SyncDir("d"))
			if got := content(t, m.CrashClone(vfs.CrashOptions{}), "d/old"); got != "<none>" {
				t.Fatalf("a name survived in a directory whose own name was not synced: %q", got)
			}
			must(t, m.SyncDir("."))
			must(t, step.do(m))
			check := func(what string, c *vfs.Mem, want map[string]string) {
				t.Helper()
				for name, s := range want {
					if got := content(t, c, name); got != s {
						t.Errorf("%s: %s holds %q, want %q", what, name, got, s)
					}
				}
			}
			check("keep none", m.CrashClone(vfs.CrashOptions{}), step.lost)
			check("keep all", m.CrashClone(vfs.CrashOptions{Names: vfs.KeepAll}), step.kept)
			check("killed", m.KillClone(), step.kept)
			check("killed, then cut", m.KillClone().CrashClone(vfs.CrashOptions{}), step.lost)
			seen := map[bool]bool{}
			for seed := range uint64(50) {
				c := m.CrashClone(vfs.CrashOptions{Names: vfs.KeepSectors, Seed: seed + 1})
				lost := true
				for name, s := range step.lost {
					lost = lost && content(t, c, name) == s
				}
				if !lost {
					check("by chance", c, step.kept)
				}
				seen[lost] = true
			}
			if len(seen) != 2 {
				t.Error("chance always fell the same way")
			}
			must(t, m.SyncDir("d"))
			check("synced", m.CrashClone(vfs.CrashOptions{}), step.kept)
		})
	}
}

func TestMemLosesUnsyncedData(t *testing.T) {
	m := vfs.NewMem(7)
	f := create(t, m, "f", "")
	must(t, m.SyncDir(""))
	old := bytes.Repeat([]byte("o"), 3*4096)
	_, err := f.WriteAt(old, 0)
	must(t, err)
	must(t, f.Sync())
	fresh := bytes.Repeat([]byte("n"), 4*4096)
	_, err = f.WriteAt(fresh, 0)
	must(t, err)

	read := func(o vfs.CrashOptions) string { return content(t, m.CrashClone(o), "f") }
	if got := read(vfs.CrashOptions{}); got != string(old) {
		t.Error("keep none isn't the synced content")
	}
	if got := read(vfs.CrashOptions{Data: vfs.KeepAll}); got != string(fresh) {
		t.Error("keep all isn't the newest content")
	}
	if got := read(vfs.CrashOptions{Data: vfs.KeepLast}); got != string(old)+string(fresh[:4096]) {
		t.Error("keep last isn't the old pages with the new last one")
	}
	if n, _ := m.Unsynced(); n != int64(len(fresh)) {
		t.Errorf("Unsynced = %d", n)
	}
	for n := range len(fresh) + 1 {
		want := string(fresh[:n])
		if n < len(old) {
			want += string(old[n:])
		}
		if n%511 == 0 && read(vfs.CrashOptions{Data: vfs.KeepPrefix, Prefix: int64(n)}) != want {
			t.Fatalf("prefix of %d bytes is wrong", n)
		}
	}

	sectors, zeroes, same := false, false, 0
	for seed := uint64(1); seed <= 40; seed++ {
		got := read(vfs.CrashOptions{Data: vfs.KeepSectors, Seed: seed})
		if got == read(vfs.CrashOptions{Data: vfs.KeepSectors, Seed: seed}) {
			same++
		}
		for at := 0; at < len(got); at += 512 {
			s := got[at:min(at+512, len(got))]
			if s != string(bytes.Repeat([]byte{s[0]}, len(s))) {
				t.Fatalf("seed %d: sector at %d is torn inside", seed, at)
			}
			zeroes = zeroes || s[0] == 0 && at >= len(old)
			sectors = sectors || at > 0 && at%4096 != 0 && got[at] != got[at-1]
		}
	}
	if !sectors || !zeroes || same != 40 {
		t.Errorf("torn within a page %v, zeroes at the end %v, repeatable %d of 40", sectors, zeroes, same)
	}
	torn := false
	for seed := uint64(1); seed <= 40; seed++ {
		got := read(vfs.CrashOptions{Data: vfs.KeepBytes, Seed: seed})
		for i := 1; i < len(got); i++ {
			torn = torn || i%512 != 0 && got[i] != got[i-1]
		}
	}
	if !torn {
		t.Error("no write was ever torn at a byte")
	}
	must(t, f.Sync())
	if got := read(vfs.CrashOptions{}); got != string(fresh) {
		t.Error("synced content was lost")
	}
}

func TestMemTruncateIsUnsyncedToo(t *testing.T) {
	m := vfs.NewMem(7)
	f := create(t, m, "f", "0123456789")
	must(t, m.SyncDir(""))
	must(t, f.Sync())
	must(t, f.Truncate(4))
	put(t, f, 6, "x")
	for keep, want := range map[vfs.Keep]string{vfs.KeepNone: "0123456789", vfs.KeepAll: "0123\x00\x00x"} {
		if got := content(t, m.CrashClone(vfs.CrashOptions{Data: keep}), "f"); got != want {
			t.Errorf("keep %d: %q, want %q", keep, got, want)
		}
	}
}

// A failed fsync marks pages clean: they stay readable, a later fsync succeeds
// without them, and a power cut takes them. A killed process's successor still
// reads them.
func TestE3_FailedSyncVanishesAtThePowerCut(t *testing.T) {
	m := vfs.NewMem(1)
	f := vfs.NewFault(m)
	h := create(t, f, "f", "durable")
	must(t, f.SyncDir("."))
	must(t, h.Sync())
	put(t, h, 0, "doomed!")
	f.Fail(vfs.Rule{Kind: vfs.OpSync})
	if err := h.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("Sync = %v", err)
	}
	must(t, h.Sync())
	if got := content(t, m, "f"); got != "doomed!" {
		t.Errorf("after the failed sync it reads %q", got)
	}
	k := m.KillClone()
	if got := content(t, k, "f"); got != "doomed!" {
		t.Errorf("the next process reads %q", got)
	}
	for _, c := range []*vfs.Mem{m, k} {
		if got := content(t, c.CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll}), "f"); got != "durable" {
			t.Errorf("after the power cut it reads %q", got)
		}
	}
	put(t, h, 0, "rescued")
	must(t, h.Sync())
	if got := content(t, m.CrashClone(vfs.CrashOptions{}), "f"); got != "rescued" {
		t.Errorf("rewritten and synced, it reads %q", got)
	}
}

func TestMemCapacity(t *testing.T) {
	m := vfs.NewMem(1)
	m.SetCapacity(4 * 4096)
	f := create(t, m, "f", string(make([]byte, 3*4096)))
	n, err := f.WriteAt(make([]byte, 3*4096), 3*4096-100)
	if n != 4096+100 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("a write over the edge = %d, %v", n, err)
	}
	if n, err := f.WriteAt([]byte("x"), 0); n != 1 || err != nil {
		t.Errorf("overwriting on a full disk = %d, %v", n, err)
	}
	if free, _ := m.Free(""); free != 0 {
		t.Errorf("Free = %d", free)
	}
	must(t, f.Truncate(1<<40)) // sparse
	must(t, m.Remove("f"))
	if free, _ := m.Free(""); free != 0 {
		t.Error("a removed file that is open gave its space back")
	}
	must(t, f.Close())
	if free, _ := m.Free(""); free != 4*4096 {
		t.Errorf("Free = %d after the file went", free)
	}
	must(t, create(t, m, "g", "y").Close())
	c := m.KillClone()
	for _, c := range []*vfs.Mem{c, m.CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll})} {
		if free, _ := c.Free(""); free != 3*4096 {
			t.Errorf("a clone has %d free", free)
		}
	}
}

func TestFaultRules(t *testing.T) {
	f := vfs.NewFault(vfs.NewMem(1))
	var before, after []vfs.OpKind
	f.Hook(func(o vfs.Op) { before = append(before, o.Kind) }, func(o vfs.Op, _ error) { after = append(after, o.Kind) })
	h := create(t, f, "f", "abc")
	f.Fail(vfs.Rule{Kind: vfs.OpWrite, Nth: 2, Count: 2, Err: syscall.ENOSPC, Short: 1})
	put(t, h, 0, "A")
	for range 2 {
		if n, err := h.WriteAt([]byte("XYZ"), 0); n != 1 || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("short write = %d, %v", n, err)
		}
	}
	put(t, h, 1, "B")
	if got := content(t, f, "f"); got != "XBc" {
		t.Errorf("file holds %q", got)
	}
	f.Fail(vfs.Rule{Kind: vfs.OpRename, Applied: true})
	if err := f.Rename("f", "g"); !errors.Is(err, syscall.EIO) {
		t.Errorf("Rename = %v", err)
	}
	if got := content(t, f, "g"); got != "XBc" {
		t.Errorf("the failed rename did not happen: %q", got)
	}
	f.Fail(vfs.Rule{Match: func(o vfs.Op) bool { return o.Path == "g" }, Count: -1})
	for range 3 {
		if _, err := f.Open("g"); !errors.Is(err, syscall.EIO) {
			t.Errorf("Open = %v", err)
		}
	}
	f.Heal()
	if _, err := f.Open("g"); err != nil {
		t.Error(err)
	}
	if !slices.Equal(before, after) || int64(len(before)) != f.Ops() || before[0] != vfs.OpCreate || before[1] != vfs.OpWrite {
		t.Errorf("hooks saw %v and %v of %d operations", before, after, f.Ops())
	}
}

func TestFaultHoldsSync(t *testing.T) {
	m := vfs.NewMem(1)
	f := vfs.NewFault(m)
	h := create(t, f, "f", "abc")
	must(t, f.SyncDir(""))
	release := f.HoldSync(func(o vfs.Op) bool { return o.Path == "f" })
	entered, done := make(chan struct{}), make(chan error, 1)
	f.Hook(func(o vfs.Op) {
		if o.Kind == vfs.OpSync {
			close(entered)
		}
	}, nil)
	go func() { done <- h.Sync() }()
	<-entered
	if got := content(t, m.CrashClone(vfs.CrashOptions{}), "f"); got != "" {
		t.Errorf("a held sync left %q", got)
	}
	if got := content(t, f, "f"); got != "abc" {
		t.Errorf("beside a held sync it reads %q", got)
	}
	release()
	release()
	must(t, <-done)
	if got := content(t, m.CrashClone(vfs.CrashOptions{}), "f"); got != "abc" {
		t.Errorf("after the sync a power cut leaves %q", got)
	}
}

// Rows: E10
func TestE10_RecipesSurviveACrashAtEveryStep(t *testing.T) {
	m := vfs.NewMem(3)
	must(t, vfs.MkdirAllSync(m, "a/b"))
	must(t, vfs.WriteFile(m, "a/b/f", []byte("old")))
	f := vfs.NewFault(m)
	seen := map[string]int{}
	crash := func(vfs.Op) {
		for seed := uint64(1); seed <= 8; seed++ {
			for _, k := range []vfs.Keep{vfs.KeepNone, vfs.KeepAll, vfs.KeepSectors, vfs.KeepBytes, vfs.KeepLast} {
				for _, names := range []vfs.Keep{vfs.KeepNone, vfs.KeepAll, vfs.KeepSectors} {
					seen[content(t, m.CrashClone(vfs.CrashOptions{Data: k, Names: names, Seed: seed}), "a/b/f")]++
				}
			}
		}
	}
	f.Hook(crash, func(o vfs.Op, _ error) { crash(o) })
	must(t, vfs.WriteFile(f, "a/b/f", []byte("new")))
	if len(seen) != 2 || seen["old"] == 0 || seen["new"] == 0 {
		t.Errorf("crashes left %v: want only old and new", seen)
	}
	if got := content(t, m.CrashClone(vfs.CrashOptions{}), "a/b/f"); got != "new" {
		t.Errorf("after WriteFile a power cut leaves %q", got)
	}
	if c := m.CrashClone(vfs.CrashOptions{}); !slices.Equal(list(t, c, "a/b"), []string{"f"}) {
		t.Errorf("left over: %q", list(t, c, "a/b"))
	}
}

func list(t *testing.T, fsys vfs.FS, dir string) []string {
	t.Helper()
	names, err := fsys.List(dir)
	must(t, err)
	return names
}

func TestMemNamesByPrefixAndLast(t *testing.T) {
	m := vfs.NewMem(1)
	for _, name := range []string{"a", "b", "c"} {
		must(t, create(t, m, name, name).Sync())
	}
	if _, names := m.Unsynced(); names != 3 {
		t.Errorf("Unsynced counts %d names", names)
	}
	for n, want := range [][]string{nil, {"a"}, {"a", "b"}, {"a", "b", "c"}} {
		if got := list(t, m.CrashClone(vfs.CrashOptions{Names: vfs.KeepPrefix, Prefix: int64(n)}), ""); !slices.Equal(got, want) {
			t.Errorf("the first %d changes leave %q", n, got)
		}
	}
	if got := list(t, m.CrashClone(vfs.CrashOptions{Names: vfs.KeepLast}), ""); !slices.Equal(got, []string{"c"}) {
		t.Errorf("the last change leaves %q", got)
	}
}

// A second crash is as bad as the first: what one left is durable, what came
// after is not.
func TestMemCrashesTwice(t *testing.T) {
	m := vfs.NewMem(1)
	f := create(t, m, "f", "one")
	must(t, f.Sync())
	must(t, m.SyncDir(""))
	put(t, f, 3, "two")
	c := m.CrashClone(vfs.CrashOptions{Data: vfs.KeepAll})
	g, err := c.Open("f")
	must(t, err)
	put(t, g, 6, "three")
	must(t, create(t, c, "g", "").Sync())
	if got := content(t, c.CrashClone(vfs.CrashOptions{}), "f"); got != "onetwo" {
		t.Errorf("after two crashes: %q", got)
	}
	if got := content(t, c.CrashClone(vfs.CrashOptions{}), "g"); got != "<none>" {
		t.Errorf("an unsynced name survived: %q", got)
	}
	if got := content(t, m, "f"); got != "onetwo" {
		t.Errorf("writing to the clone changed the original: %q", got)
	}
	if _, err := c.Lock("LOCK"); err != nil {
		t.Error(err)
	}
	if l, err := m.Lock("LOCK"); err != nil {
		t.Error(err)
	} else if k, err := m.KillClone().Lock("LOCK"); err != nil {
		t.Errorf("a killed process still holds its lock: %v", err)
	} else {
		must(t, errors.Join(l.Close(), k.Close()))
	}
}

// Two goroutines write different files while a third takes clones.
func TestMemIsSafeForConcurrentUse(t *testing.T) {
	m := vfs.NewMem(1)
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		f := create(t, m, name, "")
		wg.Go(func() {
			for i := range 200 {
				if _, err := f.WriteAt([]byte("x"), int64(i)); err != nil {
					t.Error(err)
				}
				if err := errors.Join(f.Sync(), m.SyncDir("")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			c := m.CrashClone(vfs.CrashOptions{Data: vfs.KeepBytes})
			if _, err := c.List(""); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if got := content(t, m.CrashClone(vfs.CrashOptions{}), "a"); len(got) != 200 {
		t.Errorf("%d bytes survived", len(got))
	}
}
