package main

import (
	"slices"
	"testing"
)

func TestParseList(t *testing.T) {
	got := parseList("?   \tm/none\t[no test files]\nFuzzA\nFuzzB\nok  \tm/x\t0.1s\nok  \tm/y\t0.1s\nFuzzC\nok  \tm/z\t0.2s\n")
	if want := []fuzzTest{{"m/x", "FuzzA"}, {"m/x", "FuzzB"}, {"m/z", "FuzzC"}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
