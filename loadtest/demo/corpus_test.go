package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func small(t *testing.T, minBytes, minLines int64) *Corpus {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.go": "b1\n\nb3", // an empty line, and a last line without an end
		"a.go": "a1\r\na2\n",
		"c.md": "not me\n",
		"d.go": "long " + strings.Repeat("x", maxLine) + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := LoadCorpus(dir, minBytes, minLines)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCorpus(t *testing.T) {
	base := "a1\r\na2\nb1\n\nb3\n" // 14 bytes, 5 lines
	c := small(t, 30, 3)
	if c.Lines != 11 || c.Bytes != 32 || c.Files != 2 || len(c.Left) != 1 {
		t.Errorf("%d lines, %d bytes of %d files, %v left out", c.Lines, c.Bytes, c.Files, c.Left)
	}
	got, err := io.ReadAll(c.Text(0, c.Lines))
	if err != nil || string(got) != base+base+"a1\r\n" {
		t.Errorf("text %q, %v", got, err)
	}
	if c = small(t, 1, 7); c.Lines != 7 || c.Bytes != 21 {
		t.Errorf("%d lines, %d bytes", c.Lines, c.Bytes)
	}
	for n := range int64(12) {
		if got := c.LineAt(c.Position(n)); got != n {
			t.Errorf("line %d begins at byte %d, where line %d begins", n, c.Position(n), got)
		}
	}
	if got := c.LineAt(c.Position(3) - 1); got != 2 {
		t.Errorf("one byte before line 3 there are %d whole lines", got)
	}
	if got, _ := io.ReadAll(c.Text(3, 7)); string(got) != "\nb3\na1\r\na2\n" {
		t.Errorf("lines 3 to 7: %q", got)
	}
}

func TestCheck(t *testing.T) {
	c := small(t, 200<<10, 0)
	whole, err := io.ReadAll(c.Text(0, c.Lines))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		got           []byte
		prefix, whole string
	}{
		"whole":  {whole, "", ""},
		"short":  {whole[:c.Position(100)], "", "ends after line 100"},
		"longer": {append(bytes.Clone(whole), "more\n"...), "goes on after", "goes on after"},
		"twice":  {append(bytes.Clone(whole[:c.Position(50)]), whole[c.Position(49):]...), "line 50 differs", "line 50 differs"},
		"flip":   {flip(whole, int(c.Position(9000))), "line 9000 differs", "line 9000 differs"},
	} {
		check := NewCheck(c.Text(0, c.Lines))
		for p := test.got; len(p) > 0; { // in odd pieces
			n, _ := check.Write(p[:min(len(p), 70001)])
			p = p[n:]
		}
		if check.Bytes() != int64(len(test.got)) {
			t.Errorf("%s: counted %d of %d bytes", name, check.Bytes(), len(test.got))
		}
		for what, pair := range map[string][2]string{"prefix": {said(check.Prefix()), test.prefix}, "whole": {said(check.Whole()), test.whole}} {
			if (pair[1] == "") != (pair[0] == "") || !strings.Contains(pair[0], pair[1]) {
				t.Errorf("%s, as a %s: said %q, want %q", name, what, pair[0], pair[1])
			}
		}
		if got, want := check.Sums(); (got == want) != (test.whole == "") {
			t.Errorf("%s: sums %s and %s", name, got, want)
		}
	}
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 1
	return b
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
