package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/vfs"
)

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

// A deadlock is told by a minute; no walk takes long.
const walkLimit = time.Minute

var (
	firstWalk = flag.Uint64("first-walk", 1, "seed of the first random walk; odd seeds walk in periodic mode")
	walks     = flag.Uint64("walks", 24, "how many random walks to take")
)

// walkFrom takes one walk. Goroutines decide the order of some steps, so a seed that
// failed may have to be walked more than once.
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
	for seed := *firstWalk; seed < *firstWalk+*walks; seed++ {
		if err := walkFrom(seed, 150); err != nil {
			t.Error(err)
		}
	}
}
