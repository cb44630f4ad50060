package batch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// lz4Text is what testdata/lz4-*.bin hold: lines that repeat themselves, noise, and
// one letter for long. The files were made by pierrec/lz4 and by lz4(1) (linked).
func lz4Text() []byte {
	var text []byte
	for i := range 3000 {
		text = fmt.Appendf(text, "line %d of a text that repeats itself, line %d; %x\n", i, i%7, i*i*7919)
	}
	x := uint32(1)
	for range 5000 {
		x = x*1664525 + 1013904223
		text = append(text, byte(x>>24))
	}
	return append(text, bytes.Repeat([]byte("a"), 100000)...)
}

func TestLZ4Frames(t *testing.T) {
	files, err := filepath.Glob("testdata/lz4-*.bin")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	want := lz4Text()
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unlz4([]byte("before"), b, len(want))
		if err != nil || !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Fatalf("%s: %d bytes, want %d: %v", f, len(got), len(want), err)
		}
		if _, err = unlz4(nil, b, len(want)-1); err == nil {
			t.Fatalf("%s: went past its bound", f)
		}
		two, err := unlz4(nil, append(bytes.Clone(b), b...), 2*len(want))
		if err != nil || len(two) != 2*len(want) {
			t.Fatalf("%s twice: %d bytes: %v", f, len(two), err)
		}
		for cut := range 64 {
			if _, err = unlz4(nil, b[:len(b)-1-cut*37], MaxRaw); err == nil {
				t.Fatalf("%s without its last %d bytes passed", f, 1+cut*37)
			}
		}
	}
}

// recompress packs the records of an uncompressed batch with another codec.
func recompress(b []byte, c Compression, pack func([]byte) []byte) []byte {
	out := append(bytes.Clone(b[:HeaderSize]), pack(b[HeaderSize:])...)
	binary.BigEndian.PutUint16(out[21:], uint16(c))
	return reseal(out)
}

func packers() map[string]struct {
	c    Compression
	pack func([]byte) []byte
} {
	type packer = struct {
		c    Compression
		pack func([]byte) []byte
	}
	return map[string]packer{
		"gzip": {Gzip, func(b []byte) []byte {
			var out bytes.Buffer
			w := gzip.NewWriter(&out)
			w.Write(b)
			w.Close()
			return out.Bytes()
		}},
		"snappy": {Snappy, func(b []byte) []byte { return s2.EncodeSnappy(nil, b) }},
		"snappy in xerial frames": {Snappy, func(b []byte) []byte {
			out := append([]byte(xerial), 0, 0, 0, 1, 0, 0, 0, 1)
			for len(b) > 0 {
				n := min(len(b), 1000)
				block := s2.EncodeSnappy(nil, b[:n])
				out = append(binary.BigEndian.AppendUint32(out, uint32(len(block))), block...)
				b = b[n:]
			}
			return out
		}},
		"lz4, stored": {LZ4, func(b []byte) []byte {
			out := []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82}
			out = append(binary.LittleEndian.AppendUint32(out, 1<<31|uint32(len(b))), b...)
			return append(out, 0, 0, 0, 0)
		}},
		"zstd": {Zstd, func(b []byte) []byte {
			w, _ := zstd.NewWriter(nil)
			return w.EncodeAll(b, nil)
		}},
	}
}

func TestEveryCodecIsRead(t *testing.T) {
	plain := encode(t, samples(), None, NoProducer())
	for name, p := range packers() {
		b := recompress(plain, p.c, p.pack)
		info, err := new(Codec).Validate(b, 0)
		if err != nil || info.Compression != p.c {
			t.Fatal(name, info, err)
		}
		if got := encode(t, collect(t, b), None, NoProducer()); !bytes.Equal(got, plain) {
			t.Fatal(name, "changed the records")
		}
	}
}

// A small batch that would grow beyond the bound is refused and costs little memory.
func TestBombsAreRefused(t *testing.T) {
	plain := encode(t, []Record{{}}, None, NoProducer())
	bomb := make([]byte, 2*MaxRaw)
	for name, p := range packers() {
		if p.c == LZ4 {
			continue // stored blocks don't grow; TestLZ4Frames checks the bound
		}
		b := recompress(plain, p.c, func([]byte) []byte { return p.pack(bomb) })
		c := new(Codec)
		if _, err := c.Validate(b, 0); !errors.Is(err, ErrInvalid) {
			t.Fatal(name, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = c.Validate(b, 0)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8*MaxRaw {
			t.Errorf("%s: %d MiB for a bomb", name, n>>20)
		}
	}
}
