package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// Rows: D2
func TestD2_Table(t *testing.T) {
	id, other := meta.StorageID(id16(1)), meta.StorageID(id16(2))
	run := func(p runPhase, m Mode, boot string) *runState {
		return &runState{Phase: p, Storage: id, Mode: m, Boot: boot, Start: 4, End: 512}
	}
	elsewhere := run(phaseStopped, Commit, "b1")
	elsewhere.Storage = other
	for _, c := range []struct {
		name string
		e    evidence
		keep bool
		tail tailRule
	}{
		{"stopped in commit mode", evidence{run: run(phaseStopped, Commit, "b1"), boot: "b2"}, true, tailProven},
		{"stopped in periodic mode, no witness", evidence{run: run(phaseStopped, Periodic, "b1"), boot: "b2"}, true, tailProven},
		{"commit, same boot", evidence{run: run(phaseRunning, Commit, "b1"), boot: "b1"}, true, tailMust},
		{"commit, other boot", evidence{run: run(phaseRunning, Commit, "b1"), boot: "b2"}, true, tailMust},
		{"commit, unknown boot", evidence{run: run(phaseRunning, Commit, "")}, true, tailMust},
		{"periodic, same boot, witness", evidence{run: run(phaseRunning, Periodic, "b1"), boot: "b1", witnessed: true}, true, tailOrNewID},
		{"periodic, same boot, no witness", evidence{run: run(phaseRunning, Periodic, "b1"), boot: "b1"}, false, tailDenied},
		{"periodic, other boot, witness", evidence{run: run(phaseRunning, Periodic, "b1"), boot: "b2", witnessed: true}, false, tailDenied},
		{"periodic, boot never known", evidence{run: run(phaseRunning, Periodic, ""), witnessed: true}, false, tailDenied},
		{"poisoned in commit mode", evidence{run: run(phasePoisoned, Commit, "b1"), boot: "b1"}, true, tailMust},
		{"poisoned in commit mode, other boot", evidence{run: run(phasePoisoned, Commit, "b1"), boot: "b2"}, true, tailMust},
		{"poisoned in periodic mode", evidence{run: run(phasePoisoned, Periodic, "b1"), boot: "b1", witnessed: true}, false, tailDenied},
		{"run state missing or unreadable", evidence{runWhy: "run-state is missing", boot: "b1", witnessed: true}, false, tailDenied},
		{"run state of another id", evidence{run: elsewhere, boot: "b1", witnessed: true}, false, tailDenied},
		{"storage id missing", evidence{id: meta.StorageID{}, run: run(phaseStopped, Commit, "b1"), runWhy: "-"}, false, tailDenied},
		{"change of id interrupted", evidence{named: other, run: run(phaseStopped, Commit, "b1")}, false, tailDenied},
	} {
		if c.e.id.IsZero() && c.e.runWhy != "-" {
			c.e.id = id
		}
		if c.e.named.IsZero() {
			c.e.named = id
		}
		got := decide(c.e, identityTwins{})
		if got.keep != c.keep || got.tail != c.tail || got.why == "" {
			t.Errorf("%s: %+v, want keep %v, tail %d", c.name, got, c.keep, c.tail)
		}
	}
}

// host is a machine with a disk, on which brokers start, acknowledge and die. Its
// log is one file of numbered records of 8 bytes.
type host struct {
	mem   *vfs.Mem
	fs    vfs.FS
	boot  string
	twins identityTwins
	seed  uint64

	d      *identity
	mode   Mode
	log    vfs.File
	count  int                    // records in the log
	served map[meta.StorageID]int // records acknowledged under each id that somebody heard of
}

func newHost(mem *vfs.Mem, fsys vfs.FS, boot string) *host {
	return &host{mem: mem, fs: fsys, boot: boot, seed: 1, served: map[meta.StorageID]int{}}
}

// after is the same machine at a copy of its disk, with a boot id.
func (h *host) after(mem *vfs.Mem, boot string) *host {
	n := newHost(mem, mem, boot)
	n.seed = h.seed + 1000
	for id, count := range h.served {
		n.served[id] = count
	}
	return n
}

func (h *host) options(mode Mode) identityOptions {
	h.seed++
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], h.seed)
	return identityOptions{FS: h.fs, Dir: "data", Cluster: id16(9), Broker: "b1", Mode: mode, BootID: h.boot, WitnessDir: "run/varve",
		Rand: rand.NewChaCha8(key), Twins: h.twins}
}

// start does what Open does: decide, recover the log, commit. It returns an error
// where an acknowledged record of a kept id is missing.
func (h *host) start(mode Mode) error {
	d, err := identify(h.options(mode))
	if err != nil {
		return err
	}
	if err := vfs.MkdirAllSync(h.fs, "data/wal"); err != nil {
		return err
	}
	if h.log, err = h.fs.Create("data/wal/log"); errors.Is(err, syscall.EEXIST) || err != nil {
		h.log, err = h.fs.Open("data/wal/log")
	}
	if err == nil {
		err = h.fs.SyncDir("data/wal")
	}
	if err != nil {
		return err
	}
	if err := h.recover(); err != nil {
		if err := d.tailLost(err); err != nil {
			return err
		}
		if err := h.recover(); err != nil {
			return err
		}
	}
	if d.Tail == tailProven && int(d.End) != h.count {
		return fmt.Errorf("a clean stop at %d records left %d", d.End, h.count)
	}
	if err := d.commit(); err != nil {
		return err
	}
	h.d, h.mode = d, mode
	if want, heard := h.served[d.ID.Storage]; heard && h.count < want {
		return fmt.Errorf("storage id %s came back with %d of %d acknowledged records (%s)", d.ID.Storage, h.count, want, d.ID.Why)
	}
	h.served[d.ID.Storage] = h.count
	return nil
}

// recover reads the log to its first bad record and rewrites and syncs what it read.
func (h *host) recover() error {
	size, err := h.log.Size()
	if err != nil {
		return err
	}
	b := make([]byte, size)
	if n, err := h.log.ReadAt(b, 0); int64(n) != size {
		return err
	}
	for h.count = 0; len(b) >= 8*(h.count+1) && binary.LittleEndian.Uint64(b[8*h.count:]) == uint64(h.count)+1; h.count++ {
	}
	if err := h.log.Truncate(int64(8 * h.count)); err != nil {
		return err
	}
	if _, err := h.log.WriteAt(b[:8*h.count], 0); err != nil {
		return err
	}
	return h.log.Sync()
}

// ack appends a record and acknowledges it as the mode says.
func (h *host) ack() error {
	_, err := h.log.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(h.count)+1), int64(8*h.count))
	if err == nil && h.mode == Commit {
		err = h.log.Sync()
	}
	if err == nil {
		h.count++
		h.served[h.d.ID.Storage] = h.count
	}
	return err
}

func (h *host) stop() error {
	if err := h.log.Sync(); err != nil {
		return err
	}
	return h.d.stop(Position(h.count))
}

// life is one start of a broker and how it ends.
type life struct {
	mode Mode
	end  string // "stop", "kill", "cut", "poison"
}

// live runs lives one after the other, with every step of the last one watched.
func (h *host) live(t *testing.T, lives []life, watch func(h *host, o vfs.Op)) {
	t.Helper()
	for i, l := range lives {
		fault := vfs.NewFault(h.mem)
		h.fs = fault
		if i == len(lives)-1 {
			see := func(o vfs.Op) { watch(h, o) }
			fault.Hook(see, func(o vfs.Op, _ error) { see(o) })
		}
		needNil(t, h.start(l.mode))
		for range 3 {
			needNil(t, h.ack())
		}
		switch l.end {
		case "stop":
			needNil(t, h.stop())
		case "poison":
			fault.Fail(vfs.Rule{Kind: vfs.OpSync, Nth: 1})
			if h.log.Sync() == nil {
				t.Fatal("the sync did not fail")
			}
			needNil(t, h.d.markPoisoned())
		}
		watch(h, vfs.Op{})
		*h = *h.after(h.mem.KillClone(), h.boot)
		if l.end == "cut" {
			*h = *h.after(h.mem.CrashClone(vfs.CrashOptions{}), h.boot+"x")
		}
	}
}

// histories are all that can come before the start that is watched, and that start.
func histories() (all [][]life) {
	modes := []Mode{Commit, Periodic}
	for _, last := range modes {
		all = append(all, []life{{last, "stop"}})
		for _, first := range modes {
			for _, end := range []string{"stop", "kill", "cut", "poison"} {
				all = append(all, []life{{first, end}, {last, "stop"}}, []life{{first, end}, {last, "poison"}})
			}
		}
	}
	return all
}

// sweep cuts the power and kills the process at every step of every history, starts
// again in both modes, and collects what is then wrong, up to a handful.
func sweep(t *testing.T, twins identityTwins) (wrong []string) {
	for _, lives := range histories() {
		if len(wrong) >= 5 {
			return wrong
		}
		h := newHost(vfs.NewMem(1), nil, "boot-1")
		steps := 0
		h.live(t, lives, func(h *host, o vfs.Op) {
			if o.N != 0 && !o.Kind.Changes() {
				return
			}
			steps++
			try := func(how string, next *host, mode Mode) {
				next.twins = twins
				if err := next.start(mode); err != nil {
					wrong = append(wrong, fmt.Sprintf("%v, %s at %s %s, then %s: %v", lives, how, o.Kind, o.Path, mode, err))
					return
				}
				// What this start vouches for survives the next cut, too.
				again := next.after(next.mem.CrashClone(vfs.CrashOptions{}), "boot-3")
				if err := again.start(mode); err != nil {
					wrong = append(wrong, fmt.Sprintf("%v, %s at %s %s, then %s and a cut: %v", lives, how, o.Kind, o.Path, mode, err))
				}
			}
			for i, c := range crashes() {
				if (i+steps)%6 != 0 {
					continue // each step sees a sixth of them
				}
				try(fmt.Sprintf("cut %+v", c), h.after(h.mem.CrashClone(c), "boot-2"), Mode(steps%2))
			}
			try("killed", h.after(h.mem.KillClone(), h.boot), Mode(steps%2))
		})
		if steps < 20 {
			t.Errorf("%v: only %d steps were seen", lives, steps)
		}
	}
	return wrong
}

// At every step of a start, a run and a stop, after a power cut and after a kill:
// the next start works, an id that somebody heard of never comes back without what
// it acknowledged, and the clean mark is never there before everything else is.
//
// Rows: D1, D2, D3, E10
func TestD2_ACrashBetweenAnyTwoSteps(t *testing.T) {
	for _, w := range sweep(t, identityTwins{}) {
		t.Error(w)
	}
}

// Rows: D2
func TestD2_TwinACrashKeepsTheIDIsCaught(t *testing.T) {
	wrong := sweep(t, identityTwins{CrashKeepsID: true})
	if !strings.Contains(strings.Join(wrong, "\n"), "acknowledged records (twin)") {
		t.Errorf("the twin that keeps the id over a crash was not caught losing records: %q", wrong)
	}
}

// Rows: D2, D6
func TestD6_AKillKeepsTheIDAtEveryStep(t *testing.T) {
	for _, first := range []Mode{Commit, Periodic} {
		for _, end := range []string{"stop", "kill"} {
			h := newHost(vfs.NewMem(1), nil, "boot-1")
			h.live(t, []life{{first, end}, {Periodic, "kill"}}, func(h *host, o vfs.Op) {
				for _, mode := range []Mode{Commit, Periodic} {
					next := h.after(h.mem.KillClone(), h.boot)
					needNil(t, next.start(mode))
					if !next.d.ID.Kept || len(next.served) != 1 {
						t.Errorf("%s/%s, killed at %s %s: %s", first, end, o.Kind, o.Path, next.d.ID.Why)
					}
				}
			})
		}
	}
}

// Rows: D2
func TestD2_CommitModeKeepsTheIDOverEveryCut(t *testing.T) {
	h := newHost(vfs.NewMem(1), nil, "boot-1")
	h.live(t, []life{{Commit, "kill"}, {Commit, "poison"}}, func(h *host, o vfs.Op) {
		for _, c := range crashes() {
			next := h.after(h.mem.CrashClone(c), "boot-2")
			needNil(t, next.start(Commit))
			if !next.d.ID.Kept {
				t.Errorf("cut at %s %s: %s", o.Kind, o.Path, next.d.ID.Why)
			}
		}
	})
}

// A new id is durable before commit returns, so nobody hears of one that a power
// cut takes back.
//
// Rows: D3
func TestD3_WhatWasHeardOfIsOnDisk(t *testing.T) {
	for _, lives := range histories() {
		h := newHost(vfs.NewMem(1), nil, "boot-1")
		h.live(t, lives, func(h *host, o vfs.Op) {
			if h.d == nil {
				return // commit has not returned: nobody heard of anything
			}
			c := h.mem.CrashClone(vfs.CrashOptions{})
			id, err := readStorageID(c, "data")
			if err != nil || id != h.d.ID.Storage {
				t.Fatalf("%v at %s %s: disk holds %s, %v, but %s was heard of", lives, o.Kind, o.Path, id, err, h.d.ID.Storage)
			}
			s, err := openSuperblocks(c, "data")
			needNil(t, err)
			if s.current.Storage != id || s.current.Predecessor != h.d.ID.Predecessor || s.current.Start != h.d.ID.StartCount {
				t.Fatalf("the superblock names %+v, the broker %+v", s.current, h.d.ID)
			}
		})
	}
}
