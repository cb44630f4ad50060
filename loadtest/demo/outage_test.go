package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// A probe is judged by what the server said for programs; silence at the
// deadline, and being throttled with room in the log, are what must not happen.
func TestProbesAreJudged(t *testing.T) {
	answer := func(reason varvev1.Reason, applied varvev1.Applied) error {
		err := connect.NewError(connect.CodeUnavailable, errors.New("any"))
		detail, failed := connect.NewErrorDetail(&varvev1.ErrorDetail{Reason: reason, Applied: applied})
		if failed != nil {
			t.Fatal(failed)
		}
		err.AddDetail(detail)
		return err
	}
	p := &Probes{acknowledged: map[int64]string{}, unknown: map[string]bool{}}
	p.note("a", &varvev1.AppendResponse{FirstOffset: 7}, nil, time.Second, true)
	p.note("b", nil, answer(varvev1.Reason_REASON_THROTTLED, varvev1.Applied_APPLIED_NO), time.Second, false)
	p.note("c", nil, answer(varvev1.Reason_REASON_THROTTLED, varvev1.Applied_APPLIED_NO), time.Second, true)
	p.note("d", nil, answer(varvev1.Reason_REASON_UNAVAILABLE, varvev1.Applied_APPLIED_UNKNOWN), time.Second, false)
	p.note("e", nil, connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded), time.Second, false)
	if p.acknowledged[7] != "a" || p.slowest != time.Second {
		t.Errorf("acknowledged %v, slowest %v", p.acknowledged, p.slowest)
	}
	if p.throttled != 2 || p.early != 1 || p.silent != 1 || len(p.other) != 2 {
		t.Errorf("throttled %d, early %d, silent %d, other %v", p.throttled, p.early, p.silent, p.other)
	}
	if len(p.unknown) != 2 || !p.unknown["d"] || !p.unknown["e"] {
		t.Errorf("unknown outcomes: %v", p.unknown)
	}
}
