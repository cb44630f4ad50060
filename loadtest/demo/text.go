package main

import (
	"bytes"
	"context"
	"strings"
	"time"
)

// lineSet keeps all the lines that are written to it.
type lineSet struct{ bytes.Buffer }

func (l *lineSet) lines() []string {
	text := strings.TrimSuffix(l.String(), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// sleep waits for d, or fails when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
