package vfs_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/varve-io/varve/wal/vfs"
	"pgregory.net/rapid"
)

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

// What Free reports is always what the files that are left really use, whatever
// was written, cut, renamed over, removed while open, and cloned.
func TestMemCountsItsPages(t *testing.T) {
	const limit = 64 * 4096
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		m := vfs.NewMem(1)
		m.SetCapacity(limit)
		open := map[vfs.File]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			f, err := m.Open(name)
			if err != nil {
				if f, err = m.Create(name); err != nil {
					t.Fatal(err)
				}
			}
			open[f] = true
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1, 2:
				_, _ = f.WriteAt(make([]byte, rapid.IntRange(0, 5*4096).Draw(t, "length")), int64(rapid.IntRange(0, 20*4096).Draw(t, "offset"))) // may be full
			case 3:
				if err := f.Truncate(int64(rapid.IntRange(0, 20*4096).Draw(t, "size"))); err != nil {
					t.Fatal(err)
				}
			case 4:
				if err := m.Remove(name); err != nil {
					t.Fatal(err)
				}
			case 5:
				if err := m.Rename(name, rapid.SampledFrom(names).Draw(t, "to")); err != nil {
					t.Fatal(err)
				}
			case 6:
				if err := errors.Join(f.Sync(), m.SyncDir("")); err != nil {
					t.Fatal(err)
				}
			}
		}
		for f := range open {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for what, c := range map[string]*vfs.Mem{"itself": m, "killed": m.KillClone(),
			"cut": m.CrashClone(vfs.CrashOptions{Data: vfs.KeepBytes, Names: vfs.KeepBytes})} {
			left, err := c.List("")
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range left {
				if err := c.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
			if free, _ := c.Free(""); free != limit {
				t.Fatalf("%s: with every file gone, %d of %d bytes are free", what, free, limit)
			}
		}
	})
}
