package report

import (
	"bytes"
	"testing"
)

func TestTable(t *testing.T) {
	var table Table
	if table.OK() {
		t.Error("a table without figures is ok: a run that measured nothing would pass")
	}
	table.Add("lines", true, "10,000,000", ">= 10,000,000")
	if !table.OK() {
		t.Error("a table of good rows is short")
	}
	table.Add("größte Lücke", false, "3", "0")
	if table.OK() {
		t.Error("a short row passes")
	}
	var out bytes.Buffer
	table.Print(&out)
	want := "lines         10,000,000  >= 10,000,000  ok\n" +
		"größte Lücke  3           0              short\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// In a pipe nothing is written but what is said, and a line now and then.
func TestProgressIsQuietInAPipe(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out, "append", 1000)
	for i := range int64(1000) {
		p.At(i)
	}
	p.Say("killed at %d", 500)
	p.End(true)
	if out.String() != "  killed at 500\n" {
		t.Errorf("wrote %q", &out)
	}
	p.said = p.said.Add(-every)
	p.At(250)
	if want := "  killed at 500\n  append: 250 B of 1000 B, 25 %\n"; out.String() != want {
		t.Errorf("wrote %q, want %q", &out, want)
	}
	out.Reset()
	count := NewCount(&out, "copies", 4)
	count.said = count.said.Add(-every)
	count.At(1)
	if want := "  copies: 1 of 4, 25 %\n"; out.String() != want {
		t.Errorf("wrote %q, want %q", &out, want)
	}
}
