package entry

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// golden compares bytes with a hex dump in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".hex")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, []byte(hex.Dump(got)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != hex.Dump(got) {
		t.Errorf("%s differs from %s:\n%s", name, file, hex.Dump(got))
	}
}

func sampleSegment() *meta.SegmentRef {
	return &meta.SegmentRef{Key: "streams/ns/a~b/0000000000000001/0000000000000000/0000000100000001-0000000000000002-0000000000000005-x.seg",
		Size: 1 << 26, CRC: 0xdeadbeef, IndexAt: 1<<26 - 4096, IndexLen: 4000, FirstLSN: 5, NextLSN: 90, FirstOffset: 100, NextOffset: 2000,
		FirstTime: 1_700_000_000_000_000, LastTime: 1_700_000_060_000_000, FirstEpoch: 2, LastEpoch: 3}
}

// samplePayloads has at least one payload of every kind of level 1.
func samplePayloads() map[string]struct {
	kind Kind
	b    []byte
} {
	storage := meta.StorageID{}
	for i := range storage {
		storage[i] = byte(0xa0 + i)
	}
	type sample = struct {
		kind Kind
		b    []byte
	}
	return map[string]sample{
		"batch":       {Batch, []byte("the bytes of a record batch, as they came")},
		"batch-empty": {Batch, nil},
		"open":        {Open, OpenPayload{Leader: meta.Member{Broker: "broker-1", Storage: storage}, Boot: 0x1122334455667788}.Encode()},
		"fence":       {Fence, FencePayload{Strict: true, Token: "writer-7"}.Encode()},
		"fence-away":  {Fence, FencePayload{}.Encode()},
		"trim":        {Trim, TrimPayload{Start: 1 << 40}.Encode()},
		"mark": {Mark, MarkPayload{Start: 5, End: 90, Parent: 4, StartOffset: 100, Level: 1, Row: []byte("row"), State: []byte("state"),
			Segment: sampleSegment()}.Encode()},
		"mark-no-segment": {Mark, MarkPayload{Start: 90, End: 90, Parent: 91, StartOffset: 150, Level: 1, Row: []byte("row"), State: []byte("state")}.Encode()},
		"confirm":         {Confirm, ConfirmPayload{Mark: 91}.Encode()},
		"close":           {Close, nil},
	}
}

func sampleEntry(kind Kind, payload []byte) Entry {
	return Entry{Header: Header{Kind: kind, Level: 1, Lineage: meta.NewLineage(1, 2), Epoch: 3, LSN: 0x0405, Offset: 0x060708, Time: 1_700_000_000_123_456},
		Payload: payload}
}

// Rows: W10
func TestW10_EntryGolden(t *testing.T) {
	seen := map[Kind]bool{}
	for name, p := range samplePayloads() {
		e := sampleEntry(p.kind, p.b)
		b, crc := e.AppendSum([]byte("before"))
		b = b[len("before"):]
		golden(t, "entry-"+name, b)
		if len(b) != e.Size() || Sum(b) != crc {
			t.Errorf("%s: %d bytes with sum %08x; said %d and %08x", name, len(b), Sum(b), e.Size(), crc)
		}
		got, n, err := Decode(append(bytes.Clone(b), "after"...))
		if err != nil || n != len(b) || got.Header != e.Header || !bytes.Equal(got.Payload, e.Payload) {
			t.Errorf("%s: decoded %+v, %d, %v", name, got, n, err)
		}
		if again := got.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%s: encodes again as\n%s", name, hex.Dump(again))
		}
		if h, n, err := Peek(b[:HeaderSize]); err != nil || h != e.Header || n != len(b) {
			t.Errorf("%s: Peek = %+v, %d, %v", name, h, n, err)
		}
		if err := got.Understood(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen[p.kind] = true
	}
	for k := Batch; k.Known(); k++ {
		if !seen[k] {
			t.Errorf("kind %s has no golden file", k)
		}
	}
}

func TestEveryFlippedBitAndEveryCutIsCaught(t *testing.T) {
	for name, p := range samplePayloads() {
		e := sampleEntry(p.kind, p.b)
		b := e.Append(nil)
		for i := range len(b) * 8 {
			c := append(bytes.Clone(b), make([]byte, 64)...) // room for a longer length
			c[i/8] ^= 1 << (i % 8)
			if _, _, err := Decode(c); !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%s: bit %d flipped: %v", name, i, err)
			}
		}
		for n := range len(b) {
			if _, _, err := Decode(b[:n]); !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%s: cut to %d: %v", name, n, err)
			}
		}
	}
}

// Rows: E9
func TestE9_LengthsAreBoundedBeforeAllocation(t *testing.T) {
	e := sampleEntry(Batch, []byte("x"))
	header := e.Append(nil)[:HeaderSize]
	claims := []uint32{MaxPayload + 1, 1 << 31, 1<<32 - 1}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, claim := range claims {
		binary.LittleEndian.PutUint32(header[8:], claim)
		if _, _, err := Peek(header); !errors.Is(err, meta.ErrCorrupt) {
			t.Errorf("a payload of %d bytes: %v", claim, err)
		}
	}
	lying := make([]byte, 34) // a mark up to its row, whose length is a lie
	for _, claim := range append(claims, MaxPayload) {
		if _, err := DecodeMark(binary.LittleEndian.AppendUint32(bytes.Clone(lying), claim)); !errors.Is(err, meta.ErrCorrupt) {
			t.Errorf("a row of %d bytes: %v", claim, err)
		}
	}
	if _, err := DecodeOpen([]byte{0xff, 0xff, 'a'}); !errors.Is(err, meta.ErrCorrupt) {
		t.Errorf("a broker id of 65535 bytes: %v", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<10 {
		t.Errorf("lies cost %d bytes", got)
	}
	binary.LittleEndian.PutUint32(header[8:], MaxPayload)
	if _, n, err := Peek(header); err != nil || n != MaxSize {
		t.Errorf("the largest payload: %d, %v", n, err)
	}
	largest := sampleEntry(Batch, make([]byte, MaxPayload))
	if _, n, err := Decode(largest.Append(nil)); err != nil || n != MaxSize {
		t.Errorf("the largest entry: %d, %v", n, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a payload above the bound was encoded")
		}
	}()
	tooLarge := sampleEntry(Batch, make([]byte, MaxPayload+1))
	tooLarge.Append(nil)
}

func TestUnderstood(t *testing.T) {
	for name, c := range map[string]struct {
		h     Header
		words string // "" when it is understood
	}{
		"batch":                        {Header{Kind: Batch, Level: 1}, ""},
		"level 0":                      {Header{Kind: Close}, ""},
		"the next level":               {Header{Kind: Batch, Level: Level + 1, LSN: 7}, "LSN 7 has format level 2"},
		"a new kind":                   {Header{Kind: Close + 1, Level: 1, LSN: 7}, "unknown kind 8"},
		"kind 0":                       {Header{Level: 1}, "unknown kind 0"},
		"a new kind of the next level": {Header{Kind: 200, Level: Level + 1}, "format level"},
	} {
		err := c.h.Understood()
		if c.words == "" && err != nil || c.words != "" && (!errors.Is(err, meta.ErrFormatLevel) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v", name, err)
		}
		e := Entry{Header: c.h}
		if got, _, err := Decode(e.Append(nil)); err != nil || got.Header != c.h {
			t.Errorf("%s: the codec judged it: %v", name, err)
		}
	}
	if Close.String() != "close" || Kind(0).String() != "unknown kind" || Kind(99).String() != "unknown kind" {
		t.Error("kinds have other names")
	}
}

// Rows: W10
func TestW10_EntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := Entry{Header: Header{
			Kind: Kind(rapid.Byte().Draw(t, "kind")), Level: rapid.Uint16().Draw(t, "level"),
			Lineage: meta.Lineage(rapid.Uint64().Draw(t, "lineage")), Epoch: meta.Epoch(rapid.Uint64().Draw(t, "epoch")),
			LSN: meta.LSN(rapid.Uint64().Draw(t, "lsn")), Offset: meta.Offset(rapid.Uint64().Draw(t, "offset")),
			Time: meta.Micros(rapid.Int64().Draw(t, "time")),
		}, Payload: append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload")...)}
		got, n, err := Decode(e.Append(nil))
		if err != nil || n != e.Size() || !reflect.DeepEqual(got, e) {
			t.Fatalf("%+v came back as %+v, %d, %v", e, got, n, err)
		}
	})
}

func TestAppendAllocatesOnce(t *testing.T) {
	e := sampleEntry(Batch, make([]byte, 1000))
	dst := make([]byte, 0, 2*e.Size())
	if n := testing.AllocsPerRun(100, func() { e.Append(dst) }); n > 0 {
		t.Errorf("Append into room allocates %v times", n)
	}
	b := e.Append(nil)
	if n := testing.AllocsPerRun(100, func() { _, _, _ = Decode(b) }); n > 0 {
		t.Errorf("Decode allocates %v times", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range samplePayloads() {
		e := sampleEntry(p.kind, p.b)
		f.Add(e.Append(nil))
	}
	f.Add([]byte("vE"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, n, err := Peek(b)
		if err == nil && n <= len(b) { // a fuzzer doesn't guess checksums
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint32(b[12:], sum(b[:HeaderSize], b[HeaderSize:n]))
		}
		e, m, err := Decode(b)
		if err != nil {
			if !errors.Is(err, meta.ErrCorrupt) {
				t.Errorf("%v is not corruption", err)
			}
			return
		}
		if e.Header != h || m != n || n > MaxSize || !bytes.Equal(e.Append(nil), b[:n]) {
			t.Errorf("%x decodes to %+v (peeked %+v)", b, e, h)
		}
	})
}
