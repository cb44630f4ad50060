package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestEndIsIdempotentAndEndsOnlyItsOwn(t *testing.T) {
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	go func() { defer close(waited); _ = command.Wait() }()
	path := filepath.Join(t.TempDir(), "x.pid")
	pid := command.Process.Pid

	// The same id, but born at another moment: a stranger.
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d 1\n", pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if alive(path) != 0 {
		t.Error("a process of another birth is taken for ours")
	}
	if err := end(path, time.Minute); err != nil {
		t.Fatal(err)
	}
	select {
	case <-waited:
		t.Fatal("a stranger was ended")
	default:
	}

	if err := note(path, pid); err != nil {
		t.Fatal(err)
	}
	if alive(path) != pid {
		t.Error("a running process is not found")
	}
	for range 2 {
		if err := end(path, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	<-waited
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the pid file stays: %v", err)
	}
}

func TestDamagedPidFilesNameNobody(t *testing.T) {
	for _, text := range []string{"", "x", "-1 5", "0 -", "1 -", "99999999 -"} {
		path := filepath.Join(t.TempDir(), "x.pid")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid := alive(path); pid != 0 {
			t.Errorf("%q names process %d", text, pid)
		}
	}
}
