package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/varve-io/varve/loadtest/report"
)

// replay is point 2: the corpus comes back, once, byte for byte, most of it from
// MinIO.
func (s *Stage) replay(ctx context.Context) error {
	before, err := s.counters(ctx)
	if err != nil {
		return err
	}
	check := NewCheck(s.corpus.Text(0, s.corpus.Lines))
	progress := report.NewProgress(s.out, "read", s.corpus.Bytes)
	begin := time.Now()
	err = s.varve(ctx, nil, tee{check, progress}, "read", corpusStream, "--from", "start", "--format", "lines")
	progress.End(err == nil)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	wrong := check.Whole()
	got, want := check.Sums()
	s.say("  read %.1f MB/s; SHA-256 of the corpus %s", float64(check.Bytes())/1e6/took.Seconds(), want)
	s.say("  SHA-256 of what came back %s", got)
	if wrong != nil {
		s.say("  %v", wrong)
	}
	s.table.Add("corpus read back", wrong == nil, fmt.Sprintf("%d lines, SHA-256 %.12s", check.Lines(), got), fmt.Sprintf("%d lines, %.12s", s.corpus.Lines, want))

	after, err := s.counters(ctx)
	if err != nil {
		return err
	}
	share := after.sub(before).coldShare()
	s.table.Add("bytes served from MinIO", share >= 0.7, fmt.Sprintf("%.1f %%", 100*share), ">= 70 %")
	return nil
}

// tee shows progress of what a check is given.
type tee struct {
	check    *Check
	progress *report.Progress
}

func (t tee) Write(p []byte) (int, error) {
	n, err := t.check.Write(p)
	t.progress.At(t.check.Bytes())
	return n, err
}

// disk adds what the meter saw over the whole run.
func (s *Stage) disk() {
	s.table.Add("most blocks under "+filepath.Base(s.data())+"/wal", s.meter.most.Load() <= s.budget,
		fmt.Sprintf("%.1f MiB in %d samples", float64(s.meter.most.Load())/(1<<20), s.meter.samples.Load()), fmt.Sprintf("<= %d MiB", s.budget>>20))
}

// seek is point 3: reading from an offset and from a time in the middle.
func (s *Stage) seek(ctx context.Context) error {
	const lines = 1000
	offset := s.corpus.Lines/3 + 17
	for _, place := range []struct {
		name, from string
		line       int64
	}{
		{"read from an offset in the middle", fmt.Sprint(offset), offset},
		{"read from a time in the middle", s.boundary.at.UTC().Format(time.RFC3339Nano), s.boundary.line},
	} {
		check := NewCheck(s.corpus.Text(place.line, place.line+lines))
		if err := s.varve(ctx, nil, check, "read", corpusStream, "--from", place.from, "--limit", fmt.Sprint(lines), "--format", "lines"); err != nil {
			return err
		}
		wrong := check.Whole()
		if wrong != nil {
			s.say("  from %s: %v", place.from, wrong)
		}
		s.table.Add(place.name, wrong == nil, fmt.Sprintf("%d of %d lines right", check.Lines(), lines), fmt.Sprintf("%d from line %d", lines, place.line))
	}
	return nil
}

// recreate is point 4: the stream is deleted and created again.
func (s *Stage) recreate(ctx context.Context) error {
	old, err := s.objects(ctx, corpusStream)
	if err != nil {
		return err
	}
	for _, verb := range []string{"delete", "create"} {
		args := []string{"stream", verb, corpusStream}
		if verb == "delete" {
			args = append(args, "--yes")
		}
		if err := s.varve(ctx, nil, nil, args...); err != nil {
			return err
		}
	}
	check := NewCheck(s.corpus.Text(0, 0))
	if err := s.varve(ctx, nil, check, "read", corpusStream, "--from", "start", "--format", "lines"); err != nil {
		return err
	}
	tail, err := s.tail(ctx, corpusStream)
	if err != nil {
		return err
	}
	s.table.Add("stream created again", check.Bytes() == 0 && tail == 0, fmt.Sprintf("%d bytes, next offset %d", check.Bytes(), tail), "0 bytes, next offset 0")
	if err := s.varve(ctx, s.corpus.Text(0, 3), io.Discard, "append", corpusStream, "--format", "lines"); err != nil {
		return err
	}
	check = NewCheck(s.corpus.Text(0, 3))
	if err := s.varve(ctx, nil, check, "read", corpusStream, "--from", "0", "--format", "lines"); err != nil {
		return err
	}
	s.table.Add("its first records", check.Whole() == nil, fmt.Sprintf("%d lines from offset 0", check.Lines()), "3 lines")

	begin := time.Now()
	left := len(old)
	for left > 0 && time.Since(begin) < 2*time.Minute && ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
		now, err := s.objects(ctx, corpusStream)
		if err != nil {
			return err
		}
		left = 0
		for key := range old {
			if now[key] {
				left++
			}
		}
	}
	s.say("  %d old objects, %d left after %v", len(old), left, time.Since(begin).Round(100*time.Millisecond))
	s.table.Add("old objects left after the sweep", left == 0 && len(old) > 0, fmt.Sprintf("%d of %d", left, len(old)), "0")
	return nil
}
