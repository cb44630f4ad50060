package main

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// A feed that is stopped anywhere ends at the end of a line.
func TestFeedEndsAtALine(t *testing.T) {
	c := small(t, 1<<20, 0)
	ctx, stop := context.WithCancel(t.Context())
	var got bytes.Buffer
	feed := &Feed{corpus: c, first: 3}
	err := feed.Run(ctx, writerFunc(func(p []byte) (int, error) {
		if got.Len() > 200<<10 {
			stop()
		}
		return got.Write(p)
	}), 3, c.Lines)
	if err != nil {
		t.Fatal(err)
	}
	if int64(got.Len()) != feed.Bytes() || int64(bytes.Count(got.Bytes(), []byte{'\n'})) != feed.Lines() {
		t.Errorf("wrote %d bytes, %d lines, counted %d and %d", got.Len(), bytes.Count(got.Bytes(), []byte{'\n'}), feed.Bytes(), feed.Lines())
	}
	if feed.Lines() >= c.Lines-3 || got.Bytes()[got.Len()-1] != '\n' {
		t.Errorf("stopped after %d of %d lines, at %q", feed.Lines(), c.Lines, got.Bytes()[got.Len()-10:])
	}
	check := NewCheck(c.Text(3, 3+feed.Lines()))
	io.Copy(check, &got)
	if err := check.Whole(); err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
