package wal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

// recovery takes a log from what a directory holds to where the writer goes on.
//
//	list files -> load checkpoint -> verify extents -> scan the chain from the
//	replay position -> torn or rotten? -> rewrite and cut the unproven tail
type recovery struct {
	opts   *Options
	folder *folder
	id     *identity
	index  *index

	files   []*logFile // headers verify; by position
	blank   []*logFile // headers don't
	made    uint64     // highest file number
	replay  Position
	covered Position                 // the checkpoint vouches for everything before it
	named   map[*logFile]bool        // the checkpoint references something in them
	after   map[ShardNumber]Position // a section holds what was placed before
	unknown map[ShardNumber]Position // frames of shards that must be forgotten further on
	scan    scan
}

// run recovers. It changes nothing on disk before it knows that it won't refuse.
func (r *recovery) run(checkpoints *checkpoints) error {
	if err := r.list(); err != nil {
		return err
	}
	ref := r.id.super.current.Checkpoint
	header, err := checkpoints.load(ref, r.section)
	if err != nil {
		return err
	}
	r.replay = header.Replay
	r.index.last = max(r.index.last, header.Next-1)
	if ref.Name == "" && len(r.files) == 0 {
		return r.virgin()
	}
	r.index.files = r.files
	if err := r.verify(); err != nil {
		return err
	}
	r.scan = scan{files: r.files, visit: r.frame}
	if err := r.scan.run(r.replay); err != nil {
		return err
	}
	if err := r.judge(); err != nil {
		return err
	}
	return r.settle()
}

// list opens every log file and reads its header.
func (r *recovery) list() error {
	names, err := r.folder.fs.List(r.folder.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		number, ok := fileNumber(name)
		if !ok {
			continue
		}
		r.made = max(r.made, number)
		f, err := openLogFile(r.folder.fs.Open, r.folder.dir, name, number)
		if err != nil {
			return err
		}
		switch {
		case f.header.Salt == 0:
			r.blank = append(r.blank, f)
		case f.header.Storage != r.id.super.current.Origin:
			_ = f.f.Close() // only read
			return meta.Errorf(meta.ErrForeign, "log file %s belongs to another data directory (storage id %s): move it away", path.Join(r.folder.dir, name), f.header.Storage)
		default:
			r.files = append(r.files, f)
		}
	}
	slices.SortFunc(r.files, func(a, b *logFile) int { return cmp.Compare(a.first(), b.first()) })
	for i := 1; i < len(r.files); i++ {
		if a, b := r.files[i-1], r.files[i]; b.first() < a.end() {
			return meta.Errorf(meta.ErrCorrupt, "log files %s and %s both hold position %d: %s", a.name, b.name, b.first(), advice)
		}
	}
	return nil
}

// openLogFile opens a log file. One without a header that verifies, as a crash
// leaves while it is made or recycled, has a zero header.
func openLogFile(open func(string) (vfs.File, error), dir, name string, number uint64) (*logFile, error) {
	full := path.Join(dir, name)
	f, err := open(full)
	if err != nil {
		return nil, fmt.Errorf("opening log file %s: %w", full, err)
	}
	lf := &logFile{name: name, number: number, f: f}
	if lf.size, err = f.Size(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if lf.size < 2*frame.Block {
		return lf, nil
	}
	b := make([]byte, frame.Block)
	if err := lf.readAt(b, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	h, err := frame.DecodeFile(b)
	switch {
	case errors.Is(err, meta.ErrFormatLevel):
		return nil, errors.Join(fmt.Errorf("log file %s: %w", full, err), f.Close())
	case err == nil && h.Size == lf.size:
		lf.header = h
	}
	return lf, nil
}

// section takes a shard from the checkpoint.
func (r *recovery) section(c *checkpointSection) error {
	s := r.index.add(c.Number, c.ID)
	s.start, s.end, s.next, s.bound, s.known = c.Start, c.End, c.End, true, true
	s.extents = slices.Clone(c.Extents)
	r.after[c.Number] = c.Position
	r.covered = max(r.covered, c.Position)
	return r.opts.Replay.Section(c.Number, c.ID, c.Blob)
}

// verify reads every extent. A frame that doesn't verify makes its shard a
// stranger and nothing else: its log goes on, empty, at the section's end.
func (r *recovery) verify() error {
	numbers := make([]ShardNumber, 0, len(r.index.byNumber))
	for n := range r.index.byNumber {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		s := r.index.byNumber[n]
		err := r.readable(s)
		switch {
		case err == nil:
			for i := range s.extents {
				r.index.hold(&s.extents[i])
				r.named[r.index.file(s.extents[i].Position)] = true
			}
		case errors.Is(err, meta.ErrCorrupt):
			s.extents, s.start = nil, s.end
			if err := r.opts.Replay.Broken(n, fmt.Errorf("shard %d (%s): %w", n, s.id, err)); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return nil
}

func (r *recovery) readable(s *shard) error {
	want := s.start
	for _, e := range s.extents {
		if e.First != want || e.Next <= e.First {
			return meta.Errorf(meta.ErrCorrupt, "extents go from entry %d to %d", want, e.First)
		}
		want = e.Next
		f := r.index.file(e.Position)
		if f == nil || e.End() > f.limit() {
			return meta.Errorf(meta.ErrCorrupt, "no log file holds positions %d to %d, with entries %d to %d", e.Position, e.End(), e.First, e.Next-1)
		}
		if err := (span{e, f}).walk(func(Position, entry.Header, []byte) bool { return true }); err != nil {
			return err
		}
	}
	if want != s.end {
		return meta.Errorf(meta.ErrCorrupt, "extents end at entry %d, the log at %d", want, s.end)
	}
	return nil
}

// frame folds one replayed frame into the index and tells the replayer.
func (r *recovery) frame(h frame.Header, body []byte, at Position) error {
	n := ShardNumber(h.Shard)
	var p placed
	rec, err := p.decode(h, body, at)
	if err != nil {
		return err
	}
	s := r.index.byNumber[n]
	if after, ok := r.after[n]; ok && at < after {
		return nil // its section holds it
	}
	switch {
	case h.Kind == frame.Bind:
		return r.bind(s, n, body, at)
	case s == nil && h.Kind == frame.Relocation:
		return nil // queued before its shard was forgotten
	case s == nil:
		// Forgotten between the start of the checkpoint and its section's turn.
		if r.unknown[n] = at; h.Kind == frame.Forget {
			delete(r.unknown, n)
		}
		return nil
	}
	if _, err := r.index.apply(s, p); err != nil {
		return err
	}
	s.next = s.end
	if h.Kind == frame.Relocation {
		return nil
	}
	return r.opts.Replay.Record(n, rec)
}

func (r *recovery) bind(s *shard, n ShardNumber, body []byte, at Position) error {
	id, err := decodeBind(body)
	if err != nil {
		return err
	}
	if s != nil {
		if s.id != id {
			return meta.Errorf(meta.ErrCorrupt, "position %d binds shard %d to %s, but it is %s", at, n, id, s.id)
		}
		return nil
	}
	s = r.index.add(n, id)
	s.bound, s.known, s.boundAt = true, true, at
	return r.opts.Replay.Bound(n, id)
}

// judge tells a torn tail from rot.
func (r *recovery) judge() error {
	s := &r.scan
	vouched, err := s.vouched()
	if err != nil {
		return err
	}
	vouched = max(vouched, r.covered)
	if r.id.Tail == tailProven {
		vouched = max(vouched, r.id.End)
	}
	if vouched > s.end {
		if s.why == nil {
			s.why = meta.Errorf(meta.ErrCorrupt, "the log ends here")
		}
		return s.rotted(vouched, s.suspect(r.name))
	}
	if r.id.Tail == tailProven && s.content > max(r.id.End, r.replay) {
		return meta.Errorf(meta.ErrCorrupt, "the log goes on to position %d, past the end %d that the clean stop recorded: the directory is a mixture of two; %s", s.content, r.id.End, advice)
	}
	for n, at := range r.unknown {
		return meta.Errorf(meta.ErrCorrupt, "position %d holds a record of shard %d, which nothing binds: %s", at, n, advice)
	}
	return nil
}

func (r *recovery) name(n ShardNumber) string {
	if s := r.index.byNumber[n]; s != nil {
		return s.id.String()
	}
	return "not bound"
}

// virgin checks that a directory without any log file that verifies never had one
// in use, and leaves the making of the first file to the opener. The file storage-id
// is written after the first log file, so a directory that has it has run.
func (r *recovery) virgin() error {
	if !r.id.was.IsZero() {
		return meta.Errorf(meta.ErrCorrupt, "data directory %s has been in use, but %s holds no log file with a header that verifies (is it another disk that is not mounted?): %s", r.opts.Dir, r.folder.dir, advice)
	}
	for _, f := range r.blank {
		w := &window{file: &logFile{name: f.name, f: f.f, size: f.size}}
		for p := Position(frame.Block); p+frame.Block <= Position(f.size); p += frame.Block {
			b, err := w.bytes(p, frame.Block)
			if err != nil {
				return err
			}
			if !zero(b) {
				return meta.Errorf(meta.ErrCorrupt, "log file %s holds data at byte %d, but its header doesn't verify: %s", f.name, p, advice)
			}
		}
	}
	return nil
}

// settle makes durable what the scan found, as the last run left it to the page
// cache, and cuts what doesn't belong to the log. After a clean stop there is
// nothing to do, but for a bare header of a start that came no further.
func (r *recovery) settle() error {
	if r.id.Tail == tailProven && r.scan.end <= max(r.id.End, r.replay) {
		return nil
	}
	err := r.rewrite()
	if err == nil {
		return nil
	}
	if err := r.id.tailLost(err); err != nil {
		return err
	}
	// The id is new, so nothing is owed; but the log must still be on disk.
	return r.rewrite()
}

// rewrite writes the unproven part of the log again and zeroes what follows it, to
// the end of the file. Writing the same bytes makes clean pages dirty, so that the
// sync means something (a failed one marks pages clean).
func (r *recovery) rewrite() error {
	s := &r.scan
	for _, f := range r.index.files {
		from, to := max(s.synced&^(frame.Block-1), f.first()+frame.Block), min(s.end, f.end())
		if from < to && !r.opts.Twins.ScanWithoutRewrite {
			if err := copyOver(f, from, to); err != nil {
				return err
			}
		}
		if f == s.file {
			cut, err := zeroAfter(f, s.stop())
			if err != nil {
				return err
			}
			if e := r.opts.Events.Cut; e != nil && cut > 0 {
				e(f.name, s.stop(), cut)
			}
		}
		if from < to || f == s.file {
			if err := f.f.Sync(); err != nil {
				return fmt.Errorf("syncing log file %s: %w", f.name, err)
			}
		}
		if f == s.file {
			return nil
		}
	}
	return nil
}

// copyOver writes [from, to) of a file over itself.
func copyOver(f *logFile, from, to Position) error {
	b := make([]byte, min(windowSize, to-from))
	for from < to {
		b = b[:min(Position(len(b)), to-from)]
		if err := f.readAt(b, from); err != nil {
			return err
		}
		if _, err := f.f.WriteAt(b, f.offset(from)); err != nil {
			return fmt.Errorf("rewriting log file %s at position %d: %w", f.name, from, err)
		}
		from += Position(len(b))
	}
	return nil
}

// zeroAfter zeroes a file from a position on and returns how many bytes of it, in
// large pieces, were not zero. Zeroes are written over zeroes, too: they may be those
// of a start whose sync failed, so that the disk still holds what it cut.
func zeroAfter(f *logFile, from Position) (cut int64, err error) {
	b := make([]byte, windowSize)
	for from < f.end() {
		b = b[:min(windowSize, f.end()-from)]
		if err := f.readAt(b, from); err != nil {
			return cut, err
		}
		if !zero(b) {
			clear(b)
			cut += int64(len(b))
		}
		if _, err := f.f.WriteAt(b, f.offset(from)); err != nil {
			return cut, fmt.Errorf("cutting log file %s at position %d: %w", f.name, from, err)
		}
		from += Position(len(b))
	}
	return cut, nil
}

var zeroes [4096]byte

func zero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroes))
		if !bytes.Equal(b[:n], zeroes[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}
