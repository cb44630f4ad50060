package wal

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/varve-io/varve/meta"
)

// mark is where a checkpoint begins: where a replay would start.
type mark struct{ replay Position }

// section is one shard's part of a checkpoint in the making: its blob as of one
// place in the queue, and the index as of the same place in the log.
type section struct {
	checkpointSection
}

// capture copies what the index says of the shard. Called with the mutex, in log
// order.
func (c *section) capture(s *shard) {
	c.Start, c.End, c.Extents = s.start, s.end, slices.Clone(s.extents)
}

// Checkpoint writes every shard's state and recycles the files that nothing needs
// any more. First it goes on in the next file if the current one is spent, and
// copies small tails forward. capture calls yield for each
// shard that it has bound and not forgotten, with the state that is the fold of
// every record appended for it so far; to make that exact, it holds whatever lock
// it appends to that shard under. yield copies the state and never blocks; it
// returns false when the checkpoint is given up. A shard bound before Checkpoint
// was called and not yielded fails the checkpoint.
//
// The order is: log synced, checkpoint file, superblock, recycling. Each step that
// fails withholds the rest; the next Checkpoint begins anew. One runs at a time,
// others wait.
func (l *Log) Checkpoint(ctx context.Context, capture func(yield func(ShardNumber, []byte) bool)) error {
	select {
	case l.checkpoint <- struct{}{}:
		defer func() { <-l.checkpoint }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.ready(); err != nil {
		return err
	}
	if l.spent() {
		if err := l.enqueue(&Write{turn: true}); err != nil {
			return err
		}
		if err := l.barrier(ctx); err != nil {
			return err
		}
	}
	if err := l.copyForward(ctx); err != nil {
		return err
	}
	c := &capturing{l: l}
	begin := &Write{mark: &c.mark}
	if err := l.enqueue(begin); err != nil {
		return err
	}
	capture(c.yield)
	if err := l.barrier(ctx); err != nil {
		return err
	}
	if err := c.complete(); err != nil {
		return err
	}
	// A shard that has no section is forgotten, but its Forget may have been queued
	// behind the barrier: it must be on disk before a checkpoint without the shard.
	if err := l.barrier(ctx); err != nil {
		return err
	}
	if l.opts.Twins.DropFirst {
		l.recycle(c)
	}
	if err := l.ballast.with(func() error { return l.store(c) }); err != nil {
		return err
	}
	l.recycle(c)
	l.ballast.renew(l.identity.super.current.Checkpoint.Size)
	// A leftover costs room and nothing else; the next checkpoint tries again.
	_ = l.checkpoints.prune(l.identity.super.current.Checkpoint)
	return nil
}

// enqueue queues something of the log's own.
func (l *Log) enqueue(w *Write) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.queue.push(w)
	l.signal()
	return nil
}

// capturing collects the sections of one checkpoint.
type capturing struct {
	l        *Log
	mark     mark
	sections []*section
	err      error
}

func (c *capturing) yield(n ShardNumber, blob []byte) bool {
	if c.err != nil {
		return false
	}
	if len(blob) > MaxData {
		c.err = meta.Invalidf("the state of shard %d has %d bytes: at most %d", n, len(blob), MaxData)
		return false
	}
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.err = l.usable(); c.err != nil {
		return false
	}
	s := l.index.byNumber[n]
	if s == nil || s.forgotten {
		return true // nothing to keep
	}
	sec := &section{checkpointSection: checkpointSection{Number: n, ID: s.id, Blob: slices.Clone(blob)}}
	c.sections = append(c.sections, sec)
	l.queue.push(&Write{shard: s, section: sec})
	l.signal()
	return true
}

// complete sorts the sections and sees that each shard has one.
func (c *capturing) complete() error {
	if c.err != nil {
		return c.err
	}
	slices.SortFunc(c.sections, func(a, b *section) int { return cmp.Compare(a.Number, b.Number) })
	have := make(map[ShardNumber]bool, len(c.sections))
	for _, s := range c.sections {
		if have[s.Number] {
			return meta.Invalidf("shard %d was captured twice in one checkpoint", s.Number)
		}
		have[s.Number] = true
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for n, s := range c.l.index.byNumber {
		if s.known && s.boundAt < c.mark.replay && !have[n] && !s.forgotten {
			return meta.Invalidf("shard %d (%s) is bound but was not captured: its state would be lost; nothing was written", n, s.id)
		}
	}
	return nil
}

// store writes the checkpoint file and then the superblock that names it.
func (l *Log) store(c *capturing) error {
	l.mu.Lock()
	header := checkpointHeader{Replay: c.mark.replay, Next: l.index.last + 1}
	l.mu.Unlock()
	ref, err := l.checkpoints.write(header, c.all())
	if err != nil {
		return err
	}
	if err := l.identity.pair(ref); err != nil {
		return fmt.Errorf("naming checkpoint %s: %w", ref.Name, err)
	}
	return nil
}

func (c *capturing) all() iter.Seq2[*checkpointSection, error] {
	return func(yield func(*checkpointSection, error) bool) {
		for _, s := range c.sections {
			if !yield(&s.checkpointSection, nil) {
				return
			}
		}
	}
}

// recycle frees the files that lie before the replay position and that the
// checkpoint references nothing in. One that is being read waits for the next
// checkpoint.
func (l *Log) recycle(c *capturing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	needed := map[*logFile]bool{}
	for _, s := range c.sections {
		for i := range s.Extents {
			needed[l.index.file(s.Extents[i].Position)] = true
		}
	}
	l.index.files = slices.DeleteFunc(l.index.files, func(f *logFile) bool {
		if f.end() > c.mark.replay || needed[f] || f.live > 0 || f.pins.Load() > 0 || f == l.space.current {
			return false
		}
		f.header.Salt, f.header.First, f.live = 0, 0, 0
		if f.size == l.space.size {
			l.space.free = append(l.space.free, f)
		} else {
			l.space.stale = append(l.space.stale, f)
		}
		return true
	})
	l.broadcast()
	l.kick()
}
