package meta

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHex(t *testing.T) {
	for n, want := range map[uint64]string{0: "0000000000000000", 0xabc: "0000000000000abc", math.MaxUint64: "ffffffffffffffff"} {
		if got := Hex(n); got != want {
			t.Errorf("Hex(%d) = %q", n, got)
		}
	}
	for _, s := range []string{"", "0", "000000000000abc", "00000000000000abc", "0000000000000ABC", "+000000000000abc", "0x00000000000abc",
		"000000000000_abc", "00000000000000é", "fffffffffffffffff", " 00000000000000a"} {
		if n, err := ParseHex[LSN](s); !errors.Is(err, ErrInvalid) || n != 0 {
			t.Errorf("ParseHex(%q) = %d, %v", s, n, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := LSN(rapid.Uint64().Draw(t, "a")), LSN(rapid.Uint64().Draw(t, "b"))
		if back, err := ParseHex[LSN](Hex(a)); err != nil || back != a {
			t.Fatalf("%d came back as %d, %v", a, back, err)
		}
		if (a < b) != (Hex(a) < Hex(b)) {
			t.Fatalf("keys of %d and %d sort another way", a, b)
		}
	})
}

func FuzzParseHex(f *testing.F) {
	f.Add("0000000000000abc")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseHex[uint64](s); err == nil && Hex(n) != s {
			t.Errorf("%q was read as %d", s, n)
		}
	})
}

func TestLineage(t *testing.T) {
	l := NewLineage(7, 9)
	if l.Generation() != 7 || l.Counter() != 9 || NewLineage(7, math.MaxUint32) >= NewLineage(8, 0) {
		t.Errorf("lineage %x", uint64(l))
	}
}

func TestMicros(t *testing.T) {
	for _, c := range []struct {
		at   time.Time
		want Micros
	}{
		{time.Unix(1, 2_999), 1_000_002},
		{time.Unix(0, 0), 0},
		{time.Unix(0, -1), -1}, // down, not towards zero
	} {
		if got := MicrosOf(c.at); got != c.want {
			t.Errorf("MicrosOf(%v) = %d, want %d", c.at, got, c.want)
		}
	}
	if got := Micros(1_000_002).Time(); !got.Equal(time.Unix(1, 2000)) || got.Location() != time.UTC {
		t.Errorf("Time = %v", got)
	}
}
