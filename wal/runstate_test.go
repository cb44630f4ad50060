package wal

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

func sampleRunStates() map[string]runState {
	id := meta.StorageID(id16(0x20))
	return map[string]runState{
		"running":  {Phase: phaseRunning, Storage: id, Mode: Periodic, Boot: "f678ae06-9ca1-4c15-975c-14e8526309c5", Start: 3},
		"stopped":  {Phase: phaseStopped, Storage: id, Mode: Commit, Start: 4, End: 1 << 40},
		"poisoned": {Phase: phasePoisoned, Storage: id, Mode: Commit, Boot: "b", Start: 5},
	}
}

// Rows: W10, D2
func TestW10_RunStateGolden(t *testing.T) {
	for name, r := range sampleRunStates() {
		b := r.encode()
		golden(t, "run-state-"+name, b)
		got, err := decodeRunState(b)
		if err != nil || got != r {
			t.Errorf("%s: decoded %+v, %v", name, got, err)
		}
		for i := range len(b) * 8 {
			c := bytes.Clone(b)
			c[i/8] ^= 1 << (i % 8)
			if _, err := decodeRunState(c); !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%s: bit %d flipped: %v", name, i, err)
			}
		}
		for n := range len(b) {
			if _, err := decodeRunState(b[:n]); !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%s: cut to %d: %v", name, n, err)
			}
		}
	}
}

func FuzzRunState(f *testing.F) {
	for _, r := range sampleRunStates() {
		b := r.encode()
		f.Add(b[:len(b)-9])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealText(string(b))
		if r, err := decodeRunState(b); err == nil && !bytes.Equal(r.encode(), b) {
			t.Errorf("%q decodes to %+v", b, r)
		}
	})
}

func TestBootID(t *testing.T) {
	for in, want := range map[string]string{
		"f678ae06-9ca1-4c15-975c-14e8526309c5": "f678ae06-9ca1-4c15-975c-14e8526309c5",
		"":                                     "", "-": "", "two words": "", "line\n": "", "\x00": "", "é": "",
		strings.Repeat("x", 64): strings.Repeat("x", 64),
		strings.Repeat("x", 65): "",
	} {
		if got := cleanBootID(in); got != want {
			t.Errorf("cleanBootID(%q) = %q", in, got)
		}
	}
	if a, b := BootID(), BootID(); a != b {
		t.Errorf("this boot is %q and %q", a, b)
	}
}

func TestWitness(t *testing.T) {
	m := vfs.NewMem(1)
	needNil(t, m.MkdirAll("data"))
	id, other := meta.StorageID(id16(1)), meta.StorageID(id16(2))
	w := witness{fs: m, dir: "run/varve", dataDir: "data", boot: "b1"}
	stands := func(w witness, id meta.StorageID, want bool) {
		t.Helper()
		if got, err := w.stands(id); got != want || err != nil {
			t.Errorf("stands = %v, %v; want %v", got, err, want)
		}
	}
	stands(w, id, false)
	needNil(t, w.take(id))
	needNil(t, w.set(id))
	needNil(t, w.set(id))
	stands(w, id, true)
	stands(w, other, false)
	stands(witness{fs: m, dir: "run/varve", dataDir: "data", boot: "b2"}, id, false)
	stands(witness{fs: m, dir: "run/varve", dataDir: "data"}, id, false)
	stands(witness{fs: m, dir: "run/other", dataDir: "data", boot: "b1"}, id, false)
	stands(witness{fs: m, dataDir: "data", boot: "b1"}, id, false)
	stands(witness{fs: remounted{m}, dir: "run/varve", dataDir: "data", boot: "b1"}, id, false)
	needNil(t, w.take(id))
	stands(w, id, false)
	none := witness{fs: m, dataDir: "data", boot: "b1"}
	needNil(t, none.set(id))
	needNil(t, none.take(id))
}

// childArg is the first argument that makes [TestKilledChild] the process to be killed, in front of
// the data directory and the runtime directory.
const childArg = "child"

func childOptions(data, run string) identityOptions {
	boot := BootID()
	if boot == "" {
		boot = "boot-of-a-kernel-that-has-no-id"
	}
	return identityOptions{FS: vfs.OS(), Dir: data, Cluster: id16(9), Broker: "b1", Mode: Periodic, BootID: boot, WitnessDir: run}
}

// TestKilledChild is the body of the process that [TestD6_SIGKILLOnTheSameBoot]
// starts and kills. Without its arguments it does nothing.
func TestKilledChild(t *testing.T) {
	if flag.NArg() != 3 || flag.Arg(0) != childArg {
		return
	}
	d, err := identify(childOptions(flag.Arg(1), flag.Arg(2)))
	needNil(t, err)
	needNil(t, d.commit())
	f, err := vfs.OS().Create(filepath.Join(flag.Arg(1), "log"))
	needNil(t, err)
	_, err = f.WriteAt([]byte("acknowledged, not synced"), 0)
	needNil(t, err)
	fmt.Println("acknowledged", d.ID.Storage)
	_, err = io.Copy(io.Discard, os.Stdin) // until it is killed
	needNil(t, err)
}

// runChild starts the process, waits until it has acknowledged, and kills it.
func runChild(t *testing.T, data, run string) meta.StorageID {
	t.Helper()
	self, err := os.Executable()
	needNil(t, err)
	cmd := exec.Command(self, "-test.run=^TestKilledChild$", childArg, data, run)
	in, err := cmd.StdinPipe()
	needNil(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	needNil(t, err)
	needNil(t, cmd.Start())
	var id meta.StorageID
	var said strings.Builder
	for lines := bufio.NewScanner(out); id.IsZero() && lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if hex, ok := strings.CutPrefix(lines.Text(), "acknowledged "); ok {
			id, err = meta.ParseStorageID(hex)
			needNil(t, err)
		}
	}
	needNil(t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait() // it was killed: that is its error
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || id.IsZero() {
		t.Fatalf("the child ended by itself, or acknowledged nothing: %v\n%s", cmd.ProcessState, said.String())
	}
	return id
}

// A process killed on the same boot lost nothing that the kernel had: it keeps its
// id in periodic mode. The same directory on another boot, or without its witness,
// does not.
//
// Rows: D2, D6
func TestD6_SIGKILLOnTheSameBoot(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(t *testing.T, run string, o *identityOptions)
		kept   bool
	}{
		{"same boot", func(*testing.T, string, *identityOptions) {}, true},
		{"another boot", func(_ *testing.T, _ string, o *identityOptions) { o.BootID = "another" }, false},
		{"unknown boot", func(_ *testing.T, _ string, o *identityOptions) { o.BootID = "" }, false},
		{"no witness", func(t *testing.T, run string, _ *identityOptions) { needNil(t, os.RemoveAll(run)) }, false},
		{"another mount", func(_ *testing.T, _ string, o *identityOptions) { o.FS = remounted{o.FS} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, run := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "run")
			id := runChild(t, data, run)
			o := childOptions(data, run)
			c.change(t, run, &o)
			d, err := identify(o)
			needNil(t, err)
			if c.kept != d.ID.Kept || c.kept != (d.ID.Storage == id) || !c.kept && d.ID.Predecessor != id {
				t.Fatalf("identity %+v after %s (%s)", d.ID, id, d.ID.Why)
			}
			if b, err := os.ReadFile(filepath.Join(data, "log")); err != nil || string(b) != "acknowledged, not synced" {
				t.Errorf("the log holds %q, %v", b, err)
			}
			needNil(t, d.commit())
			needNil(t, d.stop(24))
			again, err := identify(o)
			needNil(t, err)
			if !again.ID.Kept || again.ID.Storage != d.ID.Storage || again.End != 24 || again.ID.StartCount != d.ID.StartCount+1 {
				t.Errorf("after a clean stop: %+v", again.ID)
			}
			if left, _ := os.ReadDir(run); len(left) != 0 {
				t.Errorf("the runtime directory keeps %v", left)
			}
		})
	}
}

// Rows: E10, D2
func TestE10_ABareRelativeDirectoryWorks(t *testing.T) {
	t.Chdir(t.TempDir())
	o := childOptions("data", "run")
	d, err := identify(o)
	needNil(t, err)
	needNil(t, d.commit())
	needNil(t, d.stop(0))
	for _, name := range []string{"storage-id", "run-state", "superblock.a", "superblock.b"} {
		info, err := os.Stat(filepath.Join("data", name))
		needNil(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if info, err := os.Stat("data"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("data is %v, %v", info.Mode(), err)
	}
}
