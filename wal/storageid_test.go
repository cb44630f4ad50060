package wal

import (
	"bytes"
	"errors"
	"testing"
	"testing/iotest"

	"github.com/varve-io/varve/meta"
)

// Rows: W10, D1
func TestW10_StorageIDGolden(t *testing.T) {
	id := meta.StorageID(id16(0x20))
	b := encodeStorageID(id)
	golden(t, "storage-id", b)
	got, err := decodeStorageID(b)
	if err != nil || got != id {
		t.Errorf("decoded %s, %v", got, err)
	}
	for i := range len(b) * 8 {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if _, err := decodeStorageID(c); !errors.Is(err, meta.ErrCorrupt) {
			t.Fatalf("bit %d flipped: %v", i, err)
		}
	}
	for n := range len(b) {
		if _, err := decodeStorageID(b[:n]); !errors.Is(err, meta.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
}

func TestStorageIDTable(t *testing.T) {
	hex := meta.StorageID(id16(0x20)).String()
	for text, want := range map[string]error{
		"varve-storage-id 1 " + hex + " ":                      nil,
		"varve-storage-id 2 " + hex + " ":                      meta.ErrFormatLevel,
		"varve-storage-id 1 " + hex:                            meta.ErrCorrupt,
		"varve-storage-id 1 " + hex[2:] + "  ":                 meta.ErrCorrupt,
		"varve-storage-id 1 00000000000000000000000000000000 ": meta.ErrCorrupt,
		"varve-storage-id 1":                                   meta.ErrCorrupt,
		"storage-id 1 " + hex:                                  meta.ErrCorrupt,
		"":                                                     meta.ErrCorrupt,
	} {
		if _, err := decodeStorageID(sealText(text)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

func TestDrawingNeverGivesZero(t *testing.T) {
	zeroes := append(make([]byte, 32), bytes.Repeat([]byte{7}, 16)...)
	if id, err := newStorageID(bytes.NewReader(zeroes)); err != nil || id[0] != 7 {
		t.Errorf("drew %s, %v", id, err)
	}
	if n, err := drawNonce(bytes.NewReader(zeroes)); err != nil || n == 0 {
		t.Errorf("drew %d, %v", n, err)
	}
	dry := iotest.ErrReader(errors.New("dry"))
	if _, err := newStorageID(dry); err == nil {
		t.Error("drew an id from nothing")
	}
	if _, err := drawNonce(dry); err == nil {
		t.Error("drew a nonce from nothing")
	}
}

func FuzzStorageID(f *testing.F) {
	f.Add([]byte("varve-storage-id 1 202122232425262728292a2b2c2d2e2f "))
	f.Add(encodeStorageID(id16(1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, sealText(string(b))} {
			if id, err := decodeStorageID(b); err == nil && !bytes.Equal(encodeStorageID(id), b) {
				t.Errorf("%q decodes to %s", b, id)
			}
		}
	})
}
