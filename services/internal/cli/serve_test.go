package cli_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Everything below the data directory is the user's alone.
func TestDataIsPrivate(t *testing.T) {
	old := syscall.Umask(0) // what the server inherits
	defer syscall.Umask(old)
	data := filepath.Join(t.TempDir(), "data")
	s := dev(t, "--data", data)
	good(t, s.address, "secret\n", "append", "a/b", "--ack", "archive")
	s.stop()
	n := 0
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n++
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil || n < 10 {
		t.Errorf("%d files, %v", n, err)
	}
}

// SIGTERM, with a tail, an idle append and a busy one connected: all is answered or
// tried again, the stop is clean, and the next start has everything.
func TestStopsUnderLoad(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := dev(t, "--data", data, "--shutdown-timeout", "20s")
	good(t, s.address, "first\n", "append", "a/b")
	tail := begin(t, s.address, nil, "tail", "a/b", "--from", "start")
	if got := tail.line(); got != "first" {
		t.Fatalf("%q", got)
	}
	idle := begin(t, s.address, nil, "append", "a/b")
	if _, err := fmt.Fprintln(idle.in, "idle"); err != nil {
		t.Fatal(err)
	}
	if got := tail.line(); got != "idle" {
		t.Fatalf("%q", got)
	}
	busy := begin(t, s.address, nil, "append", "a/busy")
	go func() {
		for i := 0; ; i++ {
			if _, err := fmt.Fprintln(busy.in, i); err != nil {
				return
			}
		}
	}()
	s.stop()
	state, err := os.ReadFile(filepath.Join(data, "run-state"))
	if err != nil || !strings.Contains(string(state), "state stopped") {
		t.Errorf("%s %v", state, err)
	}
	if strings.Contains(s.err.String(), "are cut") {
		t.Errorf("clients had to be cut: %s", s.err.String())
	}
	// The same address again: the clients go on by themselves.
	again := begin(t, "", nil, "dev", "--listen", s.address, "--data", data, "--wal-budget", "64MiB")
	if _, err := fmt.Fprintln(idle.in, "after"); err != nil {
		t.Fatal(err)
	}
	if got := tail.line(); got != "after" {
		t.Fatalf("%q: %s", got, again.err.String())
	}
	_ = idle.in.Close()
	if code := idle.end(); code != 0 {
		t.Errorf("the idle append: exit code %d: %s", code, idle.err.String())
	}
	busy.signal(syscall.SIGTERM)
	if code := busy.end(); code != 0 {
		t.Errorf("the busy append: exit code %d: %s", code, busy.err.String())
	}
	// What the busy one appended is there, in order, once.
	got := strings.Fields(good(t, s.address, "", "read", "a/busy"))
	for i, line := range got {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	again.signal(syscall.SIGTERM)
	if code := again.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, again.err.String())
	}
}

// SIGKILL, and a start on what is left.
func TestKilled(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := dev(t, "--data", data)
	good(t, s.address, "one\ntwo\n", "append", "a/b")
	s.signal(syscall.SIGKILL)
	s.end()
	s = dev(t, "--data", data)
	if got := good(t, s.address, "", "read", "a/b"); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	// A second server on the same data is told so, at once; the first goes on.
	if r := varve(t, "", "", "dev", "--listen", "127.0.0.1:0", "--data", data); r.code != 1 || !strings.Contains(r.err, "in use by another process") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	// And so is one on the same address.
	other := filepath.Join(t.TempDir(), "other")
	if r := varve(t, "", "", "dev", "--listen", s.address, "--data", other); r.code != 1 || !strings.Contains(r.err, "address already in use") {
		t.Errorf("exit code %d: %s", r.code, r.err)
	}
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("a server that could not listen left %s: %v", other, err)
	}
	good(t, s.address, "three\n", "append", "a/b")
	s.stop()
}

// An ephemeral server leaves nothing.
func TestEphemeral(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	s := dev(t, "--ephemeral")
	good(t, s.address, "x\n", "append", "a/b")
	if list, _ := os.ReadDir(tmp); len(list) == 0 {
		t.Error("the data is somewhere else")
	}
	s.stop()
	if list, _ := os.ReadDir(tmp); len(list) != 0 {
		t.Errorf("left behind: %v", list)
	}
}

// Nothing listens beyond this machine by accident.
func TestLoopbackOnly(t *testing.T) {
	for _, address := range []string{":0", "0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0", "127.0.0.1", "localhost"} {
		for _, flag := range []string{"--listen", "--admin-listen"} {
			args := []string{"server", "--listen", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data"), flag, address}
			if r := varve(t, "", "", args...); r.code != 2 || !strings.Contains(r.err, flag) {
				t.Errorf("%s %q: exit code %d: %s", flag, address, r.code, r.err)
			}
		}
	}
}

// Mistakes in the configuration name the file and the line, and nothing is started.
func TestConfigurationMistakes(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	for name, c := range map[string]struct{ text, says string }{
		"unknown key": {"wal-buget: 1GiB\n", `:1: unknown key "wal-buget"; did you mean "wal-budget"?`},
		"twice":       {"fsync: commit\nfsync: commit\n", ":2:"},
		"bad size":    {"listen: 127.0.0.1:0\nwal-budget: lots\n", ":2:"},
		"bad mode":    {"fsync: sometimes\n", "--fsync"},
		"no mapping":  {"- a\n", ":1:"},
		"bad bucket":  {"objects: ftp://x/y\nlisten: 127.0.0.1:0\ndata: " + data + "\n", "ftp"},
	} {
		file := filepath.Join(dir, "varve.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := varve(t, "", "", "server", "--config", file); r.code != 2 || !strings.Contains(r.err, c.says) {
			t.Errorf("%s: exit code %d: %s", name, r.code, r.err)
		}
	}
	if r := varve(t, "", "", "server", "--config", filepath.Join(dir, "none.yaml")); r.code != 2 || !strings.Contains(r.err, "none.yaml") {
		t.Errorf("%+v", r)
	}
}

// The inspectors tell what is whole, what is torn and what is damaged, and change
// nothing.
func TestInspect(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s := dev(t, "--data", data)
	good(t, s.address, strings.Repeat("some text\n", 1000), "append", "a/b", "--ack", "archive")
	s.stop()
	for _, args := range [][]string{{"wal", "inspect", data}, {"wal", "inspect", data, "--summary"}, {"wal", "inspect", data, "--json"}} {
		if r := varve(t, "", "", args...); r.code != 0 || r.out == "" {
			t.Errorf("%v on a healthy log: exit code %d: %s", args, r.code, r.err)
		}
	}
	segments, err := filepath.Glob(filepath.Join(data, "objects/streams/a/b/*/*/*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("%v %v", segments, err)
	}
	if r := varve(t, "", "", "segment", "inspect", segments[0]); r.code != 0 || r.out == "" {
		t.Errorf("%+v", r)
	}
	key, err := filepath.Rel(filepath.Join(data, "objects"), segments[0])
	if err != nil {
		t.Fatal(err)
	}
	if r := varve(t, "", "", "segment", "inspect", "--objects", "dir://"+filepath.Join(data, "objects"), "--json", key); r.code != 0 || !strings.Contains(r.out, `"records":1000`) {
		t.Errorf("%+v", r)
	}
	flip(t, segments[0], 100)
	if r := varve(t, "", "", "segment", "inspect", segments[0]); r.code != 1 || r.err == "" {
		t.Errorf("a damaged segment: %+v", r)
	}
	if err := os.Truncate(segments[0], 50); err != nil {
		t.Fatal(err)
	}
	if r := varve(t, "", "", "segment", "inspect", segments[0]); r.code != 1 || r.err == "" {
		t.Errorf("a cut segment: %+v", r)
	}
	file, at := frame(t, data)
	flip(t, filepath.Join(data, "wal", filepath.Base(file)), at)
	if r := varve(t, "", "", "wal", "inspect", data); r.code != 1 || r.err == "" {
		t.Errorf("a damaged log: exit code %d: %s", r.code, r.err)
	}
	if r := varve(t, "", "", "wal", "inspect", t.TempDir()); r.code == 0 || r.err == "" {
		t.Errorf("an empty directory: %+v", r)
	}
}

// frame finds a byte in the middle of the log's largest frame.
func frame(t *testing.T, data string) (file string, at int64) {
	t.Helper()
	var largest int64
	for line := range strings.Lines(good(t, "", "", "wal", "inspect", data, "--json")) {
		var f struct {
			Kind, File    string
			Offset, Bytes int64
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f.Kind == "frame" && f.Bytes > largest {
			largest, file, at = f.Bytes, f.File, f.Offset+f.Bytes/2
		}
	}
	if largest == 0 {
		t.Fatal("the log has no frame")
	}
	return file, at
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}
