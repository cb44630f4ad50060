package minio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	miniogo "github.com/minio/minio-go/v7"
)

// A server starts, keeps what it was given over a kill and an orderly stop, on
// the same port, and refuses other credentials.
func TestServerLife(t *testing.T) {
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "data")
	s, err := Start(ctx, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	for range 2 {
		if err := s.MakeBucket(ctx, "varve"); err != nil {
			t.Fatal("make a bucket twice:", err)
		}
	}
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	want := []byte("kept")
	if _, err := c.PutObject(ctx, "varve", "a", bytes.NewReader(want), int64(len(want)), miniogo.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		o, err := c.GetObject(ctx, "varve", "a", miniogo.GetObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(o); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	if err := s.Restart(ctx); err == nil {
		t.Fatal("a server that runs was started again")
	}
	endpoint, pid := s.Endpoint(), s.PID()
	s.Kill()
	s.Kill()
	if s.PID() != 0 {
		t.Fatal("a killed server still has a process")
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if s.Endpoint() != endpoint || s.PID() == pid {
		t.Fatalf("restarted at %s as %d, was at %s as %d", s.Endpoint(), s.PID(), endpoint, pid)
	}
	check()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.Get(endpoint); err == nil {
		resp.Body.Close()
		t.Fatal("a stopped server answers")
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	check()
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("the data directory: %v, %v", info.Mode(), err)
	}
}

// A start that can't succeed says why.
func TestStartFailure(t *testing.T) {
	s, err := Start(t.Context(), Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Kill()
	_, err = Start(t.Context(), Options{Dir: t.TempDir(), Port: s.Port()})
	if err == nil {
		t.Fatal("two servers on one port")
	}
	if !strings.Contains(err.Error(), "the server ended at once") {
		t.Fatalf("unclear: %v", err)
	}
	if _, err := Start(t.Context(), Options{}); err == nil {
		t.Fatal("started without a directory")
	}
	if _, err := Start(t.Context(), Options{Dir: t.TempDir(), Binary: "/nonexistent"}); err == nil {
		t.Fatal("started without a binary")
	}
}

// Of many that need the server at once, one builds it; a build that fails leaves
// nothing that the next takes for a binary.
func TestInstallOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	boom := errors.New("boom")
	_, err := install(t.Context(), dir, func(_ context.Context, work string) error {
		if err := os.WriteFile(filepath.Join(work, "minio"), []byte("half"), 0o700); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	var builds atomic.Int32
	build := func(_ context.Context, work string) error {
		builds.Add(1)
		return os.WriteFile(filepath.Join(work, "minio"), []byte("whole"), 0o700)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := install(t.Context(), dir, build)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != "whole" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := builds.Load(); n != 1 {
		t.Fatalf("built %d times", n)
	}
	// A binary of another version is replaced.
	if err := os.Remove(filepath.Join(dir, "minio-"+Version)); err != nil {
		t.Fatal(err)
	}
	if _, err := install(t.Context(), dir, build); err != nil || builds.Load() != 2 {
		t.Fatalf("%v, %d builds", err, builds.Load())
	}
	if entries, _ := filepath.Glob(filepath.Join(dir, "build-*")); len(entries) != 0 {
		t.Fatalf("left behind: %v", entries)
	}
}

// A wait for another process's build ends with its context.
func TestInstallWaitEnds(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockFile(t.Context(), filepath.Join(dir, "minio.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = install(ctx, dir, func(context.Context, string) error { t.Error("built under another's lock"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestURL(t *testing.T) {
	s := &Server{port: 9000}
	if got, want := s.URL("varve", "a/b"), "s3://varve/a/b?endpoint=http%3A%2F%2F127.0.0.1%3A9000&path-style=true&region=us-east-1"; got != want {
		t.Fatalf("got %s", got)
	}
	if got := s.URL("varve", ""); !strings.HasPrefix(got, "s3://varve?") {
		t.Fatalf("got %s", got)
	}
}
