package wal

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/vfs"
)

// lifetime is all that was said of one shard number since the log was opened: its state
// after each record, and how many of them were acknowledged and are known to be on disk.
type lifetime struct {
	id      meta.ShardID
	now     *folded
	next    meta.LSN
	gone    bool       // forgotten
	states  [][]byte   // after k records; nil: there is no such shard
	floors  []meta.LSN // after k records: everything from here on is still needed
	acked   int
	durable int
}

// walk is one random walk over the public API of a log: a slow model of what was
// appended, with crashes of the machine and of the process, failing disks, and
// checks of everything after each start.
type walk struct {
	rng   *rand.Rand
	opts  Options
	mem   *vfs.Mem
	fault *vfs.Fault
	log   *Log
	trail []string

	mu      sync.Mutex // guards what Done and the hook touch
	lives   map[ShardNumber]*lifetime
	given   ShardNumber // the highest number that ever held an acknowledged record
	crashAt int64
	crashed *vfs.Mem // as of the operation at which the walk crashes
	promise map[ShardNumber][2]int
	waiting sync.WaitGroup
	stamp   uint64 // makes every payload another one
	faulty  bool   // an operation was made to fail
	synced  Position
	boot    int
}

func newWalk(seed uint64, mode Mode) *walk {
	w := &walk{rng: rand.New(rand.NewPCG(seed, 77)), lives: map[ShardNumber]*lifetime{}, mem: vfs.NewMem(seed)}
	w.opts = testOptions(nil)
	w.opts.Mode, w.opts.Rand, w.opts.Interval = mode, &shared{r: seeded{rand.New(rand.NewPCG(seed, 78))}}, time.Duration(1+w.rng.IntN(20))*time.Millisecond
	w.opts.Budget = int64(6+w.rng.IntN(7)) * fileSize
	return w
}

func (w *walk) note(format string, args ...any) {
	w.trail = append(w.trail, fmt.Sprintf(format, args...))
}

// absent tells a shard that holds nothing from one that was never written to.
func absent(s *folded) []byte {
	if s == nil || s.Base == 0 && s.Chain == 0 && len(s.Sums) == 0 {
		return nil
	}
	return s.encode()
}

// promised is how many records of each shard were acknowledged, and are durable.
// Called with mu.
func (w *walk) promised() map[ShardNumber][2]int {
	p := map[ShardNumber][2]int{}
	for n, l := range w.lives {
		p[n] = [2]int{l.acked, l.durable}
	}
	return p
}

// arm makes the machine as it is just ahead of the k-th operation from now the one
// that the walk goes on with.
func (w *walk) arm(k int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.crashed, w.crashAt = nil, w.fault.Ops()+k
}

func (w *walk) hook(op vfs.Op) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.crashAt != 0 && op.N >= w.crashAt && w.crashed == nil {
		w.promise = w.promised() // read first: what is acknowledged in between is on disk later
		w.crashed = w.mem.KillClone()
	}
}

// open starts on the disk as it is now and checks everything. clean, killed and
// powerless say how the log ended.
func (w *walk) open(how string, promise map[ShardNumber][2]int) error {
	for again := 0; ; again++ {
		w.fault = vfs.NewFault(w.mem)
		w.fault.Hook(w.hook, nil)
		w.crashed, w.crashAt = nil, 0
		if again == 0 && promise != nil && w.rng.IntN(3) == 0 {
			w.arm(1 + w.rng.Int64N(60)) // a second crash, during the recovery
		}
		f := newFold()
		o := w.opts
		o.FS, o.Replay, o.BootID = w.fault, f, "boot-"+strconv.Itoa(w.boot)
		l, err := Open(context.Background(), o)
		if err != nil {
			return fmt.Errorf("start refused: %w", err)
		}
		w.mu.Lock()
		crashed := w.crashed
		w.crashed, w.crashAt = nil, 0
		w.mu.Unlock()
		if crashed != nil {
			l.Kill()
			w.mem = crashed
			if w.rng.IntN(2) == 0 {
				how += ", power lost in the recovery"
				w.power()
			}
			w.note("second crash")
			continue
		}
		w.log = l
		if err := w.check(f, how, promise); err != nil {
			return err
		}
		if err := w.all(); err != nil {
			return err
		}
		if again == 0 && w.rng.IntN(4) == 0 { // what the replayer was told is on disk
			l.Kill()
			promise = w.promised()
			w.note("again")
			if w.rng.IntN(2) == 0 {
				how = "power lost after the start"
				w.power()
			}
			continue
		}
		return nil
	}
}

// power takes from the disk what was not synced, by chance.
func (w *walk) power() {
	keep := func() vfs.Keep { return vfs.Keep(w.rng.IntN(int(vfs.KeepLast) + 1)) }
	o := vfs.CrashOptions{Data: keep(), Names: keep(), Seed: w.rng.Uint64() | 1}
	w.note("power %+v", o)
	w.mem = w.mem.CrashClone(o)
	w.boot++
}

// check holds a started log against the model, and makes the model what it found.
func (w *walk) check(f *fold, how string, promise map[ShardNumber][2]int) error {
	id := w.log.Identity()
	for n, why := range f.broken {
		return fmt.Errorf("shard %d broke: %w", n, why)
	}
	if w.opts.Mode == Commit && !id.Kept && how != "new" {
		return fmt.Errorf("the id was not kept in commit mode: %s", id.Why)
	}
	if w.opts.Mode == Periodic && !id.Kept && (how == "clean" || how == "killed") && !w.faulty {
		return fmt.Errorf("the id was not kept after: %s: %s", how, id.Why)
	}
	if end := w.log.Status().End; end < w.synced {
		return fmt.Errorf("the log ends at %d, but %d was told to be on disk", end, w.synced)
	}
	lives := map[ShardNumber]*lifetime{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, old := range w.lives {
		state := absent(f.shards[n])
		k := len(old.states) - 1
		for ; k >= 0 && !bytes.Equal(old.states[k], state); k-- {
		}
		if k < 0 {
			return fmt.Errorf("shard %d is in a state that it never was in", n)
		}
		least := promise[n][0]
		if !id.Kept {
			least = promise[n][1]
		}
		if k < least {
			return fmt.Errorf("shard %d has %d records of %d; %d were promised (%s)", n, k, len(old.states)-1, least, how)
		}
		if promise[n][1] > 0 {
			w.given = max(w.given, n)
		}
		if _, there := f.ids[n]; !there {
			continue
		}
		l := &lifetime{id: f.ids[n], now: f.shard(n), states: [][]byte{state}, floors: []meta.LSN{old.floors[k]}}
		if l.id != old.id {
			return fmt.Errorf("shard %d is %s: want %s", n, l.id, old.id)
		}
		l.next = l.now.Base + meta.LSN(len(l.now.Sums)) + 1
		lives[n] = l
	}
	for n := range f.ids {
		if lives[n] == nil {
			return fmt.Errorf("shard %d is there, but never was", n)
		}
	}
	w.lives = lives
	return nil
}

// all checks everything that the log holds. Nothing is queued.
func (w *walk) all() error {
	for n, l := range w.lives {
		if !l.gone {
			if err := w.readable(n, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// readable checks that a shard holds what is needed of it, as it was appended, and
// that look-ups agree with it. Nothing is queued.
func (w *walk) readable(n ShardNumber, l *lifetime) error {
	start, end := w.log.Bounds(n)
	if end != l.next || start > max(l.floors[len(l.floors)-1], 1) {
		return fmt.Errorf("shard %d holds [%d, %d): want at least [%d, %d)", n, start, end, l.floors[len(l.floors)-1], l.next)
	}
	var all []entry.Entry
	for lsn := start; lsn < end; lsn = all[len(all)-1].LSN + 1 {
		got, err := w.log.Read(n, lsn, w.rng.IntN(20000))
		if err != nil || len(got) == 0 {
			return fmt.Errorf("shard %d, LSN %d: %d entries, %w", n, lsn, len(got), err)
		}
		for i := range got {
			if got[i].LSN != lsn+meta.LSN(i) || got[i].LSN > l.now.Base && sumOf(&got[i]) != l.now.Sums[got[i].LSN-l.now.Base-1] {
				return fmt.Errorf("shard %d, LSN %d: read another entry (%d)", n, lsn+meta.LSN(i), got[i].LSN)
			}
		}
		all = append(all, got...)
	}
	if len(all) == 0 {
		return nil
	}
	span := int(all[len(all)-1].Offset-all[0].Offset) + 30
	for range 4 {
		o := all[0].Offset + meta.Offset(w.rng.IntN(span)) - min(5, all[0].Offset)
		t := all[0].Time + meta.Micros(w.rng.IntN(span)*100) - 500
		var holder, first *entry.Entry
		for i := range all {
			if all[i].Offset <= o {
				holder = &all[i]
			}
			if first == nil && all[i].Kind == entry.Batch && all[i].Time >= t {
				first = &all[i]
			}
		}
		lsn, ok, err := w.log.FindOffset(n, o)
		if want := holder != nil && holder.Kind == entry.Batch; err != nil || ok != want || want && lsn != holder.LSN {
			return fmt.Errorf("shard %d: offset %d found at %d, %v, %w", n, o, lsn, ok, err)
		}
		lsn, ok, err = w.log.FindTime(n, t)
		if err != nil || ok != (first != nil) || ok && lsn != first.LSN {
			return fmt.Errorf("shard %d: time %d found at %d, %v, %w", n, t, lsn, ok, err)
		}
	}
	return nil
}
