package wal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/vfs"
)

// fold is a small stand-in for the replica: the state of every shard as a function
// of its records, the same live and replayed.
type fold struct {
	ids    map[ShardNumber]meta.ShardID
	shards map[ShardNumber]*folded
	broken map[ShardNumber]error
}

// folded is one shard's state. Sums are of whole entries.
type folded struct {
	Base  meta.LSN // LSN of the entry before the first sum
	Sums  []uint32
	State []byte
	Chain uint64 // over every record ever applied, in order
}

func newFold() *fold {
	return &fold{ids: map[ShardNumber]meta.ShardID{}, shards: map[ShardNumber]*folded{}, broken: map[ShardNumber]error{}}
}

func (f *fold) shard(n ShardNumber) *folded {
	if f.shards[n] == nil {
		f.shards[n] = &folded{}
	}
	return f.shards[n]
}

func sumOf(e *entry.Entry) uint32 {
	_, sum := e.AppendSum(nil)
	return sum
}

func (f *fold) apply(n ShardNumber, r Record) {
	s := f.shard(n)
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, s.Chain)
	_ = binary.Write(h, binary.LittleEndian, uint8(r.Kind))
	switch r.Kind {
	case Entry:
		s.Sums = append(s.Sums, sumOf(&r.Entry))
		_ = binary.Write(h, binary.LittleEndian, s.Sums[len(s.Sums)-1])
	case Truncate:
		_ = binary.Write(h, binary.LittleEndian, r.LSN)
		if r.LSN < s.Base {
			s.Base, s.Sums = r.LSN, nil
		} else {
			s.Sums = s.Sums[:r.LSN-s.Base]
		}
	case State:
		h.Write(r.Data)
		s.State = bytes.Clone(r.Data)
	case Base:
		_ = binary.Write(h, binary.LittleEndian, r.LSN)
		h.Write(r.Data)
		s.Base, s.Sums, s.State = r.LSN, nil, bytes.Clone(r.Data)
	case Forget:
		delete(f.shards, n)
		delete(f.ids, n)
	}
	s.Chain = h.Sum64()
}

func (s *folded) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(s.Base))
	b = binary.LittleEndian.AppendUint64(b, s.Chain)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.Sums)))
	for _, v := range s.Sums {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, s.State...)
}

func decodeFolded(b []byte) *folded {
	s := &folded{Base: meta.LSN(binary.LittleEndian.Uint64(b)), Chain: binary.LittleEndian.Uint64(b[8:])}
	n := binary.LittleEndian.Uint32(b[16:])
	b = b[20:]
	for range n {
		s.Sums = append(s.Sums, binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	s.State = bytes.Clone(b)
	return s
}

func (f *fold) clone() *fold {
	c := newFold()
	maps.Copy(c.ids, f.ids)
	for n, s := range f.shards {
		c.shards[n] = decodeFolded(s.encode())
	}
	return c
}

func (f *fold) Section(n ShardNumber, id meta.ShardID, blob []byte) error {
	f.ids[n], f.shards[n] = id, decodeFolded(blob)
	return nil
}

func (f *fold) Bound(n ShardNumber, id meta.ShardID) error {
	if _, ok := f.ids[n]; ok {
		return fmt.Errorf("shard %d bound twice", n)
	}
	f.ids[n] = id
	f.shard(n)
	return nil
}

func (f *fold) Record(n ShardNumber, r Record) error {
	if _, ok := f.ids[n]; !ok {
		return fmt.Errorf("record of shard %d, which was not announced", n)
	}
	f.apply(n, r)
	return nil
}

func (f *fold) Broken(n ShardNumber, why error) error {
	f.broken[n] = why
	return nil
}

const (
	testDir  = "data"
	fileSize = 64 << 10
)

func shardID(i int) meta.ShardID {
	return meta.ShardID{Stream: meta.StreamName{Namespace: "test", Name: fmt.Sprintf("stream-%d", i)}, Incarnation: 7, Shard: uint32(i)}
}

// seeded is a reader of reproducible random bytes.
type seeded struct{ *rand.Rand }

func (s seeded) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.Uint32())
	}
	return len(b), nil
}

// shared is a reader for several logs at once.
type shared struct {
	mu sync.Mutex
	r  io.Reader
}

func (s *shared) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.Read(b)
}

func testOptions(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: testDir, Cluster: meta.ClusterID{1}, Broker: "b1", FileSize: fileSize, Budget: 16 * fileSize,
		BootID: "boot-1", WitnessDir: "run", Rand: &shared{r: seeded{rand.New(rand.NewPCG(1, 1))}}}
}

// rig is a log with the fold of what was appended to it.
type rig struct {
	t    testing.TB
	opts Options
	log  *Log
	fold *fold // of everything appended
	next map[ShardNumber]meta.LSN
}

func open(t testing.TB, opts Options) *rig {
	t.Helper()
	r, err := tryOpen(t, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return r
}

func tryOpen(t testing.TB, opts Options) (*rig, error) {
	f := newFold()
	opts.Replay = f
	l, err := Open(context.Background(), opts)
	if err != nil {
		return nil, err
	}
	r := &rig{t: t, opts: opts, log: l, fold: f, next: map[ShardNumber]meta.LSN{}}
	for n := range f.ids {
		_, r.next[n] = l.Bounds(n)
	}
	t.Cleanup(l.Kill)
	return r, nil
}

func (r *rig) bind(i int) ShardNumber {
	r.t.Helper()
	n, err := r.log.Bind(shardID(i))
	if err != nil {
		r.t.Fatalf("bind: %v", err)
	}
	if _, ok := r.fold.ids[n]; !ok {
		r.fold.ids[n] = shardID(i)
		r.next[n] = 1
		r.fold.shard(n)
	}
	return n
}

// entryAt makes the entry of an LSN: 10 offsets a batch.
func entryAt(lsn meta.LSN, payload []byte) entry.Entry {
	return entry.Entry{Header: entry.Header{Kind: entry.Batch, Level: 1, Lineage: 1, Epoch: 1, LSN: lsn, Offset: meta.Offset(lsn-1) * 10, Time: meta.Micros(lsn) * 1000}, Payload: payload}
}

func payload(n ShardNumber, lsn meta.LSN, size int) []byte {
	b := make([]byte, size)
	x := uint64(n)<<32 ^ uint64(lsn)*0x9e3779b97f4a7c15
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// submit appends without waiting.
func (r *rig) submit(n ShardNumber, records []Record, done func(error)) error {
	if err := r.log.Append(&Write{Shard: n, Records: records, Done: done}); err != nil {
		return err
	}
	for _, rec := range records {
		r.fold.apply(n, rec)
		switch rec.Kind {
		case Entry:
			r.next[n]++
		case Truncate, Base:
			r.next[n] = rec.LSN + 1
		}
	}
	return nil
}

// write appends and waits for the outcome.
func (r *rig) write(n ShardNumber, records ...Record) error {
	done := make(chan error, 1)
	if err := r.submit(n, records, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// entries makes the next count entries of a shard.
func (r *rig) entries(n ShardNumber, count, size int) []Record {
	var recs []Record
	for i := range count {
		lsn := r.next[n] + meta.LSN(i)
		recs = append(recs, Record{Kind: Entry, Entry: entryAt(lsn, payload(n, lsn, size))})
	}
	return recs
}

func (r *rig) add(n ShardNumber, count, size int) {
	r.t.Helper()
	r.must(r.write(n, r.entries(n, count, size)...))
}

func (r *rig) checkpoint() error {
	return r.log.Checkpoint(context.Background(), func(yield func(ShardNumber, []byte) bool) {
		for _, n := range slices.Sorted(maps.Keys(r.fold.shards)) {
			if !yield(n, r.fold.shards[n].encode()) {
				return
			}
		}
	})
}

// same compares the fold of a reopened log with what was appended.
func same(want, got *fold) error {
	for n, s := range want.shards {
		g := got.shards[n]
		if g == nil {
			if len(s.Sums) == 0 && s.Chain == 0 {
				continue // bound, and never written to
			}
			return fmt.Errorf("shard %d is missing", n)
		}
		if a, b := s.encode(), g.encode(); !bytes.Equal(a, b) {
			return fmt.Errorf("shard %d: base %d, %d entries, chain %x; want base %d, %d entries, chain %x", n, g.Base, len(g.Sums), g.Chain, s.Base, len(s.Sums), s.Chain)
		}
	}
	for n := range got.shards {
		if want.shards[n] == nil {
			return fmt.Errorf("shard %d is there, but should not be", n)
		}
	}
	return nil
}

// readAll checks that every local entry reads as what the fold says, and that no
// shard is broken.
func (r *rig) readAll() error {
	for _, why := range r.fold.broken {
		return fmt.Errorf("a shard is broken: %w", why)
	}
	for n, s := range r.fold.shards {
		start, end := r.log.Bounds(n)
		if start == 0 && len(s.Sums) == 0 {
			continue
		}
		if want := s.Base + meta.LSN(len(s.Sums)) + 1; end != want {
			return fmt.Errorf("shard %d ends at %d: want %d", n, end, want)
		}
		for lsn := start; lsn < end; {
			got, err := r.log.Read(n, lsn, 4096)
			if err != nil {
				return fmt.Errorf("shard %d, LSN %d: %w", n, lsn, err)
			}
			if len(got) == 0 {
				return fmt.Errorf("shard %d: nothing at LSN %d, but the end is %d", n, lsn, end)
			}
			for _, e := range got {
				if e.LSN != lsn {
					return fmt.Errorf("shard %d: entry %d at LSN %d", n, e.LSN, lsn)
				}
				if lsn > s.Base {
					if want := s.Sums[lsn-s.Base-1]; sumOf(&e) != want {
						return fmt.Errorf("shard %d, LSN %d: other bytes than were appended", n, lsn)
					}
				}
				lsn++
			}
		}
	}
	return nil
}

// reopen stops the log by kill or cleanly, and opens it again.
func (r *rig) reopen(clean bool) *rig {
	r.t.Helper()
	if clean {
		r.must(r.log.Close(context.Background()))
	} else {
		r.log.Kill()
	}
	o := open(r.t, r.opts)
	if err := same(r.fold, o.fold); err != nil {
		r.t.Fatalf("after reopening: %v", err)
	}
	if err := o.readAll(); err != nil {
		r.t.Fatalf("after reopening: %v", err)
	}
	return o
}

// soon is the deadline of things that must not hang; no test waits for it to pass.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func isKind(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v: want a %v", err, kind)
	}
}
