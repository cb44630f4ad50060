package wal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/varve-io/varve/meta"
)

// ErrNotLocal says that the log doesn't hold an entry: it lies below the shard's
// local start, or not below its end.
var ErrNotLocal = errors.New("entry is not in the local log")

// ErrClosed says that the log was closed.
var ErrClosed = errors.New("log is closed")

// Log is one broker's shared log. All methods are safe for concurrent use.
type Log struct {
	opts     Options
	folder   folder
	identity *identity
	lock     io.Closer

	wake             chan struct{} // something was queued, or the log closes
	prepares         chan struct{} // the preparer has something to do
	quit             chan struct{} // closed once: the goroutines end
	closing, killing sync.Once
	failed           chan struct{} // closed when poisoned
	running          sync.WaitGroup
	writer           writer
	checkpoints      *checkpoints
	checkpoint       chan struct{} // held by the one Checkpoint that runs
	ballast          ballast

	mu sync.Mutex
	state
}

// state is what the log's mutex guards. No disk is touched under it.
type state struct {
	index   *index
	queue   queue
	space   space
	closed  bool     // no more appends
	killed  bool     // nothing is written any more
	err     error    // what poisoned the log
	end     Position // of the last group, as applied
	synced  Position
	changed chan struct{} // closed when something that somebody waits for may have come
	waiters int           // who wait for changed
}

// broadcast wakes everyone who waits for room or for a file. Called with the mutex.
func (s *state) broadcast() {
	if s.waiters > 0 {
		close(s.changed)
		s.changed, s.waiters = make(chan struct{}), 0
	}
}

// watch returns what the next broadcast closes. Called with the mutex.
func (s *state) watch() <-chan struct{} {
	s.waiters++
	return s.changed
}

// Tail is what a shard keeps in the log.
type Tail struct {
	Shard ShardNumber
	ID    meta.ShardID
	Bytes int64    // of its live frames
	Start Position // of its oldest live frame
}

// Status is a moment's figures.
type Status struct {
	Files, FreeFiles int
	Bytes, Budget    int64 // bytes of all log files on disk, and their bound
	Used             int64 // bytes of the files that hold something
	Live             int64 // bytes of live frames
	Shards           int
	End, Synced      Position
	Reserved, Queued int64 // bytes of room promised, and taken by queued writes
}

// Bind returns the number of a shard in this directory, giving it one if it has
// none. The number becomes durable with the shard's first record.
func (l *Log) Bind(id meta.ShardID) (ShardNumber, error) {
	if err := id.Stream.Validate(); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	if s := l.index.byID[id]; s != nil && !s.forgotten {
		return s.number, nil
	}
	return l.index.add(l.index.last+1, id).number, nil
}

// usable reports why nothing can be appended any more. Called with the mutex.
func (l *Log) usable() error {
	switch {
	case l.err != nil:
		return l.poisonedError()
	case l.closed:
		return ErrClosed
	}
	return nil
}

// ready is usable for those who don't hold the mutex.
func (l *Log) ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usable()
}

// Bounds returns the first local LSN and the one after the last; both are 1 for a
// shard without entries, and 0 for one that isn't known.
func (l *Log) Bounds(n ShardNumber) (start, end meta.LSN) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.index.byNumber[n]
	if s == nil {
		return 0, 0
	}
	return s.start, s.end
}

// Drop says that no entry below an LSN is needed any more. After a restart it is
// said again by whoever replays the log.
func (l *Log) Drop(n ShardNumber, below meta.LSN) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.index.byNumber[n]; s != nil {
		l.index.drop(s, below)
	}
}

// Tails lists what shards keep in the log, biggest first.
func (l *Log) Tails() []Tail {
	l.mu.Lock()
	tails := make([]Tail, 0, len(l.index.byNumber))
	for _, s := range l.index.byNumber {
		if bytes, start := s.live(); bytes > 0 {
			tails = append(tails, Tail{Shard: s.number, ID: s.id, Bytes: bytes, Start: start})
		}
	}
	l.mu.Unlock()
	slices.SortFunc(tails, func(a, b Tail) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Shard, b.Shard))
	})
	return tails
}

// Tail is what one shard keeps in the log; zero if nothing.
func (l *Log) Tail(n ShardNumber) Tail {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.index.byNumber[n]
	if s == nil {
		return Tail{}
	}
	bytes, start := s.live()
	return Tail{Shard: n, ID: s.id, Bytes: bytes, Start: start}
}

// Status returns figures for metrics. It costs a walk over the files.
func (l *Log) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Status{Files: l.space.files(l.index), FreeFiles: len(l.space.free), Budget: l.opts.Budget,
		Shards: len(l.index.byNumber), End: l.end, Synced: l.synced, Reserved: l.space.reserved, Queued: l.space.queued}
	st.Bytes, st.Used = l.space.bytes(l.index)
	for _, f := range l.index.files {
		st.Live += f.live
	}
	return st
}

// Synced is the position before which everything is on disk.
func (l *Log) Synced() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced
}

// Failed is closed when the log is poisoned.
func (l *Log) Failed() <-chan struct{} { return l.failed }

// Err is the failure that poisoned the log, or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close stops appends, writes and syncs what is queued, and records a clean stop
// at the very end. When ctx ends first, the stop is not recorded and the next
// start recovers; what was not written by then gets an [ErrClosed]. The log must
// not be used any more, whatever Close returns.
func (l *Log) Close(ctx context.Context) error {
	l.mu.Lock()
	already := l.closed
	l.closed = true
	l.broadcast()
	l.mu.Unlock()
	if already {
		l.running.Wait()
		return ErrClosed
	}
	// No checkpoint runs beside the clean mark; one under way still finishes.
	var err error
	held := false
	select {
	case l.checkpoint <- struct{}{}:
		held = true
		err = l.drain(ctx)
	case <-ctx.Done():
		err = ctx.Err()
		l.abandon()
	}
	l.stop()
	if err == nil {
		l.mu.Lock()
		end := l.end
		l.mu.Unlock()
		err = l.ballast.with(func() error { return l.identity.stop(end) })
	}
	l.writer.fail(fmt.Errorf("%w before this write was done: its outcome is unknown until the log is opened again", ErrClosed))
	if held {
		<-l.checkpoint
	}
	l.killing.Do(func() { err = errors.Join(err, l.release()) })
	return err
}

// drain waits until everything queued is on disk.
func (l *Log) drain(ctx context.Context) error {
	err := l.barrier(ctx)
	if ctx.Err() != nil {
		l.abandon()
	}
	return err
}

// abandon makes the writer write nothing more.
func (l *Log) abandon() {
	l.mu.Lock()
	l.closed, l.killed = true, true
	l.broadcast()
	l.mu.Unlock()
}

// barrier waits until everything queued so far is on disk and applied.
func (l *Log) barrier(ctx context.Context) error {
	done := make(chan error, 1)
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.poisonedError()
	}
	l.queue.push(&Write{Sync: true, Done: func(err error) { done <- err }})
	l.mu.Unlock()
	l.signal()
	select {
	case err := <-done:
		return err
	case <-l.quit:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// poisonedError says that nothing is written any more. Called with the mutex.
func (l *Log) poisonedError() error {
	return meta.Errorf(meta.ErrPoisoned, "the log takes no more writes after a failed one: %w", l.err)
}

// Kill stops the log as a crash would: what is queued is never written and its
// Done never called. For tests.
func (l *Log) Kill() {
	l.abandon()
	l.stop()
	l.killing.Do(func() {
		l.checkpoint <- struct{}{} // one under way finds the log closed
		_ = l.release()            // as a crash would
		<-l.checkpoint
	})
}

// stop ends the goroutines and waits for them.
func (l *Log) stop() {
	l.closing.Do(func() { close(l.quit) })
	l.running.Wait()
}

// release closes the files and the lock.
func (l *Log) release() error {
	l.mu.Lock()
	files := slices.Concat(l.index.files, l.space.free, l.space.stale)
	if l.space.next != nil {
		files = append(files, l.space.next)
	}
	l.mu.Unlock()
	var errs []error
	for _, f := range files {
		errs = append(errs, f.f.Close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}

// signal wakes the writer.
func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// kick wakes the preparer.
func (l *Log) kick() {
	select {
	case l.prepares <- struct{}{}:
	default:
	}
}
