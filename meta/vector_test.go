package meta

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// Rows: E8, E9, E11
func TestE8_VectorValidation(t *testing.T) {
	full := make(Vector, MaxVector)
	for i := range full {
		full[i] = EpochStart{Epoch(i + 1), LSN(i + 1)}
	}
	for name, c := range map[string]struct {
		v  Vector
		ok bool
	}{
		"unknown":                {nil, true},
		"one":                    {Vector{{1, 1}}, true},
		"idle elections":         {Vector{{1, 1}, {2, 2}, {3, 3}}, true},
		"gaps":                   {Vector{{1, 1}, {9, 2}, {10, 500}}, true},
		"at the bound":           {full, true},
		"above the bound":        {append(full[:MaxVector:MaxVector], EpochStart{MaxVector + 1, MaxVector + 1}), false},
		"epoch 0":                {Vector{{0, 1}}, false},
		"LSN 0":                  {Vector{{1, 0}}, false},
		"the same epoch":         {Vector{{1, 1}, {1, 2}}, false},
		"the same start":         {Vector{{1, 1}, {2, 1}}, false},
		"epochs that go back":    {Vector{{2, 1}, {1, 2}}, false},
		"starts that go back":    {Vector{{1, 2}, {2, 1}}, false},
		"the last pair is wrong": {Vector{{1, 1}, {2, 2}, {3, 2}}, false},
	} {
		if err := c.v.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Rows: E8
func TestE8_EpochAtAgainstASlowTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v Vector
		var epoch Epoch
		var at LSN
		for range rapid.IntRange(0, 8).Draw(t, "pairs") {
			epoch += Epoch(rapid.IntRange(1, 3).Draw(t, "epochs"))
			at += LSN(rapid.IntRange(1, 5).Draw(t, "entries"))
			v = append(v, EpochStart{epoch, at})
		}
		if err := v.Validate(); err != nil {
			t.Fatal(err)
		}
		for lsn := range LSN(45) {
			var want Epoch
			for _, p := range v {
				if p.LSN <= lsn {
					want = p.Epoch
				}
			}
			if got := v.EpochAt(lsn); got != want {
				t.Fatalf("%v at %d is %d, want %d", v, lsn, got, want)
			}
		}
	})
}
