package segment

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

var update = flag.Bool("update", false, "write golden files")

// batch makes an entry whose payload has what the format reads of a Kafka batch.
func batch(lsn meta.LSN, off meta.Offset, records int, at meta.Micros, epoch meta.Epoch, fill int) entry.Entry {
	p := make([]byte, kafkaHeader+fill)
	binary.BigEndian.PutUint64(p, uint64(off))
	p[kafkaMagicAt] = 2
	binary.BigEndian.PutUint32(p[kafkaDeltaAt:], uint32(records-1))
	for i := kafkaHeader; i < len(p); i++ {
		p[i] = byte(i * 7)
	}
	return entry.Entry{Header: entry.Header{Kind: entry.Batch, Level: 1, Lineage: meta.NewLineage(1, 1), Epoch: epoch, LSN: lsn, Offset: off, Time: at}, Payload: p}
}

func command(lsn meta.LSN, off meta.Offset, at meta.Micros, epoch meta.Epoch) entry.Entry {
	return entry.Entry{Header: entry.Header{Kind: entry.Trim, Level: 1, Lineage: meta.NewLineage(1, 1), Epoch: epoch, LSN: lsn, Offset: off, Time: at}, Payload: entry.TrimPayload{}.Encode()}
}

func identity(first, next meta.LSN) Identity {
	return Identity{
		Shard: meta.ShardID{Stream: meta.StreamName{Namespace: "logs", Name: "app/web"}, Incarnation: 77, Shard: 3},
		Level: 1, Lineage: meta.NewLineage(1, 1), Epoch: 9, FirstLSN: first, NextLSN: next,
	}
}

// history makes a run of a log: batches of several sizes, commands between them,
// append times that stand still and jump, offsets with gaps.
func history(r *rand.Rand, n int) []entry.Entry {
	var out []entry.Entry
	off, at, epoch := meta.Offset(r.IntN(5)), meta.Micros(r.IntN(100)), meta.Epoch(1+r.IntN(3))
	for i := range n {
		lsn := meta.LSN(i + 1)
		switch r.IntN(6) {
		case 0:
			at += meta.Micros(r.IntN(1_000_000))
		case 1, 2:
			at++
		}
		if r.IntN(10) == 0 && epoch < 9 {
			epoch++
		}
		if r.IntN(5) == 0 && i > 0 {
			out = append(out, command(lsn, off, at, epoch))
			continue
		}
		k := 1 + r.IntN(4)
		out = append(out, batch(lsn, off, k, at, epoch, r.IntN(300)))
		off += meta.Offset(k + r.IntN(2))
	}
	return out
}

func write(t testing.TB, id Identity, es []entry.Entry, state []byte, o Options) ([]byte, meta.SegmentRef) {
	t.Helper()
	var buf bytes.Buffer
	w, err := NewWriter(&buf, id, meta.Vector{{Epoch: 1, LSN: 1}, {Epoch: 4, LSN: 3}, {Epoch: 8, LSN: 1 << 40}}, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	ref, err := w.Finish(state)
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), ref
}

func batches(es []entry.Entry) (out []entry.Entry) {
	for _, e := range es {
		if e.Kind == entry.Batch {
			out = append(out, e)
		}
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		es := history(r, 1+r.IntN(80))
		id := identity(1, meta.LSN(len(es)+1))
		state := bytes.Repeat([]byte{0xab}, r.IntN(1000))
		obj, ref := write(t, id, es, state, Options{BlockSize: 64 + r.IntN(2000)})
		if ref.Size != int64(len(obj)) || ref.IndexAt+ref.IndexLen != ref.Size {
			t.Fatalf("seed %d: reference %+v of %d bytes", seed, ref, len(obj))
		}
		rep, err := Inspect(bytes.NewReader(obj), int64(len(obj)))
		if err != nil || len(rep.Faults) > 0 {
			t.Fatalf("seed %d: %v %v", seed, err, rep.Faults)
		}
		if !bytes.Equal(rep.State, state) || rep.Index.Identity != id || len(rep.Index.Vector) != 1+min(1, len(es)/3) {
			t.Fatalf("seed %d: %+v", seed, rep.Index)
		}
		var got []entry.Entry
		for _, k := range rep.Index.Blocks {
			for e, err := range Entries(obj[k.At : k.At+int64(k.Len)]) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, e)
			}
		}
		if d := cmp.Diff(batches(es), got); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
		// The exact range of the reference is enough, and anything longer too.
		for _, from := range []int64{ref.IndexAt, ref.IndexAt / 2, 0} {
			x, err := ParseTail(obj[from:], ref.Size)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(rep.Index, x, cmp.AllowUnexported(Index{})); d != "" {
				t.Fatal(d)
			}
			if !bytes.Equal(x.encode(ref.IndexAt), obj[ref.IndexAt:]) {
				t.Fatal("encoding the decoded index gives other bytes")
			}
		}
		var short *ShortTail
		if _, err := ParseTail(obj[ref.IndexAt+1:], ref.Size); !errors.As(err, &short) || short.Need != ref.IndexLen {
			t.Fatalf("short tail: %v", err)
		}
	}
}

// The slow twins of the searches: walk every entry.
func slowFind(es []entry.Entry, pass func(entry.Entry, meta.Offset) bool) (meta.LSN, bool) {
	for _, e := range batches(es) {
		if next, _ := NextOffset(&e); pass(e, next) {
			return e.LSN, true
		}
	}
	return 0, false
}

func TestSearchAgainstScan(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		es := history(r, 1+r.IntN(60))
		obj, ref := write(t, identity(1, meta.LSN(len(es)+1)), es, nil, Options{BlockSize: 64 + r.IntN(900)})
		x, err := ParseTail(obj, ref.Size)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, q uint64, i int, pass func(entry.Entry, meta.Offset) bool) {
			t.Helper()
			want, ok := slowFind(es, pass)
			if !ok {
				if i != len(x.Blocks) {
					t.Fatalf("seed %d %s %d: block %d, want none", seed, what, q, i)
				}
				return
			}
			if i == len(x.Blocks) || x.Blocks[i].FirstLSN > want || x.Blocks[i].LastLSN < want {
				t.Fatalf("seed %d %s %d: block %d does not hold LSN %d", seed, what, q, i, want)
			}
		}
		for o := range x.NextOffset + 3 {
			check("offset", uint64(o), x.ByOffset(o), func(_ entry.Entry, next meta.Offset) bool { return next > o })
		}
		for _, e := range es {
			for _, at := range []meta.Micros{e.Time - 1, e.Time, e.Time + 1} {
				check("time", uint64(at), x.ByTime(at), func(e entry.Entry, _ meta.Offset) bool { return e.Time >= at })
			}
			check("LSN", uint64(e.LSN), x.ByLSN(e.LSN), func(f entry.Entry, _ meta.Offset) bool { return f.LSN >= e.LSN })
		}
	}
}

// Rows: T5
func TestEveryFlippedByteIsFound(t *testing.T) {
	es := history(rand.New(rand.NewPCG(7, 7)), 12)
	obj, _ := write(t, identity(1, 13), es, []byte("some state"), Options{BlockSize: 400})
	for i := range obj {
		bad := bytes.Clone(obj)
		bad[i] ^= 0x40
		rep, err := Inspect(bytes.NewReader(bad), int64(len(bad)))
		if err == nil && len(rep.Faults) == 0 {
			t.Fatalf("byte %d of %d flipped: nothing noticed", i, len(obj))
		}
		if err != nil && !errors.Is(err, meta.ErrCorrupt) && !errors.Is(err, meta.ErrFormatLevel) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	for n := range obj {
		if _, err := Inspect(bytes.NewReader(obj[:n]), int64(n)); err == nil {
			t.Fatalf("cut to %d of %d bytes: nothing noticed", n, len(obj))
		}
	}
}

func TestWriterRefuses(t *testing.T) {
	ok := batch(2, 10, 3, 100, 4, 10)
	cases := map[string][]entry.Entry{
		"LSN below the range":   {batch(1, 0, 1, 1, 4, 0)},
		"LSN above the range":   {batch(9, 0, 1, 1, 4, 0)},
		"LSN twice":             {ok, batch(2, 13, 1, 100, 4, 0)},
		"offset going back":     {ok, batch(3, 12, 1, 100, 4, 0)},
		"time going back":       {ok, batch(3, 13, 1, 99, 4, 0)},
		"epoch going back":      {ok, batch(3, 13, 1, 100, 3, 0)},
		"epoch of the future":   {batch(2, 0, 1, 1, 10, 0)},
		"offsets overflow":      {batch(2, meta.MaxOffset-1, 2, 1, 4, 0)},
		"payload is no batch":   {{Header: ok.Header, Payload: []byte("hello")}},
		"base offset differs":   {{Header: entry.Header{Kind: entry.Batch, Level: 1, Lineage: 1, Epoch: 4, LSN: 2, Offset: 9, Time: 1}, Payload: ok.Payload}},
		"lineage of the future": {{Header: entry.Header{Kind: entry.Batch, Level: 1, Lineage: meta.NewLineage(2, 0), Epoch: 4, LSN: 2, Offset: 10, Time: 1}, Payload: ok.Payload}},
	}
	for name, es := range cases {
		w, err := NewWriter(io.Discard, identity(2, 9), nil, Options{})
		for _, e := range es {
			if err == nil {
				err = w.Add(e)
			}
		}
		if !errors.Is(err, meta.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := w.Finish(nil); err == nil {
			t.Errorf("%s: the dead writer finished", name)
		}
	}
	w, err := NewWriter(io.Discard, identity(2, 9), nil, Options{})
	if err == nil {
		err = w.Add(command(3, 0, 1, 4))
	}
	if _, ferr := w.Finish(nil); err != nil || !errors.Is(ferr, meta.ErrInvalid) {
		t.Errorf("a range without a batch: %v, %v", err, ferr)
	}
	if _, err := NewWriter(io.Discard, identity(9, 9), nil, Options{}); !errors.Is(err, meta.ErrInvalid) {
		t.Errorf("an empty range: %v", err)
	}
}

// B78: wide and huge offsets neither wrap nor are refused up to the largest there is.
func TestHugeOffsets(t *testing.T) {
	es := []entry.Entry{batch(1, 0, 1, -5, 4, 0), batch(2, meta.MaxOffset-1<<31, 1<<31-1, 0, 4, 0), batch(3, meta.MaxOffset-1, 1, 0, 4, 0)}
	obj, ref := write(t, identity(1, 4), es, nil, Options{BlockSize: 1})
	if ref.NextOffset != meta.MaxOffset || ref.FirstTime != -5 {
		t.Fatalf("%+v", ref)
	}
	x, err := ParseTail(obj, ref.Size)
	if err != nil || x.ByOffset(1) != 1 || x.ByOffset(meta.MaxOffset-1) != 2 || x.ByOffset(meta.MaxOffset) != 3 {
		t.Fatalf("%v", err)
	}
}

func TestWriterMemoryIsBounded(t *testing.T) {
	w, err := NewWriter(io.Discard, identity(1, 1<<40), nil, Options{BlockSize: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	lsn := meta.LSN(0)
	e := batch(1, 0, 1, 1, 1, 32<<10)
	perRun := testing.AllocsPerRun(1000, func() {
		lsn++
		e.LSN, e.Offset = lsn, meta.Offset(lsn)
		binary.BigEndian.PutUint64(e.Payload, uint64(lsn))
		if err := w.Add(e); err != nil {
			t.Fatal(err)
		}
	})
	if perRun > 0.5 || cap(w.buf) > 128<<10 {
		t.Fatalf("%.2f allocations an entry, %d bytes held", perRun, cap(w.buf))
	}
}

func TestFirstErrorOfTheOutputSticks(t *testing.T) {
	boom := errors.New("boom")
	w, err := NewWriter(&failing{left: 200, err: boom}, identity(1, 9), nil, Options{BlockSize: 1})
	for i := meta.LSN(1); err == nil && i < 9; i++ {
		err = w.Add(batch(i, meta.Offset(i), 1, 1, 4, 100))
	}
	if _, ferr := w.Finish(nil); !errors.Is(err, boom) || !errors.Is(ferr, boom) {
		t.Fatalf("%v, %v", err, ferr)
	}
}

type failing struct {
	left int
	err  error
}

func (f *failing) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, f.err
	}
	return len(b), nil
}

func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(hex.Dump(got)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != hex.Dump(got) {
		t.Fatalf("%s: the format changed; got\n%s", name, hex.Dump(got))
	}
	return got
}

func goldenObject(t testing.TB) []byte {
	es := []entry.Entry{
		command(100, 5000, 1_700_000_000_000_000, 3),
		batch(101, 5000, 2, 1_700_000_000_000_000, 3, 8),
		batch(102, 5002, 1, 1_700_000_000_000_001, 3, 60),
		command(103, 5003, 1_700_000_000_000_002, 4),
		batch(104, 5003, 5, 1_700_000_060_000_000, 4, 0),
	}
	obj, _ := write(t, identity(100, 106), es, []byte("state"), Options{BlockSize: 300})
	return obj
}

func TestGolden(t *testing.T) {
	obj := golden(t, "segment.hex", goldenObject(t))
	rep, err := Inspect(bytes.NewReader(obj), int64(len(obj)))
	if err != nil || len(rep.Faults) > 0 || rep.Records != 8 {
		t.Fatalf("%v %+v", err, rep)
	}
	var out bytes.Buffer
	if n, err := rep.WriteTo(&out); err != nil || n != int64(out.Len()) {
		t.Fatal(n, err)
	}
	for _, want := range []string{"logs/app/web@000000000000004d/3", "5000 to 5007 (8 records)", "all checksums verify"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, out.String())
		}
	}
}

func FuzzParseTail(f *testing.F) {
	obj := goldenObject(f)
	f.Add(obj, int64(len(obj)))
	f.Add(obj[len(obj)-FooterSize:], int64(len(obj)))
	f.Add([]byte(tailMagic), int64(8))
	f.Fuzz(func(t *testing.T, tail []byte, size int64) {
		x, err := ParseTail(tail, size)
		if err != nil {
			return
		}
		at := x.StateAt + int64(x.StateLen)
		again := x.encode(at)
		if n := len(again); n > len(tail) || !bytes.Equal(again, tail[len(tail)-n:]) {
			t.Fatal("encode(decode(x)) != x")
		}
	})
}

func FuzzInspect(f *testing.F) {
	f.Add(goldenObject(f))
	f.Fuzz(func(t *testing.T, obj []byte) {
		if rep, err := Inspect(bytes.NewReader(obj), int64(len(obj))); err == nil {
			if _, err := rep.WriteTo(io.Discard); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	e := batch(1, 0, 100, 1, 1, 256<<10)
	b.SetBytes(int64(e.Size()))
	b.ReportAllocs()
	w, err := NewWriter(io.Discard, identity(1, 1<<60), nil, Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		e.LSN, e.Offset = meta.LSN(i+1), meta.Offset(i*100)
		binary.BigEndian.PutUint64(e.Payload, uint64(e.Offset))
		if err := w.Add(e); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzIndex goes behind the checksums, which random bytes never pass.
func FuzzIndex(f *testing.F) {
	obj := goldenObject(f)
	x, err := ParseTail(obj, int64(len(obj)))
	if err != nil {
		f.Fatal(err)
	}
	at := x.StateAt + int64(x.StateLen)
	f.Add(obj[at:len(obj)-FooterSize], x.StateAt, x.headerLen)
	f.Fuzz(func(t *testing.T, body []byte, stateAt int64, headerLen uint32) {
		y := &Index{StateAt: stateAt, headerLen: headerLen, Size: 1 << 40}
		if y.decode(body, 1) != nil || y.validate() != nil {
			return
		}
		if again := y.encode(stateAt); !bytes.Equal(again[:len(again)-FooterSize], body) {
			t.Fatal("encode(decode(x)) != x")
		}
		y.ByOffset(5)
		y.ByTime(5)
		y.ByLSN(5)
	})
}
