package wal

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

const lockFile = "lock"

// Open recovers the log in a data directory, or makes one, and locks it. Before
// it returns, everything that the replayer was told is on disk, and so is the
// storage id that covers it.
//
// A damaged directory is refused with [meta.ErrCorrupt], one of somebody else with
// [meta.ErrForeign], one of a newer build with [meta.ErrFormatLevel], and one that
// is in use with [meta.ErrUnavailable]; all of them are left as found.
func Open(ctx context.Context, opts Options) (*Log, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := vfs.MkdirAllSync(opts.FS, opts.Dir); err != nil {
		return nil, err
	}
	lock, err := opts.FS.Lock(path.Join(opts.Dir, lockFile))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, meta.Errorf(meta.ErrUnavailable, "data directory %s is in use: stop the broker that runs on it: %w", opts.Dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("locking data directory %s: %w", opts.Dir, err)
	}
	l := &Log{
		opts: opts, lock: lock,
		wake: make(chan struct{}, 1), prepares: make(chan struct{}, 1), quit: make(chan struct{}),
		failed: make(chan struct{}), checkpoint: make(chan struct{}, 1),
	}
	f := &l.folder
	f.fs, f.dir, f.rand, f.size, f.skipDirSync = opts.FS, path.Join(opts.Dir, walDir), opts.Rand, opts.FileSize, opts.Twins.NoDirSync
	l.index, l.changed = newIndex(), make(chan struct{})
	l.index.copyIsAppend = opts.Twins.CopyIsAppend
	l.writer.l = l
	l.ballast = ballast{fs: opts.FS, name: path.Join(opts.Dir, ballastFile), spare: &l.folder.spare}
	if err := l.open(); err != nil {
		_ = l.release() // nothing is under way; the error is the one to tell
		return nil, err
	}
	l.running.Go(l.writer.run)
	l.running.Go(l.preparer)
	l.kick()
	return l, nil
}

func (l *Log) open() error {
	o := &l.opts
	var err error
	l.identity, err = identify(identityOptions{FS: o.FS, Dir: o.Dir, Cluster: o.Cluster, Broker: o.Broker, Mode: o.Mode, BootID: o.BootID,
		WitnessDir: o.WitnessDir, Rand: o.Rand, Twins: identityTwins{CrashKeepsID: o.Twins.CrashKeepsID}})
	if err != nil {
		return err
	}
	l.folder.origin = l.identity.super.current.Origin
	if err := vfs.MkdirAllSync(o.FS, l.folder.dir); err != nil {
		return err
	}
	// A process that was killed may have left files whose names no power cut would
	// leave. Some of them will be used.
	if err := l.folder.syncNames(); err != nil {
		return err
	}
	if l.checkpoints, err = openCheckpoints(o.FS, o.Dir); err != nil {
		return err
	}
	r := &recovery{opts: o, folder: &l.folder, id: l.identity, index: l.index,
		named: map[*logFile]bool{}, after: map[ShardNumber]Position{}, unknown: map[ShardNumber]Position{}}
	err = r.run(l.checkpoints)
	l.space.free = append(r.files, r.blank...) // to be closed, should this fail
	if err != nil {
		l.index.files = nil
		return err
	}
	l.folder.spare.Store(ballastFor(l.identity.super.current.Checkpoint.Size))
	if err := l.adopt(r); err != nil {
		return err
	}
	if err := l.ballast.with(l.identity.commit); err != nil {
		return err
	}
	l.ballast.renew(l.identity.super.current.Checkpoint.Size)
	// What the checkpoint folder holds beside the named one is of no use to anybody.
	return l.checkpoints.prune(l.identity.super.current.Checkpoint)
}

// adopt sorts the files into those of the log, free ones, and ones to be made
// again, and sets the writer to where the log ends. What the named checkpoint
// references stays until another one is named, though the replay has moved or
// dropped it since: the next start reads it again.
func (l *Log) adopt(r *recovery) error {
	l.space.size, l.space.most, l.space.made = l.folder.size, int(l.opts.Budget/l.folder.size), r.made
	current := r.scan.file
	var used, free []*logFile
	for _, f := range r.files {
		switch {
		case f == current || f.first() < current.first() && (f.live > 0 || r.named[f] || f.end() > r.replay):
			used = append(used, f)
		case f.size != l.folder.size:
			r.blank = append(r.blank, f)
		default:
			// A header that claims the place of a file to come must not stand beside it.
			if f.first() > current.first() {
				if err := erase(f); err != nil {
					return err
				}
			}
			f.header = frame.File{}
			free = append(free, f)
		}
	}
	for _, f := range r.blank {
		// A full disk has no room for another one, so what was made is kept. A header
		// that isn't there may be one that a start before failed to erase on disk.
		again := l.folder.refill
		if l.identity.Tail == tailProven {
			again = erase
		}
		if f.size == l.folder.size && f.header.Salt == 0 && again(f) == nil {
			free = append(free, f)
		} else if err := l.folder.remove(f); err != nil {
			return err
		}
	}
	l.index.files, l.space.free = used, free
	if current == nil {
		if err := l.begin(); err != nil {
			return err
		}
		r.scan.file = l.space.current
	}
	if err := l.resume(&r.scan); err != nil {
		return err
	}
	return l.stock()
}

// stock makes the files that are kept back for commands and copies, so that they
// have room from the start. A full disk leaves them for later.
func (l *Log) stock() error {
	for len(l.space.free) < 2 && l.space.full == nil {
		if all, _ := l.space.bytes(l.index); all+l.folder.size > l.opts.Budget {
			break
		}
		l.space.made++
		l.makeFile(l.space.made)
	}
	if err := l.space.full; err != nil && !errors.Is(err, meta.ErrExhausted) {
		return err
	}
	if len(l.space.free) == 0 {
		return nil
	}
	f := l.space.free[0]
	if err := l.folder.prepare(f, l.space.current.end()); err != nil {
		return err
	}
	l.space.free, l.space.next = l.space.free[1:], f
	return nil
}

// begin makes the log's first file.
func (l *Log) begin() error {
	if len(l.space.free) == 0 {
		l.space.made++
		f, err := l.folder.create(l.space.made)
		if err != nil {
			return err
		}
		l.space.free = append(l.space.free, f)
	}
	f := l.space.free[0]
	if err := l.folder.prepare(f, 0); err != nil {
		return err
	}
	l.index.files, l.space.free, l.space.current = []*logFile{f}, l.space.free[1:], f
	return nil
}

// erase makes a file's header verify no longer.
func erase(f *logFile) error {
	if _, err := f.f.WriteAt(make([]byte, frame.Block), 0); err != nil {
		return fmt.Errorf("erasing the header of log file %s: %w", f.name, err)
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("erasing the header of log file %s: %w", f.name, err)
	}
	return nil
}

// resume sets the writer to the end of the log, and vouches for its last group
// while the clean mark, if there is one, still does.
func (l *Log) resume(s *scan) error {
	w := &l.writer
	end := s.end
	if s.groups == 0 && l.identity.Tail == tailProven {
		end = min(end, l.identity.End) // the replay starts where the next group would
	}
	w.file, w.end, w.at = s.file, end, Position(frame.Align(uint64(s.stop())))
	w.synced, w.content, w.vouched = end, s.content, min(s.synced, end)
	w.lastSync = time.Now()
	l.space.current, l.space.at = s.file, w.at
	l.end, l.synced = end, end
	if w.content <= w.vouched || w.at+frame.Block > w.file.limit() {
		return nil
	}
	return w.vouch()
}

// Identity says which copy of the data this is.
func (l *Log) Identity() Identity { return l.identity.ID }
