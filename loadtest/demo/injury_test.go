package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/infra/server"
)

func TestHurtChangesOneWrittenPlace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	written := bytes.Repeat([]byte("x"), 100)
	files := map[string][]byte{
		"superblock.a":    written,
		"wal/0001.log":    append(bytes.Clone(written), make([]byte, 10000)...),
		"wal/0002.log":    make([]byte, 10000), // never written: not worth a try
		"checkpoints/17":  written,
		"cache/block":     written,
		"catalog/etcd.db": written,
	}
	hurt := map[string]int{}
	for n := range 400 {
		data := t.TempDir()
		for name, content := range files {
			path := filepath.Join(data, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		injury, err := Hurt(data, n%4 == 0, random)
		if err != nil {
			t.Fatal(err)
		}
		hurt[injury.File]++
		changed := 0
		for name, content := range files {
			got, err := os.ReadFile(filepath.Join(data, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, content) {
				changed++
				if name != injury.File || injury.At >= 100 {
					t.Fatalf("%v: changed %s", injury, name)
				}
			}
		}
		if changed != 1 {
			t.Fatalf("%v: %d files changed", injury, changed)
		}
	}
	for _, name := range []string{"superblock.a", "wal/0001.log", "checkpoints/17", "catalog/etcd.db"} {
		if hurt[name] < 20 {
			t.Errorf("%s was hurt %d times of 400", name, hurt[name])
		}
	}
	if hurt["cache/block"] > 0 || hurt["wal/0002.log"] > 0 || hurt["catalog/etcd.db"] != 100 {
		t.Errorf("hurt: %v", hurt)
	}
}

func TestVagueReasons(t *testing.T) {
	wal, etcd := Injury{File: "wal/0001.log"}, Injury{File: "catalog/member/snap/db"}
	for _, c := range []struct {
		exit server.ExitedError
		hurt Injury
		etcd bool
		want string
	}{
		{server.ExitedError{Code: 1, Output: "the log file 0001.log has rotted at position 4096"}, wal, false, ""},
		{server.ExitedError{Code: 1, Output: "the checkpoint 17 differs from what the superblock names"}, Injury{File: "checkpoints/17"}, false, ""},
		{server.ExitedError{Code: 1, Output: "something is wrong"}, wal, false, "without naming"},
		{server.ExitedError{Code: 2, Output: "panic: runtime error"}, wal, false, "panic"},
		{server.ExitedError{Code: -1, Signal: syscall.SIGSEGV, Output: "wal 0001.log"}, wal, false, "segmentation"},
		{server.ExitedError{Code: 1}, wal, false, "without a word"},
		{server.ExitedError{Code: 1, Output: "the catalog's store can't be opened"}, etcd, true, ""},
		{server.ExitedError{Code: 1, Output: "freelist: invalid page"}, etcd, true, "catalog"},
	} {
		if got := vague(&c.exit, c.hurt, c.etcd); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q: said %q, want %q", c.exit.Output, got, c.want)
		}
	}
}
