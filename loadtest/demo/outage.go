package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/varve-io/varve/loadtest/report"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

const (
	outageStream = namespace + "/outage"
	probeStream  = namespace + "/probe"
	probeWait    = 2 * time.Second // each probe's deadline
)

// outage is point 5: the object store stops for a minute under load.
func (s *Stage) outage(ctx context.Context) error {
	_ = s.varve(ctx, nil, nil, "namespace", "create", namespace) // there already, after point 1
	for _, stream := range []string{outageStream, probeStream} {
		if err := s.varve(ctx, nil, nil, "stream", "create", stream); err != nil {
			return err
		}
	}
	pipe, lines, err := os.Pipe()
	if err != nil {
		return err
	}
	defer lines.Close()
	producer := s.command(ctx, pipe, io.Discard, "append", outageStream, "--format", "lines")
	if err := producer.Start(); err != nil {
		return err
	}
	pipe.Close()

	feed, probes := &Feed{corpus: s.corpus}, &Probes{stage: s}
	group, running := errgroup.WithContext(ctx)
	load, endLoad := context.WithCancel(running)
	defer endLoad()
	group.Go(func() error {
		defer lines.Close()
		return feed.Run(load, lines, 0, 1<<40)
	})
	group.Go(func() error { return probes.Run(load) })
	group.Go(func() error {
		defer endLoad()
		return s.stopStore(running, feed)
	})
	if err := s.endProducer(group.Wait(), producer); err != nil {
		return err
	}
	return s.afterOutage(ctx, feed.Lines(), probes)
}

// stopStore lets the load run, stops MinIO for the outage, and lets it run on.
func (s *Stage) stopStore(ctx context.Context, feed *Feed) error {
	calm, dark := time.Duration(s.scaled(5e9, 1e9)), time.Duration(s.scaled(60e9, 5e9))
	wait := func(d time.Duration) error {
		return sleep(ctx, d)
	}
	if err := wait(calm); err != nil {
		return err
	}
	before := feed.Bytes()
	s.store.Kill()
	s.say("  MinIO is stopped for %v; the load goes on", dark)
	begin := time.Now()
	full := time.Duration(0)
	for time.Since(begin) < dark {
		if err := wait(100 * time.Millisecond); err != nil {
			return err
		}
		reached, err := s.atBudget(ctx)
		if err != nil {
			return err
		}
		if full == 0 && reached {
			full = time.Since(begin)
		}
	}
	s.say("  %.0f MB were taken meanwhile; the log's budget was reached after %v", float64(feed.Bytes()-before)/1e6, full.Round(100*time.Millisecond))
	s.table.Add("log at its budget in the outage", full > 0, full.Round(100*time.Millisecond).String(), "> 0s")
	if err := s.store.Restart(ctx); err != nil {
		return err
	}
	return wait(calm)
}

// atBudget reports whether the log has so little room left that producers may be
// slowed down. Four files are no room for them: one is kept back for commands and
// one for copies forward, one is being written, and one is made ready to follow.
func (s *Stage) atBudget(ctx context.Context) (bool, error) {
	used, err := s.logUsed(ctx)
	file := max(s.budget/16, 8<<20+64<<10) // at least the largest frame
	return used >= s.budget-4*file, err
}

func (s *Stage) afterOutage(ctx context.Context, given int64, probes *Probes) error {
	// What waits for the bucket is answered only when everything before it, too,
	// is in a written manifest.
	begin := time.Now()
	patient, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	_, err := s.streams.Append(patient, &varvev1.AppendRequest{
		Stream: outageStream, Ack: varvev1.Ack_ACK_ARCHIVE, Records: []*varvev1.Record{{Value: []byte("the end")}},
	})
	took := time.Since(begin)
	if err != nil {
		return fmt.Errorf("archive after the outage: %w", err)
	}
	archived, err := s.manifested(ctx, outageStream)
	if err != nil {
		return err
	}
	s.table.Add("archived after the outage", archived == given+1, fmt.Sprintf("%d lines, after %.1f s", archived, took.Seconds()), fmt.Sprint(given+1))
	check := NewCheck(io.MultiReader(s.corpus.Text(0, given), strings.NewReader("the end\n")))
	progress := report.NewProgress(s.out, "read", max(s.corpus.Position(given), 1))
	err = s.varve(ctx, nil, tee{check, progress}, "read", outageStream, "--from", "start", "--format", "lines")
	progress.End(err == nil)
	if err != nil {
		return err
	}
	wrong := check.Whole()
	if wrong != nil {
		s.say("  %v", wrong)
	}
	s.table.Add("lines through the outage", wrong == nil, fmt.Sprint(check.Lines()), fmt.Sprint(given+1))
	return probes.judge(ctx)
}

// Probes are single appends with a deadline of their own, one after the other,
// that show how a producer is answered.
type Probes struct {
	stage *Stage

	acknowledged map[int64]string // value by offset
	unknown      map[string]bool  // values whose outcome nobody told
	throttled    int
	early        int // throttled while the log had room
	silent       int // no answer at the deadline
	other        []error
	slowest      time.Duration // acknowledged while the log had room
}

// Run probes until ctx ends.
func (p *Probes) Run(ctx context.Context) error {
	p.acknowledged, p.unknown = map[int64]string{}, map[string]bool{}
	for n := 0; sleep(ctx, 100*time.Millisecond) == nil; n++ {
		if err := p.once(context.WithoutCancel(ctx), fmt.Sprintf("probe %d", n)); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
	}
	return nil
}

// once makes one append; the error is only of the probe's own means.
func (p *Probes) once(ctx context.Context, value string) error {
	before, err := p.stage.atBudget(ctx)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	begin := time.Now()
	answer, failed := p.stage.streams.Append(wait, &varvev1.AppendRequest{
		Stream: probeStream, Records: []*varvev1.Record{{Value: []byte(value)}},
	})
	took := time.Since(begin)
	after, err := p.stage.atBudget(ctx)
	if err != nil {
		return err
	}
	p.note(value, answer, failed, took, !before && !after)
	return nil
}

// note keeps what one probe met; room says whether the log had room before and
// after it.
func (p *Probes) note(value string, answer *varvev1.AppendResponse, err error, took time.Duration, room bool) {
	if err == nil {
		p.acknowledged[int64(answer.GetFirstOffset())] = value
		if room {
			p.slowest = max(p.slowest, took)
		}
		return
	}
	detail := detailOf(err)
	if detail.GetApplied() != varvev1.Applied_APPLIED_NO {
		p.unknown[value] = true
	}
	switch {
	case detail.GetReason() == varvev1.Reason_REASON_THROTTLED:
		p.throttled++
		if room {
			p.early++
		}
	case detail == nil:
		p.silent++
		p.other = append(p.other, err)
	default:
		p.other = append(p.other, err)
	}
}

// detailOf finds what the server says for programs; nil when it said nothing.
func detailOf(err error) *varvev1.ErrorDetail {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return nil
	}
	for _, d := range failed.Details() {
		if value, err := d.Value(); err == nil {
			if detail, ok := value.(*varvev1.ErrorDetail); ok {
				return detail
			}
		}
	}
	return nil
}

// judge adds the probes' rows, and reads their stream back.
func (p *Probes) judge(ctx context.Context) error {
	s := p.stage
	s.say("  %d probes acknowledged, the slowest with room in the log after %v; %d throttled; %d other answers",
		len(p.acknowledged), p.slowest.Round(time.Millisecond), p.throttled, len(p.other))
	for _, err := range p.other[:min(3, len(p.other))] {
		s.say("    %v", err)
	}
	s.table.Add("throttled while the log had room", p.early == 0, fmt.Sprint(p.early), "0")
	s.table.Add("throttled at the budget", p.throttled > 0, fmt.Sprint(p.throttled), ">= 1")
	s.table.Add("no answer at the deadline", p.silent == 0, fmt.Sprint(p.silent), "0")

	var stored lineSet
	if err := s.varve(ctx, nil, &stored, "read", probeStream, "--from", "start", "--format", "lines"); err != nil {
		return err
	}
	lost, extra := 0, 0
	values := stored.lines()
	for offset, value := range p.acknowledged {
		if offset >= int64(len(values)) || values[offset] != value {
			lost++
		}
	}
	seen := map[string]bool{}
	acked := map[string]bool{}
	for _, value := range p.acknowledged {
		acked[value] = true
	}
	for _, value := range values {
		if seen[value] || !acked[value] && !p.unknown[value] {
			extra++
		}
		seen[value] = true
	}
	s.table.Add("acknowledged probes lost", lost == 0 && len(p.acknowledged) > 0, fmt.Sprintf("%d of %d", lost, len(p.acknowledged)), "0")
	s.table.Add("probes stored twice or though refused", extra == 0, fmt.Sprint(extra), "0")
	return nil
}
