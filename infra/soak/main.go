package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	long := flag.Duration("fuzz", time.Minute, "how long each fuzz test runs")
	count := flag.Int("count", 20, "how often each test runs")
	flag.Parse()
	failed := false
	run := func(args ...string) {
		fmt.Println("go", strings.Join(args, " "))
		command := exec.Command("go", args...)
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		if err := command.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "soak:", err)
			failed = true
		}
	}
	tests, err := fuzzTests()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	for _, t := range tests {
		run("test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+long.String(), t.pkg)
	}
	run("test", "-race", "-shuffle=on", fmt.Sprintf("-count=%d", *count), "-timeout=2h", "./...")
	if failed {
		os.Exit(1)
	}
}

type fuzzTest struct{ pkg, name string }

// fuzzTests asks go test for the fuzz tests of every package.
func fuzzTests() ([]fuzzTest, error) {
	out, err := exec.Command("go", "test", "-list=^Fuzz", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go test -list: %w", err)
	}
	return parseList(string(out)), nil
}

// parseList reads the output of go test -list: names, then a line "ok PACKAGE".
func parseList(text string) []fuzzTest {
	var all []fuzzTest
	var names []string
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 1 && strings.HasPrefix(fields[0], "Fuzz"):
			names = append(names, fields[0])
		case len(fields) > 1:
			for _, name := range names {
				all = append(all, fuzzTest{fields[1], name})
			}
			names = nil
		}
	}
	return all
}
