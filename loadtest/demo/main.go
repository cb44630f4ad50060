package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	scale := flag.Float64("scale", 1, "shrinks sizes, budgets and times together, above 0 and up to 1")
	seed := flag.Uint64("seed", rand.Uint64(), "of everything that is random")
	only := flag.String("only", "123456", "which points to show, for example 156; 2, 3 and 4 need 1")
	dir := flag.String("dir", ".stack/demo", "where everything is kept while it runs")
	binary := flag.String("binary", "", "the varve to show (default: built from this tree)")
	keep := flag.Bool("keep", false, "keep that directory")
	flag.Parse()
	if *scale <= 0 || *scale > 1 || strings.Trim(*only, "123456") != "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := show(ctx, *scale, *seed, *only, *dir, *binary, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// show runs the points and prints the table, also when a point breaks off.
func show(ctx context.Context, scale float64, seed uint64, only, dir, binary string, keep bool) (ok bool, err error) {
	begin := time.Now()
	fmt.Printf("seed %d, scale %g\n", seed, scale)
	if err := os.RemoveAll(dir); err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	stage, err := NewStage(running, dir, binary, scale, seed, os.Stdout)
	if err != nil {
		return false, err
	}
	defer func() {
		cancel() // the meter
		if closing := stage.Close(); closing != nil && err == nil {
			err = closing
		}
		fmt.Printf("\n%v\n\n", time.Since(begin).Round(time.Second))
		stage.table.Print(os.Stdout)
		ok = err == nil && stage.table.OK()
		if !keep && ok {
			err = os.RemoveAll(dir)
		} else {
			fmt.Printf("\neverything is kept in %s\n", dir)
		}
	}()
	if err := stage.loadCorpus(); err != nil {
		return false, err
	}
	for _, point := range []struct {
		number, name string
		run          func(context.Context) error
	}{
		{"1", "append through a pipe, tail, three kills", stage.ingest},
		{"2", "read it all back", stage.replay},
		{"3", "read from an offset and from a time", stage.seek},
		{"4", "delete and create again", stage.recreate},
		{"5", "an outage of the object store", stage.outage},
		{"6", "damaged copies", stage.damage},
	} {
		if !strings.Contains(only, point.number) {
			continue
		}
		fmt.Printf("\n%s. %s\n", point.number, point.name)
		if err := point.run(running); err != nil {
			stage.table.Add("point "+point.number, false, "broke off", "runs to its end")
			return false, fmt.Errorf("point %s: %w", point.number, err)
		}
	}
	stage.disk()
	return true, nil
}

// loadCorpus reads the corpus and says what it is.
func (s *Stage) loadCorpus() (err error) {
	minBytes, minLines := s.scaled(1<<30, 1<<20), s.scaled(10_000_000, 10_000)
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	if s.corpus, err = LoadCorpus(strings.TrimSpace(string(root)), minBytes, minLines); err != nil {
		return err
	}
	for _, why := range s.corpus.Left {
		s.say("left out: %s", why)
	}
	s.say("the corpus: %d files under GOROOT, repeated to %d lines, %.1f MB", s.corpus.Files, s.corpus.Lines, float64(s.corpus.Bytes)/1e6)
	s.table.Add("corpus, bytes", s.corpus.Bytes >= minBytes, fmt.Sprint(s.corpus.Bytes), fmt.Sprintf(">= %d", minBytes))
	s.table.Add("corpus, lines", s.corpus.Lines >= minLines, fmt.Sprint(s.corpus.Lines), fmt.Sprintf(">= %d", minLines))
	return nil
}
