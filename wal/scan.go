package wal

import (
	"errors"
	"fmt"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

// window reads a log file forward in large pieces. Nothing larger than a frame is
// ever allocated, whatever lengths the file claims.
type window struct {
	file *logFile
	buf  []byte
	at   Position // of buf[0]
}

const windowSize = 1 << 20

// bytes returns n bytes at a position, valid until the next call. Reading past the
// end of the file is a [meta.ErrCorrupt].
func (w *window) bytes(p Position, n int) ([]byte, error) {
	if p >= w.at && p+Position(n) <= w.at+Position(len(w.buf)) {
		return w.buf[p-w.at:][:n], nil
	}
	left := w.file.end() - p
	if p >= w.file.end() || Position(n) > left {
		return nil, meta.Errorf(meta.ErrCorrupt, "log file %s ends before position %d", w.file.name, p+Position(n))
	}
	want := int(min(left, Position(max(n, windowSize))))
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf, w.at = w.buf[:want], p
	if err := w.file.readAt(w.buf, p); err != nil {
		w.buf = w.buf[:0]
		return nil, err
	}
	return w.buf[:n], nil
}

// scan follows the chain of groups from a position on.
type scan struct {
	files []*logFile // all with a header that verifies, by position
	// visit is called for each frame that verifies, in order. The body is valid
	// during the call.
	visit func(h frame.Header, body []byte, at Position) error
	group func(file *logFile, g frame.Group) // each group header that verifies; may be nil

	file    *logFile // where the log ends
	end     Position // after the last group's last frame that verifies
	at      Position // where the next group may start
	groups  int
	content Position // after the last frame
	synced  Position // the largest that any header vouches for
	why     error    // why the log ends here
}

// run scans from a position, which is where a group starts or will start. An error
// refuses the start; where the log merely ends, there is none.
func (s *scan) run(from Position) error {
	for _, f := range s.files {
		if f.holds(from) {
			s.file = f
		}
	}
	if s.file == nil {
		return meta.Errorf(meta.ErrCorrupt, "no log file holds position %d, where the replay starts: %s", from, advice)
	}
	s.end, s.at, s.content, s.synced = from, from, from, from
	if s.at == s.file.first() {
		s.at += frame.Block
	}
	w := &window{file: s.file}
	for {
		g, err := s.header(w)
		if errors.Is(err, meta.ErrFormatLevel) || err != nil && !errors.Is(err, meta.ErrCorrupt) {
			return err
		}
		if err == nil && s.groups > 0 && Position(g.Previous) != s.end {
			err = meta.Errorf(meta.ErrCorrupt, "the group at position %d follows position %d", s.at, g.Previous)
		}
		if err != nil {
			if s.why == nil {
				s.why = err
			}
			return nil
		}
		s.groups++
		s.synced, s.end, s.why = max(s.synced, Position(g.Synced)), s.at+frame.GroupSize, nil
		if s.group != nil {
			s.group(s.file, g)
		}
		if g.Next != 0 {
			if err := s.follow(g.Next); err != nil {
				return err
			}
			w = &window{file: s.file}
			continue
		}
		if err := s.frames(w); err != nil {
			return err
		}
		s.at = Position(frame.Align(uint64(s.end)))
	}
}

func (s *scan) header(w *window) (frame.Group, error) {
	b, err := w.bytes(s.at, frame.GroupSize)
	if err != nil {
		return frame.Group{}, err
	}
	return frame.DecodeGroup(b, s.file.header.Salt, uint64(s.at))
}

// follow goes on in the file that has the salt.
func (s *scan) follow(salt uint64) error {
	for _, f := range s.files {
		if f.header.Salt == salt && f.first() == s.file.end() {
			s.file, s.at = f, f.first()+frame.Block
			return nil
		}
	}
	return meta.Errorf(meta.ErrCorrupt, "log file %s names a following file for position %d, which is missing or whose header doesn't verify: %s",
		s.file.name, s.file.end(), advice)
}

// frames visits the frames of a group.
func (s *scan) frames(w *window) error {
	for {
		b, err := w.bytes(s.end, frame.HeaderSize)
		if err == nil {
			var h frame.Header
			if h, err = frame.Peek(b); err == nil && s.end+Position(h.Size()) > s.file.limit() {
				err = meta.Errorf(meta.ErrCorrupt, "frame at position %d claims %d bytes, more than its file has left", s.end, h.Size())
			}
			if err == nil {
				b, err = w.bytes(s.end, h.Size())
			}
		}
		if err == nil {
			h, body, err2 := frame.Decode(b, s.file.header.Salt, uint64(s.end))
			if err = err2; err == nil {
				if err := s.visit(h, body, s.end); err != nil {
					return err
				}
				s.end += Position(h.Size())
				s.content = s.end
				continue
			}
		}
		if !errors.Is(err, meta.ErrCorrupt) {
			return err
		}
		s.why = err
		return nil
	}
}

// vouched looks behind the end for group headers, of groups that are cut off by
// what doesn't verify, and returns the largest position that one vouches for. The
// headers carry their file's salt and their own position, so nothing that merely
// looks like one counts.
func (s *scan) vouched() (Position, error) {
	best := s.synced
	for _, f := range s.files {
		from := f.first() + frame.Block
		switch {
		case f == s.file:
			from = Position(frame.Align(uint64(s.stop())))
		case f.first() < s.file.end():
			continue
		}
		w := &window{file: f}
		for p := from; p < f.end(); p += frame.Block {
			b, err := w.bytes(p, frame.GroupSize)
			if err != nil {
				return 0, err
			}
			if g, err := frame.DecodeGroup(b, f.header.Salt, uint64(p)); err == nil {
				best = max(best, Position(g.Synced))
			}
		}
	}
	return best, nil
}

// stop is where in its last file the log ends: the end, or the first place for a
// group in a file that holds none yet.
func (s *scan) stop() Position { return max(s.end, s.file.first()+frame.Block) }

const advice = "nothing was changed; look at it with `varve wal inspect`, put the directory back as it was, or move all but its catalog and objects away, to come back as a stranger that goes on from other copies and the bucket"

// rotted is the refusal to start over a durable frame that doesn't verify.
func (s *scan) rotted(vouched Position, shard string) error {
	return meta.Errorf(meta.ErrCorrupt, "log file %s is damaged at position %d (byte %d of the file, %s): everything up to position %d was on disk, so this is no torn tail (%w): %s",
		s.file.name, s.stop(), s.file.offset(s.stop()), shard, vouched, s.why, advice)
}

// suspect names the shard whose frame stands, or should stand, at the end.
func (s *scan) suspect(names func(ShardNumber) string) string {
	b := make([]byte, frame.HeaderSize)
	if s.file.holds(s.stop()+frame.HeaderSize) && s.file.readAt(b, s.stop()) == nil {
		if h, err := frame.Peek(b); err == nil {
			return fmt.Sprintf("shard %d, %s", h.Shard, names(ShardNumber(h.Shard)))
		}
	}
	return "shard unknown"
}

// record turns a frame into what the index and the replayer take.
func (p *placed) decode(h frame.Header, body []byte, at Position) (Record, error) {
	*p = placed{kind: h.Kind, position: at, size: h.Size()}
	r := Record{Kind: RecordKind(h.Kind)}
	d := entry.NewDecoder(body)
	switch h.Kind {
	case frame.Entry:
		e, _, err := entry.Decode(body)
		if err != nil {
			return r, err
		}
		r.Entry, p.header = e, e.Header
		return r, nil
	case frame.Relocation:
		p.from = Position(d.U64())
		e, n, err := entry.Decode(d.Bytes(d.Rest()))
		if err == nil && n != len(body)-frame.RelocationHeader {
			err = meta.Errorf(meta.ErrCorrupt, "relocation at position %d has bytes left over", at)
		}
		r.Entry, p.header = e, e.Header
		return r, err
	case frame.Truncate:
		r.LSN = meta.LSN(d.U64())
	case frame.Base:
		r.LSN = meta.LSN(d.U64())
		r.Data = d.Bytes(d.Rest())
	case frame.State:
		r.Data = d.Bytes(d.Rest())
	case frame.Forget, frame.Bind:
		return r, nil
	default:
		return r, meta.Errorf(meta.ErrFormatLevel, "frame at position %d has unknown kind %d: start a newer build", at, h.Kind)
	}
	p.lsn = r.LSN
	return r, d.Finish(fmt.Sprintf("%s record at position %d", h.Kind, at))
}
