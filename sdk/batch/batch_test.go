package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// samples are records with everything that can differ.
func samples() []Record {
	many := make([]Header, 1000)
	for i := range many {
		many[i] = Header{Key: fmt.Sprint("h", i%7), Value: []byte{byte(i)}}
	}
	return []Record{
		{Time: 1_700_000_000_123},
		{Key: []byte{}, Value: []byte{}, Time: 1_700_000_000_000},
		{Key: []byte("k"), Value: nil, Time: 1_700_000_001_000, Headers: []Header{{"a", nil}, {"a", []byte{}}, {"", []byte("x")}}},
		{Value: []byte(strings.Repeat("value ", 1000)), Time: 1_700_000_000_124, Headers: many},
		{Value: []byte("past"), Time: -5},
	}
}

func collect(t testing.TB, b []byte) []Record {
	t.Helper()
	var out []Record
	for r, err := range new(Codec).Records(b) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func encode(t testing.TB, records []Record, c Compression, p Producer) []byte {
	t.Helper()
	b, err := new(Codec).Encode(records, c, p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reseal sets the length and the checksum of a batch that a test has changed.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

// Null, empty and absent stay apart, names repeat, order is kept.
func TestRecordsComeBackAsTheyWere(t *testing.T) {
	for _, c := range []Compression{None, Zstd} {
		p := Producer{ID: 7, Epoch: 1, Sequence: math.MaxInt32 - 1}
		b := encode(t, samples(), c, p)
		info, err := new(Codec).Validate(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		if info.Producer != p || info.Count != 5 || info.Compression != c || info.LastSequence() != 2 || info.LeaderEpoch != -1 {
			t.Fatalf("header: %+v", info)
		}
		SetBase(b, 1000, 9)
		if info, err = Check(b); err != nil || info.BaseOffset != 1000 || info.LeaderEpoch != 9 || info.NextOffset() != 1005 {
			t.Fatalf("after SetBase: %+v, %v", info, err)
		}
		want := samples()
		for i := range want {
			want[i].Offset = 1000 + int64(i)
		}
		if diff := cmp.Diff(want, collect(t, b)); diff != "" {
			t.Fatal(c, diff)
		}
	}
}

// The slow twin: franz-go's kmsg reads what we write, and we read what it writes.
func TestAgreesWithFranz(t *testing.T) {
	b := encode(t, samples(), None, Producer{3, 4, 5})
	SetBase(b, 77, 6)
	var k kmsg.RecordBatch
	if err := k.ReadFrom(b); err != nil {
		t.Fatal(err)
	}
	if k.FirstOffset != 77 || k.PartitionLeaderEpoch != 6 || k.Magic != 2 || k.ProducerID != 3 || k.ProducerEpoch != 4 || k.FirstSequence != 5 || k.NumRecords != 5 || k.LastOffsetDelta != 4 {
		t.Fatalf("%+v", k)
	}
	rest, again := k.Records, []byte(nil)
	for i, want := range samples() {
		n, w := binary.Varint(rest)
		var r kmsg.Record
		if err := r.ReadFrom(rest[:w+int(n)]); err != nil {
			t.Fatal(i, err)
		}
		rest = rest[w+int(n):]
		again = r.AppendTo(again)
		got := Record{Key: r.Key, Value: r.Value, Time: k.FirstTimestamp + r.TimestampDelta64}
		for _, h := range r.Headers {
			got.Headers = append(got.Headers, Header(h))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(i, diff)
		}
	}
	k.Records = again
	if out := k.AppendTo(nil); string(out) != string(b) {
		t.Fatal("kmsg encodes the same batch otherwise")
	}
}

func TestMalformedBatchesAreRefused(t *testing.T) {
	change := func(f func(b []byte) []byte) []byte { return f(encode(t, samples(), None, NoProducer())) }
	put := func(at int, v byte) []byte {
		return change(func(b []byte) []byte { b[at] = v; return reseal(b) })
	}
	record := func(raw ...byte) []byte { // a batch of one handwritten record
		b := encode(t, []Record{{Time: 5}}, None, NoProducer())
		return reseal(append(b[:HeaderSize:HeaderSize], raw...))
	}
	for name, c := range map[string]struct {
		b    []byte
		kind error
		want string
	}{
		"nothing":              {nil, ErrInvalid, "0 bytes"},
		"half a header":        {make([]byte, 60), ErrInvalid, "60 bytes"},
		"too large":            {make([]byte, MaxBatch+1), ErrTooLarge, "at most"},
		"cut short":            {change(func(b []byte) []byte { return b[:len(b)-1] }), ErrInvalid, "claims"},
		"something after":      {change(func(b []byte) []byte { return append(b, 0) }), ErrInvalid, "claims"},
		"length below 0":       {change(func(b []byte) []byte { b[8] = 0xff; return b }), ErrInvalid, "claims"},
		"magic":                {put(16, 1), ErrInvalid, "magic 1"},
		"checksum":             {change(func(b []byte) []byte { b[17] ^= 1; return b }), ErrChecksum, "sum to"},
		"a flipped byte":       {change(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), ErrChecksum, "sum to"},
		"unknown compression":  {put(22, 5), ErrCompression, "unknown compression 5"},
		"log append time":      {put(22, 8), ErrInvalid, "attributes"},
		"transaction":          {put(22, 16), ErrInvalid, "attributes"},
		"control":              {put(22, 32), ErrInvalid, "attributes"},
		"high attributes":      {put(21, 1), ErrInvalid, "attributes"},
		"no records":           {put(60, 0), ErrInvalid, "0 records"},
		"records below 0":      {put(57, 0xff), ErrInvalid, "at least 1"},
		"too many records":     {put(57, 1), ErrTooLarge, "at most"},
		"last delta":           {put(26, 3), ErrInvalid, "last offset delta"},
		"times go back":        {put(35, 0x80), ErrInvalid, "latest time"},
		"latest time is wrong": {put(36, 1), ErrInvalid, "latest time"},
		"half a producer":      {put(43, 0), ErrInvalid, "producer id"},
		"claims more records": {change(func(b []byte) []byte {
			b[25], b[59] = 0xff, 0xff
			return reseal(b)
		}), ErrInvalid, "records"},
		"gzip that is none":   {put(22, 1), ErrInvalid, "gzip"},
		"snappy that is none": {put(22, 2), ErrInvalid, "snappy"},
		"lz4 that is none":    {put(22, 3), ErrInvalid, "lz4"},
		"zstd that is none":   {put(22, 4), ErrInvalid, "zstd"},

		"record longer than the batch": {record(100, 0, 0, 0, 1, 1, 0), ErrInvalid, "length"},
		"record length below 0":        {record(1, 0, 0, 0, 1, 1, 0), ErrInvalid, "length"},
		"record cut short":             {record(10, 0, 0, 0, 1, 1), ErrInvalid, ""},
		"record attributes":            {record(12, 1, 0, 0, 1, 1, 0), ErrInvalid, "attributes"},
		"offset delta":                 {record(12, 0, 0, 2, 1, 1, 0), ErrInvalid, "offset delta"},
		"time delta":                   {record(12, 0, 2, 0, 1, 1, 0), ErrInvalid, "time"},
		"key length below -1":          {record(12, 0, 0, 0, 3, 1, 0), ErrInvalid, "length"},
		"key longer than the record":   {record(12, 0, 0, 0, 40, 1, 0), ErrInvalid, "length"},
		"left over in a record":        {record(14, 0, 0, 0, 1, 1, 0, 0), ErrInvalid, "left over"},
		"left over in the batch":       {record(12, 0, 0, 0, 1, 1, 0, 0), ErrInvalid, "after its last record"},
		"header count":                 {record(14, 0, 0, 0, 1, 1, 4, 0), ErrInvalid, "length"},
		"header count below 0":         {record(12, 0, 0, 0, 1, 1, 1), ErrInvalid, "length"},
		"null header name":             {record(16, 0, 0, 0, 1, 1, 2, 1, 1), ErrInvalid, "length"},
		"long varint":                  {record(14, 0, 0x80, 0, 0, 1, 1, 0), ErrInvalid, "longer than it needs"},
		"endless varint":               {record(34, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 1, 1, 0), ErrInvalid, "number"},
		"huge key length":              {record(22, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0x0f, 1, 0, 0), ErrInvalid, "length"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := new(Codec).Validate(c.b, 0)
			if !errors.Is(err, c.kind) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %v with %q", err, c.kind, c.want)
			}
			for _, err = range new(Codec).Records(c.b) {
			}
			if err == nil && !errors.Is(c.kind, ErrChecksum) {
				t.Fatal("Records took it")
			}
		})
	}
}

func TestSizesAreBounded(t *testing.T) {
	c := new(Codec)
	value := make([]byte, MaxRecord)
	for _, n := range []int{1, MaxRecord - 1, MaxRecord, MaxRecord + 1} {
		b := encode(t, []Record{{Value: append(value[:0:0], make([]byte, n)...)}}, None, NoProducer())
		if _, err := c.Validate(b, 0); (err != nil) != (n > MaxRecord) || err != nil && !errors.Is(err, ErrTooLarge) {
			t.Fatal(n, err)
		}
	}
	if _, err := c.Encode([]Record{{Value: make([]byte, MaxBatch)}}, None, NoProducer()); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if _, err := c.Encode([]Record{{Value: make([]byte, MaxRaw)}}, Zstd, NoProducer()); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if _, err := c.Encode(nil, None, NoProducer()); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := c.Encode([]Record{{}}, LZ4, NoProducer()); !errors.Is(err, ErrCompression) {
		t.Fatal(err)
	}
	if _, err := c.Encode([]Record{{}}, None, Producer{ID: 1, Epoch: -1}); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := c.Encode([]Record{{Time: math.MinInt64}, {Time: math.MaxInt64}}, None, NoProducer()); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	var b Builder
	for range MaxCount {
		if err := b.Add(&Record{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(&Record{}); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
}

func TestBuilderSizes(t *testing.T) {
	var b Builder
	for i, r := range samples() {
		want := b.SizeWith(&r)
		if err := b.Add(&r); err != nil {
			t.Fatal(err)
		}
		if b.Size() != want || b.Count() != i+1 {
			t.Fatalf("record %d: size %d, foretold %d", i, b.Size(), want)
		}
	}
	size := b.Size()
	out, err := new(Codec).Seal(&b, None, NoProducer())
	if err != nil || len(out) != size || b.Count() != 0 || b.Size() != HeaderSize {
		t.Fatal(len(out), size, err)
	}
}

// What does not get shorter is stored as it is.
func TestIncompressibleStaysPlain(t *testing.T) {
	b := encode(t, []Record{{Value: []byte("x")}}, Zstd, NoProducer())
	if info, err := Check(b); err != nil || info.Compression != None {
		t.Fatal(info, err)
	}
}

func TestSetProducer(t *testing.T) {
	b := encode(t, samples(), Zstd, Producer{1, 2, 3})
	SetProducer(b, Producer{4, 5, 6})
	if info, err := Check(b); err != nil || info.Producer != (Producer{4, 5, 6}) {
		t.Fatal(info, err)
	}
}

func TestSequencesWrap(t *testing.T) {
	for _, c := range []struct {
		s    int32
		n    int
		want int32
	}{{0, 1, 1}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 3, 1}, {5, 0, 5}} {
		if got := NextSequence(c.s, c.n); got != c.want {
			t.Errorf("%d + %d: %d, want %d", c.s, c.n, got, c.want)
		}
	}
}

// Values from Kafka's own UtilsTest.testMurmur2.
func TestShardOfIsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		for _, n := range []int{1, 2, 64} {
			if got := ShardOf([]byte(key), n); got != uint32(want&math.MaxInt32)%uint32(n) {
				t.Errorf("ShardOf(%q, %d) = %d", key, n, got)
			}
		}
	}
}
