package edge_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/servicetest"
)

// clock is a wall clock that a test sets.
type clock struct{ ch chan time.Time }

func newClock(t time.Time) *clock {
	c := &clock{make(chan time.Time, 1)}
	c.ch <- t
	return c
}

func (c *clock) now() time.Time {
	t := <-c.ch
	c.ch <- t
	return t
}

func (c *clock) set(t time.Time) {
	<-c.ch
	c.ch <- t
}

func numbers(p *varvev1.ReadResponse) []uint64 {
	var out []uint64
	for _, r := range p.GetRecords() {
		out = append(out, r.GetOffset())
	}
	return out
}

func span(from, to uint64) []uint64 {
	var out []uint64
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// What the comments of the read messages say, figure by figure.
func TestReadLimits(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	for i := range 5 { // five batches of two records
		w.put("a/b", fmt.Sprint(2*i), fmt.Sprint(2*i+1))
	}
	at := func(o uint64) *varvev1.ReadRequest {
		return &varvev1.ReadRequest{Start: &varvev1.ReadRequest_Offset{Offset: o}}
	}
	back := func(n uint64) *varvev1.ReadRequest {
		return &varvev1.ReadRequest{Start: &varvev1.ReadRequest_BeforeTail{BeforeTail: n}}
	}
	for _, c := range []struct {
		name string
		r    *varvev1.ReadRequest
		with func(*varvev1.ReadRequest)
		want []uint64
		next uint64
	}{
		{"all", at(0), nil, span(0, 10), 10},
		{"inside a batch", at(3), nil, span(3, 10), 10},
		{"three records", at(3), func(r *varvev1.ReadRequest) { r.MaxRecords = proto.Uint64(3) }, span(3, 6), 6},
		{"no record", at(3), func(r *varvev1.ReadRequest) { r.MaxRecords = proto.Uint64(0) }, nil, 3},
		{"no byte", at(3), func(r *varvev1.ReadRequest) { r.MaxBytes = proto.Uint64(0) }, nil, 3},
		{"one byte: one batch", at(3), func(r *varvev1.ReadRequest) { r.MaxBytes = proto.Uint64(1) }, span(3, 4), 4},
		{"two bytes at a start", at(4), func(r *varvev1.ReadRequest) { r.MaxBytes = proto.Uint64(2) }, span(4, 6), 6},
		{"huge limits", at(9), func(r *varvev1.ReadRequest) { r.MaxRecords, r.MaxBytes = proto.Uint64(1<<64-1), proto.Uint64(1<<64-1) }, span(9, 10), 10},
		{"last three", back(3), nil, span(7, 10), 10},
		{"more than there are", back(1 << 63), nil, span(0, 10), 10},
		{"before the tail by nothing", back(0), nil, nil, 10},
		{"tail by default", &varvev1.ReadRequest{}, nil, nil, 10},
		{"the tail", &varvev1.ReadRequest{Start: &varvev1.ReadRequest_FromTail{FromTail: true}}, nil, nil, 10},
		{"clamped from above", at(1 << 40), func(r *varvev1.ReadRequest) { r.Clamp = true }, nil, 10},
		{"clamped from far above", at(1<<64 - 1), func(r *varvev1.ReadRequest) { r.Clamp = true }, nil, 10},
		{"until the past", at(0), func(r *varvev1.ReadRequest) { r.Until = timestamppb.New(time.Unix(-5, 0)) }, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := proto.Clone(c.r).(*varvev1.ReadRequest)
			r.Stream = "a/b"
			if c.with != nil {
				c.with(r)
			}
			p := w.read(r)
			if !slices.Equal(numbers(p), c.want) || p.GetNextOffset() != c.next || p.GetTail() != 10 || p.GetShards() != 1 || p.GetLineage() == 0 || p.GetIncarnation() == 0 {
				t.Errorf("%v", p)
			}
			if want := c.next - uint64(len(c.want)); p.GetOffset() != want {
				t.Errorf("the page begins at %d, want %d", p.GetOffset(), want)
			}
			sessions(t, w, r, c.want)
		})
	}
	if _, err := w.streams.Trim(w.Context(), &varvev1.TrimRequest{Stream: "a/b", Before: 3}); err != nil {
		t.Fatal(err)
	}
	r := at(1)
	r.Stream = "a/b"
	_, err := w.streams.Read(w.Context(), r)
	if d := refused(t, err, varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE); d.GetOffsetOutOfRange().GetStart() != 3 || d.GetRetryable() {
		t.Errorf("%v", d)
	}
	r.Clamp = true
	if p := w.read(r); !slices.Equal(numbers(p), span(3, 10)) || p.GetOffset() != 3 || p.GetStartOffset() != 3 {
		t.Errorf("clamped from below: %v", p)
	}
	if e, err := w.streams.Trim(w.Context(), &varvev1.TrimRequest{Stream: "a/b", Before: 1}); err != nil || e.GetStartOffset() != 3 || e.GetTail() != 10 {
		t.Errorf("a lower trim: %v %v", e, err)
	}
	_, err = w.streams.Trim(w.Context(), &varvev1.TrimRequest{Stream: "a/b", Before: 11})
	refused(t, err, varvev1.Reason_REASON_OFFSET_OUT_OF_RANGE)
}

// sessions checks that a session gives the same records, in both formats.
func sessions(t *testing.T, w *world, r *varvev1.ReadRequest, want []uint64) {
	t.Helper()
	for _, f := range []varvev1.Format{varvev1.Format_FORMAT_RECORDS, varvev1.Format_FORMAT_BATCHES} {
		q := proto.Clone(r).(*varvev1.ReadRequest)
		q.Format = f
		s, err := w.streams.ReadSession(w.Context(), &varvev1.ReadSessionRequest{Read: q})
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for n := 0; s.Receive(); n++ {
			p := s.Msg().GetPage()
			if n == 0 && len(p.GetRecords())+len(p.GetBatches()) > 0 {
				t.Errorf("the first answer waited for records")
			}
			got = append(got, numbers(p)...)
			for _, b := range p.GetBatches() {
				for o := b.GetBaseOffset(); o < b.GetBaseOffset()+uint64(b.GetCount()); o++ {
					if o >= p.GetOffset() && (q.MaxRecords == nil || uint64(len(got)) < q.GetMaxRecords()) {
						got = append(got, o)
					}
				}
			}
		}
		if s.Err() != nil || !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v (%v)", f, got, want, s.Err())
		}
		_ = s.Close()
	}
}

// Lineages: a position of another history is refused, but not where the caller
// names none.
func TestReadRewound(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	lineage := w.put("a/b", "x").GetLineage()
	r := &varvev1.ReadRequest{Stream: "a/b", Lineage: &lineage, Start: &varvev1.ReadRequest_Offset{Offset: 0}}
	if p := w.read(r); p.GetLineage() != lineage || len(p.GetRecords()) != 1 {
		t.Errorf("%v", p)
	}
	r.Lineage = proto.Uint64(lineage + 1)
	_, err := w.streams.Read(w.Context(), r)
	if d := refused(t, err, varvev1.Reason_REASON_REWOUND); d.GetRewound().GetAsked() != lineage+1 || d.GetRewound().GetLineage() != lineage {
		t.Errorf("%v", d)
	}
}

// A unary read that waits returns as soon as it has anything, and empty in time.
// Rows: B171
func TestReadWaits(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	if p := w.read(&varvev1.ReadRequest{Stream: "a/b", Wait: durationpb.New(time.Millisecond)}); len(p.GetRecords()) != 0 || p.GetTail() != 0 {
		t.Errorf("%v", p)
	}
	for name, c := range w.transports() {
		got := make(chan error, 1)
		from := w.put("a/b", "before").GetNextOffset()
		go func() {
			p, err := c.Read(w.Context(), &varvev1.ReadRequest{Stream: "a/b", Wait: durationpb.New(time.Hour), Start: &varvev1.ReadRequest_Offset{Offset: from}})
			if err == nil && !slices.Equal(numbers(p), span(from, from+1)) {
				err = fmt.Errorf("%v", p)
			}
			got <- err
		}()
		w.put("a/b", "meanwhile")
		if err := <-got; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Wait of a session: each record starts it anew, and then the session ends by itself.
func TestReadSessionWaits(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	s, err := w.streams.ReadSession(w.Context(), &varvev1.ReadSessionRequest{Read: &varvev1.ReadRequest{Stream: "a/b", Wait: durationpb.New(300 * time.Millisecond)}})
	if err != nil || !s.Receive() {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		w.put("a/b", "x")
		if !s.Receive() || !slices.Equal(numbers(s.Msg().GetPage()), span(i, i+1)) {
			t.Fatalf("%v %v", s.Msg(), s.Err())
		}
	}
	if s.Receive() || s.Err() != nil {
		t.Errorf("%v %v", s.Msg(), s.Err())
	}
	_ = s.Close()
}

// The times of append decide, whatever clients say when a record was made: always
// the first offset whose append time is not before the one asked for, as a scan finds
// it; live, cold, and at the border; never below the start.
// Rows: B189, B190, B193, B194
func TestB189_ReadFromATime(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := newClock(begin)
	o := uncached()
	o.Now = c.now
	w := start(t, settings{node: o})
	w.make("a/b", 1)
	// Clocks that stand, go back, and jump by months; client times at random.
	steps := []time.Duration{0, 0, time.Second, -time.Hour, time.Microsecond, 24 * 90 * time.Hour, time.Millisecond, 0, -time.Second, time.Minute}
	type placed struct{ offset, count uint64 }
	var all []placed
	stamps := map[uint64]time.Time{} // by offset
	now := begin
	put := func(i int, ack varvev1.Ack) {
		now = now.Add(steps[i%len(steps)])
		c.set(now)
		r := &varvev1.AppendRequest{Stream: "a/b", Ack: ack}
		for k := range 3 {
			r.Records = append(r.Records, &varvev1.Record{CreateTime: timestamppb.New(time.Unix(int64(1000-400*((i+k)%7)), 0)), Value: []byte("x")})
		}
		out, err := w.streams.Append(w.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, placed{out.GetFirstOffset(), 3})
		for o := out.GetFirstOffset(); o < out.GetNextOffset(); o++ {
			stamps[o] = out.GetAppendTime().AsTime()
		}
	}
	check := func(what string) {
		t.Helper()
		tail := w.read(&varvev1.ReadRequest{Stream: "a/b"})
		for _, base := range stamps {
			for _, d := range []time.Duration{-time.Microsecond, 0, time.Microsecond, -1, 1} {
				ask := base.Add(d)
				want := tail.GetTail()
				for o := tail.GetStartOffset(); o < tail.GetTail(); o++ {
					if !stamps[o].Before(ask) {
						want = o
						break
					}
				}
				p := w.read(&varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_Time{Time: timestamppb.New(ask)}, MaxRecords: proto.Uint64(1)})
				if p.GetOffset() != want {
					t.Fatalf("%s: from %v: offset %d, want %d", what, ask, p.GetOffset(), want)
				}
				if want < tail.GetTail() && !slices.Equal(numbers(p), span(want, want+1)) {
					t.Fatalf("%s: from %v: %v", what, ask, p)
				}
				// Until is exact: all below, nothing at or above.
				r := &varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_FromStart{FromStart: true}, Until: timestamppb.New(ask)}
				u := w.read(r)
				for len(u.GetRecords()) > 0 { // a page ends where the bucket does
					r.Start = &varvev1.ReadRequest_Offset{Offset: u.GetNextOffset()}
					u = w.read(r)
				}
				if u.GetNextOffset() != want && want != tail.GetTail() || want == tail.GetTail() && u.GetNextOffset() != tail.GetTail() {
					t.Fatalf("%s: until %v: ends at %d, want %d", what, ask, u.GetNextOffset(), want)
				}
			}
		}
		for _, extreme := range []*timestamppb.Timestamp{{Seconds: -62135596800}, {Seconds: 253402300799}} {
			w.read(&varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_Time{Time: extreme}})
		}
	}
	for i := range 10 {
		put(i, varvev1.Ack_ACK_QUORUM)
	}
	check("in the log")
	put(10, varvev1.Ack_ACK_ARCHIVE)
	w.cold("a/b")
	check("in the bucket")
	for i := 11; i < 16; i++ {
		put(i, varvev1.Ack_ACK_QUORUM)
	}
	check("in both")
	if _, err := w.streams.Trim(w.Context(), &varvev1.TrimRequest{Stream: "a/b", Before: 7}); err != nil { // inside a batch
		t.Fatal(err)
	}
	check("trimmed inside a batch")
	put(16, varvev1.Ack_ACK_ARCHIVE)
	tail := w.read(&varvev1.ReadRequest{Stream: "a/b"}).GetTail()
	if _, err := w.streams.Trim(w.Context(), &varvev1.TrimRequest{Stream: "a/b", Before: tail}); err != nil {
		t.Fatal(err)
	}
	check("trimmed to nothing")
	c.set(now.Add(24 * 365 * time.Hour)) // and quiet for a year
	check("quiet")
	put(17, varvev1.Ack_ACK_QUORUM)
	check("after the quiet")
	if len(all) == 0 {
		t.Fatal("nothing was placed")
	}
}

// Rows: B156, B157
func TestB156_LargeRecordsBetweenSmallOnes(t *testing.T) {
	w := start(t, settings{node: roomy()})
	w.make("a/b", 1)
	large := make([]byte, 2<<20)
	for i := range large {
		large[i] = byte(i * 7 / 3)
	}
	sizes := []int{0, 1, 1 << 20, 1, len(large), 0}
	var batchSize int
	for _, n := range sizes {
		b := encode(t, batch.None, batch.Record{Value: large[:n]})
		batchSize = max(batchSize, len(b))
		if _, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Batch: b}); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	check := func(where string) {
		t.Helper()
		for name, c := range w.transports() {
			limits := []uint64{1}
			if name == "connect on HTTP/2" {
				limits = append(limits, uint64(batchSize)-1, uint64(batchSize), uint64(batchSize)+1, 1<<40)
			}
			for _, limit := range limits {
				next := uint64(0)
				for next < uint64(len(sizes)) {
					p, err := c.Read(w.Context(), &varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_Offset{Offset: next}, MaxBytes: &limit})
					if err != nil || len(p.GetRecords()) == 0 {
						t.Fatalf("%s, %s, limit %d, offset %d: %v, %d records", where, name, limit, next, err, len(p.GetRecords()))
					}
					for _, r := range p.GetRecords() {
						if r.GetOffset() >= uint64(len(sizes)) {
							break // what made the rest cold
						}
						if len(r.GetValue()) != sizes[r.GetOffset()] || r.GetOffset() != next {
							t.Fatalf("%s: record %d has %d bytes", where, r.GetOffset(), len(r.GetValue()))
						}
						next++
					}
				}
			}
		}
	}
	check("live")
	w.archive("a/b", "last")
	w.cold("a/b")
	check("cold")
	// Too large is refused at the append, for good, by every route.
	for _, n := range []int{4<<20 + 1, 5 << 20} {
		for name, c := range w.transports() {
			_, err := c.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Records: []*varvev1.Record{{Value: make([]byte, n)}}})
			if d := refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT); d.GetRetryable() {
				t.Errorf("%s: %v", name, d)
			}
		}
	}
	w.make("small/s", 1)
	if _, err := w.catalog.UpdateStream(w.Context(), &varvev1.UpdateStreamRequest{Stream: "small/s", Settings: &varvev1.StreamSettings{MaxRecordBytes: proto.Uint64(1 << 10)}}); err != nil {
		t.Fatal(err)
	}
	for n, ok := range map[int]bool{1 << 10: true, 1<<10 + 1: false} {
		_, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "small/s", Records: []*varvev1.Record{{Value: large[:n]}}})
		if ok != (err == nil) {
			t.Errorf("%d bytes: %v", n, err)
		}
		b := encode(t, batch.Zstd, batch.Record{Value: large[:n]})
		if _, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "small/s", Batch: b}); ok != (err == nil) {
			t.Errorf("%d bytes in a batch: %v", n, err)
		}
	}
}

// Rows: B158
func TestB158_NullEmptyAndOrder(t *testing.T) {
	w := start(t, settings{node: uncached()})
	w.make("a/b", 1)
	var records []*varvev1.Record
	shapes := [][]byte{nil, {}, []byte("x"), {0, 0xff}}
	for _, k := range shapes {
		for _, v := range shapes {
			records = append(records, &varvev1.Record{Key: k, Value: v, CreateTime: timestamppb.New(time.UnixMilli(-1500))})
			r := &varvev1.Record{Key: k, Value: v, CreateTime: &timestamppb.Timestamp{Seconds: 5, Nanos: 7e6}}
			for i := range 4 {
				r.Headers = append(r.Headers, &varvev1.Header{Key: []string{"", "h", "h", "ключ"}[i], Value: shapes[i]})
			}
			records = append(records, r)
		}
	}
	many := &varvev1.Record{CreateTime: timestamppb.New(time.UnixMilli(0))}
	for i := range 1000 {
		many.Headers = append(many.Headers, &varvev1.Header{Key: fmt.Sprint("h", i%10), Value: []byte(fmt.Sprint(i))})
	}
	records = append(records, many)
	if _, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Records: records}); err != nil {
		t.Fatal(err)
	}
	check := func(where string) {
		t.Helper()
		for name, c := range w.transports() {
			p, err := c.Read(w.Context(), &varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_FromStart{FromStart: true}, MaxRecords: proto.Uint64(uint64(len(records)))})
			if err != nil || len(p.GetRecords()) != len(records) {
				t.Fatalf("%s, %s: %v", where, name, err)
			}
			for i, r := range p.GetRecords() {
				got := proto.Clone(r).(*varvev1.Record)
				got.Offset, got.AppendTime = nil, nil
				if !proto.Equal(got, records[i]) {
					t.Fatalf("%s, %s: record %d: %v, want %v", where, name, i, got, records[i])
				}
			}
		}
	}
	check("live")
	w.archive("a/b", "last")
	w.cold("a/b")
	check("cold")
}

// A small batch that decodes to much costs a bounded answer each time, and is read
// to its end all the same.
// Rows: C5
func TestC5_BatchesThatSwell(t *testing.T) {
	w := start(t, settings{node: servicetest.Options{}})
	w.make("a/b", 1)
	var flat, tiny []batch.Record
	for range 7 {
		flat = append(flat, batch.Record{Value: make([]byte, 1<<20)})
	}
	for range 60_000 {
		tiny = append(tiny, batch.Record{})
	}
	total := uint64(0)
	for _, list := range [][]batch.Record{flat, tiny} {
		b := encode(t, batch.Zstd, list...)
		if len(b) > 256<<10 {
			t.Fatalf("the batch has %d bytes", len(b))
		}
		if _, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Batch: b}); err != nil {
			t.Fatal(err)
		}
		total += uint64(len(list))
	}
	next, pages := uint64(0), 0
	for next < total {
		p := w.read(&varvev1.ReadRequest{Stream: "a/b", Start: &varvev1.ReadRequest_Offset{Offset: next}})
		if size := proto.Size(p); size > 4<<20 || len(p.GetRecords()) == 0 {
			t.Fatalf("a page of %d bytes, %d records", size, len(p.GetRecords()))
		}
		if got := p.GetRecords()[0].GetOffset(); got != next {
			t.Fatalf("offset %d, want %d", got, next)
		}
		next, pages = p.GetNextOffset(), pages+1
	}
	if pages < 5 {
		t.Errorf("all of it came in %d pages", pages)
	}
}
