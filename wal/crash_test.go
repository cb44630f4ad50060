package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/varve-io/varve/wal/vfs"
)

// history is everything ever submitted, shard by shard, with the state after each
// record, and how much of it was acknowledged.
type history struct {
	mu    sync.Mutex
	fold  *fold
	steps map[ShardNumber][][]byte // state after k records
	acked map[ShardNumber]int
}

func newHistory() *history {
	return &history{fold: newFold(), steps: map[ShardNumber][][]byte{}, acked: map[ShardNumber]int{}}
}

// submitting notes records before they are appended, and returns what to call once
// they are acknowledged.
func (h *history) submitting(n ShardNumber, records []Record) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.steps[n] == nil {
		h.steps[n] = [][]byte{h.fold.shard(n).encode()}
	}
	for _, r := range records {
		h.fold.apply(n, r)
		h.steps[n] = append(h.steps[n], h.fold.shard(n).encode())
	}
	count := len(h.steps[n]) - 1
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.acked[n] = max(h.acked[n], count)
	}
}

// promised is how many records of each shard were acknowledged so far.
func (h *history) promised() map[ShardNumber]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := map[ShardNumber]int{}
	for n, k := range h.acked {
		m[n] = k
	}
	return m
}

// check holds a recovered state against the history: it is a state that the shard
// went through, and no acknowledged record is missing.
func (h *history) check(got *fold, promised map[ShardNumber]int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, steps := range h.steps {
		state := steps[0]
		if s := got.shards[n]; s != nil {
			state = s.encode()
		}
		k := len(steps) - 1
		for ; k >= 0 && !bytes.Equal(steps[k], state); k-- {
		}
		if k < 0 {
			return fmt.Errorf("shard %d is in a state that it never was in", n)
		}
		if k < promised[n] {
			return fmt.Errorf("shard %d has %d records, %d were acknowledged", n, k, promised[n])
		}
	}
	for n := range got.shards {
		if h.steps[n] == nil {
			return fmt.Errorf("shard %d was never written to", n)
		}
	}
	return nil
}

// smallOptions make files of 8 blocks, so that a short workload rolls over many.
func smallOptions(fsys vfs.FS) Options {
	o := testOptions(fsys)
	o.FileSize, o.Budget = 32<<10, 12*32<<10
	return o
}

// workload writes to three shards: entries of odd sizes, truncations, states, a
// base, a forgotten shard, checkpoints with copies forward and recycling.
func workload(r *rig, h *history) error {
	do := func(n ShardNumber, records ...Record) error {
		release, err := r.log.Reserve(context.Background(), bytesOf(records))
		if err != nil {
			return err
		}
		defer release()
		ack, done := h.submitting(n, records), make(chan error, 1)
		err = r.submit(n, records, func(err error) {
			if err == nil {
				ack()
			}
			done <- err
		})
		if err != nil {
			return err
		}
		return <-done
	}
	for round := range 6 {
		for i := range 3 {
			n := r.bind(i)
			if err := do(n, r.entries(n, 1+(round+i)%3, 37+round*211+i*1000)...); err != nil {
				return err
			}
		}
		switch n := r.bind(round % 3); round {
		case 1, 3:
			if err := do(n, Record{Kind: Truncate, LSN: r.next[n] - 2}, Record{Kind: State, Data: []byte{byte(round)}}); err != nil {
				return err
			}
		case 4:
			if err := do(n, Record{Kind: Base, LSN: 100, Data: []byte("installed")}); err != nil {
				return err
			}
		}
		if round%2 == 1 {
			n := r.bind(2)
			_, end := r.log.Bounds(n)
			r.log.Drop(n, end-1)
			if err := r.checkpoint(); err != nil {
				return err
			}
		}
	}
	return nil
}

func bytesOf(records []Record) (n int64) {
	for i := range records {
		n += int64(bodySize(&records[i]))
	}
	return n
}

// crashPoint is a file system as a crash would find it.
type crashPoint struct {
	op       vfs.Op
	disk     *vfs.Mem // a clone taken by kill: the page cache is still there
	promised map[ShardNumber]int
}

// sweepOf runs the workload and keeps what a crash at every change would find.
func sweepOf(t *testing.T, opts func(vfs.FS) Options) (*history, []crashPoint) {
	mem := vfs.NewMem(3)
	fault := vfs.NewFault(mem)
	h := newHistory()
	var mu sync.Mutex
	var points []crashPoint
	fault.Hook(func(op vfs.Op) {
		if !op.Kind.Changes() {
			return
		}
		// Acknowledged is read first: what is acknowledged in between is on disk later.
		promised := h.promised()
		mu.Lock()
		defer mu.Unlock()
		points = append(points, crashPoint{op, mem.KillClone(), promised})
	}, nil)
	r := open(t, opts(fault))
	if err := workload(r, h); err != nil {
		t.Fatalf("workload: %v", err)
	}
	if err := r.log.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	fault.Hook(nil, nil)
	mu.Lock()
	defer mu.Unlock()
	return h, append(points, crashPoint{vfs.Op{Kind: vfs.OpAny}, mem.KillClone(), h.promised()})
}

// survive opens what a crash left, checks it, goes on, and opens it once more: the
// second reopening is what counts.
func survive(t *testing.T, h *history, p crashPoint, disk *vfs.Mem, again bool) error {
	opts := smallOptions(disk)
	r, err := tryOpen(t, opts)
	if err != nil {
		return fmt.Errorf("crash before %s of %s (operation %d): %w", p.op.Kind, p.op.Path, p.op.N, err)
	}
	defer func() { r.log.Kill() }()
	err = h.check(r.fold, p.promised)
	if err == nil {
		err = r.readAll()
	}
	if err == nil && again {
		n := r.bind(7)
		r.add(n, 1, 100)
		r.log.Kill()
		// The power fails right after.
		opts.FS = disk.CrashClone(vfs.CrashOptions{})
		before := r.fold
		if r, err = tryOpen(t, opts); err == nil {
			if err = same(before, r.fold); err == nil {
				err = r.readAll()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("crash before %s of %s (operation %d): %w", p.op.Kind, p.op.Path, p.op.N, err)
	}
	return nil
}

// Scenarios: B01, B02, B05, B10, B11.
func TestW2_CrashAtEveryStep(t *testing.T) {
	h, points := sweepOf(t, smallOptions)
	t.Logf("%d crash points", len(points))
	keeps := []vfs.CrashOptions{{}, {Data: vfs.KeepAll}, {Data: vfs.KeepAll, Names: vfs.KeepAll}, {Names: vfs.KeepAll},
		{Data: vfs.KeepSectors, Names: vfs.KeepSectors}, {Data: vfs.KeepBytes, Names: vfs.KeepBytes}, {Data: vfs.KeepLast, Names: vfs.KeepLast}}
	for at, p := range points {
		for i, k := range keeps {
			if i > 3 && (at+i)%3 != 0 {
				continue // what chance keeps: one of three kinds a point
			}
			if err := survive(t, h, p, p.disk.CrashClone(k), i < 3); err != nil {
				t.Fatalf("keeping %+v: %v", k, err)
			}
		}
		if err := survive(t, h, p, p.disk.KillClone(), true); err != nil {
			t.Fatalf("killed: %v", err)
		}
	}
}

func TestW2_TornAtEveryByte(t *testing.T) {
	h, points := sweepOf(t, smallOptions)
	every, opened := 0, 0
	for _, p := range points {
		bytes, names := p.disk.Unsynced()
		if p.op.Kind != vfs.OpSync || bytes == 0 || bytes > 64<<10 {
			continue
		}
		// Every byte of the headers and frames of some writes, and a grid over all.
		dense := int64(0)
		if every++; every%7 == 1 && bytes <= 8<<10 {
			dense = 400
		}
		for cut, step := int64(0), int64(1); cut <= bytes; cut += step {
			if step = 1; cut >= dense {
				step = 2039
			}
			disk := p.disk.CrashClone(vfs.CrashOptions{Data: vfs.KeepPrefix, Names: vfs.KeepPrefix, Prefix: max(cut, names)})
			if cut >= names {
				if err := survive(t, h, p, disk, cut >= dense); err != nil {
					t.Fatalf("torn at byte %d of %d: %v", cut, bytes, err)
				}
				opened++
			}
		}
	}
	t.Logf("%d cuts", opened)
	if opened < 800 {
		t.Fatalf("only %d cuts", opened)
	}
}

// caught reports whether the crash sweep finds fault with a log.
func caught(t *testing.T, opts func(vfs.FS) Options) error {
	h, points := sweepOf(t, opts)
	for _, p := range points {
		for _, k := range []vfs.CrashOptions{{}, {Data: vfs.KeepAll}} {
			if err := survive(t, h, p, p.disk.CrashClone(k), false); err != nil {
				return err
			}
		}
	}
	return nil
}

// Rows: W2, E10. Two logs that are wrong on purpose.
func TestW2_TwinsAreCaught(t *testing.T) {
	if err := caught(t, smallOptions); err != nil {
		t.Fatalf("control: %v", err)
	}
	for name, twins := range map[string]Twins{"no directory sync": {NoDirSync: true}, "acknowledge before sync": {AckBeforeSync: true}} {
		err := caught(t, func(fsys vfs.FS) Options {
			o := smallOptions(fsys)
			o.Twins = twins
			return o
		})
		if err == nil {
			t.Errorf("%s: not caught", name)
		}
		t.Logf("%s: %v", name, err)
	}
}

// Rows: E10. A process is killed between a file's creation and the sync of its name;
// the next one finds the file and uses it; then the power fails.
func TestE10_NamesThatAKilledProcessLeftAreMadeDurable(t *testing.T) {
	for at, reached := 1, true; reached; at++ {
		mem := vfs.NewMem(1)
		fault := vfs.NewFault(mem)
		var mu sync.Mutex
		var killed *vfs.Mem
		seen := 0
		fault.Hook(func(op vfs.Op) {
			mu.Lock()
			defer mu.Unlock()
			if op.Kind == vfs.OpSyncDir && op.Path == "data/wal" {
				if seen++; seen == at {
					killed = mem.KillClone()
				}
			}
		}, nil)
		opts := testOptions(fault)
		opts.Budget = 6 * fileSize
		r := open(t, opts)
		for n := r.bind(1); r.log.Status().Files < 6; {
			r.must(r.put(soon(t), n, 1000))
		}
		r.log.Kill()
		mu.Lock()
		if reached = killed != nil; !reached {
			killed = mem
		}
		mu.Unlock()
		opts.FS = killed
		r = open(t, opts)
		for n := r.bind(1); r.log.Status().Used < opts.Budget; {
			r.add(n, 1, 3000) // into the last file
		}
		opts.FS = killed.CrashClone(vfs.CrashOptions{})
		r.log.Kill()
		o, err := tryOpen(t, opts)
		if err == nil {
			err = errors.Join(same(r.fold, o.fold), o.readAll())
			o.log.Kill()
		}
		if err != nil {
			t.Fatalf("killed ahead of sync %d of the names: %v", at, err)
		}
	}
}
