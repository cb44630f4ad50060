package wal

import (
	"context"
	"slices"

	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

// copyForward moves what little is alive in old files to the end of the log, so
// that a tiny tail neither pins a file nor has to become a tiny object. A file is
// worth it when at most a quarter of it is alive, or half of it once half of the
// budget is in use. No more is copied than is kept back for it.
//
// A copy is a relocation: it says which entry, from where, to where, and counts
// only if the index still maps the entry to that place when the relocation is
// applied, now and in a replay. So whatever was queued in between (a truncation, a
// drop, another copy) wins.
func (l *Log) copyForward(ctx context.Context) error {
	found := l.candidates()
	defer func() {
		for _, c := range found {
			c.file.pins.Add(-1)
		}
	}()
	var batch []copied
	var size int64
	for i, c := range found {
		moves, bytes, err := c.read()
		if err != nil {
			// The shard is read again by those who need it, who can tell whom it hurts.
			_ = l.damaged(c.shard.number, err)
		} else {
			batch, size = append(batch, copied{c.shard, moves}), size+bytes
		}
		if size < groupLimit && i < len(found)-1 {
			continue
		}
		if ok, err := l.relocate(batch, size); err != nil || !ok {
			return err
		}
		if err := l.barrier(ctx); err != nil {
			return err
		}
		batch, size = batch[:0], 0
	}
	return nil
}

// candidate is one extent to be copied forward.
type candidate struct {
	span
	shard *shard
}

// candidates chooses the extents to copy, oldest file first, and pins their files.
func (l *Log) candidates() []candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	share := int64(4)
	if l.used() >= l.opts.Budget/2 {
		share = 2
	}
	left := l.space.keptForCopy(l.space.slack)
	chosen := map[*logFile]bool{}
	for _, f := range l.index.files {
		if f == l.space.current || f.live == 0 || f.live > f.size/share || f.live > left {
			continue
		}
		chosen[f] = true
		left -= f.live
	}
	if len(chosen) == 0 {
		return nil
	}
	var found []candidate
	for _, s := range l.index.byNumber {
		for _, e := range s.extents {
			if f := l.index.file(e.Position); chosen[f] {
				f.pins.Add(1)
				found = append(found, candidate{span{e, f}, s})
			}
		}
	}
	slices.SortFunc(found, func(a, b candidate) int { return int(int64(a.extent.Position) - int64(b.extent.Position)) })
	return found
}

// read reads an extent's entries.
func (c candidate) read() (moves []move, size int64, err error) {
	err = c.walk(func(at Position, h entry.Header, encoded []byte) bool {
		moves = append(moves, move{from: at, header: h, entry: encoded})
		size += int64(frame.HeaderSize + frame.RelocationHeader + len(encoded))
		return true
	})
	return moves, size, err
}

// copied is what was read of one extent.
type copied struct {
	shard *shard
	moves []move
}

// relocate queues copies, as one batch; false when there is no room.
func (l *Log) relocate(batch []copied, size int64) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return false, err
	}
	if l.space.physical(l.space.slack)-l.space.queued-l.space.reserved < joining(size)+batchOverhead {
		return false, nil
	}
	for _, c := range batch {
		var frames int64
		for i := range c.moves {
			frames += int64(frame.HeaderSize + frame.RelocationHeader + len(c.moves[i].entry))
		}
		w := &Write{shard: c.shard, moves: c.moves, cost: l.queue.charge(frames)}
		l.space.queued += w.cost
		l.queue.push(w)
	}
	l.signal()
	return true, nil
}
