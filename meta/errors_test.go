package meta

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestErrorfIsItsKindAndWhatItWraps(t *testing.T) {
	err := fmt.Errorf("outer: %w", Errorf(ErrCorrupt, "file %s: %w", "x", io.ErrUnexpectedEOF))
	if !errors.Is(err, ErrCorrupt) || !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrInvalid) {
		t.Errorf("%v is not what it wraps", err)
	}
	if got := err.Error(); got != "outer: file x: unexpected EOF" {
		t.Errorf("it says %q", got)
	}
	if !errors.Is(Invalidf("no"), ErrInvalid) {
		t.Error("Invalidf is not invalid")
	}
}

func TestErrorsSayWhatHappened(t *testing.T) {
	shard := ShardID{Stream: StreamName{"ns", "a"}, Incarnation: 1}
	for _, c := range []struct {
		err   error
		words []string
	}{
		{&OffsetOutOfRange{Asked: 9, Start: 3, End: 7}, []string{"9", "3", "7"}},
		{&ConditionFailed{Expected: 5, Actual: 6}, []string{"5", "6"}},
		{&SequenceGap{Producer: 4, ProducerEpoch: 2, Got: 8, Want: 7}, []string{"4", "2", "8", "7"}},
		{&NotLeader{}, []string{"no broker leads"}},
		{&NotLeader{Leader: "b2"}, []string{"b2"}},
		{&NoQuorum{Shard: shard, Waiting: []string{"b1/01: down"}}, []string{"ns/a@0000000000000001/0", "b1/01: down"}},
		{&Throttled{RetryAfter: time.Second, Why: "log is full"}, []string{"log is full", "1s"}},
	} {
		for _, w := range c.words {
			if !strings.Contains(c.err.Error(), w) {
				t.Errorf("%T says %q, without %q", c.err, c.err, w)
			}
		}
	}
}
