package minio

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Options says how a server runs.
type Options struct {
	// Dir holds the server's objects. It is made if missing. Required.
	Dir string
	// Port is the TCP port on 127.0.0.1; 0 takes a free one and keeps it over
	// restarts.
	Port int
	// AccessKey and SecretKey are the root credentials, at least 3 and 8 bytes;
	// random ones when empty.
	AccessKey, SecretKey string
	// Binary is the server to run; [Install]'s when empty.
	Binary string
	// Log is a file that the server's output is appended to. When empty, the last
	// few KiB are kept in memory for error messages.
	Log string
	// Detached lets the server outlive this process, which then has to end it by
	// its PID. It needs Log. Otherwise (on Linux) the server ends with this process, even
	// when that is killed.
	Detached bool
	// ReadyWithin bounds the wait for the server to answer; 60 s when zero.
	ReadyWithin time.Duration
}

func (o Options) withDefaults(ctx context.Context) (Options, error) {
	if o.Dir == "" {
		return o, errors.New("start MinIO: no directory given")
	}
	if o.Detached && o.Log == "" {
		return o, errors.New("start MinIO detached: no log file given")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("start MinIO in %s: %w", o.Dir, err)
	}
	o.Dir = dir
	if o.Binary == "" {
		if o.Binary, err = Install(ctx); err != nil {
			return o, err
		}
	}
	if o.AccessKey == "" {
		o.AccessKey = "varve" + randomHex(6)
	}
	if o.SecretKey == "" {
		o.SecretKey = randomHex(20)
	}
	if o.ReadyWithin == 0 {
		o.ReadyWithin = 60 * time.Second
	}
	return o, nil
}

func randomHex(n int) string {
	p := make([]byte, n)
	rand.Read(p) // never fails
	return hex.EncodeToString(p)
}

// Server is a MinIO process, running or not.
type Server struct {
	opts Options
	port int

	mu   sync.Mutex
	proc *process // nil when not running
}

type process struct {
	cmd  *exec.Cmd
	log  *tailBuffer
	file *os.File
	done chan struct{} // closed when the process has ended
	err  error         // set before done is closed
}

// Start runs a server and returns when it answers. ctx bounds the start (and an
// installation that comes before it), not the server's life: end it with Stop or
// Kill.
func Start(ctx context.Context, opts Options) (*Server, error) {
	opts, err := opts.withDefaults(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts, port: opts.Port}
	// Another process may take a free port between its choice and the server's
	// listening, so a chosen one is given a few tries.
	tries := 1
	if opts.Port == 0 {
		tries = 5
	}
	for range tries {
		if opts.Port == 0 {
			if s.port, err = freePort(); err != nil {
				return nil, err
			}
		}
		if err = s.Restart(ctx); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port for MinIO: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Restart runs the server again on the same port with the same data, after Stop
// or Kill, and returns when it answers.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil && !s.proc.ended() {
		return fmt.Errorf("start MinIO on port %d: it runs already; stop it first", s.port)
	}
	p, err := s.spawn()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadyWithin)
	defer cancel()
	if err := s.ready(ctx, p); err != nil {
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("start MinIO on port %d in %s: %w; its last output: %s", s.port, s.opts.Dir, err, s.output(p))
	}
	s.proc = p
	return nil
}

func (s *Server) spawn() (*process, error) {
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make MinIO's directory: %w", err)
	}
	p := &process{log: &tailBuffer{}, done: make(chan struct{})}
	p.cmd = exec.Command(s.opts.Binary, "server", "--quiet", "--address", s.addr(), "--console-address", "127.0.0.1:0", s.opts.Dir)
	p.cmd.Env = append(environment(),
		"MINIO_ROOT_USER="+s.opts.AccessKey, "MINIO_ROOT_PASSWORD="+s.opts.SecretKey,
		"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CI_CD=on", "HOME="+s.opts.Dir)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if s.opts.Log != "" {
		f, err := os.OpenFile(s.opts.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open MinIO's log: %w", err)
		}
		p.file, p.cmd.Stdout, p.cmd.Stderr = f, f, f
	}
	p.cmd.SysProcAttr = procAttr(s.opts.Detached)
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("run %s: %w", s.opts.Binary, err)
	}
	return p, nil
}

// environment is the caller's without what would change MinIO's ways.
func environment() []string {
	var out []string
	for _, name := range []string{"PATH", "TMPDIR", "LANG", "TZ"} {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// ready waits until the server takes requests that touch its disk.
func (s *Server) ready(ctx context.Context, p *process) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint()+"/minio/health/ready", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			// Another server may have taken the port: ours has ended then.
			if resp.StatusCode == http.StatusOK && !p.ended() {
				if err := s.probe(ctx); err == nil {
					return nil
				}
			}
		}
		select {
		case <-p.done:
			return fmt.Errorf("the server ended at once: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", context.Cause(ctx))
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// Stop ends the server in order and waits for it; when ctx ends first, the
// server is killed. Stopping one that does not run does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.proc
	if p == nil {
		return nil
	}
	s.proc = nil
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("stop MinIO on port %d: it had to be killed: %w", s.port, context.Cause(ctx))
	}
}

// Kill ends the server at once, as a crash would, and waits for the process.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.signal(syscall.SIGKILL)
		<-s.proc.done
		s.proc = nil
	}
}

// Pause freezes the process: connections are taken and nothing answers. Resume
// ends that.
func (s *Server) Pause() { s.send(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() { s.send(syscall.SIGCONT) }

func (s *Server) send(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.signal(sig)
	}
}

// PID is the process's id, or 0 when it does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.ended() {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// output is where a process's last words are.
func (s *Server) output(p *process) string {
	if s.opts.Log != "" {
		return "see " + s.opts.Log
	}
	return p.log.String()
}

func (s *Server) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Endpoint is the server's URL, http://127.0.0.1:port.
func (s *Server) Endpoint() string { return "http://" + s.addr() }

// Port is the server's port.
func (s *Server) Port() int { return s.port }

// AccessKey is the root user's name.
func (s *Server) AccessKey() string { return s.opts.AccessKey }

// SecretKey is the root user's password.
func (s *Server) SecretKey() string { return s.opts.SecretKey }

// Dir is where the objects lie.
func (s *Server) Dir() string { return s.opts.Dir }

// URL is the form in which Varve's configuration names a bucket of this server;
// prefix may be empty. Credentials are not in it.
func (s *Server) URL(bucket, prefix string) string {
	u := url.URL{Scheme: "s3", Host: bucket, RawQuery: url.Values{
		"endpoint": {s.Endpoint()}, "region": {Region}, "path-style": {"true"}}.Encode()}
	if prefix != "" {
		u.Path = "/" + prefix
	}
	return u.String()
}

// start runs the process from the thread that then waits for it: see procAttr.
func (p *process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			if p.err = p.cmd.Wait(); p.err == nil {
				p.err = errors.New("exit status 0")
			}
		}
		if p.file != nil {
			p.file.Close()
		}
		close(p.done)
	}()
	return <-started
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) } // an ended process has nothing to hear

// tailBuffer keeps the last few KiB written to it.
type tailBuffer struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4 << 10

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > tailSize {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailSize:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}
