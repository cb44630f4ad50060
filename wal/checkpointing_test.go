package wal

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/vfs"
)

// Rows: W5. What nothing needs leaves; what is needed stays, whatever is
// checkpointed; a tiny tail pins no file.
func TestW5_FilesAreRecycledWhenNothingNeedsThem(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	big, tiny := r.bind(1), r.bind(2)
	r.add(tiny, 1, 100)
	for i := range 300 {
		r.must(r.put(soon(t), big, 3000))
		if i%7 == 6 {
			_, end := r.log.Bounds(big)
			r.log.Drop(big, end-3)
			r.must(r.checkpoint())
		}
		if st := r.log.Status(); st.Bytes > st.Budget {
			t.Fatalf("%d bytes on disk, the budget is %d", st.Bytes, st.Budget)
		}
	}
	r.must(r.readAll())
	if st := r.log.Status(); st.Used > 4*fileSize {
		t.Errorf("%d bytes in use for %d live: %+v", st.Used, st.Live, st)
	}
	r = r.reopen(false)
	// Nothing is dropped now: nothing leaves.
	for range 100 {
		r.must(r.put(soon(t), big, 3000))
	}
	start, _ := r.log.Bounds(big)
	for range 3 {
		r.must(r.checkpoint())
	}
	if again, _ := r.log.Bounds(big); again != start {
		t.Errorf("the log starts at %d: want %d", again, start)
	}
	r.must(r.readAll())
	r.reopen(true)
}

// withheld makes each step of a checkpoint fail once, and sees that what comes
// after it is withheld: appends go on over many files, a crash follows, and the
// log must open with everything.
func withheld(t *testing.T, twins Twins) error {
	for _, at := range []struct {
		path string
		kind vfs.OpKind
	}{
		{"/checkpoints/", vfs.OpCreate}, {"/checkpoints/", vfs.OpWrite}, {"/checkpoints/", vfs.OpSync}, {"/checkpoints/", vfs.OpRename}, {"/checkpoints", vfs.OpSyncDir},
		{"/superblock", vfs.OpCreate}, {"/superblock", vfs.OpWrite}, {"/superblock", vfs.OpSync}, {"/superblock", vfs.OpRename},
	} {
		mem := vfs.NewMem(1)
		fault := vfs.NewFault(mem)
		opts := smallOptions(fault)
		opts.Twins = twins
		r := open(t, opts)
		n := r.bind(1)
		round := func() error {
			for range 12 {
				if err := r.put(soon(t), n, 3000); err != nil {
					return err
				}
			}
			_, end := r.log.Bounds(n)
			r.log.Drop(n, end)
			return nil
		}
		r.must(round())
		r.must(r.checkpoint())
		r.must(round())
		used := r.log.Status().Used
		fault.Fail(vfs.Rule{Kind: at.kind, Match: func(op vfs.Op) bool { return strings.Contains(op.Path, at.path) }})
		if err := r.checkpoint(); err == nil {
			t.Fatalf("%s of %s failed, but not the checkpoint", at.kind, at.path)
		}
		if twins == (Twins{}) && r.log.Status().Used < used {
			return errors.New("files were recycled although the checkpoint failed")
		}
		for range 3 {
			if err := round(); err != nil {
				return err
			}
		}
		opts.FS = mem.CrashClone(vfs.CrashOptions{Names: vfs.KeepAll})
		o, err := tryOpen(t, opts)
		if err != nil {
			return err
		}
		if err := errors.Join(same(r.fold, o.fold), o.readAll()); err != nil {
			return err
		}
		for n, why := range o.fold.broken {
			return errors.Join(errors.New("a shard broke"), why, meta.Errorf(meta.ErrCorrupt, "shard %d", n))
		}
		o.log.Kill()
		// The next one does all of it.
		if err := r.checkpoint(); err != nil {
			return err
		}
		if r.log.Status().Used >= used {
			return errors.New("the retried checkpoint recycled nothing")
		}
		r.reopen(true).log.Kill()
	}
	return nil
}

func TestW8_AFailingStepWithholdsTheRest(t *testing.T) {
	if err := withheld(t, Twins{}); err != nil {
		t.Error(err)
	}
}

func TestW8_TwinDropFirstIsCaught(t *testing.T) {
	err := withheld(t, Twins{DropFirst: true})
	if err == nil {
		t.Error("not caught")
	}
	t.Log(err)
}

// sections is what a checkpoint would say of the index now.
func sections(l *Log) (b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var numbers []ShardNumber
	for n := range l.index.byNumber {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		s := l.index.byNumber[n]
		if !s.known {
			continue
		}
		c := section{checkpointSection: checkpointSection{Number: n, ID: s.id}}
		c.capture(s)
		b = c.append(b)
	}
	return b
}

func TestW12_LiveAndReplayAreOneFold(t *testing.T) {
	for _, script := range []string{"aaaac", "aaarpac", "aatarpaatc", "aaakaarptac", "arparpakrpac", "aaftaac", "aarakptaaac"} {
		mem := vfs.NewMem(1)
		e := &explorer{rig: open(t, smallOptions(mem)), mem: mem}
		for i := range len(script) - 1 {
			if err := steps[script[i]](e); err != nil {
				t.Fatalf("%s: %v", script, err)
			}
		}
		live := sections(e.log)
		if err := e.crash(); err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		if replayed := sections(e.log); !bytes.Equal(live, replayed) {
			t.Errorf("%s: live and replayed index differ:\n%x\n%x", script, live, replayed)
		}
		e.log.Kill()
	}
}

func TestCheckpointNeedsEveryShard(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	a, b := r.bind(1), r.bind(2)
	r.add(a, 1, 10)
	r.add(b, 1, 10)
	err := r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) { yield(a, r.fold.shard(a).encode()) })
	isKind(t, err, meta.ErrInvalid)
	err = r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
		for range 2 {
			yield(a, r.fold.shard(a).encode())
			yield(b, r.fold.shard(b).encode())
		}
	})
	isKind(t, err, meta.ErrInvalid)
	r.must(r.checkpoint())
	r.reopen(false)
}

// A section holds exactly what was appended before its capture, while appends go
// on around it.
func TestCheckpointUnderLoad(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	n := r.bind(1)
	for range 40 {
		done := make(chan error, 3)
		for range 2 {
			r.must(r.submit(n, r.entries(n, 1, 300), func(err error) { done <- err }))
		}
		blob := r.fold.shard(n).encode()
		r.must(r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
			yield(n, blob)
			// Appended in the middle of the capture: after the section.
			if err := r.submit(n, r.entries(n, 1, 300), func(err error) { done <- err }); err != nil {
				t.Error(err)
			}
		}))
		for range 3 {
			r.must(<-done)
		}
		_, end := r.log.Bounds(n)
		r.log.Drop(n, end-2)
		opts := r.opts
		opts.FS = mem.CrashClone(vfs.CrashOptions{})
		o := open(t, opts)
		if err := errors.Join(same(r.fold, o.fold), o.readAll()); err != nil {
			t.Fatal(err)
		}
		o.log.Kill()
	}
}

// A bad frame inside an extent makes that one shard a stranger; the others live.
func TestABadFrameInAnExtentBreaksOneShard(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	a, b := r.bind(1), r.bind(2)
	for range 3 {
		r.add(a, 1, 500)
		r.add(b, 1, 500)
	}
	bad := entryFrames(t, mem, a)[1]
	r.must(r.checkpoint())
	r.add(a, 1, 500)
	r.add(b, 1, 500)
	var damaged ShardNumber
	r.log.Kill()
	flip(t, mem, bad.File, bad.Offset+100)
	opts := r.opts
	opts.Events.Damaged = func(n ShardNumber, err error) { damaged = n }
	o := open(t, opts)
	if len(o.fold.broken) != 1 || !errors.Is(o.fold.broken[a], meta.ErrCorrupt) {
		t.Fatalf("broken: %v", o.fold.broken)
	}
	if start, end := o.log.Bounds(a); start != 4 || end != 5 {
		t.Errorf("the broken shard holds %d to %d: want only what came after its section", start, end)
	}
	delete(o.fold.broken, a) // as expected
	if err := errors.Join(same(r.fold, o.fold), o.readAll()); err != nil {
		t.Error(err)
	}
	// Damage while it runs: the read says where.
	last := entryFrames(t, mem, b)[2]
	flip(t, mem, last.File, last.Offset+100)
	_, err := o.log.Read(b, 3, 1)
	isKind(t, err, meta.ErrCorrupt)
	if damaged != b || !strings.Contains(err.Error(), "position") {
		t.Errorf("damage of shard %d: %v", damaged, err)
	}
}

// The size of log files may change between two starts: old ones are used up and
// removed, and the budget holds.
func TestFileSizeMayChange(t *testing.T) {
	mem := vfs.NewMem(1)
	opts := testOptions(mem)
	r := open(t, opts)
	n := r.bind(1)
	r.add(n, 1, 10)
	for _, size := range []int64{fileSize, 2 * fileSize, fileSize / 2, fileSize} {
		r.must(r.log.Close(context.Background()))
		want := r.fold
		opts.FileSize = size
		r = open(t, opts)
		r.must(errors.Join(same(want, r.fold), r.readAll()))
		for i := range 60 {
			r.must(r.put(soon(t), n, 6000))
			if i%10 == 9 {
				_, end := r.log.Bounds(n)
				r.log.Drop(n, end-2)
				r.must(r.checkpoint())
			}
			if st := r.log.Status(); st.Bytes > st.Budget {
				t.Fatalf("%d bytes on disk, the budget is %d", st.Bytes, st.Budget)
			}
		}
		r.must(r.readAll())
	}
	r.log.Kill()
	r = open(t, opts)
	r.must(r.readAll())
}

// Readers pin files: one that is read is not recycled under them.
func TestReadersPinFiles(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	n := r.bind(1)
	for range 20 {
		r.must(r.put(soon(t), n, 6000))
	}
	r.log.mu.Lock()
	spans := r.log.pin(r.log.index.byNumber[n], 0, 1)
	r.log.mu.Unlock()
	file := spans[0].file
	salt := file.header.Salt
	_, end := r.log.Bounds(n)
	r.log.Drop(n, end)
	r.must(r.checkpoint())
	for range 60 {
		r.must(r.put(soon(t), n, 6000))
		_, end := r.log.Bounds(n)
		r.log.Drop(n, end)
		r.must(r.checkpoint())
	}
	if file.header.Salt != salt {
		t.Error("the file was recycled under its reader")
	}
	if err := spans[0].walk(func(Position, entry.Header, []byte) bool { return true }); err != nil {
		t.Error(err)
	}
	unpin(spans)
	r.must(r.checkpoint())
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if file.header.Salt == salt {
		t.Error("the file stays after its reader left")
	}
}

// A shard is left out of the capture since its owner is about to forget it, and the
// Forget is queued behind the capture. The power fails once the checkpoint is named:
// the log must open, with that shard gone.
func TestW8_AForgetBehindTheCaptureIsOnDiskFirst(t *testing.T) {
	for _, mode := range []Mode{Commit, Periodic} {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewMem(1)
			fault := vfs.NewFault(mem)
			opts := testOptions(fault)
			opts.Mode, opts.Interval = mode, time.Hour
			r := open(t, opts)
			a, b := r.bind(1), r.bind(2)
			r.add(a, 1, 10)
			r.add(b, 1, 10)
			syncs := 0
			first := fault.HoldSync(func(op vfs.Op) bool { return inLog(op) && syncs == 0 })
			second := fault.HoldSync(func(op vfs.Op) bool { return inLog(op) && syncs == 1 })
			done := make(chan error, 1)
			go func() {
				done <- r.log.Checkpoint(soon(t), func(yield func(ShardNumber, []byte) bool) {
					yield(a, r.fold.shard(a).encode())
					r.must(r.submit(b, r.entries(b, 1, 10), nil)) // behind the mark, and in need of a sync
				})
			}()
			synctest.Wait()
			r.must(r.submit(b, []Record{{Kind: Forget}}, nil))
			syncs++
			first()
			synctest.Wait() // the checkpoint is named, or waits for the second sync
			opts.FS = mem.CrashClone(vfs.CrashOptions{})
			second()
			r.must(<-done)
			for range 2 {
				o := open(t, opts)
				if err := o.readAll(); err != nil {
					t.Fatal(err)
				}
				o.log.Kill()
				opts.FS = mem.CrashClone(vfs.CrashOptions{})
			}
			r.log.Kill()
		})
	}
}

// While a checkpoint is on its way, files fill with records of which none lives. The
// replay goes through them, so they stay.
func TestW5_FilesBehindTheMarkStay(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	n := r.bind(1)
	r.add(n, 1, 10)
	r.must(r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
		yield(n, r.fold.shard(n).encode())
		for range 8 {
			release, err := r.log.Reserve(soon(t), 20000)
			r.must(err)
			r.must(r.write(n, Record{Kind: State, Data: make([]byte, 20000)}))
			release()
		}
	}))
	free := r.log.Status().FreeFiles
	for range 2 + 3*free {
		r.must(r.put(soon(t), n, 20000)) // into whatever is free
	}
	opts := r.opts
	opts.FS = mem.CrashClone(vfs.CrashOptions{})
	o := open(t, opts)
	r.must(errors.Join(same(r.fold, o.fold), o.readAll()))
}

// Entries are dropped between their section's capture and the superblock that names
// it. The checkpoint references their files, so those stay until the next one.
func TestW5_FilesThatTheCheckpointReferencesStay(t *testing.T) {
	mem := vfs.NewMem(1)
	fault := vfs.NewFault(mem)
	r := open(t, testOptions(fault))
	n := r.bind(1)
	for range 6 {
		r.must(r.put(soon(t), n, 20000))
	}
	fault.Hook(func(op vfs.Op) {
		if op.Kind == vfs.OpRename && strings.HasPrefix(op.Path, "data/superblock") {
			_, end := r.log.Bounds(n)
			r.log.Drop(n, end)
		}
	}, nil)
	r.must(r.checkpoint())
	fault.Hook(nil, nil)
	free := r.log.Status().FreeFiles
	for range 2 + 3*free {
		r.must(r.put(soon(t), n, 20000)) // into whatever is free
	}
	opts := r.opts
	opts.FS = mem.CrashClone(vfs.CrashOptions{})
	o := open(t, opts)
	r.must(errors.Join(same(r.fold, o.fold), o.readAll()))
	used := r.log.Status().Used
	_, end := r.log.Bounds(n)
	r.log.Drop(n, end)
	r.must(r.checkpoint())
	if got := r.log.Status().Used; got >= used {
		t.Errorf("%d bytes in use, as before the next checkpoint", got)
	}
}
