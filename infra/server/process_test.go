package server

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A process that ends before it serves gives its code and its last words, and
// not those of the start before.
func TestStartTellsWhyItEnded(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("an older start\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Binary: "/bin/sh", Args: []string{"-c", "echo the disk is gone; exit 74"}, Address: unused(t), Log: log})
	var exited *ExitedError
	if !errors.As(err, &exited) || exited.Code != 74 || exited.Output != "the disk is gone" {
		t.Errorf("got %v", err)
	}
}

func TestStartIsReadyOnlyWhenServing(t *testing.T) {
	states := make(chan string, 2)
	states <- `{"status":"NOT_SERVING"}`
	states <- `{"status":"SERVING"}`
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(<-states))
	}))
	defer health.Close()
	p, err := Start(t.Context(), Options{Binary: "/bin/sleep", Args: []string{"600"}, Address: strings.TrimPrefix(health.URL, "http://"), Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	if len(states) != 0 {
		t.Error("taken for serving too early")
	}
	p.Kill()
	p.Kill()
	select {
	case <-p.Done():
	default:
		t.Error("a killed process still runs")
	}
}

func TestStartGivesUp(t *testing.T) {
	_, err := Start(t.Context(), Options{Binary: "/bin/sleep", Args: []string{"600"}, Address: unused(t), Log: filepath.Join(t.TempDir(), "log"), Ready: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "does not serve") {
		t.Errorf("got %v", err)
	}
}

// unused is an address on which nothing listens.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
