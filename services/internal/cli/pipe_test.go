package cli_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Lines in, the same lines out; what an empty line, a last line without an end, and
// a very long one are.
func TestLines(t *testing.T) {
	s := dev(t, "--ephemeral")
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct{ in, out string }{
		"nothing":     {"", ""},
		"one":         {"a\n", "a\n"},
		"no end":      {"a\nb", "a\nb\n"},
		"empty lines": {"\n\na\n\n", "\n\na\n\n"},
		"only an end": {"\n", "\n"},
		"bytes":       {"\x00\xff\r\n", "\x00\xff\r\n"},
		"long":        {long + "\nshort\n", long + "\nshort\n"},
	} {
		stream := "lines/" + strings.ReplaceAll(name, " ", "-")
		good(t, s.address, c.in, "append", stream)
		if c.in == "" {
			continue // nothing was appended, so there is no stream
		}
		if got := good(t, s.address, "", "read", stream); got != c.out {
			t.Errorf("%s: %.60q (%d bytes), want %.60q", name, got, len(got), c.out)
		}
	}
	for name, in := range map[string]string{"longer than any record": strings.Repeat("x", 6<<20) + "\n", "longer than this stream's": strings.Repeat("x", 1<<20+1) + "\n"} {
		if r := varve(t, s.address, "before\n"+in, "append", "lines/refused"); r.code == 0 || !strings.Contains(r.err, "byte") {
			t.Errorf("%s: exit code %d: %s", name, r.code, r.err)
		}
	}
	if got := good(t, s.address, "", "read", "lines/refused"); got != "before\nbefore\n" {
		t.Errorf("what came before a bad line: %.60q", got)
	}
}

// JSON out of one stream and into another changes nothing.
func TestJSONRoundTrip(t *testing.T) {
	s := dev(t, "--ephemeral")
	in := `{}
{"key":"","value":""}
{"key":"a2V5","value":"AP8=","headers":[{"key":"h"},{"key":"h","value":""},{"key":"h","value":"dg=="}],"createTime":"2001-02-03T04:05:06.789Z"}
`
	good(t, s.address, in, "append", "j/one", "--format", "json")
	first := good(t, s.address, "", "read", "j/one", "--json")
	good(t, s.address, first, "append", "j/two", "--format", "json")
	second := good(t, s.address, "", "read", "j/two", "--format", "json")
	strip := func(text string) (out []map[string]any) {
		for line := range strings.Lines(text) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			delete(m, "appendTime")
			out = append(out, m)
		}
		return out
	}
	a, b := strip(first), strip(second)
	if len(a) != 3 || len(b) != 3 {
		t.Fatalf("%s\n%s", first, second)
	}
	for i := range a {
		x, _ := json.Marshal(a[i])
		y, _ := json.Marshal(b[i])
		if string(x) != string(y) {
			t.Errorf("%s became %s", x, y)
		}
	}
	if _, ok := a[0]["value"]; ok {
		t.Errorf("null became a value: %v", a[0])
	}
	if v, ok := a[1]["key"]; !ok || v != "" {
		t.Errorf("an empty key became %v", a[1])
	}
	if r := varve(t, s.address, "{}\n{\"valeu\":1}\n", "append", "j/one", "--format", "json"); r.code != 1 || !strings.Contains(r.err, "line 2 of the input") || !strings.Contains(r.err, "valeu") {
		t.Errorf("%+v", r)
	}
	raw := "a\nb\x00"
	good(t, s.address, raw, "append", "j/raw", "--format", "raw", "--key", "k", "--header", "a=b", "--header", "a=")
	if got := good(t, s.address, "", "read", "j/raw", "--format", "raw"); got != raw {
		t.Errorf("%q", got)
	}
	if got := good(t, s.address, "", "read", "j/raw", "--json"); !strings.Contains(got, `"headers":[{"key":"a","value":"Yg=="},{"key":"a","value":""}]`) || !strings.Contains(got, `"key":"aw=="`) {
		t.Errorf("%s", got)
	}
}

// A reader of a pipe that goes away ends the command, without noise.
func TestReadIntoClosedPipe(t *testing.T) {
	s := dev(t, "--ephemeral")
	good(t, s.address, strings.Repeat("a line of some length\n", 100_000), "append", "p/s")
	p := begin(t, s.address, nil, "read", "p/s")
	if got := p.line(); got != "a line of some length" {
		t.Fatalf("%q", got)
	}
	if c, ok := p.cmd.Stdout.(io.Closer); ok {
		_ = c.Close()
	}
	out, err := exec.Command("sh", "-c", "VARVE_SERVER="+s.address+" "+binary+" read p/s | head -n 1; VARVE_SERVER="+s.address+" "+binary+" tail p/s --from start | head -n 2 | wc -l").CombinedOutput()
	if err != nil || strings.Join(strings.Fields(string(out)), " ") != "a line of some length 2" {
		t.Errorf("%q %v", out, err)
	}
}

// What is appended shows up in a tail's pipe at once, and a signal ends it cleanly.
func TestTailAndSignals(t *testing.T) {
	s := dev(t, "--ephemeral")
	good(t, s.address, "old\n", "append", "t/s")
	p := begin(t, s.address, nil, "tail", "t/s", "--from", "-1")
	if got := p.line(); got != "old" {
		t.Fatalf("%q", got)
	}
	in := begin(t, s.address, nil, "append", "t/s")
	for _, line := range []string{"one", "two"} {
		if _, err := io.WriteString(in.in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if got := p.line(); got != line {
			t.Fatalf("%q, want %q", got, line)
		}
	}
	in.signal(syscall.SIGTERM) // while it waits for input
	if code := in.end(); code != 0 {
		t.Errorf("append: exit code %d: %s", code, in.err.String())
	}
	p.signal(syscall.SIGINT)
	if code := p.end(); code != 0 || p.err.String() != "" {
		t.Errorf("tail: exit code %d: %s", code, p.err.String())
	}
}

// A stop by signal with records that nobody acknowledged is no success.
func TestAppendStoppedBeforeItsAnswers(t *testing.T) {
	p := begin(t, "127.0.0.1:1", nil, "append", "t/s")
	if _, err := io.WriteString(p.in, "lost\n"); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(p.err.String(), "trying on") { // it says why nothing happens
		if p.cmd.ProcessState != nil {
			t.Fatal(p.err.String())
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.end(); code != 1 || !strings.Contains(p.err.String(), "not acknowledged") {
		t.Errorf("exit code %d: %s", code, p.err.String())
	}
}

// Exit codes and messages of what users get wrong.
func TestMistakes(t *testing.T) {
	s := dev(t, "--ephemeral")
	good(t, s.address, "a\nb\n", "append", "m/s")
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{2, "no command", []string{"raed"}},
		{2, "varve read --help", []string{"read", "m/s", "--form", "start"}},
		{2, "did you mean \"stream\"", []string{"strem"}},
		{2, "accepts 1 arg", []string{"read"}},
		{2, "accepts 1 arg", []string{"append", "a/b", "c"}},
		{2, "say what to do", []string{"stream"}},
		{2, "no command", []string{"stream", "lits"}},
		{2, "--from", []string{"read", "m/s", "--from", "yesterday"}},
		{2, "--limit", []string{"read", "m/s", "--limit", "-1"}},
		{2, "--limit", []string{"read", "m/s", "--limit", "many"}},
		{2, "--format", []string{"read", "m/s", "--format", "xml"}},
		{2, "--until", []string{"read", "m/s", "--until", "noon"}},
		{2, "--header", []string{"append", "m/s", "--header", "novalue"}},
		{2, "--ack", []string{"append", "m/s", "--ack", "maybe"}},
		{2, "--yes", []string{"stream", "delete", "m/s"}},
		{2, "offset", []string{"trim", "m/s", "first"}},
		{2, "token", []string{"fence", "m/s"}},
		{2, "--timeout", []string{"stream", "list", "m", "--timeout", "-1s"}},
		{2, "holds no log", []string{"wal", "inspect", "."}},
		{2, "--objects", []string{"dev", "--objects", "ftp://x"}},
		{1, "inspect.go", []string{"segment", "inspect", "inspect.go"}},
		{1, "--clamp", []string{"read", "m/s", "--from", "99"}},
		{1, "line 1 of the input", []string{"append", "m/s", "--format", "json"}},
		{1, "create it first", []string{"stream", "list", "nothing"}},
		{1, "connection refused", []string{"stream", "list", "m", "--server", "127.0.0.1:1", "--timeout", "200ms"}},
		{2, "directory", []string{"wal", "inspect", "/nowhere"}},
		{2, "nowhere", []string{"segment", "inspect", "/nowhere"}},
		{1, "does not exist", []string{"read", "m/none"}},
		{1, "out of range", []string{"read", "m/s", "--from", "99"}},
		{1, "NAMESPACE/NAME", []string{"read", "m"}},
		{1, "", []string{"stream", "describe", "none/none"}},
		{1, "expected", []string{"append", "m/s", "--expected-offset", "7"}},
		{1, "hard", []string{"stream", "create", "m/many", "--shards", "65"}},
	} {
		r := varve(t, s.address, "x\n", c.args...)
		if r.code != c.code || !strings.Contains(r.err, c.says) || !strings.HasPrefix(r.err, "varve: ") {
			t.Errorf("varve %v: exit code %d, %q; want %d and %q", c.args, r.code, r.err, c.code, c.says)
		}
	}
	if got := good(t, s.address, "", "read", "m/s", "--limit", "0"); got != "" {
		t.Errorf("%q", got)
	}
	good(t, s.address, "c\nd\n", "append", "m/s", "--expected-offset", "2")
	if got := good(t, s.address, "", "read", "m/s", "--from", "1", "--limit", "2"); got != "b\nc\n" {
		t.Errorf("%q", got)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := good(t, "", "", "completion", shell); !strings.Contains(out, "varve") {
			t.Errorf("no completion for %s", shell)
		}
	}
	if out := good(t, "", ""); !strings.Contains(out, "Available Commands") {
		t.Errorf("%s", out)
	}
}

// Every command that prints something prints JSON when asked.
func TestJSONEverywhere(t *testing.T) {
	s := dev(t, "--ephemeral")
	for _, args := range [][]string{
		{"namespace", "create", "n"}, {"namespace", "update", "n", "--create-on-append"}, {"namespace", "list"}, {"namespace", "describe", "n"},
		{"stream", "create", "n/s", "--shards", "1"}, {"append", "n/s"}, {"append", "n/s", "--expected-offset", "1"},
		{"stream", "list", "n"}, {"stream", "describe", "n/s"}, {"stream", "update", "n/s", "--producers-max", "7"},
		{"read", "n/s"}, {"shard", "describe", "n/s"}, {"fence", "n/s", "token"}, {"fence", "n/s", "--clear"}, {"trim", "n/s", "1"},
		{"stream", "delete", "n/s", "--yes"}, {"namespace", "delete", "n"},
	} {
		out := good(t, s.address, "x\n", append(args, "--json")...)
		if out == "" {
			t.Errorf("%v prints nothing", args)
		}
		for line := range strings.Lines(out) {
			var v map[string]any
			if err := json.Unmarshal([]byte(line), &v); err != nil {
				t.Errorf("%v: %q: %v", args, line, err)
			}
		}
	}
}
