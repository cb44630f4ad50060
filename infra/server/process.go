package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Options says what to run.
type Options struct {
	Binary   string   // of varve
	Args     []string // "server", "--config", ...
	Env      []string // added to this process's environment
	Address  string   // HOST:PORT that it will serve on
	Log      string   // file that its output is appended to; required
	Detached bool     // it outlives this process
	Ready    time.Duration
}

// Process is a running, or ended, varve.
type Process struct {
	options Options
	command *exec.Cmd
	done    chan struct{}
	err     error // of Wait; read after done is closed
}

// Start runs the process and returns when it serves. ctx bounds the start, not
// the process's life. When it ends before it serves, the error is an
// [ExitedError] with its last words.
func Start(ctx context.Context, o Options) (*Process, error) {
	if o.Ready == 0 {
		o.Ready = time.Minute
	}
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open varve's log: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("open varve's log: %w", err)
	}
	p := &Process{options: o, command: exec.Command(o.Binary, o.Args...), done: make(chan struct{})}
	p.command.Env = append(os.Environ(), o.Env...)
	p.command.Stdout, p.command.Stderr = log, log
	// A group of its own, so that Ctrl-C in a terminal reaches only the caller.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("run %s: %w", o.Binary, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.done)
	}()
	ctx, cancel := context.WithTimeout(ctx, o.Ready)
	defer cancel()
	if err := p.ready(ctx, before); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// ready asks for the health service's word until it says SERVING.
func (p *Process) ready(ctx context.Context, logStart int64) error {
	for {
		if healthy(ctx, p.options.Address) {
			return nil
		}
		select {
		case <-p.done:
			return &ExitedError{Code: p.command.ProcessState.ExitCode(), Signal: signalOf(p.command.ProcessState), Output: lastWords(p.options.Log, logStart)}
		case <-ctx.Done():
			return fmt.Errorf("varve does not serve on %s: %w; its last words: %s", p.options.Address, ctx.Err(), lastWords(p.options.Log, logStart))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func healthy(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/grpc.health.v1.Health/Check", strings.NewReader("{}"))
	if err != nil {
		return false
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	return err == nil && response.StatusCode == http.StatusOK && bytes.Contains(body, []byte("SERVING")) && !bytes.Contains(body, []byte("NOT_SERVING"))
}

// ExitedError is a process that ended before it served.
type ExitedError struct {
	Code   int            // -1 when a signal ended it
	Signal syscall.Signal // 0 when none did
	Output string         // what it wrote, at most the last 16 KiB
}

func (e *ExitedError) Error() string {
	return fmt.Sprintf("varve ended with code %d before it served: %s", e.Code, e.Output)
}

func signalOf(s *os.ProcessState) syscall.Signal {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return w.Signal()
	}
	return 0
}

// lastWords is the end of what was written to the log from offset on.
func lastWords(path string, offset int64) string {
	data, err := os.ReadFile(path)
	if err != nil || offset > int64(len(data)) {
		return ""
	}
	data = data[offset:]
	if len(data) > 16<<10 {
		data = data[len(data)-16<<10:]
	}
	return string(bytes.TrimSpace(data))
}

// PID is the process's id.
func (p *Process) PID() int { return p.command.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process as a crash would, and waits for it. A second call does
// nothing.
func (p *Process) Kill() {
	_ = p.command.Process.Kill() // an ended process has nothing to hear
	<-p.done
}

// Stop asks the process to end in order and waits. The error is its exit code,
// or ctx's end, after which it was killed.
func (p *Process) Stop(ctx context.Context) error {
	_ = p.command.Process.Signal(syscall.SIGTERM) // as above
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("varve did not end in order and was killed: %w", ctx.Err())
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return fmt.Errorf("varve ended with %w", exit)
	}
	return p.err
}
