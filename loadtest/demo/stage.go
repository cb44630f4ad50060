package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/varve-io/varve/infra/minio"
	"github.com/varve-io/varve/infra/server"
	"github.com/varve-io/varve/loadtest/report"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/sdk/proto/varve/v1/varvev1connect"
)

const (
	config    = "infra/stack/varve.yaml"
	bucket    = "varve"
	prefix    = "demo"
	namespace = "demo"
)

// A Stage is what one run of the demonstration happens on: the binary, MinIO,
// a server on it, and what was found so far.
type Stage struct {
	out    io.Writer
	table  report.Table
	scale  float64
	random *rand.Rand
	corpus *Corpus

	dir     string
	binary  string
	address string
	budget  int64
	store   *minio.Server
	streams varvev1connect.StreamServiceClient
	meter   DiskMeter
	metered sync.WaitGroup

	mu     sync.Mutex
	server *server.Process // the one that runs now; replaced by a restart

	boundary boundary // where time and line are known together
}

// boundary is a moment before which exactly the lines below line were stored.
type boundary struct {
	line int64
	at   time.Time
}

// NewStage brings up MinIO and the server, of a binary that it builds when none
// is given. The meter runs until ctx ends.
func NewStage(ctx context.Context, dir, binary string, scale float64, seed uint64, out io.Writer) (*Stage, error) {
	s := &Stage{out: out, scale: scale, dir: dir, binary: binary, random: rand.New(rand.NewPCG(seed, 0)), budget: max(int64(256*scale), 64) << 20}
	var err error
	if s.binary == "" {
		s.say("building varve")
		if s.binary, err = server.Build(ctx, dir); err != nil {
			return nil, err
		}
	}
	if s.address, err = freeAddress(); err != nil {
		return nil, err
	}
	s.streams = streamsAt(s.address)
	s.say("starting MinIO and the server, with a log of at most %d MiB", s.budget>>20)
	if s.store, err = minio.Start(ctx, minio.Options{Dir: filepath.Join(dir, "minio")}); err != nil {
		return nil, err
	}
	if err := s.store.MakeBucket(ctx, bucket); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := os.MkdirAll(s.data(), 0o700); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.metered.Go(func() { s.meter.Run(ctx, filepath.Join(s.data(), "wal"), 100*time.Millisecond) })
	return s, nil
}

// Close ends the server and MinIO. The directory stays.
func (s *Stage) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if p := s.process(); p != nil {
		err = p.Stop(ctx)
	}
	s.metered.Wait()
	return errors.Join(err, s.store.Stop(ctx))
}

func (s *Stage) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *Stage) data() string { return filepath.Join(s.dir, "data") }

// scaled shrinks a full-size figure, to no less than least.
func (s *Stage) scaled(full, least int64) int64 { return max(int64(float64(full)*s.scale), least) }

// start runs the server on the stage's data, and keeps it as the current one.
func (s *Stage) start(ctx context.Context) error {
	p, err := server.Start(ctx, server.Options{
		Binary: s.binary,
		Args: []string{
			"server", "--config", config, "--data", s.data(), "--listen", s.address, "--objects", s.store.URL(bucket, prefix),
			"--wal-budget", fmt.Sprint(s.budget), "--segment-size", fmt.Sprint(s.budget / 16),
		},
		Env:     s.credentials(),
		Address: s.address,
		Log:     filepath.Join(s.dir, "server.log"),
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.server = p
	s.mu.Unlock()
	return nil
}

func (s *Stage) process() *server.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

func (s *Stage) credentials() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.store.AccessKey(), "AWS_SECRET_ACCESS_KEY=" + s.store.SecretKey()}
}

// tail is the next offset of a stream, which is the number of its lines.
func (s *Stage) tail(ctx context.Context, stream string) (int64, error) {
	return tailOf(ctx, s.streams, stream)
}

func streamsAt(address string) varvev1connect.StreamServiceClient {
	return varvev1connect.NewStreamServiceClient(http.DefaultClient, "http://"+address)
}

func tailOf(ctx context.Context, streams varvev1connect.StreamServiceClient, stream string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ends, err := streams.CheckTail(ctx, &varvev1.CheckTailRequest{Stream: stream})
	if err != nil {
		return 0, err
	}
	return int64(ends.GetTail()), nil
}

// A Command is a running varve command of a user.
type Command struct {
	*exec.Cmd
	name   string
	stderr bytes.Buffer
}

// command prepares a varve command against the stage's server.
func (s *Stage) command(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) *Command {
	return newCommand(ctx, s.binary, s.address, stdin, stdout, args...)
}

func newCommand(ctx context.Context, binary, address string, stdin io.Reader, stdout io.Writer, args ...string) *Command {
	c := &Command{Cmd: exec.CommandContext(ctx, binary, args...), name: "varve " + strings.Join(args, " ")}
	c.Env = append(os.Environ(), "VARVE_SERVER="+address)
	c.Stdin, c.Stdout, c.Stderr = stdin, stdout, &c.stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// finish waits for a command; the error holds what it said.
func (c *Command) finish() error {
	if err := c.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.name, err, bytes.TrimSpace(c.stderr.Bytes()))
	}
	return nil
}

func (c *Command) run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.finish()
}

// varve runs a varve command to its end.
func (s *Stage) varve(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
	return s.command(ctx, stdin, stdout, args...).run()
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
