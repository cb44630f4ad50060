package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/wal/vfs"
)

// Rows: C9, B151
func TestC9_UnknownProducerAboveZero(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	p := producer(4)
	p.p.Sequence = 3
	_, err := send(n, id, p.next("x"))
	isErr(t, err, meta.ErrUnknownWriter)
	var failure *broker.Failure
	if !errors.As(err, &failure) || !failure.Unknown {
		t.Fatalf("%v: want it to say that the batch may have been stored", err)
	}
	var gap *meta.SequenceGap
	known := producer(5)
	mustSend(t, n, id, known.next("0"))
	known.next("lost on the way")
	_, err = send(n, id, known.next("2"))
	if !errors.As(err, &gap) || gap.Want != 1 || gap.Got != 2 {
		t.Fatalf("%v: want a gap at 1", err)
	}
	if errors.As(err, &failure); failure.Unknown {
		t.Fatalf("%v: a gap of a known producer was not applied", err)
	}
	want(t, n.Read(id, 0), "0")
}

// Rows: C9
func TestC9_ProducersMaxRefusesNewOnesAndEvictsNobody(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.CreateWith("logs/app", catalog.StreamConfig{ProducersMax: 3})
	all := []*sequence{producer(1), producer(2), producer(3)}
	for _, p := range all {
		mustSend(t, n, id, p.next("x"))
	}
	fourth := producer(4)
	first := fourth.next("y")
	refused := func() {
		t.Helper()
		_, err := send(n, id, first)
		isErr(t, err, meta.ErrExhausted)
	}
	refused()
	for _, p := range all {
		mustSend(t, n, id, p.next("x"))
	}
	n.Append(id, "without a producer")
	n.Restart(stops["killed"](n))
	refused()
	for _, p := range all {
		mustSend(t, n, id, p.next("x"))
	}
	if _, err := n.Catalog.UpdateStream(n.Context(), id.Stream, catalog.StreamConfig{ProducersMax: 4}, 0); err != nil {
		t.Fatal(err)
	}
	n.Broker.Forget(id.Stream)
	if _, err := n.Broker.Stream(n.Context(), id.Stream, 0); err != nil {
		t.Fatal(err)
	}
	mustSend(t, n, id, first)
}

// Rows: E31, B148
func TestE31_NoAnswerBeforeTheFirstIsOnDisk(t *testing.T) {
	disk := vfs.NewMem(1)
	faults := vfs.NewFault(disk)
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{FS: faults}})
	id := n.Create("logs/app")
	p := producer(6)
	mustSend(t, n, id, p.next("0"))
	release := faults.HoldSync(nil)
	answers := make(chan string, 4)
	ask := func(what string, a broker.Append) {
		t.Helper()
		err := n.Broker.Append(n.Context(), id, a, func(r broker.Result, err error) {
			answers <- fmt.Sprintf("%s: first %d duplicate %t failed %t", what, r.First, r.Duplicate, err != nil)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	second := p.next("1")
	expected := meta.Offset(1)
	ask("append", broker.Append{Batch: slices.Clone(second)})
	ask("retry", broker.Append{Batch: slices.Clone(second)})
	ask("condition", broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "c"), ExpectedOffset: &expected})
	select {
	case a := <-answers:
		t.Fatalf("%s, before anything of it was on disk", a)
	default:
	}
	left := disk.CrashClone(vfs.CrashOptions{})
	release()
	got := []string{<-answers, <-answers, <-answers}
	slices.Sort(got)
	want(t, got, "append: first 1 duplicate false failed false", "condition: first 0 duplicate false failed true", "retry: first 1 duplicate true failed false")
	n.Kill()
	// The disk as it was while all of them waited: the second batch is not there, and
	// its retry is stored, not called a duplicate.
	n.Restart(left)
	if r := mustSend(t, n, id, second); r.Duplicate || r.First != 1 {
		t.Fatalf("retry: %+v", r)
	}
	want(t, n.Read(id, 0), "0", "1")
}

// Rows: B146
func TestB146_ASequenceIsNeverReusedForOtherContent(t *testing.T) {
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{})
			id := n.Create("logs/app")
			p := producer(7)
			lostAnswer := *p
			mustSend(t, n, id, p.next("record 1"))
			n.Restart(stop(n))
			_, err := send(n, id, lostAnswer.next("record 2"))
			isErr(t, err, meta.ErrInvalid)
			want(t, n.Read(id, 0), "record 1")
		})
	}
}

// Rows: B152, B82, B83
func TestB152_TrimmedProducersAndOffsetsGoOn(t *testing.T) {
	for name, stop := range stops {
		for _, archived := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, archived %t", name, archived), func(t *testing.T) {
				n := servicetest.Start(t, servicetest.Options{})
				id := n.Create("logs/app")
				p := producer(8)
				first := p.next("0", "1")
				stored := mustSend(t, n, id, first)
				if archived {
					n.Archive(id, "2")
				}
				all := tail(n, id)
				if _, err := n.Broker.Trim(n.Context(), id, all); err != nil {
					t.Fatal(err)
				}
				n.Restart(stop(n))
				want(t, n.Read(id, all))
				if _, err := n.TryRead(n.Context(), id, 0); !errors.As(err, new(*meta.OffsetOutOfRange)) {
					t.Fatalf("read of what is trimmed: %v", err)
				}
				if r := mustSend(t, n, id, first); !r.Duplicate || r.First != stored.First {
					t.Fatalf("retry of a trimmed record: %+v", r)
				}
				if r := mustSend(t, n, id, p.next("next")); r.First != all {
					t.Fatalf("next offset %d, want %d", r.First, all)
				}
				want(t, n.Read(id, all), "next")
			})
		}
	}
}

// Levels none and leader are a hint: they take no producer and no condition.
func TestLevels(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	for level := range 4 {
		if _, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), fmt.Sprint(level)), Level: replica.Level(level)}); err != nil {
			t.Fatalf("level %d: %v", level, err)
		}
	}
	want(t, n.Read(id, 0), "0", "1", "2", "3")
	token := "mine"
	if _, err := n.Broker.Fence(n.Context(), id, token, true); err != nil {
		t.Fatal(err)
	}
	_, err := send(n, id, servicetest.Batch(batch.NoProducer(), "no token"))
	isErr(t, err, meta.ErrFenced)
	n.Restart(stops["killed"](n))
	_, err = send(n, id, servicetest.Batch(batch.NoProducer(), "no token"))
	isErr(t, err, meta.ErrFenced)
	if _, err := n.Send(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "4"), FenceToken: &token}); err != nil {
		t.Fatal(err)
	}
	want(t, n.Read(id, 3), "3", "4")
}
