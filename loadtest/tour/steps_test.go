package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// The tour must not show another stream's objects as its own.
func TestSegmentsAreTheToursOwn(t *testing.T) {
	objects := t.TempDir()
	for _, key := range []string{"streams/tour/log/1/0/a.seg", "streams/tour/log2/1/0/b.seg", "manifests/tour/log/1/0/c.json"} {
		path := filepath.Join(objects, key)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := segments(objects)
	if len(found) != 1 || filepath.Base(found[0]) != "a.seg" {
		t.Errorf("found %v", found)
	}
	if found := segments(filepath.Join(objects, "missing")); len(found) != 0 {
		t.Errorf("found %v in a directory that is not there", found)
	}
}

// The whole tour, on the real binary: append, read, tail, tier, SIGKILL, replay.
// It fails at the first command that prints anything but what went in.
func TestTour(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, dir := l.Addr().String(), t.TempDir()
	l.Close()
	t.Chdir("../..")
	for range 2 { // a second tour starts from what the first one left
		if err := show(t.Context(), dir, filepath.Join(dir, "data"), address, true); err != nil {
			t.Fatal(err)
		}
	}
}
