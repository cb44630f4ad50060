package vfs_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/varve-io/varve/wal/vfs"
)

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
