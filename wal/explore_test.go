package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

// explorer drives one log through a script of steps, with a crash wherever the
// script says so, and compares it with the fold of what was acknowledged.
type explorer struct {
	*rig
	mem    *vfs.Mem
	copies []copied // read, not yet placed
	size   int64
}

// steps are what the explorer can do. A copy forward is two of them, so that
// anything can come between.
var steps = map[byte]func(*explorer) error{
	'a': (*explorer).append,
	't': (*explorer).truncate,
	'd': (*explorer).drop,
	'f': (*explorer).forget,
	'r': (*explorer).readCopies,
	'p': (*explorer).placeCopies,
	'x': (*explorer).fill,
	'k': func(e *explorer) error { return e.checkpoint() },
	'c': (*explorer).crash,
}

func (e *explorer) append() error {
	n := e.bind(1)
	return e.write(n, e.entries(n, 1, 400)...)
}

func (e *explorer) truncate() error {
	n := e.bind(1)
	if e.next[n] < 2 {
		return nil
	}
	return e.write(n, Record{Kind: Truncate, LSN: e.next[n] - 2})
}

func (e *explorer) drop() error {
	n := e.bind(1)
	if _, end := e.log.Bounds(n); end > 1 {
		e.log.Drop(n, end-1)
	}
	return nil
}

// forget deletes the stream; the next append is to a new one of the same identity.
func (e *explorer) forget() error {
	return e.write(e.bind(1), Record{Kind: Forget})
}

// fill rolls into the next file and leaves nothing alive in this one.
func (e *explorer) fill() error {
	n := e.bind(2)
	if st := e.log.Status(); st.Used >= st.Budget/2 {
		if err := e.checkpoint(); err != nil {
			return err
		}
	}
	for range 2 {
		release, err := e.log.Reserve(soon(e.t), 12000)
		if err != nil {
			return err
		}
		err = e.write(n, e.entries(n, 1, 12000)...)
		release()
		if err != nil {
			return err
		}
	}
	_, end := e.log.Bounds(n)
	e.log.Drop(n, end)
	return nil
}

// readCopies reads everything alive of shard 1, as copyForward would.
func (e *explorer) readCopies() error {
	e.copies, e.size = nil, 0
	l := e.log
	l.mu.Lock()
	s := l.index.byID[shardID(1)]
	var spans []span
	if s != nil {
		spans = l.pin(s, 0, 1<<30)
	}
	l.mu.Unlock()
	defer unpin(spans)
	for _, sp := range spans {
		c := copied{shard: s}
		if err := sp.walk(func(at Position, h entry.Header, encoded []byte) bool {
			c.moves = append(c.moves, move{at, h, encoded})
			e.size += int64(frame.HeaderSize + frame.RelocationHeader + len(encoded))
			return true
		}); err != nil {
			return err
		}
		e.copies = append(e.copies, c)
	}
	return nil
}

func (e *explorer) placeCopies() error {
	if ok, err := e.log.relocate(e.copies, e.size); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("no room for a copy"))
	}
	e.copies = nil
	return e.log.barrier(soon(e.t))
}

// crash loses what was not synced, which is nothing that was acknowledged.
func (e *explorer) crash() error {
	disk := e.mem.CrashClone(vfs.CrashOptions{})
	e.log.Kill()
	opts := e.opts
	opts.FS = disk
	r, err := tryOpen(e.t, opts)
	if err != nil {
		return err
	}
	want := e.fold
	e.rig, e.mem, e.copies = r, disk, nil
	// Whoever replays a log says again what it doesn't need.
	if s := r.log.index.byID[shardID(2)]; s != nil {
		r.log.Drop(s.number, s.end)
	}
	return same(want, r.fold)
}

// explore runs a script and reports the first thing that is wrong.
func explore(t *testing.T, script string, twins Twins) error {
	mem := vfs.NewMem(1)
	opts := smallOptions(mem)
	opts.Twins = twins
	e := &explorer{rig: open(t, opts), mem: mem}
	defer func() { e.log.Kill() }()
	for i := range len(script) {
		err := steps[script[i]](e)
		if err == nil {
			err = e.readAll()
		}
		if err != nil {
			return fmt.Errorf("script %q, step %d: %w", script, i, err)
		}
	}
	return nil
}

// scripts calls visit with every script of that many steps, until it fails.
func scripts(length int, alphabet string, visit func(string) error) error {
	var walk func(prefix string) error
	walk = func(prefix string) error {
		if len(prefix) == length {
			return visit(prefix)
		}
		for i := range len(alphabet) {
			if err := walk(prefix + alphabet[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	return walk("")
}

func TestW3_NothingComesBack(t *testing.T) {
	if err := scripts(4, "atrpk", func(s string) error { return explore(t, "aa"+s+"c", Twins{}) }); err != nil {
		t.Error(err)
	}
	if err := scripts(2, "atfrpxkc", func(s string) error { return explore(t, "aar"+s+"pxkac", Twins{}) }); err != nil {
		t.Error(err)
	}
}

func TestW3_NothingComesBackOnLongWalks(t *testing.T) {
	const alphabet = "aaaattdfrrppxxkkc"
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 9))
		script := make([]byte, 40)
		for i := range script {
			script[i] = alphabet[rng.IntN(len(alphabet))]
		}
		if err := explore(t, string(script)+"c", Twins{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestW3_TwinACopyIsAnAppendIsCaught(t *testing.T) {
	err := scripts(3, "atrp", func(s string) error { return explore(t, "aa"+s+"pc", Twins{CopyIsAppend: true}) })
	if err == nil {
		t.Fatal("not caught")
	}
	t.Log(err)
	if err := scripts(3, "atrp", func(s string) error { return explore(t, "aa"+s+"pc", Twins{}) }); err != nil {
		t.Fatalf("control: %v", err)
	}
}
