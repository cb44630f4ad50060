package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
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

// pick returns a shard to write to, binding one now and then.
func (w *walk) pick() (ShardNumber, *lifetime, error) {
	id := shardID(w.rng.IntN(5))
	n, err := w.log.Bind(id)
	if err != nil {
		return 0, nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lives[n]
	switch {
	case l == nil && n <= w.given:
		return 0, nil, fmt.Errorf("number %d was used before", n)
	case l == nil:
		l = &lifetime{id: id, now: &folded{}, next: 1, states: [][]byte{nil}, floors: []meta.LSN{1}}
		w.lives[n] = l
	case l.gone || l.id != id:
		return 0, nil, fmt.Errorf("number %d is %s, gone: %v", n, l.id, l.gone)
	}
	return n, l, nil
}

// record makes one of any kind that fits the shard's end.
func (w *walk) record(l *lifetime, next meta.LSN) Record {
	data := make([]byte, w.rng.IntN(200))
	w.stamp++
	data = binary.LittleEndian.AppendUint64(data, w.stamp)
	switch k := w.rng.IntN(40); {
	case k < 3:
		return Record{Kind: State, Data: data}
	case k < 6 && next > 1:
		return Record{Kind: Truncate, LSN: next - 1 - meta.LSN(w.rng.IntN(int(min(next, 6))))}
	case k == 6:
		return Record{Kind: Base, LSN: next + meta.LSN(w.rng.IntN(50)), Data: data}
	case k == 7 && w.rng.IntN(4) == 0:
		return Record{Kind: Forget}
	}
	size := w.rng.IntN(600)
	if w.rng.IntN(6) == 0 {
		size = w.rng.IntN(12000)
	}
	e := entryAt(next, append(payload(1, next, size), data[len(data)-8:]...))
	if w.rng.IntN(4) == 0 {
		e.Kind = entry.Trim
	}
	return Record{Kind: Entry, Entry: e}
}

// put appends a few records and sometimes waits for them.
func (w *walk) put() error {
	n, l, err := w.pick()
	if err != nil {
		return w.refused(err)
	}
	wr := &Write{Shard: n, Sync: w.rng.IntN(5) == 0}
	next := l.next
	for range 1 + w.rng.IntN(4) {
		r := w.record(l, next)
		wr.Records = append(wr.Records, r)
		switch r.Kind {
		case Entry:
			next++
		case Truncate, Base:
			next = r.LSN + 1
		}
		if r.Kind == Forget {
			break
		}
	}
	if w.rng.IntN(3) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		defer cancel()
		release, err := w.log.Reserve(ctx, bytesOf(wr.Records))
		if err != nil {
			return w.refused(err)
		}
		defer release()
	}
	w.mu.Lock() // a capture must not come between
	k, done := len(l.states)-1+len(wr.Records), make(chan struct{})
	wr.Done = func(err error) {
		w.mu.Lock()
		if err == nil {
			if l.acked = max(l.acked, k); w.opts.Mode == Commit || wr.Sync {
				l.durable = max(l.durable, k)
			}
		}
		w.mu.Unlock()
		w.waiting.Done()
		close(done)
	}
	w.waiting.Add(1)
	if err = w.log.Append(wr); err == nil {
		w.apply(n, l, wr.Records, next)
	}
	w.mu.Unlock()
	if err != nil {
		w.waiting.Done()
		return w.refused(err)
	}
	if w.rng.IntN(3) == 0 {
		<-done
	}
	return nil
}

// apply notes records that were appended. Called with mu.
func (w *walk) apply(n ShardNumber, l *lifetime, records []Record, next meta.LSN) {
	for _, r := range records {
		f := fold{ids: map[ShardNumber]meta.ShardID{}, shards: map[ShardNumber]*folded{n: l.now}}
		f.apply(n, r)
		floor := l.floors[len(l.floors)-1]
		switch r.Kind {
		case Truncate, Base:
			if floor > r.LSN || r.Kind == Base {
				floor = r.LSN + 1
			}
		}
		state := absent(f.shards[n])
		if r.Kind == Forget {
			l.gone, state = true, nil
		}
		l.states, l.floors = append(l.states, state), append(l.floors, floor)
	}
	l.next = next
}

// refused passes on errors that only say no.
func (w *walk) refused(err error) error {
	var throttled *meta.Throttled
	switch {
	case errors.As(err, &throttled), errors.Is(err, meta.ErrExhausted):
		if w.rng.IntN(2) == 0 {
			return w.trim()
		}
		return nil
	case w.faulty && (errors.Is(err, meta.ErrPoisoned) || errors.Is(err, syscall.EIO)):
		return nil
	}
	return err
}

// trim gives room back: everything is archived, say, and a checkpoint runs.
func (w *walk) trim() error {
	for range 1 + w.rng.IntN(5) {
		if err := w.drop(); err != nil {
			return err
		}
	}
	return w.checkpoint()
}

func (w *walk) drop() error {
	w.waiting.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, l := range w.lives {
		floor := &l.floors[len(l.floors)-1]
		if below := l.next - min(l.next-1, meta.LSN(w.rng.IntN(5))); !l.gone && below > *floor {
			*floor = below
			w.log.Drop(n, below)
			return nil
		}
	}
	return nil
}

// checkpoint runs one, and sometimes appends meanwhile.
func (w *walk) checkpoint() error {
	done := make(chan error, 1)
	before := map[ShardNumber]int{}
	go func() {
		done <- w.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
			w.mu.Lock()
			numbers := slices.Collect(maps.Keys(w.lives))
			w.mu.Unlock()
			for _, n := range numbers {
				w.mu.Lock()
				l := w.lives[n]
				before[n] = len(l.states) - 1
				ok := l.gone || yield(n, l.now.encode())
				w.mu.Unlock()
				if !ok {
					return
				}
			}
		})
	}()
	for range w.rng.IntN(3) {
		next := w.put
		if w.rng.IntN(4) == 0 {
			next = w.drop
		}
		if err := next(); err != nil {
			return err
		}
	}
	err := <-done
	if err == nil {
		w.mu.Lock()
		for n, k := range before {
			w.lives[n].durable = max(w.lives[n].durable, k)
		}
		w.mu.Unlock()
	}
	if w.faulty {
		return nil
	}
	return err
}

// stop ends the log in one of many ways and starts it again.
func (w *walk) stop() error {
	kind := w.rng.IntN(6)
	if kind == 0 && !w.faulty {
		w.note("close")
		if err := w.log.Close(context.Background()); err != nil {
			return err
		}
		w.waiting.Wait()
		w.faulty = false
		p := map[ShardNumber][2]int{}
		w.mu.Lock()
		for n, l := range w.lives {
			if k := len(l.states) - 1; l.acked == k || k == 0 {
				p[n] = [2]int{k, k}
			} else {
				return fmt.Errorf("shard %d: %d of %d records were acknowledged at a clean stop", n, l.acked, k)
			}
		}
		w.mu.Unlock()
		if w.rng.IntN(2) == 0 {
			w.power()
		}
		return w.open("clean", p)
	}
	w.arm(1 + w.rng.Int64N(12))
	for range w.rng.IntN(6) {
		if err := w.put(); err != nil {
			return err
		}
	}
	if w.rng.IntN(2) == 0 {
		if err := w.checkpoint(); err != nil {
			return err
		}
	}
	w.mu.Lock()
	if w.crashed == nil {
		w.promise = w.promised()
		w.crashed = w.mem.KillClone()
	}
	promise := w.promise
	w.mem = w.crashed
	w.crashAt = 0
	w.mu.Unlock()
	w.log.Kill()
	w.waiting = sync.WaitGroup{}
	how := "killed"
	w.note("kill, faulty %v", w.faulty)
	if kind > 2 || kind > 1 && !w.faulty {
		how = "power lost"
		w.power()
	}
	err := w.open(how, promise)
	w.faulty = false
	return err
}

// breaks makes one operation on the disk fail.
func (w *walk) breaks() {
	w.faulty = true
	kinds := []vfs.OpKind{vfs.OpSync, vfs.OpSync, vfs.OpWrite, vfs.OpSyncDir, vfs.OpRename, vfs.OpCreate}
	r := vfs.Rule{Kind: kinds[w.rng.IntN(len(kinds))], Nth: 1 + w.rng.IntN(8), Short: w.rng.IntN(3000), Count: 1 + w.rng.IntN(2)}
	w.note("break %s", r.Kind)
	w.fault.Fail(r)
}

func (w *walk) run(steps int) error {
	if err := w.open("new", nil); err != nil {
		return err
	}
	defer func() { w.log.Kill() }()
	for range steps {
		var err error
		switch k := w.rng.IntN(100); {
		case k < 70:
			err = w.put()
		case k < 78:
			err = w.drop()
		case k < 88:
			err = w.checkpoint()
		case k < 90:
			time.Sleep(time.Duration(w.rng.IntN(30)) * time.Millisecond) // syncs and vouching headers come between
		case k < 92:
			w.breaks()
		case k < 95:
			err = w.stop()
		default:
			err = w.settled()
		}
		if err != nil {
			return err
		}
		w.synced = max(w.synced, w.log.Synced())
	}
	return w.stop()
}

// settled checks a running log, unless something failed: then what it holds is in doubt.
func (w *walk) settled() error {
	w.waiting.Wait()
	if w.faulty {
		return nil
	}
	return w.all()
}

// walkLimit tells a deadlock; no walk takes long.
const walkLimit = 10 * time.Second

func walkFrom(seed uint64, steps int) error {
	w := newWalk(seed, Mode(seed%2))
	done := make(chan error, 1)
	go func() { done <- w.run(steps) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("seed %d, %s mode: %w\n%q", seed, w.opts.Mode, err, w.trail)
		}
		return nil
	case <-time.After(walkLimit):
		return fmt.Errorf("seed %d, %s mode: hangs\n%q", seed, w.opts.Mode, w.trail)
	}
}

// Rows: W1, W2, W3, W5, W8, E1, E3, D2.
func TestRandomWalks(t *testing.T) {
	from, count := uint64(1), uint64(24)
	if s := os.Getenv("WALKS"); s != "" {
		fmt.Sscanf(s, "%d,%d", &from, &count)
	}
	for seed := from; seed < from+count; seed++ {
		if err := walkFrom(seed, 150); err != nil {
			t.Error(err)
		}
	}
}
