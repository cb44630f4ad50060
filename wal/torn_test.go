package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

// facts inspects a directory.
func facts(t testing.TB, fsys vfs.FS, kinds ...FactKind) (found []Fact) {
	t.Helper()
	if err := Inspect(fsys, testDir, func(f Fact) bool {
		if len(kinds) == 0 || slices.Contains(kinds, f.Kind) {
			found = append(found, f)
		}
		return true
	}); err != nil {
		t.Fatalf("inspect: %v", err)
	}
	return found
}

// entryFrames finds the frames of a shard's entries, in order.
func entryFrames(t testing.TB, fsys vfs.FS, n ShardNumber) (found []Fact) {
	for _, f := range facts(t, fsys, FactFrame) {
		if f.Shard == n && strings.HasPrefix(f.Text, "entry ") {
			found = append(found, f)
		}
	}
	return found
}

// change alters a file's bytes, durably.
func change(t testing.TB, fsys vfs.FS, file string, off int64, alter func(b []byte), n int) {
	t.Helper()
	f, err := fsys.Open(path.Join(testDir, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatal(err)
	}
	alter(b)
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func flip(t testing.TB, fsys vfs.FS, file string, off int64) {
	t.Helper()
	change(t, fsys, file, off, func(b []byte) { b[0] ^= 0x10 }, 1)
}

// Scenarios: B02, B07.
func TestW1_TornTailIsCutAndRotRefuses(t *testing.T) {
	const frames = 4 // of one entry each, a group each
	idle := func(*rig) { time.Sleep(time.Second) }
	tests := []struct {
		name   string
		before func(*rig)    // once the entries are acknowledged
		clean  bool          // stopped, not killed
		damage func(*damage) //
		left   int           // entries after the start; -1: refused
	}{
		{"nothing, killed", nil, false, func(*damage) {}, 4},
		{"nothing, idle", idle, false, func(*damage) {}, 4},
		{"the last frame, which nothing vouches for", nil, false, func(d *damage) { d.body(3) }, 3},
		{"the last frame's header", nil, false, func(d *damage) { d.head(3) }, 3},
		{"the last group's header", nil, false, func(d *damage) { d.group(3) }, 3},
		{"the last frame, after idle", idle, false, func(d *damage) { d.body(3) }, -1},
		{"the last group's header, after idle", idle, false, func(d *damage) { d.group(3) }, -1},
		{"the last frame, after a clean stop", nil, true, func(d *damage) { d.body(3) }, -1},
		{"the last frame's length, after a clean stop", nil, true, func(d *damage) { d.length(3) }, -1},
		{"an interior frame", nil, false, func(d *damage) { d.body(1) }, -1},
		{"an interior frame's length", nil, false, func(d *damage) { d.length(1) }, -1},
		{"an interior group's header", nil, false, func(d *damage) { d.group(1) }, -1},
		{"an interior frame zeroed", nil, false, func(d *damage) { d.zeroed(1) }, -1},
		{"the first frame", nil, false, func(d *damage) { d.body(0) }, -1},
		{"one copy of the file's header", nil, false, func(d *damage) { flip(d.t, d.fs, d.all[0].File, 20) }, 4},
		{"both copies of the file's header", nil, false, func(d *damage) {
			flip(d.t, d.fs, d.all[0].File, 20)
			flip(d.t, d.fs, d.all[0].File, frame.FileCopy+20)
		}, -1},
	}
	for _, mode := range []Mode{Commit, Periodic} {
		for _, tt := range tests {
			t.Run(mode.String()+"/"+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					mem := vfs.NewMem(1)
					opts := testOptions(mem)
					opts.Mode = mode
					r := open(t, opts)
					n := r.bind(1)
					for range frames {
						// With Sync, so that both modes sync every group.
						done := make(chan error, 1)
						recs := r.entries(n, 1, 500)
						r.must(r.log.Append(&Write{Shard: n, Records: recs, Sync: true, Done: func(err error) { done <- err }}))
						r.must(<-done)
						r.fold.apply(n, recs[0])
						r.next[n]++
					}
					if tt.before != nil {
						tt.before(r)
					}
					if tt.clean {
						r.must(r.log.Close(context.Background()))
					}
					disk := mem.KillClone()
					r.log.Kill()
					d := &damage{t: t, fs: disk, all: entryFrames(t, disk, n)}
					tt.damage(d)
					d.verify(opts, n, tt.left)
				})
			})
		}
	}
}

type damage struct {
	t   *testing.T
	fs  *vfs.Mem
	all []Fact
	at  *Fact
}

func (d *damage) body(i int)   { d.at = &d.all[i]; flip(d.t, d.fs, d.at.File, d.at.Offset+200) }
func (d *damage) head(i int)   { d.at = &d.all[i]; flip(d.t, d.fs, d.at.File, d.at.Offset+9) }
func (d *damage) length(i int) { d.at = &d.all[i]; flip(d.t, d.fs, d.at.File, d.at.Offset+1) }

func (d *damage) group(i int) {
	at := d.all[i]
	flip(d.t, d.fs, at.File, at.Offset&^(frame.Block-1)+17)
}

func (d *damage) zeroed(i int) {
	d.at = &d.all[i]
	change(d.t, d.fs, d.at.File, d.at.Offset, func(b []byte) { clear(b) }, int(d.at.Bytes))
}

// verify starts on the damaged directory: refused, with coordinates and nothing
// changed, or with so many entries; and what counts is the start after that.
func (d *damage) verify(opts Options, n ShardNumber, left int) {
	t := d.t
	t.Helper()
	opts.FS = d.fs
	before := facts(t, d.fs)
	r, err := tryOpen(t, opts)
	if left < 0 {
		isKind(t, err, meta.ErrCorrupt)
		if d.at != nil {
			for _, want := range []string{path.Base(d.at.File), fmt.Sprintf("position %d", d.at.Position), "varve wal inspect"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the refusal doesn't name %q: %v", want, err)
				}
			}
		}
		if after := facts(t, d.fs); !slices.EqualFunc(before, after, func(a, b Fact) bool { return a.String() == b.String() }) {
			t.Errorf("the refused start changed the directory")
		}
		return
	}
	for range 3 {
		if err != nil {
			t.Fatalf("start refused: %v", err)
		}
		if got := len(r.fold.shard(n).Sums); got != left {
			t.Fatalf("%d entries: want %d", got, left)
		}
		if err := r.readAll(); err != nil {
			t.Fatal(err)
		}
		r.add(n, 1, 300)
		left++
		r.log.Kill()
		r, err = tryOpen(t, opts)
	}
}

// A group of several frames that was never synced: the first one that doesn't
// verify ends the log, whatever comes after it.
func TestW1_UnsyncedGroupIsCutAtItsFirstBadFrame(t *testing.T) {
	for bad := range 3 {
		mem := vfs.NewMem(1)
		fault := vfs.NewFault(mem)
		r := open(t, testOptions(fault))
		n := r.bind(1)
		r.add(n, 1, 100)
		release := fault.HoldSync(nil)
		written := make(chan struct{}, 8)
		fault.Hook(func(op vfs.Op) {
			if op.Kind == vfs.OpSync {
				written <- struct{}{}
			}
		}, nil)
		r.must(r.submit(n, r.entries(n, 3, 700), nil))
		<-written
		disk := mem.KillClone()
		fault.Hook(nil, nil)
		release()
		r.log.Kill()
		d := &damage{t: t, fs: disk, all: entryFrames(t, disk, n)}
		if len(d.all) != 4 {
			t.Fatalf("%d entries on disk: want 4", len(d.all))
		}
		d.body(1 + bad)
		d.verify(r.opts, n, 1+bad)
	}
}

// A record holds the bytes of a frame that once verified, and of a whole block
// with a group's header. The write that carries it is torn; what it imitates, now
// standing where a frame or a group could start, must not be taken for one.
// Scenario: B03.
func TestW1_ImitatedFramesNeverVerify(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	n := r.bind(1)
	r.add(n, 1, 200)
	first := facts(t, mem, FactGroup)[0]
	f, err := mem.OpenRead(path.Join(testDir, first.File))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, frame.Block)
	if _, err := f.ReadAt(block, first.Offset); err != nil {
		t.Fatal(err)
	}
	f.Close()
	// The copies repeat at every distance, so that one stands at each alignment.
	lsn := r.next[n]
	r.must(r.write(n, Record{Kind: Entry, Entry: entryAt(lsn, bytes.Repeat(append(block, block[frame.GroupSize:]...), 3))}))
	r.log.Kill()
	all := entryFrames(t, mem, n)
	torn := all[len(all)-1]
	for cut := int64(0); cut < torn.Bytes; cut += 37 {
		disk := mem.CrashClone(vfs.CrashOptions{})
		change(t, disk, torn.File, torn.Offset+cut, func(b []byte) { b[0]++ }, 1)
		d := &damage{t: t, fs: disk}
		opts := r.opts
		opts.FS = disk
		got, err := tryOpen(t, opts)
		if err != nil {
			t.Fatal(err)
		}
		if k := len(got.fold.shard(n).Sums); k != 1 {
			t.Fatalf("flipped byte %d: %d entries, want 1", cut, k)
		}
		got.log.Kill()
		_ = d
	}
}

// Scenario: B03. Frames that an earlier life of the file left lie right behind a
// tear, and a gap that an earlier recovery left is legal.
func TestW3_RecycledFramesBehindATearAreNotAdopted(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, smallOptions(mem))
	n := r.bind(1)
	for i := range 60 {
		release, err := r.log.Reserve(soon(t), 3000)
		r.must(err)
		r.add(n, 1, 3000)
		release()
		_, end := r.log.Bounds(n)
		r.log.Drop(n, end)
		if i%5 == 0 {
			r.must(r.checkpoint())
		}
	}
	for range 5 {
		r.log.Kill()
		all := entryFrames(t, mem, n)
		last := slices.MaxFunc(all, func(a, b Fact) int { return int(a.Position) - int(b.Position) })
		want := len(r.fold.shard(n).Sums) - 1
		flip(t, mem, last.File, last.Offset+100)
		r = open(t, r.opts)
		if got := len(r.fold.shard(n).Sums); got != want {
			t.Fatalf("%d entries: want %d", got, want)
		}
		r.must(r.readAll())
		// Two groups, of which the second is torn next time round.
		r.add(n, 1, 3000)
		r.add(n, 1, 3000)
		r.must(r.readAll())
	}
}

// Rows: E1. Junk behind the end is cut durably: what counts is the second reopening.
func TestE1_TornTailIsCutDurably(t *testing.T) {
	for _, size := range []int{1, 100, 5000, 20000} {
		mem := vfs.NewMem(1)
		r := open(t, testOptions(mem))
		n := r.bind(1)
		r.add(n, 2, 100)
		r.log.Kill()
		end := facts(t, mem, FactEnd)[0]
		change(t, mem, end.File, end.Offset, func(b []byte) { copy(b, bytes.Repeat([]byte{0xa5, 1, 2}, size)) }, size)
		r2 := open(t, r.opts)
		r2.add(n, 1, 200)
		r2.log.Kill()
		opts := r.opts
		opts.FS = mem.CrashClone(vfs.CrashOptions{})
		r3 := open(t, opts)
		if err := errors.Join(same(r2.fold, r3.fold), r3.readAll()); err != nil {
			t.Fatal(err)
		}
		if got := len(r3.fold.shard(n).Sums); got != 3 {
			t.Fatalf("%d entries: want 3", got)
		}
	}
}

// Rows: E1, E3. Groups that nothing vouches for, of which the first is lost with its
// header while the others survive. What is written next has the size of one of them,
// so the one behind it follows to the byte; it was cut all the same, also when the
// first sync of the cut failed and left zeroes that only the page cache has.
// Scenarios: B03, B07.
func TestE1_AnIslandBehindTheCutStaysCut(t *testing.T) {
	for _, failing := range []bool{false, true} {
		mem := vfs.NewMem(1)
		opts := testOptions(mem)
		opts.Mode, opts.Interval = Periodic, 1<<40
		r := open(t, opts)
		n := r.bind(1)
		for range 5 {
			r.add(n, 1, 500)
		}
		r.log.Kill()
		all := entryFrames(t, mem, n)
		change(t, mem, all[1].File, all[1].Offset&^(frame.Block-1), func(b []byte) { clear(b) }, frame.Block)
		fault := vfs.NewFault(mem)
		if failing {
			fault.Fail(vfs.Rule{Kind: vfs.OpSync, Match: func(op vfs.Op) bool { return strings.HasSuffix(op.Path, all[1].File) }})
		}
		opts.FS = fault
		o := open(t, opts)
		if got := len(o.fold.shard(n).Sums); got != 1 {
			t.Fatalf("%d entries after the cut: want 1", got)
		}
		done := make(chan error, 1)
		recs := o.entries(n, 1, 500)
		r.must(o.log.Append(&Write{Shard: n, Records: recs, Sync: true, Done: func(err error) { done <- err }}))
		r.must(<-done)
		o.fold.apply(n, recs[0])
		opts.FS = mem.CrashClone(vfs.CrashOptions{})
		o.log.Kill()
		p := open(t, opts)
		if err := errors.Join(same(o.fold, p.fold), p.readAll()); err != nil {
			t.Fatalf("failing sync %v: %v", failing, err)
		}
	}
}

// What a section covers was on disk when the checkpoint was named. Damage there is
// rot, though no later header vouches for it: were it cut, what is written next
// would stand where the section says that it holds everything.
func TestW1_WhatACheckpointCoversIsNoTornTail(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	n, other := r.bind(1), r.bind(2)
	r.add(n, 1, 500)
	r.must(r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
		// Behind the mark, so that the replay meets it, and in no extent.
		r.must(r.write(other, append(r.entries(other, 1, 500), Record{Kind: Truncate})...))
		yield(n, r.fold.shard(n).encode())
		yield(other, r.fold.shard(other).encode())
	}))
	disk := mem.KillClone()
	r.log.Kill()
	d := &damage{t: t, fs: disk, all: entryFrames(t, disk, other)}
	d.body(0)
	d.verify(r.opts, n, -1)
}
