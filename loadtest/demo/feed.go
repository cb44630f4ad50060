package main

import (
	"context"
	"io"
	"sync/atomic"
)

// A Feed writes lines of a corpus into a command's standard input and counts
// them. It can be held at a line: everything before it is written, nothing of
// it.
type Feed struct {
	corpus *Corpus
	bytes  atomic.Int64
	first  int64 // its first line
}

// Bytes is how much was written: what the pipe took, not what was acknowledged.
func (f *Feed) Bytes() int64 { return f.bytes.Load() }

// Lines is how many whole lines were written.
func (f *Feed) Lines() int64 {
	return f.corpus.LineAt(f.corpus.Position(f.first)+f.Bytes()) - f.first
}

// Run writes lines [from, to) and ends early, at the end of a line, when ctx
// does.
func (f *Feed) Run(ctx context.Context, w io.Writer, from, to int64) error {
	text := f.corpus.Text(from, to)
	buffer := make([]byte, 64<<10)
	start := f.Bytes()
	for ctx.Err() == nil {
		n, err := text.Read(buffer)
		if err == io.EOF {
			return nil
		}
		n, err = w.Write(buffer[:n])
		f.bytes.Add(int64(n))
		if err != nil {
			return err
		}
	}
	// Finish the line.
	at := f.corpus.Position(from) + f.Bytes() - start
	line := f.corpus.LineAt(at)
	if f.corpus.Position(line) == at {
		return nil
	}
	rest := f.corpus.Text(line, line+1)
	if _, err := io.CopyN(io.Discard, rest, at-f.corpus.Position(line)); err != nil {
		return err
	}
	n, err := io.Copy(w, rest)
	f.bytes.Add(n)
	return err
}
