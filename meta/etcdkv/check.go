package etcdkv

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/varve-io/varve/meta"
)

// check looks through etcd's files for what it would end the process for.
func check(dir, prefix string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			why, ok := p.(error)
			if !ok {
				why = fmt.Errorf("%v", p)
			}
			err = damaged(dir, why)
		}
	}()
	db, err := checkData(filepath.Join(dir, "member", "snap", "db"), prefix)
	switch {
	case errors.Is(err, meta.ErrUnavailable):
		return err
	case err != nil:
		return damaged(dir, fmt.Errorf("data file member/snap/db: %w", err))
	}
	if err := checkLog(filepath.Join(dir, "member", "wal"), db); err != nil {
		return damaged(dir, fmt.Errorf("write-ahead log member/wal: %w", err))
	}
	return nil
}

// dataState is what the data file says, as far as the log must agree.
type dataState struct {
	there   bool
	index   uint64 // last log entry that was applied to it
	term    uint64
	members map[types.ID]bool

	prefix  string
	rev     int64 // of the key seen last
	floor   int64 // tombstones up to here may stand alone: what they end is compacted
	live    map[uint64]struct{}
	orphans int64 // revision of the last tombstone of nothing
	seed    maphash.Seed
}

func checkData(path, prefix string) (dataState, error) {
	d := dataState{prefix: prefix, members: make(map[types.ID]bool), live: make(map[uint64]struct{}), seed: maphash.MakeSeed()}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	defer f.Close() // lets the lock go too
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return d, meta.Errorf(meta.ErrUnavailable, "the catalog's data file %s is in use by another process", path)
	}
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return d, err // size 0: made and never written; etcd starts it anew
	}
	if err := walkBolt(f, info.Size(), d.visit); err != nil {
		return d, err
	}
	if d.orphans > d.floor {
		return d, fmt.Errorf("revision %d deletes a key that was not there", d.orphans)
	}
	d.there = d.index != 0 || d.rev != 0
	d.live = nil
	return d, nil
}

func (d *dataState) visit(bucket string, k, v []byte) error {
	switch bucket {
	case "key":
		return d.visitKey(k, v)
	case "meta":
		return d.visitMeta(string(k), v)
	case "members":
		id, err := types.IDFromString(string(k))
		if err != nil || !json.Valid(v) {
			return fmt.Errorf("member %q is damaged", k)
		}
		d.members[id] = true
	}
	return nil
}

func (d *dataState) visitMeta(k string, v []byte) error {
	switch k {
	case "consistent_index", "term":
		if len(v) != 8 {
			return fmt.Errorf("%s has %d bytes", k, len(v))
		}
		n := binary.BigEndian.Uint64(v)
		if k == "term" {
			d.term = n
		} else {
			d.index = n
		}
	case "scheduledCompactRev", "finishedCompactRev":
		if len(v) != 17 || v[8] != '_' {
			return fmt.Errorf("%s is damaged", k)
		}
		d.floor = max(d.floor, int64(binary.BigEndian.Uint64(v)))
	case "confState":
		if !json.Valid(v) {
			return fmt.Errorf("%s is damaged", k)
		}
	}
	return nil
}

// visitKey checks one revision of one key: revisions go up, say the same inside
// and outside, values match their checksums, and what is deleted was there.
func (d *dataState) visitKey(k, v []byte) error {
	gone := len(k) == 18 && k[17] == 't'
	if len(k) != 17 && !gone || k[8] != '_' {
		return fmt.Errorf("revision %x is damaged", k)
	}
	rev, sub := int64(binary.BigEndian.Uint64(k)), int64(binary.BigEndian.Uint64(k[9:]))
	if rev < max(d.rev, 1) || sub < 0 {
		return fmt.Errorf("revision %x is out of order", k)
	}
	d.rev = rev
	var kv mvccpb.KeyValue
	if err := proto.Unmarshal(v, &kv); err != nil {
		return fmt.Errorf("revision %d: %w", rev, err)
	}
	if len(kv.Key) == 0 || len(kv.ProtoReflect().GetUnknown()) != 0 {
		return fmt.Errorf("revision %d is damaged", rev)
	}
	h := maphash.Bytes(d.seed, kv.Key)
	if gone {
		if _, there := d.live[h]; !there {
			d.orphans = rev
		}
		delete(d.live, h)
		return nil
	}
	if kv.ModRevision != rev || kv.CreateRevision < 1 || kv.CreateRevision > rev || kv.Version < 1 {
		return fmt.Errorf("revision %d of key %q contradicts itself", rev, kv.Key)
	}
	if !strings.HasPrefix(string(kv.Key), d.prefix) {
		return fmt.Errorf("revision %d is of key %q, which does not begin with %q", rev, kv.Key, d.prefix)
	}
	if _, err := unseal(string(kv.Key), kv.Value); err != nil {
		return err
	}
	d.live[h] = struct{}{}
	return nil
}

// checkLog reads the log through, checksums and all, and holds it against the
// data file: what was applied there must still be in the log.
func checkLog(dir string, db dataState) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return err
	}
	if len(names) == 0 {
		if db.there {
			return errors.New("it is gone, while the data file holds a catalog")
		}
		return nil
	}
	quiet := zap.New(zapcore.NewNopCore(), zap.WithFatalHook(panicHook{}), zap.WithPanicHook(panicHook{}))
	snaps, err := wal.ValidSnapshotEntries(quiet, dir)
	if err != nil {
		return err
	}
	start := &walpb.Snapshot{}
	if len(snaps) > 0 {
		start = snaps[len(snaps)-1]
	}
	w, err := wal.OpenForRead(quiet, dir, start)
	if err != nil {
		return err
	}
	defer w.Close()
	info, state, entries, err := w.ReadAll()
	if err != nil {
		return err
	}
	var m etcdserverpb.Metadata
	if err := proto.Unmarshal(info, &m); err != nil || m.GetNodeID() == 0 {
		return errors.New("it does not say which member it belongs to")
	}
	if len(db.members) > 0 && !db.members[types.ID(m.GetNodeID())] {
		return fmt.Errorf("it belongs to member %x, which the data file does not list", m.GetNodeID())
	}
	return agree(start, state, entries, db)
}

func agree(start *walpb.Snapshot, state *raftpb.HardState, entries []*raftpb.Entry, db dataState) error {
	last, term := start.GetIndex(), start.GetTerm()
	for _, e := range entries {
		if e.GetIndex() != last+1 || e.GetTerm() < term {
			return fmt.Errorf("entry %d of term %d follows entry %d of term %d", e.GetIndex(), e.GetTerm(), last, term)
		}
		last, term = e.GetIndex(), e.GetTerm()
		if e.GetIndex() == db.index && db.term != 0 && e.GetTerm() != db.term {
			return fmt.Errorf("entry %d is of term %d, the data file has it of term %d", db.index, e.GetTerm(), db.term)
		}
	}
	switch {
	case state.GetCommit() > last:
		return fmt.Errorf("entries up to %d were committed, it ends at %d", state.GetCommit(), last)
	case db.index > last && len(db.members) <= 1: // with others, an entry may be applied before it is on this disk
		return fmt.Errorf("the data file holds entries up to %d, it ends at %d", db.index, last)
	case db.index < start.GetIndex():
		return fmt.Errorf("it starts after entry %d, the data file ends at %d", start.GetIndex(), db.index)
	case term > state.GetTerm() && len(entries) > 0:
		return fmt.Errorf("entries of term %d, but the vote is of term %d", term, state.GetTerm())
	}
	return nil
}

// panicHook turns etcd's fatal messages into panics while files are checked.
type panicHook struct{}

func (panicHook) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	if err := cause(fields); err != nil {
		panic(fmt.Errorf("%s: %w", ce.Message, err))
	}
	panic(errors.New(ce.Message))
}
