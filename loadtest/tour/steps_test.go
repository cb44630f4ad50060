package main

import (
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
