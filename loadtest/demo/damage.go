package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/varve-io/varve/infra/server"
	"github.com/varve-io/varve/loadtest/report"
)

const damageStream = namespace + "/damage"

// damage is point 6: copies of a data directory are cut and flipped at random
// places, and started.
func (s *Stage) damage(ctx context.Context) error {
	lines := s.scaled(400_000, 40_000)
	lab := &Lab{stage: s, dir: filepath.Join(s.dir, "damage")}
	origin := filepath.Join(lab.dir, "origin")
	if err := os.MkdirAll(origin, 0o700); err != nil {
		return err
	}
	var err error
	if lab.address, err = freeAddress(); err != nil {
		return err
	}
	// A clean stop after half of the lines.
	if err := lab.fill(ctx, origin, lines/2, false); err != nil {
		return err
	}
	clean := filepath.Join(lab.dir, "clean")
	if err := os.CopyFS(clean, os.DirFS(origin)); err != nil {
		return err
	}
	// SIGKILL on the way to the other half.
	if err := lab.fill(ctx, origin, lines, true); err != nil {
		return err
	}
	count := int(s.scaled(30, 6))
	for _, series := range []Series{
		{name: "after a clean stop", origin: clean, stored: lines / 2, count: count, clean: true},
		{name: "after SIGKILL", origin: origin, stored: lab.stored, count: count},
		{name: "etcd's own files", origin: clean, stored: lines / 2, count: max(count/2, 4), clean: true, etcd: true},
	} {
		if err := lab.run(ctx, &series); err != nil {
			return err
		}
	}
	return nil
}

// A Lab starts servers on copies of a data directory. The objects lie beside
// the data, in the same copy: no copy touches another's.
type Lab struct {
	stage   *Stage
	dir     string
	address string
	stored  int64 // lines known to be stored at the last SIGKILL
}

func (l *Lab) start(ctx context.Context, dir string) (*server.Process, error) {
	objects, err := filepath.Abs(filepath.Join(dir, "objects"))
	if err != nil {
		return nil, err
	}
	return server.Start(ctx, server.Options{
		Binary: l.stage.binary,
		Args: []string{"server", "--data", filepath.Join(dir, "data"), "--objects", "dir://" + objects, "--listen", l.address,
			"--wal-budget", "64MiB", "--segment-size", "1MiB"},
		Address: l.address,
		Log:     filepath.Join(dir, "server.log"),
	})
}

// fill appends the corpus's lines up to a number of them, and ends the server:
// in order, or by SIGKILL in the middle of them.
func (l *Lab) fill(ctx context.Context, dir string, lines int64, kill bool) error {
	p, err := l.start(ctx, dir)
	if err != nil {
		return err
	}
	defer p.Kill()
	run := func(stdin io.Reader, args ...string) *Command {
		return newCommand(ctx, l.stage.binary, l.address, stdin, io.Discard, args...)
	}
	from := int64(0)
	if kill {
		from = lines / 2
	} else {
		if err := run(nil, "namespace", "create", namespace).run(); err != nil {
			return err
		}
		if err := run(nil, "stream", "create", damageStream).run(); err != nil {
			return err
		}
	}
	producer := run(l.stage.corpus.Text(from, lines), "append", damageStream, "--format", "lines")
	if !kill {
		if err := producer.run(); err != nil {
			return err
		}
		return p.Stop(ctx)
	}
	if err := producer.Start(); err != nil {
		return err
	}
	defer producer.finish()
	defer producer.Process.Kill()
	client := streamsAt(l.address)
	return until(ctx, func() bool {
		n, err := tailOf(ctx, client, damageStream)
		if err == nil {
			l.stored = n
		}
		if err == nil && n < from+(lines-from)/3 {
			return false
		}
		p.Kill()
		return true
	})
}

// A Series is one kind of damage, many times.
type Series struct {
	name        string
	origin      string
	stored      int64 // lines that were acknowledged
	count       int
	clean, etcd bool

	refused, whole, short int
	missing               int64 // lines, over all copies that are short
	bad                   []string
}

func (l *Lab) run(ctx context.Context, r *Series) error {
	l.stage.say("  %s: %d damaged copies", r.name, r.count)
	progress := report.NewCount(l.stage.out, "copies", int64(r.count))
	defer progress.End(true)
	for n := range r.count {
		progress.At(int64(n))
		if err := l.once(ctx, r, n); err != nil {
			return err
		}
	}
	for _, what := range r.bad {
		progress.Say("bad: %s", what)
	}
	figure := fmt.Sprintf("%d refused with a reason, %d with every record", r.refused, r.whole)
	if !r.clean {
		figure += fmt.Sprintf(", %d short by %d lines", r.short, r.missing)
	}
	reach := "nothing short, vague or altered"
	if !r.clean {
		reach = "nothing altered"
	}
	if r.etcd {
		reach = "a message of ours, no panic"
	}
	l.stage.table.Add("damaged "+r.name, len(r.bad) == 0, fmt.Sprintf("%s, %d bad", figure, len(r.bad)), reach)
	return nil
}

// once damages one copy, starts it, and judges what happens.
func (l *Lab) once(ctx context.Context, r *Series, n int) error {
	dir := filepath.Join(l.dir, "copy")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(r.origin)); err != nil {
		return err
	}
	hurt, err := Hurt(filepath.Join(dir, "data"), r.etcd, l.stage.random)
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) {
		r.bad = append(r.bad, fmt.Sprintf("copy %d, %s: %s", n, hurt, fmt.Sprintf(format, args...)))
		keep := filepath.Join(l.dir, fmt.Sprintf("bad-%d-%d", time.Now().Unix(), n))
		_ = os.Rename(dir, keep) // for whoever looks into it; the verdict stands without
	}
	p, err := l.start(ctx, dir)
	var exited *server.ExitedError
	switch {
	case errors.As(err, &exited):
		if reason := vague(exited, hurt, r.etcd); reason != "" {
			bad("refused, but %s: %s", reason, exited.Output)
		} else {
			r.refused++
		}
		return nil
	case err != nil:
		bad("%v", err)
		return ctx.Err()
	}
	check := NewCheck(l.stage.corpus.Text(0, 1<<40))
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	reader := newCommand(wait, l.stage.binary, l.address, nil, check, "read", damageStream, "--from", "start", "--format", "lines", "--timeout", "10s")
	err = reader.run()
	p.Kill()
	altered := check.Prefix()
	switch {
	case altered != nil:
		bad("altered: %v", altered)
	case err != nil && wait.Err() != nil:
		bad("a read hangs")
	case err != nil && strings.TrimSpace(reader.stderr.String()) == "":
		bad("a read fails without a reason: %v", err)
	case err != nil:
		r.refused++
	case check.Lines() >= r.stored:
		r.whole++
	case r.clean:
		bad("%d of %d acknowledged lines are missing, and nothing said so", r.stored-check.Lines(), r.stored)
	default:
		r.short++
		r.missing += r.stored - check.Lines()
	}
	return nil
}

// vague says why a refusal is not a precise reason of ours, or "".
func vague(e *server.ExitedError, hurt Injury, etcd bool) string {
	switch {
	case e.Signal != 0:
		return "by " + e.Signal.String()
	case strings.Contains(e.Output, "panic:") || strings.Contains(e.Output, "goroutine 1 [") || e.Code == 2:
		return "by a panic"
	case e.Output == "":
		return "without a word"
	case etcd && !strings.Contains(e.Output, "catalog"):
		return "without naming the catalog"
	case !etcd && !strings.Contains(e.Output, filepath.Base(hurt.File)) && !strings.Contains(e.Output, hurt.Noun()):
		return "without naming what is damaged"
	}
	return ""
}
