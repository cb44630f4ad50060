package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/varve-io/varve/infra/gotest"
)

const module = "github.com/varve-io/varve"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	list := flag.Bool("list", false, "name the tests of each row, but do not run them")
	open := flag.Bool("open", false, "list only the rows that do not hold")
	flag.Parse()
	ok, err := run(ctx, *list, *open)
	if err != nil {
		fmt.Fprintln(os.Stderr, "invariants:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, list, open bool) (bool, error) {
	rows, err := parseRows(rowsText)
	if err != nil {
		return false, err
	}
	tests, err := findTests(".")
	if err != nil {
		return false, err
	}
	if err := unknown(rows, tests); err != nil {
		return false, err
	}
	var report gotest.Report
	if !list {
		if err := runTests(ctx, tests, &report); err != nil {
			return false, err
		}
	}
	states := judge(rows, tests, func(t test) string {
		if list {
			return "not run"
		}
		return outcome(&report, t)
	})
	return write(os.Stdout, states, open, list), nil
}

func unknown(rows []row, tests []test) error {
	for _, t := range tests {
		for _, id := range t.rows {
			if !slices.ContainsFunc(rows, func(r row) bool { return r.id == id }) {
				return fmt.Errorf("%s in %s names row %q, which rows.txt does not have", t.name, t.folder, id)
			}
		}
	}
	return nil
}

// runTests runs all of them in one go test, by package and by name.
func runTests(ctx context.Context, tests []test, report *gotest.Report) error {
	if len(tests) == 0 {
		return nil
	}
	var folders, names []string
	for _, t := range tests {
		folders, names = append(folders, "./"+t.folder), append(names, t.name)
	}
	slices.Sort(folders)
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "running %d tests that name a row\n", len(tests))
	args := []string{"-count=1", "-timeout=20m", "-run=^(" + strings.Join(slices.Compact(names), "|") + ")$"}
	return gotest.Run(ctx, ".", report, func(p gotest.Package) {
		fmt.Fprintf(os.Stderr, "%-4s %s\n", p.Outcome, strings.TrimPrefix(p.Path, module+"/"))
		for _, failed := range p.Failed {
			fmt.Fprintf(os.Stderr, "%s %s\n%s", gotest.Failed, failed.Test, report.Output[failed])
		}
		if p.Outcome == gotest.Failed && len(p.Failed) == 0 {
			fmt.Fprint(os.Stderr, p.Output)
		}
	}, append(args, slices.Compact(folders)...)...)
}

// outcome of a test: "pass", "fail", "skip" or "did not run". A skipped subtest
// makes the whole test a skipped one.
func outcome(report *gotest.Report, t test) string {
	pkg := module
	if t.folder != "." {
		pkg += "/" + t.folder
	}
	result, ran := report.Tests[gotest.Name{Package: pkg, Test: t.name}]
	if !ran {
		return "did not run"
	}
	for name, sub := range report.Tests {
		if sub == gotest.Skipped && name.Package == pkg && strings.HasPrefix(name.Test, t.name+"/") {
			return string(gotest.Skipped)
		}
	}
	return string(result)
}

// A state is a row and what its tests say of it.
type state struct {
	row
	verdict string // holds, open, broken
	tests   []string
}

func judge(rows []row, tests []test, outcome func(test) string) []state {
	var states []state
	for _, r := range rows {
		s := state{row: r, verdict: "open"}
		for _, t := range tests {
			if !slices.Contains(t.rows, r.id) {
				continue
			}
			result := outcome(t)
			if s.verdict == "open" {
				s.verdict = "holds"
			}
			if result != string(gotest.Passed) {
				s.verdict = "broken"
			}
			s.tests = append(s.tests, fmt.Sprintf("%s  %s.%s", result, t.folder, t.name))
		}
		states = append(states, s)
	}
	return states
}

// write prints the table and reports whether no row is broken.
func write(w io.Writer, states []state, open, list bool) bool {
	counts := map[string]int{}
	for _, s := range states {
		counts[s.verdict]++
		if open && s.verdict == "holds" {
			continue
		}
		verdict := s.verdict
		if list && verdict == "broken" {
			verdict = "listed"
		}
		fmt.Fprintf(w, "%-4s %-7s %s\n", s.id, verdict, s.promise)
		for _, t := range s.tests {
			fmt.Fprintf(w, "             %s\n", t)
		}
	}
	if list {
		fmt.Fprintf(w, "\n%d rows: %d with tests, %d open\n", len(states), counts["broken"], counts["open"])
		return true
	}
	fmt.Fprintf(w, "\n%d rows: %d hold, %d broken, %d open\n", len(states), counts["holds"], counts["broken"], counts["open"])
	return counts["broken"] == 0
}
