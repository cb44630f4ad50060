package etcdkv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varve-io/varve/meta/catalog"
)

// dataFile is a small data file of etcd's, with branches and several buckets.
func dataFile(tb testing.TB) []byte {
	tb.Helper()
	dir := tb.TempDir()
	s, err := Open(tb.Context(), Options{Dir: dir, NoSync: true, SegmentBytes: 256 << 10, Tick: 10 * time.Millisecond})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range 60 {
		op := catalog.Op{Key: fmt.Sprint("k", i), Value: bytes.Repeat([]byte("v"), 300)}
		if _, err := s.Commit(tb.Context(), catalog.Transaction{Then: []catalog.Op{op}}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "member", "snap", "db"))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestWalkVisitsEveryKeyInOrder(t *testing.T) {
	b := dataFile(t)
	buckets := make(map[string]int)
	last := make(map[string]string)
	err := walkBolt(bytes.NewReader(b), int64(len(b)), func(bucket string, k, _ []byte) error {
		if prev, ok := last[bucket]; ok && prev >= string(k) {
			t.Errorf("bucket %s: %x after %x", bucket, k, prev)
		}
		last[bucket] = string(k)
		buckets[bucket]++
		return nil
	})
	if err != nil || buckets["key"] < 60 || buckets["meta"] == 0 || buckets["members"] != 1 {
		t.Errorf("%v, %v", buckets, err)
	}
}

// Nothing in a data file makes the walker panic or run for ever.
func FuzzWalk(f *testing.F) {
	whole := dataFile(f)
	f.Add(uint32(0), []byte{})
	f.Add(uint32(16), []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(uint32(4096*3+8), []byte{1, 0, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		b := bytes.Clone(whole)
		copy(b[int(at)%len(b):], patch)
		visits := 0
		_ = walkBolt(bytes.NewReader(b), int64(len(b)), func(string, []byte, []byte) error { visits++; return nil })
		if visits > len(b) {
			t.Errorf("%d visits of a file of %d bytes", visits, len(b))
		}
	})
}
