package etcdkv_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/varve-io/varve/meta/etcdkv"
)

// listening counts this process's listening TCP sockets.
func listening(t *testing.T) int {
	t.Helper()
	mine := make(map[string]bool)
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			mine[strings.Trim(to, "socket:[]")] = true
		}
	}
	n := 0
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && mine[f[9]] {
				n++
			}
		}
	}
	return n
}

// A lone member opens no port and leaves no goroutine behind.
func TestLoneMemberIsQuiet(t *testing.T) {
	before := listening(t)
	running := goleak.IgnoreCurrent()
	s, err := etcdkv.Open(t.Context(), options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if n := listening(t); n != before {
		t.Errorf("%d listening sockets, %d before", n, before)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, running)
}
