package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestRowsAreComplete(t *testing.T) {
	rows, err := parseRows(rowsText)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[byte]int{}
	for _, r := range rows {
		counts[r.id[0]]++
	}
	for letter, want := range map[byte]int{'N': 13, 'D': 13, 'E': 35, 'W': 13, 'T': 14, 'U': 3, 'C': 9} {
		if counts[letter] != want {
			t.Errorf("%c has %d rows, want %d", letter, counts[letter], want)
		}
	}
}

func TestRowsOf(t *testing.T) {
	for _, c := range []struct {
		name, comment string
		want          []string
	}{
		{"TestW1_TornTail", "", []string{"W1"}},
		{"TestD2_D3_Start", "", []string{"D2", "D3"}},
		{"FuzzE9_Frame", "", []string{"E9"}},
		{"TestWhatever", "What it does.\n\nRows: W1, W2\n", []string{"W1", "W2"}},
		{"TestW1_Again", "Rows: W1, E10.\n", []string{"W1", "E10"}},
		{"TestCase", "Rows: B82, T7", []string{"T7"}},
		{"TestMany", "Rows: N2. Many creates race.", []string{"N2"}},
		{"TestSlip", "Rows: those of the log", []string{""}}, // an unknown row, so an error
		{"TestW1", "", nil},
		{"TestWriter_Close", "", nil},
		{"TestOther", "Sequences once. Rows: C2,\nE17, and more.", []string{"C2", "E17"}},
	} {
		if got := rowsOf(c.name, c.comment); !slices.Equal(got, c.want) {
			t.Errorf("%s %q: rows %v, want %v", c.name, c.comment, got, c.want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	rows := []row{{"W1", "one"}, {"W2", "two"}, {"W3", "three"}, {"W4", "four"}}
	tests := []test{{"wal", "TestW1_A", []string{"W1"}}, {"wal", "TestB", []string{"W1", "W2"}}, {"wal", "TestW4_C", []string{"W4"}}}
	results := map[string]string{"TestW1_A": "pass", "TestB": "skip", "TestW4_C": "pass"}
	states := judge(rows, tests, func(t test) string { return results[t.name] })
	var got []string
	for _, s := range states {
		got = append(got, s.verdict)
	}
	if strings.Join(got, " ") != "broken broken open holds" {
		t.Errorf("verdicts %v: a row whose test was skipped must not hold", got)
	}
	var out bytes.Buffer
	if write(&out, states, false, false) {
		t.Error("a broken row does not fail the command")
	}
	if !strings.Contains(out.String(), "4 rows: 1 hold, 2 broken, 1 open") {
		t.Errorf("summary:\n%s", &out)
	}
	if err := unknown(rows, []test{{"wal", "TestW9_X", []string{"W9"}}}); err == nil {
		t.Error("a test that names an unknown row is let through")
	}
}
