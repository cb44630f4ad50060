package wal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/vfs"
)

// Look-ups against a slow and obvious twin, over restarts, commands between the
// batches, drops, truncations and copies. Scenarios: B76, B80.
func TestFindAgainstALinearSearch(t *testing.T) {
	mem := vfs.NewMem(1)
	e := &explorer{rig: open(t, smallOptions(mem)), mem: mem}
	rng := rand.New(rand.NewPCG(5, 5))
	n := e.bind(1)
	var all []entry.Header // by LSN - 1
	offset, now := meta.Offset(0), meta.Micros(1000)
	for round := range 60 {
		var recs []Record
		for range 1 + rng.IntN(4) {
			h := entry.Header{Kind: entry.Batch, Level: 1, LSN: e.next[n] + meta.LSN(len(recs)), Offset: offset, Time: now}
			if rng.IntN(4) == 0 {
				h.Kind = entry.Fence
			} else {
				offset += meta.Offset(1 + rng.IntN(5))
			}
			now += meta.Micros(rng.IntN(3)) * 10
			all = append(all[:h.LSN-1], h)
			recs = append(recs, Record{Kind: Entry, Entry: entry.Entry{Header: h, Payload: payload(n, h.LSN, rng.IntN(300))}})
		}
		e.must(e.write(n, recs...))
		switch round % 12 {
		case 3:
			e.must(e.crash())
		case 5:
			e.must(errors.Join(e.readCopies(), e.placeCopies(), e.checkpoint(), e.crash()))
		case 8:
			start, end := e.log.Bounds(n)
			e.log.Drop(n, start+(end-start)/4)
		case 10:
			keep := e.next[n] - 2
			e.must(e.write(n, Record{Kind: Truncate, LSN: keep}))
			all = all[:keep]
			offset, now = all[keep-1].Offset, all[keep-1].Time
			if all[keep-1].Kind == entry.Batch {
				offset += 5
			}
		}
		e.must(e.readAll())
		start, _ := e.log.Bounds(n)
		local := all[start-1:]
		for o := range offset + 3 {
			var want meta.LSN
			for i, h := range local {
				if h.Kind == entry.Batch && h.Offset <= o && (i+1 == len(local) || local[i+1].Offset > o) {
					want = h.LSN
				}
			}
			got, ok, err := e.log.FindOffset(n, o)
			if err != nil || got != want && ok || ok != (want != 0) {
				t.Fatalf("round %d: offset %d is in entry %d (%v, %v): want %d", round, o, got, ok, err, want)
			}
		}
		for at := meta.Micros(990); at < now+20; at += 5 {
			var want meta.LSN
			for _, h := range local {
				if h.Kind == entry.Batch && h.Time >= at {
					want = h.LSN
					break
				}
			}
			got, ok, err := e.log.FindTime(n, at)
			if err != nil || got != want && ok || ok != (want != 0) {
				t.Fatalf("round %d: time %d is in entry %d (%v, %v): want %d", round, at, got, ok, err, want)
			}
		}
	}
}

func TestReadBounds(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	n := r.bind(1)
	r.add(n, 5, 100)
	r.log.Drop(n, 3)
	for from, want := range map[meta.LSN]int{2: -1, 3: 3, 5: 1, 6: 0, 7: -1} {
		got, err := r.log.Read(n, from, 1<<20)
		if (want < 0) != errors.Is(err, ErrNotLocal) || len(got) != max(0, want) {
			t.Errorf("from %d: %d entries, %v: want %d", from, len(got), err, want)
		}
	}
	if got, err := r.log.Read(n, 3, 1); len(got) != 1 || err != nil {
		t.Errorf("at least one entry: %d, %v", len(got), err)
	}
	if _, err := r.log.Read(99, 1, 1); !errors.Is(err, ErrNotLocal) {
		t.Errorf("unknown shard: %v", err)
	}
	for _, bad := range [][]Record{
		{{Kind: Entry, Entry: entryAt(7, nil)}}, {{Kind: Truncate, LSN: 6}}, {{Kind: 9}},
		{{Kind: Forget}, {Kind: State}}, {{Kind: State, Data: make([]byte, MaxData+1)}},
	} {
		isKind(t, r.log.Append(&Write{Shard: n, Records: bad}), meta.ErrInvalid)
	}
}

// Scenario: B08. Restarts without traffic leave nothing that matters.
func TestRestartsWithoutTraffic(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	for i := range 12 {
		r = r.reopen(i%3 != 0)
		if i%4 == 1 {
			r.must(r.checkpoint())
		}
	}
	n := r.bind(1)
	r.add(n, 2, 100)
	for i := range 12 {
		r = r.reopen(i%3 != 0)
		if i%4 == 1 {
			r.must(r.checkpoint())
		}
	}
	if st := r.log.Status(); st.Files > 5 {
		t.Errorf("%d files after restarts without traffic", st.Files)
	}
}

// 20 ms after the last sync a bare header vouches for the last group, once; an idle
// log costs nothing.
func TestIdleLogVouchesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem(1)
		r := open(t, testOptions(mem))
		r.add(r.bind(1), 1, 100)
		before := len(facts(t, mem, FactGroup))
		time.Sleep(idleVouch / 2)
		if got := len(facts(t, mem, FactGroup)); got != before {
			t.Errorf("%d groups after 10 ms: want %d", got, before)
		}
		time.Sleep(time.Hour)
		if got := len(facts(t, mem, FactGroup)); got != before+1 {
			t.Errorf("%d groups after an idle hour: want %d", got, before+1)
		}
	})
}

// In periodic mode, bytes are acknowledged at once and on disk after the interval.
func TestPeriodicModeSyncsEveryInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := testOptions(vfs.NewMem(1))
		opts.Mode = Periodic
		r := open(t, opts)
		time.Sleep(time.Second)
		n, synced := r.bind(1), r.log.Synced()
		r.add(n, 1, 100)
		time.Sleep(defaultInterval - time.Millisecond)
		if got := r.log.Synced(); got != synced {
			t.Errorf("synced before the interval: %d", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := r.log.Synced(); got <= synced {
			t.Errorf("not synced after the interval: %d", got)
		}
		r.add(n, 1, 100)
		r.reopen(true)
	})
}

// A thousand shards queued behind one sync cost one more.
func TestOneSyncForAllShards(t *testing.T) {
	const shards = 1000
	mem := vfs.NewMem(1)
	fault := vfs.NewFault(mem)
	opts := testOptions(fault)
	opts.FileSize, opts.Budget = 4<<20, 32<<20
	r := open(t, opts)
	first := r.bind(0)
	release := fault.HoldSync(inLog)
	var wg sync.WaitGroup
	wg.Add(shards + 1)
	done := func(err error) {
		if err != nil {
			t.Error(err)
		}
		wg.Done()
	}
	syncs := 0
	held := make(chan struct{}, 1<<10)
	fault.Hook(func(op vfs.Op) {
		if op.Kind == vfs.OpSync && inLog(op) && op.Path == "data/wal/00000001.log" {
			syncs++
			held <- struct{}{}
		}
	}, nil)
	r.must(r.submit(first, r.entries(first, 1, 100), done))
	<-held
	for i := range shards {
		n := r.bind(i + 1)
		r.must(r.submit(n, r.entries(n, 1, 100), done))
	}
	release()
	wg.Wait()
	if syncs > 3 { // the one that was held, the one for all, and perhaps a bare header's
		t.Errorf("%d syncs", syncs)
	}
	fault.Hook(nil, nil)
	r.must(r.readAll())
}

func TestIdleShardsAreSmall(t *testing.T) {
	const shards = 20_000
	opts := testOptions(vfs.NewMem(1))
	opts.FileSize, opts.Budget = 16<<20, 128<<20
	r := open(t, opts)
	var before, after runtime.MemStats
	ids := make([]meta.ShardID, shards)
	for i := range ids {
		ids[i] = shardID(i)
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, id := range ids {
		if _, err := r.log.Bind(id); err != nil {
			t.Fatal(err)
		}
	}
	goroutines := runtime.NumGoroutine()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / shards; per > 500 {
		t.Errorf("%d bytes a shard", per)
	} else {
		t.Logf("%d bytes a shard", per)
	}
	if goroutines > 10 {
		t.Errorf("%d goroutines", goroutines)
	}
	runtime.KeepAlive(ids)
}

// appender keeps a number of writes in flight and reuses them.
type appender struct {
	r    *rig
	n    ShardNumber
	free chan *Write
	next meta.LSN
}

func newAppender(r *rig, inFlight, size int) *appender {
	a := &appender{r: r, n: r.bind(1), free: make(chan *Write, inFlight), next: 1}
	body := make([]byte, size)
	for range inFlight {
		w := &Write{Shard: a.n, Records: []Record{{Kind: Entry, Entry: entryAt(1, body)}}}
		w.Done = func(error) { a.free <- w }
		a.free <- w
	}
	return a
}

func (a *appender) step(t testing.TB) {
	w := <-a.free
	w.Records[0].Entry.LSN = a.next
	if err := a.r.log.Append(w); err != nil {
		t.Fatal(err)
	}
	a.next++
	if a.next%4096 == 0 {
		_, end := a.r.log.Bounds(a.n)
		a.r.log.Drop(a.n, end)
		a.r.fold.shard(a.n)
		if err := a.r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) { yield(a.n, make([]byte, 20)) }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppendAllocatesNothingPerRecord(t *testing.T) {
	opts := testOptions(vfs.OS())
	opts.Dir, opts.WitnessDir = t.TempDir(), ""
	opts.FileSize, opts.Budget, opts.Mode = 16<<20, 256<<20, Periodic
	a := newAppender(open(t, opts), 64, 100)
	for range 2000 {
		a.step(t)
	}
	got := testing.AllocsPerRun(2000, func() { a.step(t) })
	if got > 0.5 {
		t.Errorf("%v allocations a record", got)
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 4 << 10, 64 << 10, 1 << 20} {
		for _, inFlight := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/inflight=%d", sizeName(size), inFlight), func(b *testing.B) {
				opts := testOptions(vfs.OS())
				opts.Dir, opts.WitnessDir = b.TempDir(), ""
				opts.FileSize, opts.Budget = 64<<20, 1<<30
				r := open(b, opts)
				a := newAppender(r, inFlight, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					release, err := r.log.Reserve(context.Background(), int64(size))
					if err != nil {
						b.Fatal(err)
					}
					a.step(b)
					release()
					if i%(64<<20/size) == 0 {
						_, end := r.log.Bounds(a.n)
						r.log.Drop(a.n, end)
						if err := r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) { yield(a.n, make([]byte, 20)) }); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}

func sizeName(n int) string {
	if n >= 1<<10 {
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}

func BenchmarkRead(b *testing.B) {
	opts := testOptions(vfs.OS())
	opts.Dir, opts.WitnessDir = b.TempDir(), ""
	opts.FileSize, opts.Budget = 16<<20, 256<<20
	r := open(b, opts)
	n := r.bind(1)
	for range 100 {
		r.add(n, 10, 4<<10)
	}
	b.SetBytes(256 << 10)
	b.ReportAllocs()
	from := meta.LSN(1)
	for b.Loop() {
		got, err := r.log.Read(n, from, 256<<10)
		if err != nil {
			b.Fatal(err)
		}
		if from += meta.LSN(len(got)); from > 900 {
			from = 1
		}
	}
}

// Inspect shows all of it, also of a damaged directory, and changes nothing.
func TestInspect(t *testing.T) {
	mem := vfs.NewMem(1)
	r := open(t, smallOptions(mem))
	h := newHistory()
	r.must(workload(r, h))
	r.add(r.bind(1), 3, 500)
	seen := map[FactKind]int{}
	for _, f := range facts(t, mem) {
		seen[f.Kind]++
		if f.String() == "" {
			t.Errorf("%+v says nothing", f)
		}
	}
	for _, kind := range []FactKind{FactIdentity, FactCheckpoint, FactShard, FactFile, FactGroup, FactFrame, FactEnd} {
		if seen[kind] == 0 {
			t.Errorf("no %s among the facts", kind)
		}
	}
	if seen[FactDamage] > 0 {
		t.Errorf("damage in a sound directory: %v", facts(t, mem, FactDamage))
	}
	r.log.Kill()
	last := entryFrames(t, mem, r.bindAt(1))
	bad := last[len(last)-1]
	flip(t, mem, bad.File, bad.Offset+100)
	damage := facts(t, mem, FactDamage)
	if len(damage) != 1 || damage[0].Position != bad.Position || damage[0].Shard != bad.Shard || !strings.Contains(damage[0].String(), "damage") {
		t.Errorf("damage: %v, want it at position %d", damage, bad.Position)
	}
	n := 0
	if err := Inspect(mem, testDir, func(Fact) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("stopping early: %d facts, %v", n, err)
	}
	if err := Inspect(mem, "nowhere", func(Fact) bool { return true }); err != nil {
		t.Errorf("a directory that isn't there: %v", err)
	}
}

// bindAt is the number of a shard, also when the log is closed.
func (r *rig) bindAt(i int) ShardNumber {
	for n, id := range r.fold.ids {
		if id == shardID(i) {
			return n
		}
	}
	return 0
}
