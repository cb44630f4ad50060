package report

import (
	"fmt"
	"io"
	"unicode/utf8"
)

// Table collects figures. The zero value is empty.
type Table struct{ rows []row }

type row struct {
	name, figure, reach string
	ok                  bool
}

// Add adds a row: figure is what was seen, reach what it has to be, ok whether
// it is.
func (t *Table) Add(name string, ok bool, figure, reach string) {
	t.rows = append(t.rows, row{name, figure, reach, ok})
}

// OK reports whether the table has rows and all of them are ok.
func (t *Table) OK() bool {
	for _, r := range t.rows {
		if !r.ok {
			return false
		}
	}
	return len(t.rows) > 0
}

// Print writes the table in aligned columns, at least two spaces apart.
func (t *Table) Print(w io.Writer) {
	width := [3]int{}
	for _, r := range t.rows {
		for i, cell := range [3]string{r.name, r.figure, r.reach} {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, r := range t.rows {
		verdict := "ok"
		if !r.ok {
			verdict = "short"
		}
		fmt.Fprintf(w, "%-*s  %-*s  %-*s  %s\n", width[0], r.name, width[1], r.figure, width[2], r.reach, verdict)
	}
}
