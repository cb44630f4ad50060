package wal

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// promises is what the world was told: entries acknowledged under each storage id
// that an Open returned.
type promises struct {
	mu    sync.Mutex
	acked map[meta.StorageID]meta.LSN
}

func (p *promises) note(id meta.StorageID, end meta.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked[id] = max(p.acked[id], end)
}

func (p *promises) snapshot() map[meta.StorageID]meta.LSN {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.acked)
}

func historyOptions(fsys vfs.FS, mode Mode, boot string, seed uint64) Options {
	o := smallOptions(fsys)
	o.Mode, o.BootID, o.Rand = mode, boot, seeded{rand.New(rand.NewPCG(seed, 2))}
	return o
}

// lead opens the log, appends a few entries and ends as told.
func (p *promises) lead(t *testing.T, o Options, fault *vfs.Fault, end string) {
	t.Helper()
	r := open(t, o)
	id, n := r.log.Identity().Storage, r.bind(0)
	_, at := r.log.Bounds(n)
	p.note(id, at)
	for range 3 {
		release, err := r.log.Reserve(t.Context(), 9000)
		needNil(t, err)
		r.add(n, 1, 9000)
		release()
		p.note(id, r.next[n])
	}
	switch end {
	case "stop":
		needNil(t, r.log.Close(context.Background()))
	case "poison":
		inLog := func(op vfs.Op) bool { return path.Dir(op.Path) == "data/wal" }
		fault.Fail(vfs.Rule{Kind: vfs.OpSync, Match: inLog, Count: -1})
		records := r.entries(n, 1, 100)
		done := make(chan error, 1)
		needNil(t, r.log.Append(&Write{Shard: n, Records: records, Sync: true, Done: func(err error) { done <- err }}))
		if <-done == nil {
			t.Fatal("the failed sync was acknowledged")
		}
		<-r.log.Failed()
		fallthrough
	default:
		r.log.Kill()
	}
}

// The same sweep as over the identity alone, through Open and the whole log: at
// every step of the last of several lives of a directory, after a power cut and
// after a kill, Open works, and an id that an earlier Open returned comes back with
// everything acknowledged under it.
//
// Rows: D2, D3, E10
func TestD3_OpenOverEveryHistory(t *testing.T) {
	for _, w := range sweepOpen(t, Twins{}) {
		t.Error(w)
	}
}

// Rows: D2
func TestD2_TwinACrashKeepsTheIDIsCaughtThroughOpen(t *testing.T) {
	if wrong := sweepOpen(t, Twins{CrashKeepsID: true}); !strings.Contains(strings.Join(wrong, "\n"), "(twin)") {
		t.Errorf("the twin that keeps the id over a crash was not caught: %q", wrong)
	}
}

// sweepOpen collects what is wrong after a crash, up to a handful.
func sweepOpen(t *testing.T, twins Twins) (wrong []string) {
	for i, lives := range histories() {
		if len(wrong) >= 5 {
			break
		}
		mem, boot := vfs.NewMem(uint64(i)+1), "boot-1"
		p := &promises{acked: map[meta.StorageID]meta.LSN{}}
		for j, l := range lives {
			fault := vfs.NewFault(mem)
			var mu sync.Mutex
			steps := 0
			if j == len(lives)-1 {
				fault.Hook(func(op vfs.Op) {
					if !op.Kind.Changes() {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					steps++
					if err := p.reopen(mem, boot, steps, twins); err != nil {
						wrong = append(wrong, fmt.Sprintf("%v, before %s %s: %v", lives, op.Kind, op.Path, err))
					}
				}, nil)
			}
			p.lead(t, historyOptions(fault, l.mode, boot, uint64(j)), fault, l.end)
			if mem = mem.KillClone(); l.end == "cut" {
				mem, boot = mem.CrashClone(vfs.CrashOptions{}), boot+"x"
			}
		}
		if err := p.reopen(mem, boot, 3, twins); err != nil {
			wrong = append(wrong, fmt.Sprintf("%v, at the end: %v", lives, err))
		}
	}
	return wrong
}

// reopen opens what a crash at this moment leaves; which kind of crash goes round.
func (p *promises) reopen(mem *vfs.Mem, boot string, step int, twins Twins) error {
	told := p.snapshot()
	how := [...]string{"cut, nothing kept", "cut, all kept", "cut, torn", "killed"}[step%4]
	switch step % 4 {
	case 0:
		mem, boot = mem.CrashClone(vfs.CrashOptions{}), "boot-9"
	case 1:
		mem, boot = mem.CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll}), "boot-9"
	case 2:
		mem, boot = mem.CrashClone(vfs.CrashOptions{Data: vfs.KeepSectors, Names: vfs.KeepSectors, Seed: uint64(step)}), "boot-9"
	default:
		mem = mem.KillClone()
	}
	f := newFold()
	o := historyOptions(mem, Mode(step/4%2), boot, uint64(step)+100)
	o.Replay, o.Twins = f, twins
	l, err := Open(context.Background(), o)
	if err != nil {
		return fmt.Errorf("%s: %w", how, err)
	}
	defer l.Kill()
	end := meta.LSN(1)
	for n := range f.ids {
		_, end = l.Bounds(n)
	}
	if id := l.Identity(); end < told[id.Storage] {
		return fmt.Errorf("%s: id %s came back with entries up to %d of %d (%s)", how, id.Storage, end, told[id.Storage], id.Why)
	}
	return nil
}

// A directory has run, and its log folder is empty: wiped, or on a disk that isn't
// mounted. There is no checkpoint that would miss the files. It must not start
// afresh under the id that stands for what was in them.
func TestW7_AnEmptiedLogFolderIsRefused(t *testing.T) {
	for _, mode := range []Mode{Commit, Periodic} {
		for _, clean := range []bool{false, true} {
			mem := vfs.NewMem(1)
			opts := testOptions(mem)
			opts.Mode = mode
			r := open(t, opts)
			r.add(r.bind(1), 1, 100)
			if clean {
				r.must(r.log.Close(context.Background()))
			}
			r.log.Kill()
			names, err := mem.List("data/wal")
			r.must(err)
			for _, name := range names {
				r.must(mem.Remove("data/wal/" + name))
			}
			_, err = tryOpen(t, opts)
			isKind(t, err, meta.ErrCorrupt)
		}
	}
}
