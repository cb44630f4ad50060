package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/varve-io/varve/infra/gotest"
)

// raced are the folders whose tests run under the race detector.
var raced = []string{"wal", "sdk", "services/internal/replica", "services/internal/broker", "services/internal/edge"}

const module = "github.com/varve-io/varve"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := flag.String("run", "", "only tests that match")
	count := flag.Int("count", 1, "how often each test runs")
	timeout := flag.Duration("timeout", 20*time.Minute, "of one package")
	flag.Parse()
	args := []string{fmt.Sprintf("-count=%d", *count), fmt.Sprintf("-timeout=%v", *timeout)}
	if *run != "" {
		args = append(args, "-run="+*run)
	}
	ok, err := test(ctx, args, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func test(ctx context.Context, args, patterns []string) (bool, error) {
	if err := prepare(ctx); err != nil {
		return false, err
	}
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	out, err := exec.CommandContext(ctx, "go", append([]string{"list", "-e"}, patterns...)...).Output()
	if err != nil {
		return false, fmt.Errorf("go list: %w", err)
	}
	plain, race := split(strings.Fields(string(out)))
	var report gotest.Report
	for _, group := range []struct {
		args, packages []string
	}{{[]string{"-race"}, race}, {nil, plain}} {
		if len(group.packages) == 0 {
			continue
		}
		if err := gotest.Run(ctx, ".", &report, print(&report), slices.Concat(args, group.args, group.packages)...); err != nil {
			return false, err
		}
	}
	passed, failed, skipped := report.Count(gotest.Passed), report.Count(gotest.Failed), report.Count(gotest.Skipped)
	fmt.Printf("\nskips: %d\n%d passed, %d failed, %d skipped\n", skipped, passed, failed, skipped)
	return passed > 0 && failed == 0 && skipped == 0, nil
}

// split parts packages by whether they run under the race detector.
func split(packages []string) (plain, race []string) {
	for _, p := range packages {
		relative := strings.TrimPrefix(p, module+"/")
		if slices.ContainsFunc(raced, func(r string) bool { return relative == r || strings.HasPrefix(relative, r+"/") }) {
			race = append(race, p)
		} else {
			plain = append(plain, p)
		}
	}
	return plain, race
}

// print makes the function that tells of a package as soon as it has ended:
// one line, and what its failing and skipped tests said.
func print(report *gotest.Report) func(gotest.Package) {
	return func(p gotest.Package) {
		name := strings.TrimPrefix(p.Path, module+"/")
		switch {
		case p.Outcome == gotest.Skipped:
			fmt.Printf("-     %-40s no tests\n", name)
		case p.Outcome == gotest.Passed:
			fmt.Printf("ok    %-40s %4d tests  %6.1fs\n", name, p.Passed, p.Seconds)
		default:
			fmt.Printf("FAIL  %-40s %4d failed  %6.1fs\n", name, len(p.Failed), p.Seconds)
		}
		for _, test := range append(p.Failed, p.Skipped...) {
			fmt.Printf("\n%s %s\n%s", report.Tests[test], test.Test, report.Output[test])
		}
		if p.Outcome == gotest.Failed && (len(p.Failed) == 0 || strings.Contains(p.Output, "panic:") || strings.Contains(p.Output, "DATA RACE")) {
			fmt.Print(p.Output)
		}
	}
}
