package wal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

// FactKind says what a [Fact] is about.
type FactKind string

// The kinds of facts, in the order in which [Inspect] gives them.
const (
	FactIdentity   FactKind = "identity"   // storage id, run state, superblock
	FactCheckpoint FactKind = "checkpoint" // the named checkpoint
	FactShard      FactKind = "shard"      // a shard's section in it
	FactFile       FactKind = "file"       // a log file
	FactGroup      FactKind = "group"      // a group's header
	FactFrame      FactKind = "frame"
	FactEnd        FactKind = "end" // what a file holds behind its last group
	FactDamage     FactKind = "damage"
)

// Fact is one thing found in a data directory.
type Fact struct {
	Kind     FactKind
	File     string   // below the data directory
	Position Position // in the log; files, groups, frames
	Offset   int64    // in the file
	Bytes    int64
	Shard    ShardNumber
	Text     string // for people
	Err      error  // damage only
}

func (f Fact) String() string {
	s := fmt.Sprintf("%-10s %s", f.Kind, f.File)
	if f.Kind == FactFile || f.Kind == FactGroup || f.Kind == FactFrame || f.Kind == FactEnd || f.Kind == FactDamage {
		s += fmt.Sprintf(" @%d (byte %d, %d bytes)", f.Position, f.Offset, f.Bytes)
	}
	if f.Shard != 0 {
		s += fmt.Sprintf(" shard %d", f.Shard)
	}
	if f.Text != "" {
		s += ": " + f.Text
	}
	if f.Err != nil {
		s += ": " + f.Err.Error()
	}
	return s
}

// Inspect walks a data directory and gives what it finds, damage included, until
// yield returns false. It opens for reading only, takes no lock and changes
// nothing; on a directory in use it may see a group half-written, as damage.
// Errors are the disk's.
func Inspect(fsys vfs.FS, dir string, yield func(Fact) bool) error {
	in := &inspector{fs: fsys, dir: dir, yield: yield}
	for _, step := range []func() error{in.identity, in.checkpoint, in.files} {
		if err := step(); err != nil || in.done {
			return err
		}
	}
	return nil
}

type inspector struct {
	fs    vfs.FS
	dir   string
	yield func(Fact) bool
	done  bool
	super *superblocks
}

func (in *inspector) fact(f Fact) bool {
	if !in.done {
		in.done = !in.yield(f)
	}
	return !in.done
}

// damage gives err as a fact if it is about bytes, and returns it otherwise.
func (in *inspector) damage(file string, err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, meta.ErrCorrupt) && !errors.Is(err, meta.ErrFormatLevel) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	in.fact(Fact{Kind: FactDamage, File: file, Err: err})
	return nil
}

func (in *inspector) identity() error {
	id, err := readStorageID(in.fs, in.dir)
	if err := in.damage(storageIDFile, err); err != nil {
		return err
	}
	if err == nil {
		in.fact(Fact{Kind: FactIdentity, File: storageIDFile, Text: id.String()})
	}
	run, why, err := readRunState(in.fs, in.dir)
	switch {
	case err != nil:
		return err
	case run == nil:
		in.fact(Fact{Kind: FactDamage, File: runStateFile, Text: why})
	default:
		in.fact(Fact{Kind: FactIdentity, File: runStateFile, Text: fmt.Sprintf("%s, storage id %s, %s mode, start %d, end %d", runPhases[run.Phase], run.Storage, run.Mode, run.Start, run.End)})
	}
	in.super, err = openSuperblocks(in.fs, in.dir)
	if err != nil {
		return in.damage("superblock", err)
	}
	s := in.super.current
	in.fact(Fact{Kind: FactIdentity, File: "superblock", Text: fmt.Sprintf("sequence %d, cluster %s, broker %s, storage id %s, predecessor %s, origin %s, start %d", s.Sequence, s.Cluster, s.Broker, s.Storage, s.Predecessor, s.Origin, s.Start)})
	return nil
}

func (in *inspector) checkpoint() error {
	if in.super == nil || in.super.current.Checkpoint.Name == "" {
		return nil
	}
	ref := in.super.current.Checkpoint
	file := path.Join(checkpointDir, ref.Name)
	in.fact(Fact{Kind: FactCheckpoint, File: file, Bytes: ref.Size, Text: fmt.Sprintf("%d bytes, replay from position %d", ref.Size, ref.Replay)})
	c := &checkpoints{fs: in.fs, dir: path.Join(in.dir, checkpointDir)}
	_, err := c.load(ref, func(s *checkpointSection) error {
		in.fact(Fact{Kind: FactShard, File: file, Shard: s.Number, Text: fmt.Sprintf("%s, entries %d to %d in %d extents, as of position %d, state of %d bytes", s.ID, s.Start, s.End, len(s.Extents), s.Position, len(s.Blob))})
		return nil
	})
	return in.damage(file, err)
}

func (in *inspector) files() error {
	dir := path.Join(in.dir, walDir)
	names, err := in.fs.List(dir)
	if err != nil {
		return in.damage(walDir, err)
	}
	var files []*logFile
	defer func() {
		for _, f := range files {
			_ = f.f.Close() // only read
		}
	}()
	for _, name := range names {
		number, ok := fileNumber(name)
		if !ok {
			continue
		}
		f, err := openLogFile(in.fs.OpenRead, dir, name, number)
		if err != nil {
			if err := in.damage(path.Join(walDir, name), err); err != nil {
				return err
			}
			continue
		}
		files = append(files, f)
	}
	slices.SortStableFunc(files, func(a, b *logFile) int { return cmp.Compare(a.first(), b.first()) })
	for _, f := range files {
		if in.done {
			break
		}
		if err := in.file(f); err != nil {
			return err
		}
	}
	return nil
}

func (in *inspector) file(f *logFile) error {
	name := path.Join(walDir, f.name)
	if f.header.Salt == 0 {
		in.fact(Fact{Kind: FactFile, File: name, Bytes: f.size, Text: "no header that verifies: never used, or being recycled"})
		return nil
	}
	in.fact(Fact{Kind: FactFile, File: name, Position: f.first(), Bytes: f.size, Text: fmt.Sprintf("positions %d to %d, origin %s", f.first(), f.end(), f.header.Storage)})
	w := &window{file: f}
	end := f.first() + frame.Block // of the last group
	for p := end; p < f.end() && !in.done; {
		b, err := w.bytes(p, frame.GroupSize)
		if err != nil {
			return err
		}
		g, err := frame.DecodeGroup(b, f.header.Salt, uint64(p))
		if err != nil {
			p += frame.Block
			continue
		}
		if gap := Position(frame.Align(uint64(end))); p > gap {
			in.fact(Fact{Kind: FactDamage, File: name, Position: gap, Offset: f.offset(gap), Bytes: int64(p - gap), Text: "no group verifies here, but one behind it does"})
		}
		text := fmt.Sprintf("follows %d, vouches for %d", g.Previous, g.Synced)
		if g.Next != 0 {
			text += ", the last of its file"
		}
		in.fact(Fact{Kind: FactGroup, File: name, Position: p, Offset: f.offset(p), Bytes: frame.GroupSize, Text: text})
		if end, err = in.frames(w, name, p+frame.GroupSize); err != nil {
			return err
		}
		p = Position(frame.Align(uint64(end)))
	}
	in.fact(Fact{Kind: FactEnd, File: name, Position: end, Offset: f.offset(end), Bytes: int64(f.end() - end), Text: "no group verifies from here on"})
	return nil
}

// frames gives the frames of a group and returns where they end.
func (in *inspector) frames(w *window, name string, p Position) (Position, error) {
	f := w.file
	for !in.done {
		b, err := w.bytes(p, frame.HeaderSize)
		if err != nil {
			return p, nil // the file ends
		}
		if zero(b) {
			return p, nil
		}
		h, err := frame.Peek(b)
		if err == nil {
			b, err = w.bytes(p, h.Size())
		}
		var body []byte
		if err == nil {
			_, body, err = frame.Decode(b, f.header.Salt, uint64(p))
		}
		if err != nil {
			if !errors.Is(err, meta.ErrCorrupt) {
				return p, err
			}
			in.fact(Fact{Kind: FactDamage, File: name, Position: p, Offset: f.offset(p), Shard: ShardNumber(h.Shard), Bytes: int64(h.Size()), Err: err})
			return p, nil
		}
		in.fact(Fact{Kind: FactFrame, File: name, Position: p, Offset: f.offset(p), Bytes: int64(h.Size()), Shard: ShardNumber(h.Shard), Text: describe(h, body, p)})
		p += Position(h.Size())
	}
	return p, nil
}

func describe(h frame.Header, body []byte, at Position) string {
	var p placed
	r, err := p.decode(h, body, at)
	if err != nil {
		return err.Error()
	}
	e := &r.Entry
	switch h.Kind {
	case frame.Entry, frame.Relocation:
		s := fmt.Sprintf("%s %d: %s, lineage %d, epoch %d, offset %d, time %s, payload of %d bytes", h.Kind, e.LSN, e.Kind, e.Lineage, e.Epoch, e.Offset, e.Time.Time().Format("2006-01-02T15:04:05.000000Z"), len(e.Payload))
		if h.Kind == frame.Relocation {
			s += fmt.Sprintf(", from position %d", p.from)
		}
		return s
	case frame.Bind:
		id, err := decodeBind(body)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("bind to %s", id)
	case frame.Truncate:
		return fmt.Sprintf("truncate, keep up to %d", r.LSN)
	case frame.Base:
		return fmt.Sprintf("base at %d, %d bytes", r.LSN, len(r.Data))
	case frame.State:
		return fmt.Sprintf("state of %d bytes", len(r.Data))
	default:
		return h.Kind.String()
	}
}
