package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync/atomic"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// Identity says which copy of the data a log holds, for the catalog.
type Identity struct {
	Storage     meta.StorageID
	Predecessor meta.StorageID // the id before this one; zero means none
	Ancestors   Ancestors      // the ids before Predecessor
	StartCount  uint64         // starts of this storage id, this one included
	Boot        meta.BootNonce // random for every Open
	Kept        bool           // Storage is what it was before this start
	Why         string         // the reason, for people
}

// identityOptions is what the identity of a directory depends on.
type identityOptions struct {
	FS         vfs.FS
	Dir        string
	Cluster    meta.ClusterID
	Broker     meta.BrokerID
	Mode       Mode
	BootID     string // empty: unknown
	WitnessDir string // empty: none
	Rand       io.Reader
	Twins      identityTwins
}

// identityTwins are deliberate mistakes that tests switch on to see that they are caught.
type identityTwins struct {
	CrashKeepsID bool // an unclean stop keeps the id, whatever was lost
}

// tailRule is what a start has to do with the part of the log that no proof covers.
type tailRule uint8

const (
	tailProven  tailRule = iota // the recorded end vouches for all of it
	tailMust                    // rewrite and sync it; if that fails, don't start
	tailOrNewID                 // rewrite and sync it; if that fails, take a new id
	tailDenied                  // rewrite and sync it, or cut it: the id is new
)

// verdict is what the evidence in a directory says about its id.
type verdict struct {
	keep bool
	tail tailRule
	why  string
}

// evidence is everything the verdict depends on.
type evidence struct {
	id        meta.StorageID // of the file storage-id; zero when it is missing
	named     meta.StorageID // in the superblock
	run       *runState      // nil when missing or unreadable
	runWhy    string         // why it is nil
	boot      string
	witnessed bool
}

// decide is the table of run states. It is pure; every row has a test.
func decide(e evidence, twins identityTwins) verdict {
	fresh := func(format string, args ...any) verdict {
		return verdict{tail: tailDenied, why: fmt.Sprintf(format, args...)}
	}
	switch {
	case e.id.IsZero():
		return fresh("storage-id is missing")
	case e.id != e.named:
		return fresh("a change of id was interrupted")
	case e.run == nil:
		return fresh("%s", e.runWhy)
	case e.run.Storage != e.id:
		return fresh("run-state names another storage id")
	case e.run.Phase == phaseStopped:
		return verdict{keep: true, tail: tailProven, why: "stopped cleanly"}
	case e.run.Mode == Commit:
		return verdict{keep: true, tail: tailMust, why: fmt.Sprintf("%s in commit mode: all that was acknowledged was on disk", runPhases[e.run.Phase])}
	case twins.CrashKeepsID:
		return verdict{keep: true, tail: tailMust, why: "twin"}
	case e.run.Phase == phasePoisoned:
		return fresh("a write or sync failed in periodic mode")
	case e.boot == "" || e.run.Boot != e.boot:
		return fresh("the machine went down, or might have, in periodic mode")
	case !e.witnessed:
		return fresh("nothing vouches that no flush failed in periodic mode")
	default:
		return verdict{keep: true, tail: tailOrNewID, why: "the process was killed and the kernel kept its pages"}
	}
}

// identity takes a data directory through one start, in three steps:
//
//	identify ---> (the caller scans the log,     ---> commit ---> ... ---> stop
//	  |            rewrites and syncs its tail)         |                (clean mark,
//	  |                 | tailLost                      |                 last of all)
//	  | refuses:        v                               +---> markPoisoned
//	  | nothing     a new id, or no start
//	  v changed
//
// Nobody may hear of the id before commit returned. Methods are called by one
// goroutine at a time, except that markPoisoned and pair may run side by side.
type identity struct {
	ID   Identity
	Tail tailRule
	End  Position // where the log ends, by the clean mark; 0 unless Tail is tailProven

	opts      identityOptions
	was       meta.StorageID // in the file storage-id
	super     *superblocks
	witness   witness
	committed bool
	busy      atomic.Bool // a run state is being written
	poisoned  atomic.Bool
}

// identify reads a directory, making it if there is none, and decides on its id.
// It refuses a directory of another cluster or broker, or one whose parts do not
// belong together ([meta.ErrForeign]), and one whose superblock can't be read
// ([meta.ErrCorrupt], [meta.ErrFormatLevel]); those are left as found. Only in an
// empty directory does it write: the first superblock.
func identify(o identityOptions) (*identity, error) {
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	o.BootID = cleanBootID(o.BootID)
	if err := vfs.MkdirAllSync(o.FS, o.Dir); err != nil {
		return nil, err
	}
	super, err := openSuperblocks(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	d := &identity{opts: o, super: super, witness: witness{fs: o.FS, dir: o.WitnessDir, dataDir: o.Dir, boot: o.BootID}}
	if d.ID.Boot, err = drawNonce(o.Rand); err != nil {
		return nil, err
	}
	if super.current.Sequence == 0 {
		return d, d.first()
	}
	e, err := d.gather()
	if err != nil {
		return nil, err
	}
	return d, d.apply(e)
}

// first makes the identity of an empty directory. The superblock goes ahead of
// everything else, so a directory that holds anything has one.
func (d *identity) first() error {
	if err := checkEmpty(d.opts.FS, d.opts.Dir); err != nil {
		return err
	}
	id, err := newStorageID(d.opts.Rand)
	if err != nil {
		return err
	}
	d.ID.Storage, d.ID.StartCount, d.ID.Why = id, 1, "the directory is new"
	d.Tail = tailDenied
	return d.super.write(superblock{Cluster: d.opts.Cluster, Broker: d.opts.Broker, Storage: id, Origin: id})
}

// checkEmpty refuses a directory that has no superblock but something of ours.
func checkEmpty(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		switch name {
		case storageIDFile, runStateFile:
		case "wal", checkpointDir:
			inside, err := fsys.List(path.Join(dir, name))
			if err != nil {
				return err
			}
			if len(inside) == 0 {
				continue
			}
			name += "/" + inside[0]
		default:
			continue
		}
		return meta.Errorf(meta.ErrCorrupt, "data directory %s holds %s but no superblock: nothing was changed; "+
			"restore superblock.a and .b, or move the directory away to come back as a new copy that peers repair", dir, name)
	}
	return nil
}

// gather reads everything the decision depends on and checks that it is ours.
func (d *identity) gather() (evidence, error) {
	o, s := &d.opts, &d.super.current
	switch {
	case s.Cluster != o.Cluster:
		return evidence{}, meta.Errorf(meta.ErrForeign, "data directory %s belongs to cluster %s, not to %s: start it there, or use another directory", o.Dir, s.Cluster, o.Cluster)
	case s.Broker != o.Broker:
		return evidence{}, meta.Errorf(meta.ErrForeign, "data directory %s belongs to broker %s, not to %s: start it as that one, or use another directory", o.Dir, s.Broker, o.Broker)
	}
	e := evidence{named: s.Storage, boot: o.BootID}
	var err error
	if e.id, err = readStorageID(o.FS, o.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, err
	}
	d.was = e.id
	// A change of id writes the superblock first, so a crash leaves one whose
	// predecessor is the directory's id. Nobody has heard of the id it names.
	if !e.id.IsZero() && e.id != s.Storage && e.id != s.Predecessor {
		return e, meta.Errorf(meta.ErrForeign, "data directory %s has storage id %s, but its superblock names %s: "+
			"parts of two directories are mixed; nothing was changed; restore the directory as a whole, or move it away", o.Dir, e.id, s.Storage)
	}
	if e.run, e.runWhy, err = readRunState(o.FS, o.Dir); err != nil {
		return e, err
	}
	if !e.id.IsZero() {
		e.witnessed, err = d.witness.stands(e.id)
	}
	if err != nil {
		e.witnessed = false // a runtime directory that can't be read proves nothing
	}
	return e, nil
}

// apply turns the evidence into this start's identity.
func (d *identity) apply(e evidence) error {
	v := decide(e, d.opts.Twins)
	d.Tail, d.ID.Why = v.tail, v.why
	if !v.keep {
		return d.renew(v.why)
	}
	d.ID.Kept, d.ID.Storage = true, e.id
	d.ID.Predecessor, d.ID.Ancestors = d.super.current.Predecessor, d.super.current.Ancestors
	d.ID.StartCount = max(d.super.current.Start, e.run.Start) + 1
	if v.tail == tailProven {
		d.End = e.run.End
	}
	return nil
}

// renew draws a new id. The predecessor is the id that the directory still bears,
// so an interrupted change can be told from a mixture; without one, it is the
// last that the superblock named.
func (d *identity) renew(why string) error {
	id, err := newStorageID(d.opts.Rand)
	if err != nil {
		return err
	}
	d.ID.Storage, d.ID.Predecessor, d.ID.StartCount = id, d.was, 1
	if d.was.IsZero() {
		d.ID.Predecessor = d.super.current.Storage
	}
	// An interrupted change has written the predecessor already.
	d.ID.Ancestors = d.super.current.Ancestors
	if p := d.super.current.Predecessor; p != d.ID.Predecessor {
		d.ID.Ancestors = d.ID.Ancestors.with(p)
	}
	d.ID.Kept, d.ID.Why, d.Tail = false, why, tailDenied
	return nil
}

// tailLost says that the unproven tail could not be rewritten and synced. Where
// the id covers the loss it returns nil: the id is then new, and the caller cuts
// the tail instead. Otherwise it returns the error to refuse the start with.
func (d *identity) tailLost(cause error) error {
	switch d.Tail {
	case tailDenied:
		return nil
	case tailOrNewID:
		// The next start must not believe the pages either.
		if err := d.witness.take(d.ID.Storage); err != nil {
			return errors.Join(cause, err)
		}
		return d.renew("the unproven tail could not be rewritten: " + cause.Error())
	default:
		return meta.Errorf(meta.ErrPoisoned, "the end of the log in %s could not be rewritten and synced, so the start is refused: "+
			"repair the disk, or move the directory away to come back as a new copy that peers repair: %w", d.opts.Dir, cause)
	}
}

// commit makes the id and the run state durable, once the log's tail is. The
// order is: witness, superblock, storage-id, run-state. A crash between superblock
// and storage-id leaves a superblock whose predecessor is the directory's id, which
// the next start takes for an interrupted change; the other way round it would look
// like a mixture of two directories. Until the run state is written, the last one
// stands, or names an id that is gone, and the next start decides as this one did.
func (d *identity) commit() error {
	if d.opts.Mode == Periodic {
		if err := d.witness.set(d.ID.Storage); err != nil {
			return err
		}
	}
	next := d.super.current
	next.Storage, next.Predecessor, next.Ancestors, next.Start = d.ID.Storage, d.ID.Predecessor, d.ID.Ancestors, d.ID.StartCount
	if err := d.super.write(next); err != nil {
		return err
	}
	if d.was != d.ID.Storage {
		if err := writeStorageID(d.opts.FS, d.opts.Dir, d.ID.Storage); err != nil {
			return fmt.Errorf("writing the storage id: %w", err)
		}
	}
	if err := d.writeRun(phaseRunning, 0); err != nil {
		return err
	}
	if d.was != d.ID.Storage && !d.was.IsZero() {
		_ = d.witness.take(d.was) // of an id that is gone: it proves nothing any more
	}
	d.was, d.committed = d.ID.Storage, true
	return nil
}

// writeRun writes the run state; two at a time are a programming error.
func (d *identity) writeRun(p runPhase, end Position) error {
	if !d.busy.CompareAndSwap(false, true) {
		panic("wal: two writers of one run state")
	}
	defer d.busy.Store(false)
	r := runState{Phase: p, Storage: d.ID.Storage, Mode: d.opts.Mode, Boot: d.opts.BootID, Start: d.ID.StartCount, End: end}
	if err := writeRunState(d.opts.FS, d.opts.Dir, r); err != nil {
		return fmt.Errorf("writing run state %s: %w", runPhases[p], err)
	}
	return nil
}

// pair makes ref the checkpoint that the durable superblock names. After an error
// either is named; a retry takes a checkpoint of another name.
func (d *identity) pair(ref checkpointRef) error {
	next := d.super.current
	next.Checkpoint = ref
	return d.super.write(next)
}

// stop writes the clean mark, the last write of all: everything up to end is on
// disk and nothing lies behind it. A poisoned directory never gets it.
func (d *identity) stop(end Position) error {
	if !d.committed || d.poisoned.Load() {
		return meta.Errorf(meta.ErrPoisoned, "data directory %s did not run without a failure: no clean stop", d.opts.Dir)
	}
	if err := d.writeRun(phaseStopped, end); err != nil {
		return err
	}
	_ = d.witness.take(d.ID.Storage) // the clean mark says more than it does
	return nil
}

// markPoisoned records that a write or sync failed. It takes the witness away
// first, which works when the data's disk doesn't. Both are tried; a start after
// neither worked has only the page cache to go by, in periodic mode on the same boot.
func (d *identity) markPoisoned() error {
	if d.poisoned.Swap(true) || !d.committed {
		return nil
	}
	return errors.Join(d.witness.take(d.ID.Storage), d.writeRun(phasePoisoned, 0))
}

// drawNonce draws a boot nonce; it is never zero.
func drawNonce(rand io.Reader) (meta.BootNonce, error) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(rand, b[:]); err != nil {
			return 0, fmt.Errorf("drawing a boot nonce: %w", err)
		}
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return meta.BootNonce(n), nil
		}
	}
}
