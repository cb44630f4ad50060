package cli

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/varve-io/varve/sdk"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/wal/vfs"
)

// config is a server's, on a free port, with everything else as usual.
func config(t *testing.T) *run.Config {
	t.Helper()
	var cfg run.Config
	cfg.Bind(pflag.NewFlagSet("test", pflag.PanicOnError))
	cfg.Data, cfg.Listen, cfg.WALBudget = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0", 64<<20
	return &cfg
}

// Whatever ends a server, at whatever step, nothing of it is left: no goroutine, no
// listener, no lock; the same directory starts again.
func TestServeLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	cfg := config(t)
	log := slog.New(slog.DiscardHandler)
	stopped := &run.SignalError{Signal: os.Interrupt}
	once := func(change func(*run.Config)) error {
		c := *cfg
		change(&c)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		return serve(ctx, &c, log, func(string) { cancel(stopped) })
	}
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*run.Config)
		fails  bool
	}{
		{"a clean stop", func(*run.Config) {}, false},
		{"no such bucket", func(c *run.Config) { c.Objects = "ftp://x/y" }, true},
		{"the bucket can't be opened", func(c *run.Config) { c.Objects = "dir://" + blocked }, true},
		{"another data directory's bucket", func(c *run.Config) {
			c.Objects = "dir://" + filepath.Join(cfg.Data, "objects")
			c.Data = filepath.Join(filepath.Dir(cfg.Data), "second")
		}, true},
		{"the data directory is a file", func(c *run.Config) { c.Data = blocked }, true},
		{"the log can't be opened", func(c *run.Config) { c.WALFileSize = 1000 }, true},
		{"the second address is taken", func(c *run.Config) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			c.Admin = l.Addr().String()
		}, true},
		{"a clean stop again", func(*run.Config) {}, false},
	} {
		if err := once(c.change); c.fails == (err == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A signal while it starts is no failure.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if err := serve(ctx, cfg, log, func(string) {}); run.ExitCode(err) != 0 {
		t.Errorf("a signal during the start: %v", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// A disk that fails under the log ends the server with the exit code that tells a
// supervisor to leave it down; what was acknowledged before is there at the next start.
func TestServeEndsWhenTheDiskFails(t *testing.T) {
	before := goleak.IgnoreCurrent()
	cfg := config(t)
	cfg.AutoCreate = true
	disk := vfs.NewFault(vfs.OS())
	n := &node{cfg: cfg, logger: slog.New(slog.DiscardHandler), registry: run.Registry(), disk: disk}
	address, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- n.run(t.Context(), func(a string) { address <- a }) }()
	var c *sdk.Client
	select {
	case a := <-address:
		var err error
		if c, err = sdk.Dial(a, sdk.Options{}); err != nil {
			t.Fatal(err)
		}
	case err := <-ended:
		t.Fatal(err)
	}
	one := []sdk.Record{{Value: []byte("x")}}
	if _, err := c.Append(t.Context(), "a/b", one, sdk.AppendOptions{}); err != nil {
		t.Fatal(err)
	}
	disk.Fail(vfs.Rule{Kind: vfs.OpSync, Count: -1})
	ctx, cancel := context.WithCancel(t.Context())
	appended := make(chan error, 1)
	go func() {
		_, err := c.Append(ctx, "a/b", one, sdk.AppendOptions{})
		appended <- err
	}()
	err := <-ended
	cancel()
	if run.ExitCode(err) != run.ExitStorage {
		t.Errorf("exit code %d: %v", run.ExitCode(err), err)
	}
	if err := <-appended; err == nil {
		t.Error("acknowledged without a disk")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	n = &node{cfg: cfg, logger: slog.New(slog.DiscardHandler), registry: run.Registry(), disk: vfs.OS()}
	stop, halt := context.WithCancelCause(t.Context())
	if err := n.run(stop, func(string) { halt(&run.SignalError{Signal: os.Interrupt}) }); err != nil {
		t.Errorf("the next start: %v", err)
	}
}
