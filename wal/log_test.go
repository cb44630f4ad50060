package wal

import (
	"context"
	"testing"

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
