package wal

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// put reserves room and appends one entry.
func (r *rig) put(ctx context.Context, n ShardNumber, size int) error {
	release, err := r.log.Reserve(ctx, int64(size))
	if err != nil {
		return err
	}
	defer release()
	return r.write(n, r.entries(n, 1, size)...)
}

// hog fills the rest of a disk to the last page and returns how to free it.
func hog(t *testing.T, fsys vfs.FS, name string) (free func()) {
	t.Helper()
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, chunk := int64(0), 64<<10; chunk > 0; {
		if n, err := f.WriteAt(make([]byte, chunk), at); err != nil {
			chunk /= 2
		} else {
			at += int64(n)
		}
	}
	_ = f.Sync() // it only takes room
	return func() {
		if err := fsys.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// fullDisk runs the life of a log on a disk that fills up.
func fullDisk(t *testing.T, opts Options, hogName string) {
	r := open(t, opts)
	n, small := r.bind(1), r.bind(2)
	r.add(small, 1, 50)
	r.must(r.checkpoint())
	free := hog(t, opts.FS, hogName)
	var err error
	for err == nil {
		if err = r.put(soon(t), n, 3000); err != nil {
			break
		}
	}
	// Refused before anything was accepted, at once, and no harm done.
	isKind(t, err, meta.ErrExhausted)
	r.must(r.readAll())
	acked := r.fold.clone()
	// A kill on a full disk: recovery needs no room.
	r.log.Kill()
	r = open(t, opts)
	if err := errors.Join(same(acked, r.fold), r.readAll()); err != nil {
		t.Fatal(err)
	}
	for err = nil; err == nil; {
		err = r.put(soon(t), n, 3000)
	}
	isKind(t, err, meta.ErrExhausted)
	// Commands have room, and what they allow frees some: no new room is needed.
	for range 3 {
		release, err := r.log.ReserveCommand(soon(t), 100)
		if err != nil {
			t.Fatalf("%v: %+v", err, r.log.Status())
		}
		r.must(r.write(n, Record{Kind: State, Data: []byte("trim")}))
		release()
	}
	_, end := r.log.Bounds(n)
	r.log.Drop(n, end)
	r.must(r.checkpoint())
	for i := range 20 {
		if err := r.put(soon(t), n, 3000); err != nil {
			t.Fatalf("round %d: %v: %+v", i, err, r.log.Status())
		}
		_, end := r.log.Bounds(n)
		r.log.Drop(n, end)
		r.must(r.checkpoint())
	}
	// Once somebody frees the disk, the log grows by itself.
	free()
	used := r.log.Status().Files
	for r.log.Status().Files <= used {
		r.must(r.put(soon(t), n, 3000))
	}
	r.must(r.readAll())
	r.reopen(true)
}

// Scenarios: B110, B113, B115.
func TestW4_FullDisk(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(12 * fileSize)
	fullDisk(t, testOptions(mem), "data/hog")
}

// The same on a real file system of 8 MiB, where this process may mount one.
func TestW4_FullTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Logf("no right to mount a file system here (%v): the one in memory has to do", err)
		mem := vfs.NewMem(2)
		mem.SetCapacity(24 * fileSize)
		fullDisk(t, testOptions(mem), "data/hog")
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	opts := testOptions(vfs.OS())
	opts.Dir, opts.WitnessDir = path.Join(dir, "data"), path.Join(dir, "run")
	opts.FileSize, opts.Budget = 256<<10, 64*256<<10
	fullDisk(t, opts, path.Join(dir, "hog"))
}

// A disk fills while the log makes its first files.
func TestW4_FullAtTheFirstStart(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(fileSize / 2)
	_, err := tryOpen(t, testOptions(mem))
	isKind(t, err, meta.ErrExhausted)
	mem.SetCapacity(0)
	r := open(t, testOptions(mem))
	r.add(r.bind(1), 1, 100)
	r.reopen(false)
}

// At the budget producers wait to their own deadline; then they are told, and
// nothing was dropped. Commands go on.
func TestReserveSlowsProducersDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := testOptions(vfs.NewMem(1))
		pressed := 0
		opts.Events.Pressure = func(used, budget int64) { pressed++ }
		r := open(t, opts)
		n := r.bind(1)
		var err error
		began := time.Now()
		for err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			err = r.put(ctx, n, 3000)
			cancel()
		}
		var throttled *meta.Throttled
		if !errors.As(err, &throttled) || throttled.RetryAfter <= 0 {
			t.Fatalf("at the budget: %v", err)
		}
		if time.Since(began) < time.Minute {
			t.Errorf("gave up after %s, before the deadline", time.Since(began))
		}
		if st := r.log.Status(); st.Bytes > st.Budget || pressed == 0 {
			t.Errorf("%+v, pressure was told %d times", st, pressed)
		}
		tails := r.log.Tails()
		if len(tails) != 1 || tails[0].ID != shardID(1) || tails[0].Bytes < opts.Budget/2 {
			t.Errorf("tails: %+v", tails)
		}
		// A cancelled wait is no throttling.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		isKind(t, r.put(ctx, n, 3000), context.Canceled)
		// One who waits goes on once there is room, in the order of arrival.
		waited := make(chan error)
		go func() {
			release, err := r.log.Reserve(context.Background(), 3000)
			if err == nil {
				release()
			}
			waited <- err
		}()
		synctest.Wait()
		release, err := r.log.ReserveCommand(context.Background(), 100)
		r.must(err)
		r.must(r.write(n, Record{Kind: State, Data: []byte("trim")}))
		release()
		release() // more than once is harmless
		_, end := r.log.Bounds(n)
		r.log.Drop(n, end-1)
		r.must(r.checkpoint())
		r.must(<-waited)
		r.must(r.put(context.Background(), n, 3000))
		r.must(r.readAll())
		if got := r.log.Status().Reserved; got != 0 {
			t.Errorf("%d bytes stay promised", got)
		}
	})
}

// A write without a reservation that finds no room is refused, not lost and not
// waited for.
func TestAppendWithoutRoomIsRefused(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	n := r.bind(1)
	var err error
	for err == nil {
		err = r.write(n, r.entries(n, 1, 4000)...)
	}
	isKind(t, err, meta.ErrExhausted)
	r.reopen(false)
	isKind(t, r.log.Append(&Write{Shard: n, Records: r.entries(n, 1, fileSize)}), meta.ErrInvalid)
	if _, err := r.log.Reserve(context.Background(), fileSize); !errors.Is(err, meta.ErrInvalid) {
		t.Errorf("a reservation larger than a file: %v", err)
	}
}

// Rows: E10. A bare relative path works, and everything is private to the user.
func TestE10_RelativePathOnARealDisk(t *testing.T) {
	t.Chdir(t.TempDir())
	opts := testOptions(vfs.OS())
	opts.Dir, opts.WitnessDir = "d", "r"
	r := open(t, opts)
	n := r.bind(1)
	r.add(n, 3, 1000)
	_, err := Open(context.Background(), opts)
	isKind(t, err, meta.ErrUnavailable)
	r.must(r.checkpoint())
	r = r.reopen(false)
	r = r.reopen(true)
	r.must(r.log.Close(context.Background()))
	names, err := os.ReadDir("d/wal")
	r.must(err)
	for _, name := range names {
		info, err := name.Info()
		r.must(err)
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", name.Name(), info.Mode())
		}
		st := &unix.Stat_t{}
		r.must(unix.Stat("d/wal/"+name.Name(), st))
		if st.Blocks*512 < fileSize {
			t.Errorf("%s has %d bytes allocated of %d: it wasn't written before its use", name.Name(), st.Blocks*512, fileSize)
		}
	}
}

// Rows: E9. A file of 8 GiB, and frames that claim much, cost no memory.
func TestE9_SparseFilesAreBounded(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	n := r.bind(1)
	r.add(n, 1, 100)
	r.log.Kill()
	f, err := mem.Create("data/wal/00000099.log")
	r.must(err)
	r.must(f.Truncate(8 << 30))
	last := entryFrames(t, mem, n)[0]
	change(t, mem, last.File, last.Offset, func(b []byte) { b[3] = 0xff }, 4)
	var o *rig
	got := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if o != nil {
				o.log.Kill()
			}
			o = open(t, r.opts)
		}
	})
	if bytes := got.AllocedBytesPerOp(); bytes > 8<<20 {
		t.Errorf("opening took %d bytes of memory", bytes)
	}
	o.log.Kill()
	if _, err := f.ReadAt(make([]byte, 1), 0); err != nil && err != io.EOF {
		t.Error(err)
	}
}

// A log is filled to its last byte by writes that reserve nothing, some of which
// join a queue that held only what takes no room. The writer must neither wait for
// a file that nobody can make, nor must its bare header.
func TestAFullLogStillTakesACheckpoint(t *testing.T) {
	for seed := range uint64(150) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			fault := vfs.NewFault(vfs.NewMem(1))
			opts := smallOptions(fault)
			opts.Budget = 6 * opts.FileSize
			opts.Mode = Mode(seed % 2)
			r := open(t, opts)
			n := r.bind(1)
			r.add(n, 1, 10)
			size := 1 + rng.IntN(4000)
			for refused := 0; refused < 20; {
				release := fault.HoldSync(inLog)
				r.must(r.log.enqueue(&Write{Sync: true}))
				_ = r.submit(n, r.entries(n, 1, size), nil)
				synctest.Wait() // the writer is at a sync, or done
				r.must(r.log.enqueue(&Write{}))
				if err := r.submit(n, r.entries(n, 1, size), nil); err != nil {
					isKind(t, err, meta.ErrExhausted)
					refused, size = refused+1, 1+size/2
				}
				release()
				fault.Heal()
				r.must(r.log.barrier(soon(t)))
				if rng.IntN(3) == 0 {
					time.Sleep(time.Second) // a bare header comes
				}
			}
			time.Sleep(time.Second)
			if rng.IntN(2) == 0 {
				r.log.Kill()
				o := open(t, r.opts)
				r.must(same(r.fold, o.fold))
				r = o
				time.Sleep(time.Second)
			}
			_, end := r.log.Bounds(n)
			r.log.Drop(n, end)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := r.log.Checkpoint(ctx, func(yield func(ShardNumber, []byte) bool) { yield(n, r.fold.shard(n).encode()) }); err != nil {
				t.Fatalf("seed %d: %v: %+v", seed, err, r.log.Status())
			}
			r.must(r.put(ctx, n, 1000))
			r.log.Kill()
		})
	}
}

// Room that is promised stays: the preparer doesn't take away the files that it is
// promised out of, and make them again.
func TestPromisedFilesAreNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := vfs.NewFault(vfs.NewMem(1))
		var removed atomic.Int64
		fault.Hook(func(op vfs.Op) {
			if op.Kind == vfs.OpRemove && inLog(op) && removed.Add(1) > 100 {
				fault.Hook(nil, nil)
				fault.Fail(vfs.Rule{Kind: vfs.OpCreate, Match: inLog, Count: -1}) // ends an endless loop
			}
		}, nil)
		r := open(t, testOptions(fault))
		n := r.bind(1)
		var promised []func()
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			release, err := r.log.Reserve(ctx, 10000)
			cancel()
			if err != nil {
				break
			}
			promised = append(promised, release)
		}
		synctest.Wait()
		if got := removed.Load(); got != 0 {
			t.Errorf("%d files were removed", got)
		}
		for _, release := range promised {
			if err := r.write(n, r.entries(n, 1, 10000)...); err != nil {
				t.Fatalf("a promised write: %v", err)
			}
			release()
		}
		r.log.Kill()
	})
}

// A copy forward takes no room that producers were promised.
func TestACopyTakesNoPromisedRoom(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	n := r.bind(1)
	r.add(n, 1, 10)
	l := r.log
	l.mu.Lock()
	room := l.space.physical(l.space.slack) - l.space.queued
	l.space.reserved = room - 1000
	l.mu.Unlock()
	if ok, err := l.relocate([]copied{{shard: l.index.byNumber[n]}}, 2000); ok || err != nil {
		t.Errorf("room was given: %v, %v", ok, err)
	}
	l.mu.Lock()
	l.space.reserved = 0
	l.mu.Unlock()
	if ok, err := l.relocate(nil, 2000); !ok || err != nil {
		t.Errorf("no room was given: %v, %v", ok, err)
	}
}
