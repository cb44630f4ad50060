package gotest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Run runs `go test -json args...` in dir, adds what it says to report, and
// calls done after each package (nil: not). Failing tests are in the report,
// not in the error: that one means that go test itself could not be run.
func Run(ctx context.Context, dir string, report *Report, done func(Package), args ...string) error {
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	command.Dir, command.Stderr = dir, os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	readErr := report.read(out, done)
	var exit *exec.ExitError
	if err := command.Wait(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("go test: %w", err)
	} else if err != nil && report.Failed() == 0 {
		return fmt.Errorf("go test ended with %w, but no test failed", err)
	}
	return readErr
}

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

func (r *Report) read(in io.Reader, done func(Package)) error {
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				r.Stray = append(r.Stray, string(line)) // printed before the events start, by the go command
			} else if p := r.add(e); p != nil && done != nil {
				done(*p)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading go test's events: %w", err)
		}
	}
}
