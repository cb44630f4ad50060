package wal

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/frame"
)

// space counts room. Only files that exist and are written before count, so what
// is promised can't meet a full disk:
//
//	|<- current ->|<- next ->|<- free files ->|<- not yet made ->|
//	 used | room  |   room   |  room  |  room |  up to the budget
//	       \_______________________________/
//	        physical = queued + reserved + kept back + what can be promised
//
// Kept back are one file for commands and one for a copy forward. What a file
// loses because a frame doesn't fit into its rest is at most slack, and is left
// out from the start.
type space struct {
	size      int64 // of a file
	most      int   // files within the budget
	current   *logFile
	at        Position   // where the next group starts, in current
	next      *logFile   // prepared to follow current; nil while the preparer works on it
	free      []*logFile // hold nothing; oldest first
	stale     []*logFile // hold nothing and have a size of before: to be removed
	slack     int64      // cost of the largest frame so far
	reserved  int64      // promised
	queued    int64      // taken by writes that are not applied yet
	preparing *logFile   // on its way to be next
	making    int        // files that are being made
	made      uint64     // last file number used
	wanted    bool       // a reservation asks for another file
	attempts  uint64     // how often the preparer tried to make a wanted file
	full      error      // why the last attempt failed
	waiting   []*waiter  // in order of arrival
}

// waiter is a producer's place in the line; its address is its name.
type waiter struct{ _ byte }

// A write that finds nothing queued that takes room starts a batch, and pays for what the batch
// takes beyond its frames: header and padding of its group, of another one if a
// file ends in between, and the bare header that vouches for it. Writes that join
// a batch pay for their frames, and a thousandth for the groups that a large batch
// is split into.
const batchOverhead = 4 * frame.Block

// joining is the most room that frames of that many bytes take in a batch.
func joining(frames int64) int64 { return frames + frames/(groupLimit/frame.Block) + 1 }

// alone is the room to promise for frames of that many bytes: their own group and
// a bare header.
func alone(frames int64) int64 {
	return int64(frame.Align(uint64(joining(frames)+frame.GroupSize))) + frame.Block
}

// charge is the room that a write takes when it is queued now. Called with the mutex.
func (q *queue) charge(frames int64) int64 {
	if q.cost == 0 { // nothing, or only what takes no room and pays for no batch
		return joining(frames) + batchOverhead
	}
	return joining(frames)
}

// fresh is what a file that holds nothing can take for certain.
func (s *space) fresh(slack int64) int64 {
	return max(0, s.size-2*frame.Block-slack)
}

// physical is the room in the files that exist, with that much slack.
func (s *space) physical(slack int64) int64 {
	room := max(0, int64(s.current.limit())-int64(s.at)-slack)
	for _, f := range s.free {
		room += max(0, f.size-2*frame.Block-slack)
	}
	if s.next != nil {
		room += max(0, s.next.size-2*frame.Block-slack)
	}
	if s.preparing != nil {
		room += max(0, s.preparing.size-2*frame.Block-slack)
	}
	return room
}

// keptForCommands and keptForCopy are the room that producers never get.
func (s *space) keptForCommands(slack int64) int64 { return s.fresh(slack) }
func (s *space) keptForCopy(slack int64) int64     { return s.fresh(slack) }

func (s *space) files(x *index) int {
	n := len(x.files) + len(s.free) + len(s.stale) + s.making
	for _, f := range []*logFile{s.next, s.preparing} {
		if f != nil {
			n++
		}
	}
	return n
}

func (s *space) bytes(x *index) (all, used int64) {
	for _, f := range x.files {
		used += f.size
	}
	all = used + int64(s.making)*s.size
	for _, f := range slices.Concat(s.free, s.stale) {
		all += f.size
	}
	if s.next != nil {
		all += s.next.size
	}
	if s.preparing != nil {
		all += s.preparing.size
	}
	return all, used
}

// Reserve waits for room for an append of that many bytes of payload, until ctx's
// deadline; then it returns a *meta.Throttled. A disk without room for another
// log file is a [meta.ErrExhausted] at once. Call release after Append, or when
// the append is given up; more than once is harmless.
func (l *Log) Reserve(ctx context.Context, bytes int64) (release func(), err error) {
	return l.reserve(ctx, bytes, false)
}

// ReserveCommand is [Log.Reserve] for a command (a trim, a mark, a confirmation):
// it has room of its own, which producers can't use up.
func (l *Log) ReserveCommand(ctx context.Context, bytes int64) (release func(), err error) {
	return l.reserve(ctx, bytes, true)
}

func (l *Log) reserve(ctx context.Context, bytes int64, command bool) (func(), error) {
	if bytes < 0 || bytes+frameAllowance > l.largest() {
		return nil, meta.Invalidf("an append of %d bytes doesn't fit into a log file of %d bytes", bytes, l.folder.size)
	}
	cost := alone(bytes + frameAllowance)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.space.slack = max(l.space.slack, slackFor(bytes+frameAllowance))
	if command || len(l.space.waiting) == 0 {
		if err := l.usable(); err != nil {
			return nil, err
		}
		if granted, _ := l.grant(cost, command); granted {
			return l.promise(cost), nil
		}
	}
	return l.queueForRoom(ctx, cost, command)
}

// queueForRoom waits, producers in the order of their arrival. Called with the
// mutex, which it lets go of while it waits.
func (l *Log) queueForRoom(ctx context.Context, cost int64, command bool) (func(), error) {
	w := &waiter{}
	if !command {
		l.space.waiting = append(l.space.waiting, w)
		defer l.leave(w)
	}
	told := false
	for asked := uint64(0); ; {
		if err := l.usable(); err != nil {
			return nil, err
		}
		granted, more := false, false
		if command || l.space.waiting[0] == w {
			granted, more = l.grant(cost, command)
		}
		if granted {
			return l.promise(cost), nil
		}
		if more {
			// Made before it is promised, so that a full disk is met here.
			if asked != 0 && l.space.attempts >= asked && l.space.full != nil {
				return nil, l.space.full
			}
			if asked == 0 {
				asked = l.space.attempts + 1
			}
			l.space.wanted = true
			l.kick()
		}
		changed, used := l.watch(), l.used()
		l.mu.Unlock()
		if !more && !told && l.opts.Events.Pressure != nil {
			told = true
			l.opts.Events.Pressure(used, l.opts.Budget)
		}
		select {
		case <-changed:
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			return nil, throttled(ctx)
		}
	}
}

// frameAllowance is what frames add to a payload: headers of entry and frame,
// and a bind record.
const frameAllowance = 1024

// slackFor is the most that a file can lose at its end to a frame of that size.
func slackFor(bytes int64) int64 { return bytes + frame.GroupSize + frame.Block }

// largest is the largest frame that fits into a file.
func (l *Log) largest() int64 {
	return min(frame.MaxSize, l.folder.size-2*frame.Block-frame.GroupSize)
}

// grant says whether there is that much room for a producer or a command, and
// whether another file would help. Called with the mutex.
func (l *Log) grant(cost int64, command bool) (granted, more bool) {
	s := &l.space
	kept := s.keptForCopy(s.slack)
	if !command {
		kept += s.keptForCommands(s.slack)
	}
	if s.physical(s.slack)-s.queued-s.reserved-kept >= cost {
		return true, false
	}
	all, _ := s.bytes(l.index)
	return false, all+s.size <= l.opts.Budget
}

// promise takes room. Called with the mutex.
func (l *Log) promise(cost int64) (release func()) {
	l.space.reserved += cost
	released := false
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !released {
			released = true
			l.space.reserved -= cost
			l.broadcast()
		}
	}
}

// leave takes a waiter out of the line and lets the next one look. Called with
// the mutex.
func (l *Log) leave(w *waiter) {
	for i, o := range l.space.waiting {
		if o == w {
			l.space.waiting = append(l.space.waiting[:i], l.space.waiting[i+1:]...)
			break
		}
	}
	if len(l.space.waiting) > 0 {
		l.broadcast()
	}
}

// used is the bytes of the files that hold something. Called with the mutex.
func (l *Log) used() int64 {
	_, used := l.space.bytes(l.index)
	return used
}

func throttled(ctx context.Context) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	return &meta.Throttled{RetryAfter: time.Second, Why: "the log has reached its byte budget and waits for tails to be archived"}
}

// exhausted marks an error of a full disk as [meta.ErrExhausted].
func exhausted(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return meta.Errorf(meta.ErrExhausted, "%w: free some space on that disk", err)
	}
	return err
}

// exhaustedf is for a write that came without a reservation and finds no room.
func (l *Log) exhaustedf(cost int64) error {
	return meta.Errorf(meta.ErrExhausted, "the log has no room for %d bytes: %d bytes in files, %d promised, %d queued; reserve room first", cost,
		l.space.physical(l.space.slack), l.space.reserved, l.space.queued)
}
