package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	stream = "tour/log"
	first  = "first\nsecond\nthird\n"
	second = "live 1\nlive 2\n"
)

func (t *Tour) steps(ctx context.Context) error {
	for _, step := range []func(context.Context) error{t.create, t.appendAndRead, t.tail, t.tier, t.replay} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	say("More: bin/varve --help, README.md, and with curl:")
	fmt.Printf("  curl -d '{\"stream\":\"%s\",\"records\":[{\"value\":\"aGVsbG8=\"}]}' -H 'Content-Type: application/json' %s/varve.v1.StreamService/Append\n", stream, t.listen)
	return nil
}

func (t *Tour) create(ctx context.Context) error {
	say("A stream is as cheap as a file. (One of an earlier tour is deleted first: the new one starts empty.)")
	_ = t.command(ctx, nil, io.Discard, "stream", "delete", stream, "--yes").Run() // there is none the first time
	_, err := t.run(ctx, "", "stream", "create", stream)
	return err
}

func (t *Tour) appendAndRead(ctx context.Context) error {
	say("Lines go in through a pipe and come back as they were.")
	if _, err := t.run(ctx, first, "append", stream); err != nil {
		return err
	}
	return t.expect(ctx, first)
}

// tail shows a process that follows the stream while another one appends.
func (t *Tour) tail(ctx context.Context) error {
	say("One process follows while another one appends.")
	var seen bytes.Buffer
	tailing := t.command(ctx, nil, &seen, "tail", stream, "--from", "3", "--limit", "2")
	fmt.Printf("$ bin/varve tail %s --from 3 --limit 2 &\n", stream)
	if err := tailing.Start(); err != nil {
		return err
	}
	defer tailing.Process.Kill()
	if _, err := t.run(ctx, second, "append", stream); err != nil {
		return err
	}
	if err := tailing.Wait(); err != nil {
		return fmt.Errorf("varve tail: %w: %s", err, tailing.Stderr)
	}
	fmt.Print(indent(seen.String()))
	if seen.String() != second {
		return fmt.Errorf("the tail is %q, but %q was appended", &seen, second)
	}
	return nil
}

// tier waits until the records are in an object.
func (t *Tour) tier(ctx context.Context) error {
	say("The past moves to object storage: here a directory, elsewhere a bucket.")
	objects := filepath.Join(t.data, "objects")
	fmt.Printf("$ find %s -name '*.seg'\n", objects)
	for begin := time.Now(); time.Since(begin) < 30*time.Second; {
		if found := segments(objects); len(found) > 0 {
			fmt.Print(indent(strings.Join(found, "\n")))
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("no record has become an object within 30 s: see %s", t.log())
}

// segments lists the sealed objects of the tour's stream.
func segments(objects string) []string {
	var found []string
	_ = filepath.WalkDir(objects, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".seg") && strings.Contains(path, "/"+stream+"/") {
			found = append(found, path)
		}
		return nil // what went away meanwhile is not there
	})
	return found
}

// replay kills the server and shows that nothing is missing.
func (t *Tour) replay(ctx context.Context) error {
	say("What was acknowledged survives: the server is killed and started again.")
	fmt.Printf("$ kill -9 %d; bin/varve dev\n", t.server.PID())
	t.server.Kill()
	if err := t.start(ctx); err != nil {
		return err
	}
	return t.expect(ctx, first+second)
}

// expect reads the stream from its start, and fails unless it holds just that.
func (t *Tour) expect(ctx context.Context, text string) error {
	got, err := t.run(ctx, "", "read", stream, "--from", "start")
	if err == nil && got != text {
		err = fmt.Errorf("the stream holds %q, but %q was appended", got, text)
	}
	return err
}

func say(text string) { fmt.Printf("\n%s\n", text) }

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// run shows a command and what it prints, and returns that.
func (t *Tour) run(ctx context.Context, stdin string, args ...string) (string, error) {
	shown := "$ bin/varve " + strings.Join(args, " ")
	if stdin != "" {
		shown = fmt.Sprintf("$ printf %q | bin/varve %s", stdin, strings.Join(args, " "))
	}
	fmt.Println(shown)
	var out bytes.Buffer
	command := t.command(ctx, strings.NewReader(stdin), &out, args...)
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("varve %s: %w: %s", strings.Join(args, " "), err, command.Stderr)
	}
	if out.Len() > 0 {
		fmt.Print(indent(out.String()))
	}
	return out.String(), nil
}

func (t *Tour) command(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, t.binary, args...)
	command.Env = append(os.Environ(), "VARVE_SERVER="+t.listen)
	command.Stdin, command.Stdout, command.Stderr = stdin, stdout, new(bytes.Buffer)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return command
}
