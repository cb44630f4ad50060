package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/varve-io/varve/loadtest/report"
)

const corpusStream = namespace + "/corpus"

// ingest is point 1: the corpus goes in through a pipe while another process
// tails, and the server is killed three times on the way.
func (s *Stage) ingest(ctx context.Context) error {
	if err := s.varve(ctx, nil, nil, "namespace", "create", namespace); err != nil {
		return err
	}
	if err := s.varve(ctx, nil, nil, "stream", "create", corpusStream); err != nil {
		return err
	}
	tailing, seen, err := s.follow(ctx)
	if err != nil {
		return err
	}
	defer tailing.Process.Kill()

	pipe, lines, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lines.Close()
	producer := s.command(ctx, pipe, io.Discard, "append", corpusStream, "--format", "lines")
	if err := producer.Start(); err != nil {
		return err
	}
	pipe.Close()

	feed := &Feed{corpus: s.corpus}
	group, feeding := errgroup.WithContext(ctx)
	begin := time.Now()
	group.Go(func() error {
		defer lines.Close()
		if err := s.feedWithBoundary(feeding, feed, lines); err != nil {
			return fmt.Errorf("feed the producer: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		if err := s.killOnTheWay(feeding, feed); err != nil {
			lines.Close() // nothing else ends the feed
			return err
		}
		return nil
	})
	if err := s.endProducer(group.Wait(), producer); err != nil {
		return err
	}
	took := time.Since(begin)
	s.table.Add("producer rode through", true, "exit code 0", "0")
	stored, err := s.tail(ctx, corpusStream)
	if err != nil {
		return err
	}
	s.table.Add("lines stored", stored == s.corpus.Lines, fmt.Sprint(stored), fmt.Sprint(s.corpus.Lines))
	s.say("  %d lines in %v, %.1f MB/s", stored, took.Round(time.Second), float64(s.corpus.Bytes)/1e6/took.Seconds())

	wrong := s.waitForTail(ctx, seen)
	_ = tailing.Process.Signal(os.Interrupt)
	ended := tailing.finish()
	if wrong != nil {
		s.say("  the tailing process: %v; it said: %v", wrong, ended)
	}
	s.table.Add("lines tailed, in order", wrong == nil, fmt.Sprint(seen.Lines()), fmt.Sprint(s.corpus.Lines))
	return nil
}

// endProducer waits for a producer whose input has ended; after a failure of
// ours it is not left to try for ever.
func (s *Stage) endProducer(failed error, producer *Command) error {
	if failed != nil {
		_ = producer.Process.Kill()
	}
	return errors.Join(failed, producer.finish())
}

// follow starts the tailing process on the empty stream.
func (s *Stage) follow(ctx context.Context) (*Command, *Check, error) {
	seen := NewCheck(s.corpus.Text(0, s.corpus.Lines))
	tailing := s.command(ctx, nil, seen, "tail", corpusStream, "--from", "start")
	return tailing, seen, tailing.Start()
}

// waitForTail waits until the tailing process has seen all, or stands still.
func (s *Stage) waitForTail(ctx context.Context, seen *Check) error {
	last, since := int64(-1), time.Now()
	for {
		n := seen.Bytes()
		if n >= s.corpus.Bytes {
			return seen.Whole()
		}
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > time.Minute {
			return fmt.Errorf("it stands still after %d of %d lines: %w", seen.Lines(), s.corpus.Lines, errors.Join(seen.Prefix()))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// feedWithBoundary writes the corpus, and stops in the middle until every line
// so far is stored: that is a moment of which the line is known.
func (s *Stage) feedWithBoundary(ctx context.Context, feed *Feed, w io.Writer) error {
	middle := s.corpus.Lines / 2
	if err := feed.Run(ctx, w, 0, middle); err != nil {
		return err
	}
	if err := s.waitStored(ctx, middle); err != nil {
		return err
	}
	// The clock of append times counts milliseconds at worst.
	time.Sleep(20 * time.Millisecond)
	s.boundary = boundary{line: middle, at: time.Now()}
	time.Sleep(20 * time.Millisecond)
	return feed.Run(ctx, w, middle, s.corpus.Lines)
}

// waitStored waits until exactly so many lines are stored.
func (s *Stage) waitStored(ctx context.Context, lines int64) error {
	begin, last := time.Now(), int64(-1)
	for {
		n, err := s.tail(ctx, corpusStream)
		switch {
		case err == nil && n == lines:
			return nil
		case err == nil && n > lines:
			return fmt.Errorf("%d lines were given, but %d are stored", lines, n)
		case err == nil && n > last:
			begin, last = time.Now(), n
		case time.Since(begin) > 2*time.Minute:
			return fmt.Errorf("%d lines were given, and storing stands still at %d: %w", lines, last, err)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// killOnTheWay kills the server at three random places, starts it again each
// time, and shows progress.
func (s *Stage) killOnTheWay(ctx context.Context, feed *Feed) error {
	progress := report.NewProgress(s.out, "append", s.corpus.Bytes)
	defer progress.End(true)
	inFlight := 0
	for n, span := range [3][2]float64{{0.12, 0.35}, {0.38, 0.49}, {0.55, 0.85}} {
		place := int64((span[0] + s.random.Float64()*(span[1]-span[0])) * float64(s.corpus.Bytes))
		if err := until(ctx, func() bool { progress.At(feed.Bytes()); return feed.Bytes() >= place }); err != nil {
			return err
		}
		stored, err := s.tail(ctx, corpusStream)
		if err != nil {
			return err
		}
		s.process().Kill()
		fed, killed := feed.Lines(), time.Now()
		if err := s.start(ctx); err != nil {
			return err
		}
		progress.Say("kill %d at %.0f %%: %d lines given, %d stored, %d in flight; serving again after %.1f s", n+1,
			100*float64(s.corpus.Position(stored))/float64(s.corpus.Bytes), fed, stored, fed-stored, time.Since(killed).Seconds())
		share := float64(stored) / float64(s.corpus.Lines)
		if fed > stored && share > 0.1 && share < 0.9 {
			inFlight++
		}
	}
	s.table.Add("kills between 10 and 90 %, appends in flight", inFlight == 3, fmt.Sprint(inFlight), "3")
	return until(ctx, func() bool { progress.At(feed.Bytes()); return feed.Bytes() >= s.corpus.Bytes })
}

// until polls until done says so or ctx ends.
func until(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}
