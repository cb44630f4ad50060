package wal

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// Rows: D1
func TestD1_IdentityOverCleanStopsWipesAndReplacement(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.fs = h.mem
	needNil(t, h.start(Periodic))
	first := h.d.ID
	if first.Kept || first.StartCount != 1 || !first.Predecessor.IsZero() || first.Boot == 0 || first.Storage.IsZero() {
		t.Errorf("a new directory: %+v", first)
	}
	for n := uint64(2); n <= 4; n++ {
		needNil(t, h.stop())
		h = h.after(h.mem.CrashClone(vfs.CrashOptions{}), fmt.Sprint("boot-", n))
		needNil(t, h.start(Mode(n%2)))
		if id := h.d.ID; !id.Kept || id.Storage != first.Storage || id.StartCount != n || id.Boot == first.Boot {
			t.Errorf("clean restart %d: %+v", n, id)
		}
	}
	for name, change := range map[string]struct {
		do   func(m *vfs.Mem) error
		pred meta.StorageID
	}{
		"another directory":   {func(m *vfs.Mem) error { *m = *vfs.NewMem(3); return nil }, meta.StorageID{}},
		"storage-id removed":  {func(m *vfs.Mem) error { return m.Remove("data/storage-id") }, first.Storage},
		"run-state removed":   {func(m *vfs.Mem) error { return m.Remove("data/run-state") }, first.Storage},
		"run-state overwrite": {func(m *vfs.Mem) error { return vfs.WriteFile(m, "data/run-state", []byte("running\n")) }, first.Storage},
		"run-state empty":     {func(m *vfs.Mem) error { return vfs.WriteFile(m, "data/run-state", nil) }, first.Storage},
	} {
		c := h.after(h.mem.KillClone(), h.boot)
		needNil(t, change.do(c.mem))
		needNil(t, c.start(Commit))
		if id := c.d.ID; id.Kept || id.Storage == first.Storage || id.StartCount != 1 || id.Predecessor != change.pred {
			t.Errorf("%s: %+v", name, id)
		}
		if name != "another directory" && c.d.super.current.Origin != first.Storage {
			t.Errorf("%s: the origin changed", name)
		}
	}
}

// refuses runs identify on a copy of a disk after a change and wants a refusal that
// changes nothing.
func refuses(t *testing.T, name string, m *vfs.Mem, o identityOptions, kind error, words string) {
	t.Helper()
	f := vfs.NewFault(m)
	f.Hook(func(op vfs.Op) {
		if op.Kind == vfs.OpWrite || op.Kind == vfs.OpRemove || op.Kind == vfs.OpRename || op.Kind == vfs.OpCreate || op.Kind == vfs.OpTruncate {
			t.Errorf("%s: a refused start did %s %s", name, op.Kind, op.Path)
		}
	}, nil)
	o.FS = f
	if _, err := identify(o); !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v", name, err)
	}
}

// Rows: W6, W7
func TestW7_ForeignAndMixedDirectoriesRefuse(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.fs = h.mem
	needNil(t, h.start(Commit))
	needNil(t, h.stop())
	base := h.options(Commit)
	o := base
	o.Cluster = id16(8)
	refuses(t, "another cluster", h.mem.KillClone(), o, meta.ErrForeign, "belongs to cluster")
	o = base
	o.Broker = "b2"
	refuses(t, "another broker", h.mem.KillClone(), o, meta.ErrForeign, "broker b1")

	other := newHost(vfs.NewMem(2), nil, "boot-1")
	other.seed = 77
	other.fs = other.mem
	needNil(t, other.start(Commit))
	stranger, err := vfs.ReadFile(other.mem, "data/storage-id", 1000)
	needNil(t, err)
	for name, c := range map[string]struct {
		do    func(m *vfs.Mem) error
		kind  error
		words string
	}{
		"storage-id of another directory": {func(m *vfs.Mem) error { return vfs.WriteFile(m, "data/storage-id", stranger) }, meta.ErrForeign, "mixed"},
		"storage-id rotten":               {func(m *vfs.Mem) error { return vfs.WriteFile(m, "data/storage-id", bytes.ToUpper(stranger)) }, meta.ErrCorrupt, "storage-id"},
		"storage-id of a newer build":     {func(m *vfs.Mem) error { return vfs.WriteFile(m, "data/storage-id", sealText("varve-storage-id 2 x ")) }, meta.ErrFormatLevel, "version"},
		"no superblock": {func(m *vfs.Mem) error {
			return errors.Join(m.Remove("data/superblock.a"), m.Remove("data/superblock.b"))
		}, meta.ErrCorrupt, "no superblock"},
		"only a log": {func(m *vfs.Mem) error {
			return errors.Join(m.Remove("data/superblock.a"), m.Remove("data/superblock.b"), m.Remove("data/storage-id"), m.Remove("data/run-state"))
		}, meta.ErrCorrupt, "wal/log"},
		"a slot damaged": {func(m *vfs.Mem) error { return vfs.WriteFile(m, "data/superblock.b", []byte("junk")) }, meta.ErrCorrupt, "superblock.b"},
	} {
		m := h.mem.KillClone()
		needNil(t, c.do(m))
		refuses(t, name, m, base, c.kind, c.words)
	}
}

// Rows: D2, E3
func TestD2_TheTailThatCannotBeRewritten(t *testing.T) {
	for _, c := range []struct {
		first, then Mode
		end         string
		boot        string
		starts      bool // else it is refused
	}{
		{Commit, Commit, "kill", "boot-1", false},
		{Commit, Periodic, "kill", "boot-2", false},
		{Commit, Commit, "poison", "boot-1", false},
		{Periodic, Periodic, "kill", "boot-1", true},
		{Periodic, Commit, "kill", "boot-2", true},
		{Periodic, Commit, "poison", "boot-1", true},
	} {
		h := newHost(vfs.NewMem(1), nil, "boot-1")
		h.live(t, []life{{c.first, c.end}}, func(*host, vfs.Op) {})
		f := vfs.NewFault(h.mem)
		h.fs, h.boot = f, c.boot
		f.Fail(vfs.Rule{Kind: vfs.OpSync, Match: func(o vfs.Op) bool { return path.Base(o.Path) == "log" }})
		err := h.start(c.then)
		if !c.starts {
			if !errors.Is(err, meta.ErrPoisoned) || !errors.Is(err, syscall.EIO) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		needNil(t, err)
		if h.d.ID.Kept || len(h.served) != 2 {
			t.Errorf("%+v: kept the id: %s", c, h.d.ID.Why)
		}
	}
}

// A start that gives the id up because the tail can't be rewritten, and dies before
// it wrote anything, must not be followed by one that believes the pages after all.
//
// Rows: D2, D3
func TestD2_AGivenUpIDStaysGivenUp(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.live(t, []life{{Periodic, "kill"}}, func(*host, vfs.Op) {})
	d, err := identify(withFS(h.options(Periodic), h.mem))
	needNil(t, err)
	if d.Tail != tailOrNewID {
		t.Fatalf("tail rule %d", d.Tail)
	}
	needNil(t, d.tailLost(syscall.EIO))
	next := h.after(h.mem.KillClone(), h.boot)
	needNil(t, next.start(Periodic))
	if next.d.ID.Kept {
		t.Error("the next start kept the id")
	}
	// A witness that can't be taken away refuses the start instead.
	f := vfs.NewFault(h.after(h.mem, h.boot).mem)
	needNil(t, d.witness.set(d.was))
	if d, err = identify(withFS(h.options(Periodic), f)); err != nil || d.Tail != tailOrNewID {
		t.Fatal(err)
	}
	f.Fail(vfs.Rule{Kind: vfs.OpRemove, Err: syscall.EROFS})
	if err := d.tailLost(syscall.EIO); !errors.Is(err, syscall.EROFS) || !errors.Is(err, syscall.EIO) {
		t.Errorf("tailLost = %v", err)
	}
}

func withFS(o identityOptions, fsys vfs.FS) identityOptions {
	o.FS = fsys
	return o
}

// Rows: D2
func TestD2_PoisonedWithTheDataDiskGone(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	f := vfs.NewFault(h.mem)
	h.fs = f
	needNil(t, h.start(Periodic))
	needNil(t, h.ack())
	f.Fail(vfs.Rule{Match: func(o vfs.Op) bool { return strings.HasPrefix(o.Path, "data/") }, Count: -1})
	if err := h.d.markPoisoned(); err == nil {
		t.Error("the run state was written on a dead disk")
	}
	if err := h.d.markPoisoned(); err != nil {
		t.Errorf("poisoning twice: %v", err)
	}
	f.Heal()
	if err := h.d.stop(1); !errors.Is(err, meta.ErrPoisoned) {
		t.Errorf("a poisoned directory got a clean mark: %v", err)
	}
	next := h.after(h.mem.KillClone(), h.boot)
	needNil(t, next.start(Periodic))
	if next.d.ID.Kept {
		t.Errorf("the id was kept: %s", next.d.ID.Why)
	}
}

// Rows: D2
func TestD2_TheMountMustBeTheSame(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.fs = h.mem
	needNil(t, h.start(Periodic))
	next := h.after(h.mem.KillClone(), h.boot)
	next.fs = remounted{next.mem}
	needNil(t, next.start(Periodic))
	if next.d.ID.Kept {
		t.Error("kept the id on another mount")
	}
}

type remounted struct{ vfs.FS }

func (remounted) Mount(string) (string, error) { return "another", nil }

// Rows: D2
func TestD2_AFailingStepOfCommitIsAnErrorAndTheNextStartIsSound(t *testing.T) {
	for _, lives := range histories() {
		for nth := 1; ; nth++ {
			h := newHost(vfs.NewMem(1), nil, "boot-1")
			h.live(t, lives, func(*host, vfs.Op) {})
			f := vfs.NewFault(h.mem)
			h.fs = f
			fired := false
			f.Fail(vfs.Rule{Nth: nth, Match: func(o vfs.Op) bool { return o.Kind.Changes() }})
			n := 0
			f.Hook(func(o vfs.Op) {
				if o.Kind.Changes() {
					n++
					fired = fired || n == nth
				}
			}, nil)
			if err := h.start(Periodic); err != nil && h.d != nil {
				t.Fatalf("%v, step %d: served in spite of %v", lives, nth, err)
			}
			if !fired {
				break
			}
			next := h.after(h.mem.CrashClone(vfs.CrashOptions{}), "boot-9")
			needNil(t, next.start(Periodic))
		}
	}
}

func TestPairKeepsTheIdentity(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.fs = h.mem
	needNil(t, h.start(Commit))
	points, err := openCheckpoints(h.mem, "data")
	needNil(t, err)
	ref, err := points.write(checkpointHeader{Replay: 9, Next: 9}, each(sampleSections()))
	needNil(t, err)
	needNil(t, h.d.pair(ref))
	before := h.d.ID
	needNil(t, h.stop())
	next := h.after(h.mem.CrashClone(vfs.CrashOptions{}), "boot-2")
	needNil(t, next.start(Commit))
	if s := next.d.super.current; s.Checkpoint != ref || s.Storage != before.Storage || s.Origin != before.Storage {
		t.Errorf("superblock %+v", s)
	}
}

// A second crash in the start that comes after a crash, at every step of both.
//
// Rows: D2, D3
func TestD2_ACrashInTheStartAfterACrash(t *testing.T) {
	tries := 0
	watched := func(h *host, see func(o vfs.Op)) error {
		f := vfs.NewFault(h.mem)
		h.fs = f
		f.Hook(nil, func(o vfs.Op, _ error) {
			if o.Kind.Changes() {
				see(o)
			}
		})
		return h.start(Periodic)
	}
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.live(t, []life{{Periodic, "cut"}}, func(*host, vfs.Op) {})
	needNil(t, watched(h, func(o1 vfs.Op) {
		second := h.after(h.mem.CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll}), "boot-3")
		needNil(t, watched(second, func(o2 vfs.Op) {
			tries++
			third := second.after(second.mem.CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll}), "boot-4")
			if err := third.start(Commit); err != nil {
				t.Errorf("cut at %s %s, then at %s %s: %v", o1.Kind, o1.Path, o2.Kind, o2.Path, err)
			}
		}))
	}))
	if tries < 400 {
		t.Errorf("only %d pairs of steps were seen", tries)
	}
}

// A start on a full disk fails, changes nothing that matters, and works once there
// is room; so does one after a stop that had no room for its mark.
//
// Rows: D2
func TestD2_AFullDisk(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.fs = h.mem
	needNil(t, h.start(Commit))
	needNil(t, h.ack())
	h.mem.SetCapacity(1)
	if err := h.stop(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("stop on a full disk: %v", err)
	}
	first := h.d.ID
	full := h.after(h.mem.CrashClone(vfs.CrashOptions{}), "boot-2")
	for range 3 {
		if err := full.start(Commit); !errors.Is(err, syscall.ENOSPC) || full.d != nil {
			t.Fatalf("start on a full disk: %v", err)
		}
		if names, _ := full.mem.List("data"); len(names) != 5 {
			t.Fatalf("a failed start left %q", names)
		}
	}
	full.mem.SetCapacity(0)
	needNil(t, full.start(Commit))
	if id := full.d.ID; !id.Kept || id.Storage != first.Storage || id.StartCount != 2 {
		t.Errorf("with room again: %+v", id)
	}
}

// Rows: D2
func TestD2_AncestorsAreRemembered(t *testing.T) {
	var i Identity
	id := func(n int) (s meta.StorageID) { s[0], s[1] = byte(n), 1; return s }
	if i.DescendsFrom(meta.StorageID{}) {
		t.Error("a new directory descends from nothing")
	}
	for n := range maxAncestors + 3 {
		if i.Ancestors = i.Ancestors.with(i.Predecessor); i.Ancestors.count() != min(n, maxAncestors) {
			t.Fatalf("%d ancestors after %d changes", i.Ancestors.count(), n)
		}
		i.Predecessor = id(n)
		for m := range n + 1 {
			if got, want := i.DescendsFrom(id(m)), m >= n-maxAncestors; got != want {
				t.Fatalf("after %d changes: descends from the one of change %d: %v", n, m, got)
			}
		}
		if i.DescendsFrom(id(n+1)) || i.DescendsFrom(meta.StorageID{}) {
			t.Fatal("descends from a stranger")
		}
	}
}
