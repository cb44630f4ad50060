package batch

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzBatch feeds bytes to the decoder; lengths and checksum are set right, so that
// they don't hide what is behind them. What passes is encoded again: the same bytes
// if it was not compressed, the same records if it was.
func FuzzBatch(f *testing.F) {
	plain := encode(f, samples()[:3], None, Producer{1, 2, 3})
	f.Add(plain)
	f.Add(encode(f, samples(), Zstd, NoProducer()))
	for _, p := range packers() {
		f.Add(recompress(plain, p.c, p.pack))
	}
	c := new(Codec)
	f.Fuzz(func(t *testing.T, b []byte) {
		b = bytes.Clone(b)
		if len(b) >= HeaderSize {
			reseal(b)
		}
		info, err := c.Validate(b, MaxBatch)
		n := 0
		var records []Record
		var bad error
		for r, err := range c.Records(b) {
			if n++; err != nil {
				n, bad = n-1, err
			} else {
				records = append(records, r)
			}
		}
		if (err == nil) != (bad == nil) {
			t.Fatalf("Validate says %v, Records says %v", err, bad)
		}
		if err != nil {
			return
		}
		if n != info.Count {
			t.Fatalf("%d records of %d", n, info.Count)
		}
		again, err := c.Encode(records, None, info.Producer)
		if err != nil && info.Compression == None {
			t.Fatal(err)
		}
		if err == nil {
			SetBase(again, info.BaseOffset, info.LeaderEpoch)
			if info.Compression == None && !bytes.Equal(again, b) {
				t.Fatalf("encodes to\n%x, was\n%x", again, b)
			}
		}
	})
}

func FuzzLZ4(f *testing.F) {
	files, _ := filepath.Glob("testdata/lz4-*.bin")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:2000])
	}
	f.Add([]byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82, 5, 0, 0, 0, 0x10, 'a', 1, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 1 << 20
		if out, err := unlz4(nil, b, most); err == nil && len(out) > most {
			t.Fatalf("%d bytes: at most %d", len(out), most)
		}
	})
}
