package wal

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

func TestAppendReadReopen(t *testing.T) {
	r := open(t, testOptions(vfs.NewMem(1)))
	a, b := r.bind(1), r.bind(2)
	for i := range 20 {
		r.add(a, 1+i%3, 100*i)
		r.add(b, 1, 700)
	}
	r.must(r.write(b, Record{Kind: State, Data: []byte("promise")}, Record{Kind: Truncate, LSN: 15}))
	r.add(b, 2, 10)
	r.must(r.readAll())
	for _, clean := range []bool{true, false, false, true} {
		r = r.reopen(clean)
		r.add(a, 3, 333)
		r.must(r.readAll())
	}
	if err := r.checkpoint(); err != nil {
		t.Fatal(err)
	}
	r.add(b, 3, 333)
	r = r.reopen(false)
	r.must(r.write(a, Record{Kind: Forget}))
	r = r.reopen(true)
	if n := r.bind(1); n == a {
		t.Fatalf("number %d was used twice", n)
	}
	isKind(t, r.log.Append(&Write{Shard: a}), meta.ErrInvalid)
	if err := r.log.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	isKind(t, r.log.Append(&Write{Shard: b}), ErrClosed)
}

// Close runs out of time while a sync hangs. Whoever waits for a write hears of it,
// once, and nothing waits for a log that is closed.
func TestCloseOutOfTimeAnswersEveryWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem(1)
		fault := vfs.NewFault(mem)
		r := open(t, testOptions(fault))
		n := r.bind(1)
		r.add(n, 1, 10)
		release := fault.HoldSync(inLog)
		time.AfterFunc(time.Minute, release)
		var answers []error
		for range 3 {
			r.must(r.submit(n, r.entries(n, 1, 10), func(err error) { answers = append(answers, err) }))
			synctest.Wait() // the first one is being synced, the others are queued
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		isKind(t, r.log.Close(ctx), context.DeadlineExceeded)
		if len(answers) != 3 {
			t.Fatalf("%d of 3 writes were answered", len(answers))
		}
		for _, err := range answers {
			isKind(t, err, ErrClosed)
		}
		isKind(t, r.checkpoint(), ErrClosed)
		r.log.Kill()
		opts := r.opts
		opts.FS = mem
		o := open(t, opts)
		r.must(o.readAll())
	})
}
