package wal

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// A reader that goes on at its own place reads what one without a memory reads:
// over truncations, drops, copies forward and crashes.
func TestReadOnAgainstRead(t *testing.T) {
	mem := vfs.NewMem(1)
	e := &explorer{rig: open(t, smallOptions(mem)), mem: mem}
	rng := rand.New(rand.NewPCG(7, 7))
	n := e.bind(1)
	c, again := Cursor{}, Cursor{Reuse: true}
	at := meta.LSN(1)
	for round := range 60 {
		var recs []Record
		for range 1 + rng.IntN(6) {
			lsn := e.next[n] + meta.LSN(len(recs))
			recs = append(recs, Record{Kind: Entry, Entry: entryAt(lsn, payload(n, lsn, rng.IntN(300)))})
		}
		e.must(e.write(n, recs...))
		switch round % 12 {
		case 3:
			e.must(e.crash())
		case 5:
			e.must(errors.Join(e.readCopies(), e.placeCopies(), e.checkpoint()))
		case 8:
			start, end := e.log.Bounds(n)
			e.log.Drop(n, start+(end-start)/4)
		case 10:
			e.must(e.write(n, Record{Kind: Truncate, LSN: e.next[n] - 3}))
		}
		start, end := e.log.Bounds(n)
		if at < start || at > end || rng.IntN(10) == 0 {
			at = start
		}
		for at < end && rng.IntN(8) > 0 {
			most := 1 + rng.IntN(900)
			want, err := e.log.Read(n, at, most)
			got, gotErr := e.log.ReadOn(n, at, most, &c)
			if err != nil || gotErr != nil {
				t.Fatalf("round %d, from %d: %v, %v", round, at, err, gotErr)
			}
			reused, err := e.log.ReadOn(n, at, most, &again)
			e.must(err)
			if d := cmp.Diff(want, got) + cmp.Diff(want, reused); d != "" {
				t.Fatalf("round %d, from %d: %s", round, at, d)
			}
			at += meta.LSN(len(got))
		}
	}
}

// One who follows the tail reads each entry about once, however many stand before
// it in its extent.
func TestTailingReadsEachEntryOnce(t *testing.T) {
	disk := vfs.NewFault(vfs.NewMem(1))
	opts := testOptions(disk)
	opts.FileSize, opts.Budget = 1<<20, 16<<20
	r := open(t, opts)
	n := r.bind(1)
	var bytes atomic.Int64
	disk.Hook(nil, func(o vfs.Op, _ error) {
		if o.Kind == vfs.OpRead {
			bytes.Add(int64(o.Len))
		}
	})
	const entries, size = 400, 1000
	var c Cursor
	for at := meta.LSN(1); at <= entries; at++ {
		if err := r.write(n, Record{Kind: Entry, Entry: entryAt(at, payload(n, at, size))}); err != nil {
			t.Fatal(err)
		}
		got, err := r.log.ReadOn(n, at, 1<<20, &c)
		if err != nil || len(got) != 1 || got[0].LSN != at {
			t.Fatalf("entry %d: %d entries, %v", at, len(got), err)
		}
	}
	// Its own bytes and, to find its place, those of the entry before.
	if most := int64(entries * 2 * (size + 200)); bytes.Load() > most {
		t.Errorf("%d bytes were read for %d entries of %d bytes: at most %d", bytes.Load(), entries, size, most)
	}
}
