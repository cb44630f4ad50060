package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

const (
	// groupLimit bounds a group, but for a single frame that is larger.
	groupLimit = 4 << 20
	// batchLimit bounds what is taken from the queue for one sync.
	batchLimit = 16 << 20
)

var errKilled = errors.New("log was killed")

// writer is the only goroutine that writes to the log. Its states:
//
//	        queue           batch laid out         synced
//	idle ----------> placing ----------> flushing ----------> applying --> idle
//	 |  20 ms, last group not vouched for                                   ^
//	 +--> vouching: a bare header, synced ------------------------------------+
//	 any failed write or sync --> poisoned, for good
//
// A batch is what was queued while the one before it was synced. Within it, each
// shard's writes are laid out next to each other.
type writer struct {
	l *Log

	file *logFile
	at   Position // where the next group starts
	end  Position // of the last group
	synced,
	content, // end of the last group that holds frames
	vouched Position // what the last header on disk vouches for
	dirtySince, lastSync time.Time

	open  bool // a group is being built
	start Position
	buf   []byte

	order  []*Write // the batch, as laid out
	done   int      // how many of them were acknowledged
	placed int      // how many of them are laid out in full
	ops    []op     // laid out, not yet applied
	runs   []*shard // shards of the batch, in order of appearance
}

// op is one thing to fold into the index once its bytes are where they belong.
type op struct {
	shard   *shard
	section *section // capture the shard here; else a frame
	placed  placed
}

// run writes until the log is closed, killed or poisoned.
func (w *writer) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		head, err := w.l.take()
		if err == nil && head != nil {
			err = w.batch(head)
		} else if err == nil {
			wait := w.due()
			timer.Reset(wait)
			select {
			case <-w.l.wake:
			case <-w.l.quit:
				return
			case <-timer.C:
				err = w.idle()
			}
		}
		if errors.Is(err, errKilled) {
			return
		}
		if err != nil {
			w.l.poison(err)
			w.fail(meta.Errorf(meta.ErrPoisoned, "the log failed and must be opened again; the outcome of this write is unknown: %w", w.l.Err()))
			return
		}
	}
}

// take takes the next batch from the queue.
func (l *Log) take() (*Write, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.killed {
		return nil, errKilled
	}
	if l.err != nil {
		return nil, l.err
	}
	head, _ := l.queue.take(batchLimit)
	return head, nil
}

// due is how long an idle writer may sleep.
func (w *writer) due() time.Duration {
	switch {
	case w.end > w.synced:
		return max(0, time.Until(w.dirtySince.Add(w.l.opts.Interval)))
	case w.content > w.vouched:
		return max(0, time.Until(w.lastSync.Add(idleVouch)))
	}
	return time.Hour
}

// idle does what [writer.due] waited for.
func (w *writer) idle() error {
	switch {
	case w.end > w.synced:
		if time.Since(w.dirtySince) >= w.l.opts.Interval {
			return w.flush(true)
		}
	case w.content > w.vouched && time.Since(w.lastSync) >= idleVouch:
		return w.vouch()
	}
	return nil
}

// vouch writes a bare header, so that the last group can be told from a torn one.
func (w *writer) vouch() error {
	if w.at+frame.Block > w.file.limit() {
		return w.roll() // the header that names the next file vouches as well
	}
	if err := w.openGroup(); err != nil {
		return err
	}
	return w.flush(true)
}

// batch lays out, writes, syncs and acknowledges a run of writes.
func (w *writer) batch(head *Write) error {
	sync := w.l.opts.Mode == Commit
	w.arrange(head)
	for _, wr := range w.order {
		sync = sync || wr.Sync
		if wr.turn && w.l.spent() {
			if err := w.roll(); err != nil {
				return err
			}
		}
		if wr.mark != nil {
			// The next group's place, or the start of a file that holds none yet.
			wr.mark.replay = max(Position(frame.Align(uint64(w.end))), w.file.first())
		}
	}
	for _, wr := range w.order {
		if err := w.layOut(wr); err != nil {
			return err
		}
		w.placed++
	}
	if w.end > w.synced && time.Since(w.dirtySince) >= w.l.opts.Interval {
		sync = true
	}
	if err := w.flush(sync); err != nil {
		return err
	}
	clear(w.order)
	w.order, w.done, w.placed = w.order[:0], 0, 0
	return nil
}

// arrange orders a batch: each shard's writes together, shards as they came,
// writes without a shard last.
func (w *writer) arrange(head *Write) {
	for wr := head; wr != nil; wr = wr.next {
		s := wr.shard
		if s == nil {
			continue
		}
		if s.tail == nil {
			s.head = wr
			w.runs = append(w.runs, s)
		} else {
			s.tail.sibling = wr
		}
		s.tail = wr
	}
	for _, s := range w.runs {
		for wr := s.head; wr != nil; wr = wr.sibling {
			w.order = append(w.order, wr)
		}
		s.head, s.tail = nil, nil
	}
	for wr := head; wr != nil; wr = wr.next {
		if wr.shard == nil {
			w.order = append(w.order, wr)
		}
	}
	clear(w.runs)
	w.runs = w.runs[:0]
}

func (w *writer) layOut(wr *Write) error {
	s := wr.shard
	if wr.section != nil {
		wr.section.Position = w.next()
		w.ops = append(w.ops, op{shard: s, section: wr.section})
		return nil
	}
	if s != nil && !s.bound && len(wr.Records) > 0 {
		if err := w.bind(s, bodySize(&wr.Records[0])); err != nil {
			return err
		}
	}
	for i := range wr.Records {
		if err := w.place(s, &wr.Records[i]); err != nil {
			return err
		}
	}
	for i := range wr.moves {
		if err := w.move(s, &wr.moves[i]); err != nil {
			return err
		}
	}
	return nil
}

// next is where the next frame may come at the earliest.
func (w *writer) next() Position {
	if w.open {
		return w.start + Position(len(w.buf))
	}
	return w.end
}

// bind places a shard's identity ahead of its first frame, in the same group.
func (w *writer) bind(s *shard, firstBody int) error {
	var scratch [bindAllowance]byte
	body := appendBind(scratch[:0], s.id)
	need := frame.HeaderSize + len(body)
	if both := need + frame.HeaderSize + firstBody; int64(both) <= w.l.largest() {
		need = both
	}
	if err := w.room(need); err != nil {
		return err
	}
	at := w.begin()
	w.buf = append(w.buf, body...)
	w.seal(at, frame.Bind, s, frame.Sum(body))
	s.bound = true
	w.ops = append(w.ops, op{shard: s, placed: placed{kind: frame.Bind, position: w.start + Position(at), size: len(w.buf) - at}})
	return nil
}

// place appends one record's frame to the group.
func (w *writer) place(s *shard, r *Record) error {
	body := bodySize(r)
	if err := w.room(frame.HeaderSize + body); err != nil {
		return err
	}
	at := w.begin()
	p := placed{kind: frame.Kind(r.Kind), position: w.start + Position(at), size: frame.HeaderSize + body, lsn: r.LSN}
	var sum uint32
	switch r.Kind {
	case Entry:
		w.buf, sum = r.Entry.AppendSum(w.buf)
		p.header = r.Entry.Header
	case Truncate:
		w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(r.LSN))
		sum = frame.Sum(w.buf[at+frame.HeaderSize:])
	case Base:
		w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(r.LSN))
		w.buf = append(w.buf, r.Data...)
		sum = frame.Sum(w.buf[at+frame.HeaderSize:])
	case State:
		w.buf = append(w.buf, r.Data...)
		sum = frame.Sum(w.buf[at+frame.HeaderSize:])
	}
	w.seal(at, p.kind, s, sum)
	w.ops = append(w.ops, op{shard: s, placed: p})
	return nil
}

// move places a copy of an entry. Whether it counts is decided when it is applied.
func (w *writer) move(s *shard, m *move) error {
	size := frame.HeaderSize + frame.RelocationHeader + len(m.entry)
	if err := w.room(size); err != nil {
		return err
	}
	at := w.begin()
	p := placed{kind: frame.Relocation, position: w.start + Position(at), size: size, header: m.header, from: m.from}
	w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(m.from))
	w.buf = append(w.buf, m.entry...)
	w.seal(at, frame.Relocation, s, frame.Sum(w.buf[at+frame.HeaderSize:]))
	w.ops = append(w.ops, op{shard: s, placed: p})
	return nil
}

// begin leaves room for a frame's header and returns where it stands in the group.
func (w *writer) begin() int {
	at := len(w.buf)
	w.buf = append(w.buf, make([]byte, frame.HeaderSize)...)
	return at
}

// seal writes the header of the frame whose body was appended.
func (w *writer) seal(at int, kind frame.Kind, s *shard, sum uint32) {
	frame.Put(w.buf[at:], w.file.header.Salt, uint64(w.start)+uint64(at), kind, uint64(s.number), len(w.buf)-at-frame.HeaderSize, sum)
}

// room sees to an open group that can take a frame of that size.
func (w *writer) room(need int) error {
	if w.open {
		size := len(w.buf) + need
		if (size <= groupLimit || len(w.buf) == frame.GroupSize) && w.start+Position(size) <= w.file.limit() {
			return nil
		}
		if err := w.closeGroup(); err != nil {
			return err
		}
	}
	if w.at+frame.GroupSize+Position(need) > w.file.limit() {
		if err := w.roll(); err != nil {
			return err
		}
	}
	return w.openGroup()
}

func (w *writer) openGroup() error {
	w.open, w.start = true, w.at
	w.buf = append(w.buf[:0], make([]byte, frame.GroupSize)...)
	w.header(0)
	return nil
}

// header writes the group's header into the buffer.
func (w *writer) header(next uint64) {
	frame.PutGroup(w.buf, w.file.header.Salt, frame.Group{Position: uint64(w.start), Previous: uint64(w.end), Synced: uint64(w.synced), Next: next})
}

// closeGroup writes the group that is being built, whole blocks in one go.
func (w *writer) closeGroup() error {
	if !w.open {
		return nil
	}
	w.open = false
	size := len(w.buf)
	padded := int(frame.Align(uint64(size)))
	w.buf = append(w.buf, make([]byte, padded-size)...)
	if _, err := w.file.f.WriteAt(w.buf, w.file.offset(w.start)); err != nil {
		return fmt.Errorf("writing a group to log file %s at position %d: %w", w.file.name, w.start, err)
	}
	if w.end <= w.synced {
		w.dirtySince = time.Now()
	}
	w.end = w.start + Position(size)
	w.at = w.start + Position(padded)
	if size > frame.GroupSize {
		w.content = w.end
	}
	w.vouched = w.synced
	if cap(w.buf) > 2*groupLimit {
		w.buf = nil
	}
	return nil
}

// flush writes the open group, syncs if asked, folds what was laid out into the
// index and acknowledges it.
func (w *writer) flush(sync bool) error {
	if err := w.closeGroup(); err != nil {
		return err
	}
	if w.l.opts.Twins.AckBeforeSync {
		if err := w.acknowledge(); err != nil {
			return err
		}
	}
	if sync {
		if err := w.sync(); err != nil {
			return err
		}
	}
	return w.acknowledge()
}

func (w *writer) sync() error {
	if w.end <= w.synced {
		return nil
	}
	began := time.Now()
	if err := w.file.f.Sync(); err != nil {
		return fmt.Errorf("syncing log file %s up to position %d: %w", w.file.name, w.end, err)
	}
	bytes := w.end - w.synced
	w.synced, w.lastSync = w.end, time.Now()
	if f := w.l.opts.Events.Synced; f != nil {
		f(int(bytes), w.lastSync.Sub(began))
	}
	return nil
}

// acknowledge applies what was laid out and calls Done for the writes that are
// laid out in full.
func (w *writer) acknowledge() error {
	l := w.l
	l.mu.Lock()
	if l.killed {
		l.mu.Unlock()
		return errKilled
	}
	l.end, l.synced, l.space.at = w.end, w.synced, w.at
	for i := range w.ops {
		o := &w.ops[i]
		if o.section != nil {
			o.section.capture(o.shard)
			continue
		}
		if _, err := l.index.apply(o.shard, o.placed); err != nil {
			l.mu.Unlock()
			return err
		}
	}
	for _, wr := range w.order[w.done:w.placed] {
		l.space.queued -= wr.cost
	}
	l.broadcast()
	l.mu.Unlock()
	clear(w.ops)
	w.ops = w.ops[:0]
	for w.done < w.placed {
		wr := w.order[w.done]
		w.done++
		wr.shard = nil
		if wr.Done != nil {
			wr.Done(nil)
		}
	}
	return nil
}

// roll ends the current file with a group that names the next one, syncs it, and
// goes on there. The next file's header is on disk already, so that a file that
// is named and doesn't verify has rotted.
func (w *writer) roll() error {
	if err := w.closeGroup(); err != nil {
		return err
	}
	next, err := w.l.following()
	if err != nil {
		return err
	}
	w.start = w.at
	w.buf = append(w.buf[:0], make([]byte, frame.GroupSize)...)
	w.header(next.header.Salt)
	w.open = true
	content := w.content
	if err := w.closeGroup(); err != nil {
		return err
	}
	w.content = content
	if err := w.sync(); err != nil {
		return err
	}
	if err := w.acknowledge(); err != nil {
		return err
	}
	w.file, w.at = next, next.first()+frame.Block
	w.l.rolled(next, w.at)
	return nil
}

// spent says that the largest append would be refused now, while there is a next
// file: a checkpoint then begins with that, so that the current one can be recycled.
// Otherwise a log of few files, of which nothing is needed any more, would wait for
// a write that it has no room to promise.
func (l *Log) spent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.space
	return l.unpromised() < s.slack+2*frame.Block && s.next != nil && s.at > s.current.first()+frame.Block
}

// following waits for the next file to be prepared.
func (l *Log) following() (*logFile, error) {
	l.mu.Lock()
	for {
		switch {
		case l.killed:
			l.mu.Unlock()
			return nil, errKilled
		case l.err != nil:
			defer l.mu.Unlock()
			return nil, l.err
		case l.space.next != nil:
			next := l.space.next
			l.mu.Unlock()
			return next, nil
		}
		changed := l.watch()
		l.mu.Unlock()
		l.kick()
		<-changed
		l.mu.Lock()
	}
}

// rolled makes the next file the current one.
func (l *Log) rolled(next *logFile, at Position) {
	l.mu.Lock()
	l.space.current, l.space.next, l.space.at = next, nil, at
	l.index.files = append(l.index.files, next)
	used := l.used()
	l.mu.Unlock()
	l.kick()
	if f := l.opts.Events.Pressure; f != nil && used >= l.opts.Budget/2 {
		f(used, l.opts.Budget)
	}
}

// poison stops the log for good: a write or a sync failed, and nothing may be
// retried over it, as the page cache no longer tells what is on disk.
func (l *Log) poison(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	l.broadcast()
	l.mu.Unlock()
	_ = l.identity.markPoisoned() // if it can; the failure above is the one to tell
	close(l.failed)
	if f := l.opts.Events.Failed; f != nil {
		f(err)
	}
	l.signal()
}

// fail answers everything that was not acknowledged. Nothing is written after it.
func (w *writer) fail(err error) {
	l := w.l
	l.mu.Lock()
	head := l.queue.head
	l.queue = queue{}
	l.mu.Unlock()
	rest := w.order[w.done:]
	w.order, w.done, w.placed = nil, 0, 0
	for _, wr := range rest {
		if wr.Done != nil {
			wr.Done(err)
		}
	}
	for head != nil {
		wr := head
		head = wr.next
		if wr.Done != nil {
			wr.Done(err)
		}
	}
}

// move is an entry to be copied forward.
type move struct {
	from   Position
	header entry.Header
	entry  []byte // encoded
}
