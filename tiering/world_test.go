package tiering

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
	"github.com/varve-io/varve/tiering/bucket/mem"
	"github.com/varve-io/varve/tiering/segment"
)

// clock is wall time that a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// seeded is a source of object ids that gives the same ones every time.
type seeded struct{ r *rand.Rand }

func (s seeded) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.r.Uint32())
	}
	return len(b), nil
}

var cluster = meta.ClusterID{1}

// world is one shard's log and its leader, as simple as can be, over a bucket
// with faults.
type world struct {
	t      *testing.T
	b      *fault.Bucket
	s      *Store
	clock  *clock
	shard  meta.ShardID
	lin    meta.Lineage
	epoch  meta.Epoch
	log    []entry.Entry // committed, LSN 1 at 0
	next   meta.Offset
	start  meta.Offset
	vector meta.Vector
	now    meta.Micros
	width  int // of manifests; 0 for what production has

	marks    []mark    // applied, in order
	manifest *Manifest // newest written
}

type mark struct {
	head    entry.Header
	payload entry.MarkPayload
}

func shardNamed(name string, inc meta.Incarnation) meta.ShardID {
	return meta.ShardID{Stream: meta.StreamName{Namespace: "logs", Name: name}, Incarnation: inc}
}

func newWorld(t *testing.T, opts ...func(*Options)) *world {
	w := &world{t: t, b: fault.New(mem.New("test")), clock: &clock{t: time.Unix(1_700_000_000, 0)}, shard: shardNamed("app", 77), lin: meta.NewLineage(1, 1), now: 1000}
	w.s = w.open(opts...)
	w.elect()
	return w
}

// open makes a store of the same cluster on the bucket, as a restart does.
func (w *world) open(opts ...func(*Options)) *Store {
	w.t.Helper()
	o := Options{
		Bucket: w.b, Cluster: cluster, BlockSize: 1000, RetryMax: time.Millisecond, Grace: -1,
		Now: w.clock.now, Rand: seeded{rand.New(rand.NewPCG(uint64(w.epoch), 5))},
	}
	for _, f := range opts {
		f(&o)
	}
	s, err := New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	if _, err := s.Claim(w.t.Context(), ClaimOptions{Level: 1}); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) lsn() meta.LSN { return meta.LSN(len(w.log)) }

func (w *world) put(kind entry.Kind, payload []byte) entry.Header {
	h := entry.Header{Kind: kind, Level: 1, Lineage: w.lin, Epoch: w.epoch, LSN: w.lsn() + 1, Offset: w.next, Time: w.now}
	w.log = append(w.log, entry.Entry{Header: h, Payload: payload})
	return h
}

func (w *world) elect() {
	w.epoch++
	h := w.put(entry.Open, entry.OpenPayload{Leader: meta.Member{Broker: "b1"}}.Encode())
	w.vector = append(w.vector, meta.EpochStart{Epoch: w.epoch, LSN: h.LSN})
}

func kafka(off meta.Offset, records, fill int, salt byte) []byte {
	p := make([]byte, 61+fill)
	binary.BigEndian.PutUint64(p, uint64(off))
	p[16] = 2
	binary.BigEndian.PutUint32(p[23:], uint32(records-1))
	for i := 61; i < len(p); i++ {
		p[i] = salt + byte(i)
	}
	return p
}

// append adds n batches of two records each, 300 bytes, a microsecond apart.
func (w *world) append(n int) {
	for range n {
		w.now++
		w.put(entry.Batch, kafka(w.next, 2, 239, byte(w.shard.Incarnation)))
		w.next += 2
	}
}

func (w *world) trim(to meta.Offset) {
	w.start = to
	w.put(entry.Trim, entry.TrimPayload{Start: to}.Encode())
}

func (w *world) archivedEnd() meta.LSN {
	if n := len(w.marks); n > 0 {
		return w.marks[n-1].payload.End
	}
	return 1
}

func walk(es []entry.Entry) func(context.Context) iter.Seq2[entry.Entry, error] {
	return func(context.Context) iter.Seq2[entry.Entry, error] {
		return func(yield func(entry.Entry, error) bool) {
			for _, e := range es {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

func (w *world) sealed() Sealed {
	first, next := w.archivedEnd(), w.lsn()+1
	return Sealed{
		Identity: segment.Identity{Shard: w.shard, Level: 1, Lineage: w.lin, Epoch: w.epoch, FirstLSN: first, NextLSN: next},
		Vector:   w.vector, State: fmt.Appendf(nil, "state to %d", next-1),
		Entries: walk(w.log[first-1 : next-1]),
	}
}

func (w *world) upload() meta.SegmentRef {
	w.t.Helper()
	ref, err := w.s.UploadSegment(w.t.Context(), w.sealed())
	if err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// mark commits an archive mark for the range that ref covers; nil for a mark that
// only moves the start offset.
func (w *world) mark(ref *meta.SegmentRef) *mark {
	p := entry.MarkPayload{Start: w.archivedEnd(), End: w.archivedEnd(), StartOffset: w.start, Level: 1, Row: []byte("row")}
	if ref != nil {
		p.End, p.Segment = ref.NextLSN, ref
	}
	if n := len(w.marks); n > 0 {
		p.Parent = w.marks[n-1].head.LSN
	}
	p.State = fmt.Appendf(nil, "state to %d", p.End-1)
	h := w.put(entry.Mark, p.Encode())
	w.marks = append(w.marks, mark{h, p})
	return &w.marks[len(w.marks)-1]
}

// build makes the manifest of the newest mark whose parent is written.
func (w *world) step() *Step {
	w.t.Helper()
	i := slices.IndexFunc(w.marks, func(m mark) bool { return w.manifest == nil || m.head.LSN > w.manifest.Mark })
	st, err := next(w.shard, w.manifest, w.marks[i].head, &w.marks[i].payload, w.vector, cmp.Or(w.width, width))
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

func (w *world) write() {
	w.t.Helper()
	st := w.step()
	if err := w.s.PutManifest(w.t.Context(), st); err != nil {
		w.t.Fatal(err)
	}
	w.manifest = st.Manifest
	w.put(entry.Confirm, entry.ConfirmPayload{Mark: st.Manifest.Mark}.Encode())
}

// archive does all of it: seal, upload, mark, manifest.
func (w *world) archive() {
	w.t.Helper()
	ref := w.upload()
	w.mark(&ref)
	w.write()
}

func (w *world) authority() Authority {
	marked := make(map[string]bool)
	for _, m := range w.marks {
		if m.payload.Segment != nil && (w.manifest == nil || m.head.LSN > w.manifest.Mark) {
			marked[m.payload.Segment.Key] = true
		}
	}
	return Authority{Through: w.epoch - 1, Manifest: w.manifest, Marked: func(k string) bool { return marked[k] }}
}

func (w *world) sweep() SweepResult {
	w.t.Helper()
	res, err := w.trySweep()
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

func (w *world) trySweep() (SweepResult, error) {
	return w.s.Sweep(w.t.Context(), SweepRequest{
		Shard: w.shard, Lineage: w.lin,
		Authority: func(context.Context) (Authority, error) { return w.authority(), nil },
	})
}

func (w *world) refetch(ctx context.Context) (*Manifest, error) {
	return w.s.Newest(ctx, w.shard, w.lin, ManifestID{})
}

func (w *world) reader() *Reader {
	r := w.s.NewReader(w.manifest, w.refetch)
	w.t.Cleanup(r.Close)
	return r
}

// readAll reads from an offset to the archived end, page by page.
func readAll(ctx context.Context, r *Reader, from meta.Offset, page int) ([]entry.Entry, error) {
	var out []entry.Entry
	for {
		p, err := r.Read(ctx, from, page)
		if err != nil {
			return out, err
		}
		out = append(out, p.Entries...)
		if p.End {
			return out, nil
		}
		if p.Next <= from {
			return out, errors.New("a page that goes nowhere")
		}
		from = p.Next
	}
}

// archived are the batches that a reader may see of what is archived.
func (w *world) archived(from meta.Offset) (out []entry.Entry) {
	for _, e := range w.log[:w.archivedEnd()-1] {
		if e.Kind == entry.Batch && e.Offset+2 > max(from, w.start) {
			out = append(out, e)
		}
	}
	return out
}

// checkAll reads all of the archive, whatever the page size, and compares.
func (w *world) checkAll() {
	w.t.Helper()
	for _, page := range []int{1, 700, 1 << 20} {
		r := w.reader()
		got, err := readAll(w.t.Context(), r, w.start, page)
		r.Close() // gives up its pin
		if err != nil {
			w.t.Fatal(err)
		}
		sameEntries(w.t, got, w.archived(0))
	}
}

func sameEntries(t *testing.T, got, want []entry.Entry) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d batches, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i].Header != want[i].Header || string(got[i].Payload) != string(want[i].Payload) {
			t.Fatalf("batch %d: %+v, want %+v", i, got[i].Header, want[i].Header)
		}
	}
}

func (w *world) keys(prefix string) (out []string) {
	w.t.Helper()
	for info, err := range w.b.List(w.t.Context(), prefix, "") {
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, info.Key)
	}
	return out
}

func (w *world) has(key string) bool {
	_, err := w.b.Head(context.Background(), key)
	return err == nil
}

// overwrite puts other bytes under a key, as rot does.
func (w *world) overwrite(key string, change func([]byte) []byte) {
	w.t.Helper()
	b, _, err := w.b.Load(w.t.Context(), key, 1<<30)
	if err == nil {
		_, err = w.b.Put(w.t.Context(), key, bucket.Bytes(change(b)), bucket.PutOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

var _ io.Reader = seeded{}
