package tiering

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/varve-io/varve/infra/minio"
)

// real is the varve binary with its server and MinIO, as processes of their own.
type real struct {
	t       *testing.T
	ctx     context.Context
	binary  string
	address string
	url     string
	data    string
	server  *exec.Cmd
	log     bytes.Buffer // of the server that runs; read after it ended
	ended   chan struct{}
}

func (r *real) start() {
	r.t.Helper()
	r.server, r.ended = exec.Command(r.binary, "server", "--listen", r.address, "--data", r.data, "--objects", r.url,
		"--segment-age", "1s", "--sweep-interval", "100ms", "--sweep-grace", "1ms", "--wal-budget", "64MiB"), make(chan struct{})
	r.log.Reset()
	r.server.Stdout, r.server.Stderr = &r.log, &r.log
	if err := r.server.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func(server *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = server.Wait()
	}(r.server, r.ended)
	r.until("the server is ready", func() bool {
		resp, err := http.Get("http://" + r.address + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (r *real) kill() {
	_ = r.server.Process.Kill()
	<-r.ended
}

// until polls for what other processes do; it fails when ctx or the server ends.
func (r *real) until(what string, ok func() bool) {
	r.t.Helper()
	for !ok() {
		select {
		case <-time.After(50 * time.Millisecond):
			continue
		case <-r.ended:
		case <-r.ctx.Done():
			r.kill()
		}
		r.t.Fatalf("never: %s\n%s", what, r.log.String())
	}
}

func (r *real) run(stdin string, args ...string) string {
	r.t.Helper()
	c := exec.CommandContext(r.ctx, r.binary, append(args, "--server", r.address)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		r.t.Fatalf("varve %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func lines(stream string, from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%s record %d %s\n", stream, i, strings.Repeat("x", i%400))
	}
	return b.String()
}

// Rows: T1, T7, N5
// What a real server leaves in a real bucket, over kills, trims, a delete and a
// recreate: a client and a checker that share nothing with the Store find every
// manifest true to the last byte, nothing that no manifest names once the sweeps are
// through, and nothing of the deleted incarnation. All that was acknowledged reads.
func TestT1_ARealServersBucketUnderAudit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	dir := t.TempDir()
	store, err := minio.Start(ctx, minio.Options{Dir: filepath.Join(dir, "minio")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Kill)
	if err := store.MakeBucket(ctx, "varve"); err != nil {
		t.Fatal(err)
	}
	client, err := store.Client()
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &real{t: t, ctx: ctx, binary: filepath.Join(dir, "varve"), address: free.Addr().String(), url: store.URL("varve", "p"), data: filepath.Join(dir, "data")}
	free.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", store.AccessKey())
	t.Setenv("AWS_SECRET_ACCESS_KEY", store.SecretKey())
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", r.binary, "../services/varve").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	r.start()
	defer func() { r.kill() }()
	r.run("", "namespace", "create", "logs")
	streams := []string{"logs/a", "logs/a/b", "logs/gone"}
	for _, s := range streams {
		r.run("", "stream", "create", s, "--shards", "1")
	}
	const rounds, each = 8, 120
	for i := range rounds {
		for _, s := range streams {
			r.run(lines(s, i*each, (i+1)*each), "append", s, "--ack", "archive")
		}
		switch i {
		case 2, 5:
			r.kill() // mid-sweep, or whatever it does
			r.start()
		case 3:
			r.run("", "trim", "logs/a", fmt.Sprint(each+each/2))
		case 6:
			r.run("", "stream", "delete", "logs/gone", "--yes")
			r.run("", "stream", "create", "logs/gone", "--shards", "1")
			r.run(lines("logs/gone", 0, (i+1)*each), "append", "logs/gone", "--ack", "archive")
		}
	}
	for _, s := range streams {
		first := 0
		if s == "logs/a" {
			first = each + each/2
		}
		if got := r.run("", "read", s, "--from", "start"); got != lines(s, first, rounds*each) {
			t.Errorf("%s: %d bytes read, want %d", s, len(got), len(lines(s, first, rounds*each)))
		}
	}
	var a *audit
	r.until("a bucket without garbage", func() bool {
		objects, err := download(ctx, client, "varve", "p/")
		if err != nil {
			t.Fatal(err)
		}
		if a = newAudit(objects); len(a.faults) > 0 { // at any moment
			t.Fatalf("%q", a.faults)
		}
		return len(a.unnamed()) == 0
	})
	incarnations := make(map[string]bool)
	for key := range a.named {
		if k, err := ParseSegmentKey(key); err == nil {
			incarnations[fmt.Sprint(k.Shard)] = true
		}
	}
	if len(incarnations) != len(streams) || len(a.named) < 3*(2+rounds/2) {
		t.Fatalf("%v, %d objects", incarnations, len(a.named))
	}
}
