package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A step returns what is wrong, or "".
var steps = []struct {
	name, remedy string
	check        func() string
}{
	{"format", "run gofmt -w on them", func() string { return output("gofmt", "-l", ".") }},
	{"vet", "", func() string { return failure("go", "vet", "./...") }},
	{"modules", "run go mod tidy", func() string { return failure("go", "mod", "tidy", "-diff") }},
	{"protobuf", "run sdk/proto/generate.sh and commit what it changes", generated},
	{"house rules", "", func() string { return failure("go", "test", "-count=1", "./infra/lint") }},
}

func main() {
	failed := false
	for _, s := range steps {
		start := time.Now()
		wrong := s.check()
		if wrong == "" {
			fmt.Printf("ok    %-12s %5.1fs\n", s.name, time.Since(start).Seconds())
			continue
		}
		failed = true
		fmt.Printf("FAIL  %-12s %5.1fs  %s\n%s\n", s.name, time.Since(start).Seconds(), s.remedy, strings.TrimSpace(wrong))
	}
	if failed {
		os.Exit(1)
	}
}

// output is what a command prints: for tools that list what is wrong.
func output(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%s: %v", out, name, err)
	}
	return string(out)
}

// failure is what a command prints when it fails.
func failure(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%s: %v", out, name, err)
	}
	return ""
}

// generated lints the protobuf files and generates their code again: nothing
// may change.
func generated() string {
	const folder = "sdk/proto"
	if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) {
		return ""
	}
	before, err := sums(folder)
	if err != nil {
		return err.Error()
	}
	if wrong := failure("sh", folder+"/generate.sh"); wrong != "" {
		return wrong
	}
	after, err := sums(folder)
	if err != nil {
		return err.Error()
	}
	var changed []string
	for path, sum := range after {
		if before[path] != sum {
			changed = append(changed, path+" is not what the protobuf files generate")
		}
	}
	return strings.Join(changed, "\n")
}

func sums(folder string) (map[string][32]byte, error) {
	all := map[string][32]byte{}
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = sha256.Sum256(data)
		return err
	})
	return all, err
}
