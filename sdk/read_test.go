package sdk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// fill appends n records, so many to a batch, to one shard of a stream.
func (f *fake) fill(name string, shard, n, per int) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	at := int(f.streams[name].shards[shard].next)
	for end := at + n; at < end; {
		var records []batch.Record
		for ; len(records) < per && at < end; at++ {
			records = append(records, batch.Record{Value: []byte(value(at)), Time: int64(at)})
		}
		data, err := new(batch.Codec).Encode(records, batch.None, batch.NoProducer())
		if err != nil {
			f.t.Fatal(err)
		}
		if _, d := f.store(f.streams[name], uint32(shard), data, nil, nil); d != nil {
			f.t.Fatal(d)
		}
	}
}

// read collects offsets until the read ends.
func read(ctx context.Context, c *Client, stream string, options ...ReadOption) (offsets []uint64, err error) {
	for r, err := range c.Read(ctx, stream, options...) {
		if err != nil {
			return offsets, err
		}
		if string(r.Value) != value(int(r.Offset)) || r.AppendTime.IsZero() || r.Time.UnixMilli() != int64(r.Offset) {
			return offsets, fmt.Errorf("offset %d holds %+v", r.Offset, r)
		}
		offsets = append(offsets, r.Offset)
	}
	return offsets, nil
}

func span(from, to uint64) (out []uint64) {
	for ; from < to; from++ {
		out = append(out, from)
	}
	return out
}

func TestReadRanges(t *testing.T) {
	f := newFake(t)
	s := f.make("ns/s", 1)
	f.fill("ns/s", 0, 100, 7)
	c := dial(t, f, quick())
	ctx := within(t)
	// Append times are a second apart, batch by batch, from here on.
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.set(func() {
		for i, b := range s.shards[0].batches {
			b.AppendTime.Seconds, b.AppendTime.Nanos = base.Add(time.Duration(i)*time.Second).Unix(), 0
		}
		s.shards[0].start = 3 // trimmed within a batch
	})
	for name, c2 := range map[string]struct {
		options  []ReadOption
		from, to uint64
	}{
		"start":             {[]ReadOption{FromStart()}, 3, 100},
		"tail by default":   {nil, 0, 0},
		"tail":              {[]ReadOption{FromTail()}, 0, 0},
		"offset in a batch": {[]ReadOption{FromOffset(17)}, 17, 100},
		"offset at a batch": {[]ReadOption{FromOffset(14)}, 14, 100},
		"the very tail":     {[]ReadOption{FromOffset(100)}, 0, 0},
		"last":              {[]ReadOption{FromLast(10)}, 90, 100},
		"last of fewer":     {[]ReadOption{FromLast(1000)}, 3, 100},
		"time":              {[]ReadOption{FromTime(base.Add(2 * time.Second))}, 14, 100},
		"time between":      {[]ReadOption{FromTime(base.Add(1500 * time.Millisecond))}, 14, 100},
		"time to come":      {[]ReadOption{FromTime(base.Add(time.Hour))}, 0, 0},
		"limit":             {[]ReadOption{FromOffset(5), Limit(20)}, 5, 25},
		"limit 1":           {[]ReadOption{FromOffset(5), Limit(1)}, 5, 6},
		"limit 0":           {[]ReadOption{FromOffset(5), Limit(0)}, 0, 0},
		"1 byte":            {[]ReadOption{FromOffset(14), LimitBytes(1)}, 14, 21},
		"until":             {[]ReadOption{FromStart(), Until(base.Add(2 * time.Second))}, 3, 14},
		"clamp above":       {[]ReadOption{FromOffset(500), Clamp()}, 0, 0},
		"clamp below":       {[]ReadOption{FromOffset(1), Clamp()}, 3, 100},
		"a shard":           {[]ReadOption{FromStart(), InShard(0)}, 3, 100},
		"the incarnation":   {[]ReadOption{FromStart(), InIncarnation(101)}, 3, 100},
		"position":          {[]ReadOption{FromPosition(Position{Offset: 50, Incarnation: 101, Lineage: 7})}, 50, 100},
		"waits a moment":    {[]ReadOption{FromOffset(99), Wait(20 * time.Millisecond)}, 99, 100},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(ctx, c, "ns/s", c2.options...)
			if err != nil || !slices.Equal(got, span(c2.from, c2.to)) {
				t.Fatalf("got %v, want %d to %d: %v", got, c2.from, c2.to, err)
			}
		})
	}
	for name, c2 := range map[string]struct {
		stream  string
		options []ReadOption
		want    error
	}{
		"below the start":     {"ns/s", []ReadOption{FromOffset(2)}, ErrOffsetOutOfRange},
		"above the tail":      {"ns/s", []ReadOption{FromOffset(101)}, ErrOffsetOutOfRange},
		"another incarnation": {"ns/s", []ReadOption{InIncarnation(5)}, ErrStreamDeleted},
		"another lineage":     {"ns/s", []ReadOption{FromPosition(Position{Offset: 50, Incarnation: 101, Lineage: 6})}, ErrRewound},
		"no such stream":      {"ns/none", nil, ErrNotFound},
		"no such shard":       {"ns/s", []ReadOption{InShard(9)}, ErrInvalid},
		"two starts":          {"ns/s", []ReadOption{FromStart(), FromOffset(1)}, ErrInvalid},
		"negative wait":       {"ns/s", []ReadOption{Wait(-1)}, ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(ctx, c, c2.stream, c2.options...)
			var e *Error
			if !errors.Is(err, c2.want) || !errors.As(err, &e) || e.Applied != AppliedNo || len(got) > 0 {
				t.Fatal(got, err)
			}
			if c2.want == ErrOffsetOutOfRange && (e.Detail.GetOffsetOutOfRange().GetStart() != 3 || e.Detail.GetOffsetOutOfRange().GetEnd() != 100) {
				t.Fatal(e.Detail)
			}
		})
	}
}

// A read goes on at the right record through restarts (B167), also one that had not
// seen a record yet when its connection broke.
func TestReadGoesOnThroughRestarts(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.fill("ns/s", 0, 500, 3)
	c := dial(t, f, quick())
	ctx := within(t)
	next := uint64(0)
	for r, err := range c.Read(ctx, "ns/s", FromStart(), Follow()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != next || string(r.Value) != value(int(next)) {
			t.Fatalf("offset %d came, %d is next", r.Offset, next)
		}
		if next++; next == 2000 {
			break
		}
		if next%500 == 0 {
			f.kill()
			f.fill("ns/s", 0, 500, 50)
			f.start()
		}
	}
	if f.reads.Load() < 4 {
		t.Fatal(f.reads.Load(), "sessions")
	}
}

func TestTailThatBreaksBeforeItsFirstRecord(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.fill("ns/s", 0, 10, 3)
	c := dial(t, f, quick())
	ctx := within(t)
	var writer sync.WaitGroup
	writer.Go(func() {
		for f.reads.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		// The first page may or may not have come; only if it has is the place known,
		// so wait for a heartbeat's time before the break.
		time.Sleep(100 * time.Millisecond)
		f.kill()
		f.fill("ns/s", 0, 5, 1)
		f.start()
	})
	next := uint64(10)
	for r, err := range c.Tail(ctx, "ns/s") {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != next {
			t.Fatalf("offset %d came, %d is next", r.Offset, next)
		}
		if next++; next == 15 {
			break
		}
	}
	writer.Wait()
}

// A server that can say where the shard stands, and at the tail fails every time,
// is given up in time, after what it has.
func TestReadGivesUpAtATailThatFails(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.fill("ns/s", 0, 10, 3)
	f.set(func() { f.headless = true })
	c := dial(t, f, quick())
	got, err := read(within(t), c, "ns/s", FromStart(), GiveUpAfter(200*time.Millisecond))
	if !errors.Is(err, ErrNoQuorum) || !slices.Equal(got, span(0, 10)) {
		t.Fatalf("%d records, %v", len(got), err)
	}
}

// A tail without appends stays open for many heartbeats (B162).
func TestIdleTailStaysOpen(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	o := quick()
	o.Heartbeat, o.ConnectTimeout = 10*time.Millisecond, 10*time.Millisecond
	c := dial(t, f, o)
	var writer sync.WaitGroup
	writer.Go(func() {
		time.Sleep(500 * time.Millisecond)
		f.fill("ns/s", 0, 1, 1)
	})
	for r, err := range c.Tail(within(t), "ns/s") {
		if err != nil || r.Offset != 0 {
			t.Fatal(r, err)
		}
		break
	}
	writer.Wait()
}

// proxy passes bytes on until it is told to go silent: connections stay open, and
// nothing goes through them any more. New ones work.
type proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	conns    []net.Conn
	silenced map[net.Conn]bool
	serving  sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, silenced: map[net.Conn]bool{}}
	p.serving.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", p.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			p.serving.Go(func() { p.pass(in, out, in) })
			p.serving.Go(func() { p.pass(out, in, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.serving.Wait()
	})
	return p
}

func (p *proxy) pass(from, to, key net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			_ = to.Close()
			return
		}
		p.mu.Lock()
		dead := p.silenced[key]
		p.mu.Unlock()
		if dead {
			continue // swallowed
		}
		if _, err := to.Write(buf[:n]); err != nil {
			_, _ = io.Copy(io.Discard, from)
			return
		}
	}
}

func (p *proxy) silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		p.silenced[c] = true
	}
}

// A half-open connection is noticed, by a reader and by a producer, and gone around
// without a gap or a repeat (B164).
func TestHalfOpenConnection(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	through := newProxy(t, f.addr)
	o := quick()
	o.Heartbeat, o.ConnectTimeout, o.Ping = 50*time.Millisecond, 200*time.Millisecond, 100*time.Millisecond
	c, err := Dial(through.listener.Addr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := within(t)
	p := c.Producer("ns/s")
	if _, err := p.Append(ctx, Record{Value: []byte(value(0)), Time: time.UnixMilli(0)}); err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	var appending sync.WaitGroup
	for r, err := range c.Read(ctx, "ns/s", FromStart(), Follow()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != next {
			t.Fatalf("offset %d came, %d is next", r.Offset, next)
		}
		if next++; next == 6 {
			break
		}
		if next == 1 {
			through.silence()
			appending.Go(func() {
				for i := 1; i < 6; i++ {
					if at, err := p.Append(ctx, Record{Value: []byte(value(i))}); err != nil || at.Offset != uint64(i) {
						t.Error(at, err)
					}
				}
			})
		}
	}
	appending.Wait()
	if f.reads.Load() < 2 || f.sessions.Load() < 2 {
		t.Fatal("nothing was made anew")
	}
}

// A reader of a stream that is deleted, or deleted and recreated, ends with a clear
// error and sees nothing of the new one (B39, B168).
func TestReadEndsWithItsStream(t *testing.T) {
	for _, recreate := range []bool{false, true} {
		for _, down := range []bool{false, true} {
			f := newFake(t)
			f.make("ns/s", 1)
			f.fill("ns/s", 0, 5, 5)
			c := dial(t, f, quick())
			var err error
			n := 0
			for r, e := range c.Read(within(t), "ns/s", FromStart(), Follow()) {
				if err = e; err != nil {
					continue
				}
				if n++; r.Incarnation != 101 {
					t.Fatal(r)
				}
				if n == 5 {
					if down {
						f.kill()
					}
					f.remove("ns/s")
					if recreate {
						f.make("ns/s", 1)
						f.fill("ns/s", 0, 50, 5)
					}
					if down {
						f.start()
					}
				}
			}
			if !errors.Is(err, ErrStreamDeleted) || n != 5 {
				t.Fatal(recreate, down, n, err)
			}
		}
	}
}

// What is trimmed before it was read is an error, not a gap.
func TestReadOfTrimmedRecordsFails(t *testing.T) {
	f := newFake(t)
	s := f.make("ns/s", 1)
	f.fill("ns/s", 0, 5, 5)
	c := dial(t, f, quick())
	var err error
	for r, e := range c.Read(within(t), "ns/s", FromStart(), Follow(), Clamp()) {
		if err = e; err == nil && r.Offset == 4 {
			f.kill()
			f.fill("ns/s", 0, 10, 5)
			f.set(func() { s.shards[0].start = 10 })
			f.start()
		}
	}
	if !errors.Is(err, ErrOffsetOutOfRange) {
		t.Fatal(err)
	}
}

func TestReadAllShards(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 8)
	for s := range 8 {
		f.fill("ns/s", s, 100*s, 9)
	}
	c := dial(t, f, quick())
	ctx := within(t)
	next := map[uint32]uint64{}
	for r, err := range c.Read(ctx, "ns/s", FromStart()) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != next[r.Shard] {
			t.Fatalf("shard %d: offset %d came, %d is next", r.Shard, r.Offset, next[r.Shard])
		}
		next[r.Shard]++
	}
	for s := range 8 {
		if next[uint32(s)] != uint64(100*s) {
			t.Fatal(s, next)
		}
	}
	n := 0
	for _, err := range c.Read(ctx, "ns/s", FromStart(), Follow(), Limit(1000)) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 1000 {
		t.Fatal(n)
	}
	for range c.Read(ctx, "ns/s", FromStart(), Follow()) {
		break // the goroutines end with it; TestMain looks
	}
	if _, err := read(ctx, c, "ns/s", FromOffset(3)); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if got, err := read(ctx, c, "ns/s", FromOffset(3), InShard(1)); err != nil || len(got) != 97 {
		t.Fatal(got, err)
	}
	f.set(func() { f.streams["ns/s"].shards[5].batches[3].Data[70] ^= 1 })
	var err error
	for _, e := range c.Read(ctx, "ns/s", FromStart(), Follow()) {
		err = e
	}
	if !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

// A reader that stops reading holds the server at the windows' size; one that is
// cancelled lets go of its session (row C5's client side, B172).
func TestC5_SlowReaderIsBounded(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 1)
	f.set(func() {
		big := make([]byte, 256<<10)
		for range 160 { // 40 MiB
			data, err := new(batch.Codec).Encode([]batch.Record{{Value: big}}, batch.None, batch.NoProducer())
			if err != nil {
				t.Fatal(err)
			}
			f.store(f.streams["ns/s"], 0, data, nil, nil)
		}
	})
	c := dial(t, f, quick())
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	n := 0
	for _, err := range c.Read(ctx, "ns/s", FromStart(), Follow()) {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			continue
		}
		if n++; n > 1 {
			continue
		}
		// Wait until the server can't send any more. More waiting only makes the check
		// below sharper.
		for before := int64(-1); f.sentBytes.Load() != before; {
			before = f.sentBytes.Load()
			time.Sleep(100 * time.Millisecond)
		}
		if got := f.sentBytes.Load(); got > 16<<20 {
			t.Errorf("%d MiB were sent to a reader that took one record", got>>20)
		}
		cancel()
	}
}

// Closing the client ends a read that waits.
func TestCloseEndsReads(t *testing.T) {
	f := newFake(t)
	f.make("ns/s", 2)
	c := dial(t, f, quick())
	var reading sync.WaitGroup
	for range 3 {
		reading.Go(func() {
			var err error
			for _, e := range c.Tail(within(t), "ns/s") {
				err = e
			}
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	for f.reads.Load() < 6 {
		time.Sleep(time.Millisecond)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	reading.Wait()
	for _, err := range c.Read(within(t), "ns/s", FromStart()) {
		if !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
}

// A server that doesn't say where its first page begins.
func TestFirstPageWithoutItsOffset(t *testing.T) {
	last := uint64(3)
	page := &varvev1.ReadResponse{StartOffset: 2, Tail: 100, NextOffset: 100, Batches: []*varvev1.StoredBatch{{BaseOffset: 90, Count: 10}}}
	for want, o := range map[uint64]reading{
		97: {last: &last},
		95: {offset: true, start: func(q *varvev1.ReadRequest) { q.Start = &varvev1.ReadRequest_Offset{Offset: 95} }},
		90: {},
	} {
		if got := (&reader{client: &Client{}, o: &o}).firstOf(page); got != want {
			t.Errorf("begins at %d, want %d", got, want)
		}
	}
}

// What the server sends is checked, not believed.
func TestWrongPagesAreErrors(t *testing.T) {
	c, err := Dial("localhost:1")
	if err != nil {
		t.Fatal(err)
	}
	data, err := new(batch.Codec).Encode([]batch.Record{{Value: []byte("x")}}, batch.None, batch.NoProducer())
	if err != nil {
		t.Fatal(err)
	}
	batch.SetBase(data, 5, 1)
	good := func() *varvev1.ReadResponse {
		return &varvev1.ReadResponse{Incarnation: 1, Lineage: 1, Offset: 5, NextOffset: 6,
			Batches: []*varvev1.StoredBatch{{BaseOffset: 5, Count: 1, Data: slices.Clone(data)}}}
	}
	for name, c2 := range map[string]struct {
		change func(*varvev1.ReadResponse)
		want   error
	}{
		"good":            {func(*varvev1.ReadResponse) {}, nil},
		"flipped":         {func(p *varvev1.ReadResponse) { p.Batches[0].Data[65] ^= 1 }, ErrCorrupt},
		"cut":             {func(p *varvev1.ReadResponse) { p.Batches[0].Data = p.Batches[0].Data[:30] }, ErrCorrupt},
		"skipped":         {func(p *varvev1.ReadResponse) { batch.SetBase(p.Batches[0].Data, 6, 1); p.Batches[0].BaseOffset = 6 }, ErrCorrupt},
		"other incarnate": {func(p *varvev1.ReadResponse) { p.Incarnation = 2 }, ErrStreamDeleted},
		"other lineage":   {func(p *varvev1.ReadResponse) { p.Lineage = 2 }, ErrStreamDeleted},
	} {
		r := &reader{client: c, o: &reading{stream: "ns/s"}, resolved: true, incarnation: 1, lineage: 1, next: 5, each: func([]Record) error { return nil }}
		p := good()
		c2.change(p)
		if _, err := r.page(p); !errors.Is(err, c2.want) || c2.want == nil && r.next != 6 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
