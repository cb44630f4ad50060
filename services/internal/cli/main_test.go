package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait; only a failing test comes near it.
const patience = 30 * time.Second

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "varve-cli-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "varve")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/varve-io/varve/services/varve").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%s\n", out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

// varve runs a command to its end.
func varve(t testing.TB, server, input string, args ...string) result {
	t.Helper()
	return from(t, server, strings.NewReader(input), args...)
}

func from(t testing.TB, server string, in io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "VARVE_SERVER="+server)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("varve %v: %v", args, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("varve %v hangs: %s", args, errs.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// good is varve that must succeed; it returns standard output.
func good(t testing.TB, server, input string, args ...string) string {
	t.Helper()
	r := varve(t, server, input, args...)
	if r.code != 0 {
		t.Fatalf("varve %v: exit code %d: %s", args, r.code, r.err)
	}
	return r.out
}

// process is a command that runs on.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	err  lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func begin(t testing.TB, server string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), "VARVE_SERVER="+server), env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	p.out, p.cmd.Stderr = bufio.NewReader(out), &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// line waits for the next line of standard output.
func (p *process) line() string {
	p.t.Helper()
	type read struct {
		s   string
		err error
	}
	got := make(chan read, 1)
	go func() {
		s, err := p.out.ReadString('\n')
		got <- read{s, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			p.t.Fatalf("%v: %v: %s", p.cmd.Args, r.err, p.err.String())
		}
		return strings.TrimSuffix(r.s, "\n")
	case <-time.After(patience):
		p.t.Fatalf("%v: no line comes: %s", p.cmd.Args, p.err.String())
		return ""
	}
}

// end waits for the end and returns the exit code.
func (p *process) end() int {
	p.t.Helper()
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("%v does not end: %s", p.cmd.Args, p.err.String())
		return 0
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// server is a running varve dev.
type server struct {
	*process
	address string
}

// dev starts a server on a free port and waits until it is ready.
func dev(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{process: begin(t, "", nil, append([]string{"dev", "--listen", "127.0.0.1:0", "--wal-budget", "64MiB"}, args...)...)}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, rest, ok := strings.Cut(s.err.String(), "varve is ready at "); ok {
			if a, _, ok := strings.Cut(rest, ";"); ok {
				s.address = a
				return s
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the server does not get ready: %s", s.err.String())
		}
	}
}

// stop ends a server with SIGTERM and checks that it was clean.
func (s *server) stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	if code := s.end(); code != 0 {
		s.t.Fatalf("exit code %d: %s", code, s.err.String())
	}
}
