package wal

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"sync"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// replicaLike is one shard with the lock that its owner appends under.
type replicaLike struct {
	mu     sync.Mutex
	number ShardNumber
	state  folded
	next   meta.LSN
}

// Many shards append, truncate, read and drop at once on a small budget, while
// checkpoints run whenever the pressure says so. Nothing deadlocks, the budget
// holds, and what is there in the end is there after a restart.
func TestManyShardsAtOnce(t *testing.T) {
	const shards, rounds = 8, 120
	opts := testOptions(vfs.OS())
	opts.Dir, opts.WitnessDir = path.Join(t.TempDir(), "d"), ""
	pressure := make(chan struct{}, 1)
	opts.Events.Pressure = func(int64, int64) {
		select {
		case pressure <- struct{}{}:
		default:
		}
	}
	r := open(t, opts)
	l := r.log
	all := make([]*replicaLike, shards)
	for i := range all {
		all[i] = &replicaLike{number: r.bind(i), next: 1}
	}
	checkpoint := func() error {
		return l.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
			for _, s := range all {
				s.mu.Lock()
				ok := yield(s.number, s.state.encode())
				s.mu.Unlock()
				if !ok {
					return
				}
			}
		})
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-pressure:
			}
			for _, tail := range l.Tails() {
				_, end := l.Bounds(tail.Shard)
				l.Drop(tail.Shard, end-min(end, 3))
			}
			if err := checkpoint(); err != nil {
				t.Errorf("checkpoint: %v", err)
				return
			}
			if st := l.Status(); st.Bytes > st.Budget {
				t.Errorf("%d bytes on disk, the budget is %d", st.Bytes, st.Budget)
			}
		}
	}()
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			for range rounds {
				if err := s.step(l, rng); err != nil {
					t.Errorf("shard %d: %v", s.number, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-stopped
	for _, s := range all {
		r.fold.shards[s.number] = &s.state
	}
	r.must(r.readAll())
	r = r.reopen(false)
	r.must(r.checkpoint())
	r.reopen(true)
}

// step appends one entry or command and sometimes reads.
func (s *replicaLike) step(l *Log, rng *rand.Rand) error {
	size := rng.IntN(3000)
	release, err := l.Reserve(context.Background(), int64(size))
	if err != nil {
		return err
	}
	s.mu.Lock()
	records := []Record{{Kind: Entry, Entry: entryAt(s.next, payload(s.number, s.next, size))}}
	if rng.IntN(10) == 0 && s.next > 2 {
		records = []Record{{Kind: Truncate, LSN: s.next - 2}}
	}
	done := make(chan error, 1)
	if err = l.Append(&Write{Shard: s.number, Records: records, Done: func(err error) { done <- err }}); err == nil {
		f := fold{shards: map[ShardNumber]*folded{s.number: &s.state}}
		f.apply(s.number, records[0])
		if records[0].Kind == Entry {
			s.next++
		} else {
			s.next = records[0].LSN + 1
		}
	}
	s.mu.Unlock()
	release()
	if err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	start, end := l.Bounds(s.number)
	if start < end {
		if _, err := l.Read(s.number, start+meta.LSN(rng.IntN(int(end-start))), 5000); err != nil && !errors.Is(err, ErrNotLocal) {
			return err
		}
	}
	return nil
}
