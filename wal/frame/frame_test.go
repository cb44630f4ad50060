package frame

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	salt     = 0x1122334455667788
	position = 3 * Block
)

func sampleFile() File {
	return File{Size: 64 << 10, First: 5 * 64 << 10, Salt: salt, Storage: meta.StorageID{1, 2, 3, 15: 9}}
}

func sampleGroup() Group {
	return Group{Position: position, Previous: position - 100, Synced: position - 5000, Next: 77}
}

// sampleFrames is one frame of each kind, one after the other.
func sampleFrames() (b []byte) {
	e := entry.Entry{Header: entry.Header{Kind: entry.Batch, Level: 1, Lineage: 2, Epoch: 3, LSN: 4, Offset: 5, Time: 6}, Payload: []byte("payload")}
	for kind := Entry; kind.Known(); kind++ {
		at := len(b)
		b = append(b, make([]byte, HeaderSize)...)
		var sum uint32
		if kind == Entry {
			b, sum = e.AppendSum(b)
		} else {
			b = append(b, bytes.Repeat([]byte{byte(kind)}, 8+int(kind))...)
			sum = Sum(b[at+HeaderSize:])
		}
		Put(b[at:], salt, position+uint64(at), kind, 40+uint64(kind), len(b)-at-HeaderSize, sum)
	}
	return b
}

// golden compares with a file of hex, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".hex")
	text := hex.Dump(got)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s changed:\n%swant\n%s", name, text, want)
	}
}

// Rows: W10
func TestGolden(t *testing.T) {
	golden(t, "file-header", AppendFile(nil, sampleFile())[:FileSize])
	b := make([]byte, GroupSize)
	PutGroup(b, salt, sampleGroup())
	golden(t, "group-header", b)
	golden(t, "frames", sampleFrames())
}

func TestFramesDecode(t *testing.T) {
	b := sampleFrames()
	at := 0
	for kind := Entry; kind.Known(); kind++ {
		h, body, err := Decode(b[at:], salt, position+uint64(at))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if h.Kind != kind || h.Shard != 40+uint64(kind) || len(body) != h.Length {
			t.Errorf("%s: %+v", kind, h)
		}
		at += h.Size()
	}
	if at != len(b) {
		t.Errorf("%d bytes left over", len(b)-at)
	}
}

// Every flipped bit, every cut, another salt, another position: none verifies.
func TestNothingElseVerifies(t *testing.T) {
	all := sampleFrames()
	for at := 0; at < len(all); {
		h, err := Peek(all[at:])
		if err != nil {
			t.Fatal(err)
		}
		one := bytes.Clone(all[at : at+h.Size()])
		p := position + uint64(at)
		for i := range len(one) * 8 {
			one[i/8] ^= 1 << (i % 8)
			if _, _, err := Decode(one, salt, p); !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%s with bit %d flipped: %v", h.Kind, i, err)
			}
			one[i/8] ^= 1 << (i % 8)
		}
		for n := range one {
			if _, _, err := Decode(one[:n], salt, p); !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("%s cut to %d: %v", h.Kind, n, err)
			}
		}
		if _, _, err := Decode(one, salt+1, p); err == nil {
			t.Errorf("%s verifies with another salt", h.Kind)
		}
		if _, _, err := Decode(one, salt, p+Block); err == nil {
			t.Errorf("%s verifies at another position", h.Kind)
		}
		at += h.Size()
	}
	g := make([]byte, GroupSize)
	PutGroup(g, salt, sampleGroup())
	if got, err := DecodeGroup(g, salt, position); err != nil || got != sampleGroup() {
		t.Fatalf("group: %+v, %v", got, err)
	}
	for i := range len(g) * 8 {
		g[i/8] ^= 1 << (i % 8)
		if _, err := DecodeGroup(g, salt, position); err == nil {
			t.Fatalf("group with bit %d flipped verifies", i)
		}
		g[i/8] ^= 1 << (i % 8)
	}
	if _, err := DecodeGroup(g, salt, position+Block); err == nil {
		t.Error("group verifies at another position")
	}
}

func TestFileHeader(t *testing.T) {
	b := AppendFile(nil, sampleFile())
	if got, err := DecodeFile(b); err != nil || got != sampleFile() {
		t.Fatalf("%+v, %v", got, err)
	}
	b[3] ^= 1
	if got, err := DecodeFile(b); err != nil || got != sampleFile() {
		t.Errorf("one bad copy: %+v, %v", got, err)
	}
	b[FileCopy+30] ^= 1
	if _, err := DecodeFile(b); !errors.Is(err, meta.ErrCorrupt) {
		t.Errorf("two bad copies: %v", err)
	}
	newer := AppendFile(nil, sampleFile())
	for _, at := range []int{0, FileCopy} {
		newer[at+4] = 2
		copy(newer[at+48:], leSum(newer[at:at+48]))
	}
	if _, err := DecodeFile(newer); !errors.Is(err, meta.ErrFormatLevel) || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer version: %v", err)
	}
}

func leSum(b []byte) []byte {
	s := Sum(b)
	return []byte{byte(s), byte(s >> 8), byte(s >> 16), byte(s >> 24)}
}

// Rows: E9. A length is bounded before anything is made of it.
func TestE9_LengthsAreBounded(t *testing.T) {
	b := sampleFrames()
	copy(b, []byte{0xff, 0xff, 0xff, 0xff})
	if n := testing.AllocsPerRun(10, func() { _, _, _ = Decode(b, salt, position) }); n > 10 {
		t.Errorf("%v allocations", n)
	}
	if _, err := Peek(b); !errors.Is(err, meta.ErrCorrupt) {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sampleFrames(), uint64(salt), uint64(position))
	f.Add([]byte{}, uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, salt, position uint64) {
		h, body, err := Decode(b, salt, position)
		if err != nil {
			if !errors.Is(err, meta.ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		again := make([]byte, HeaderSize)
		sum := Sum(body)
		if h.Kind == Entry && len(body) >= entry.HeaderSize {
			sum = entry.Sum(body)
		}
		Put(again, salt, position, h.Kind, h.Shard, h.Length, sum)
		if again = append(again, body...); !bytes.Equal(again, b[:len(again)]) {
			t.Fatalf("encodes to %x, decoded from %x", again, b)
		}
	})
}

func FuzzHeaders(f *testing.F) {
	g := make([]byte, GroupSize)
	PutGroup(g, salt, sampleGroup())
	f.Add(g, uint64(salt), uint64(position))
	f.Add(AppendFile(nil, sampleFile()), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, salt, position uint64) {
		if got, err := DecodeGroup(b, salt, position); err == nil {
			again := make([]byte, GroupSize)
			if PutGroup(again, salt, got); !bytes.Equal(again, b[:GroupSize]) {
				t.Fatalf("group encodes to %x, decoded from %x", again, b)
			}
		}
		if got, err := DecodeFile(b); err == nil {
			if back, err := DecodeFile(AppendFile(nil, got)); err != nil || back != got {
				t.Fatalf("file header: %+v, %v", back, err)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	e := entry.Entry{Header: entry.Header{Kind: entry.Batch, LSN: 1}, Payload: make([]byte, 4096)}
	buf := make([]byte, HeaderSize)
	buf, sum := e.AppendSum(buf)
	Put(buf, salt, position, Entry, 1, len(buf)-HeaderSize, sum)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Decode(buf, salt, position); err != nil {
			b.Fatal(err)
		}
	}
}
