package run

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load parses args, then environment and file as a program does.
func load(t *testing.T, file string, env map[string]string, args ...string) (Config, error) {
	t.Helper()
	var c Config
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.Bind(flags)
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "varve.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	if err := Load(flags, lookup, path); err != nil {
		return c, err
	}
	return c, c.Validate()
}

func TestPrecedence(t *testing.T) {
	file := "wal-budget: 512MiB\nlisten: 127.0.0.1:1\nbroker: from-file\nfsync-interval: 1s\n"
	env := map[string]string{"VARVE_LISTEN": "127.0.0.1:2", "VARVE_BROKER": "from-env"}
	c, err := load(t, file, env, "--broker=from-flag")
	if err != nil {
		t.Fatal(err)
	}
	if c.Broker != "from-flag" || c.Listen != "127.0.0.1:2" || c.WALBudget != 512<<20 || c.FsyncInterval != time.Second || c.Fsync != "commit" {
		t.Errorf("flag, environment, file, default in this order: %+v", c)
	}
}

// Every flag can be set in the file and by the environment, to what its default is.
func TestEveryFlagHasKeyAndVariable(t *testing.T) {
	var c Config
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.Bind(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		value := f.DefValue
		if value == "" {
			value = map[string]string{"objects": "dir:///bucket"}[f.Name]
		}
		if value == "" {
			value = "127.0.0.1:1"
		}
		if _, err := load(t, f.Name+": "+value+"\n", nil); err != nil {
			t.Errorf("in the file: %v", err)
		}
		if _, err := load(t, "", map[string]string{EnvName(f.Name): value}); err != nil {
			t.Errorf("in the environment: %v", err)
		}
		if _, err := load(t, "", map[string]string{EnvName(f.Name): "\x00"}); err == nil && f.Value.Type() != "string" {
			t.Errorf("%s is not read", EnvName(f.Name))
		}
	})
}

func TestMistakesNameTheirPlace(t *testing.T) {
	for _, c := range []struct {
		file string
		env  string
		args []string
		want []string
	}{
		{file: "listen: 127.0.0.1:1\n\nwal-bugdet: 1GiB\n", want: []string{"varve.yaml:3", `"wal-bugdet"`, `did you mean "wal-budget"`}},
		{file: "config: other.yaml\n", want: []string{"varve.yaml:1", "unknown key"}},
		{file: "data: a\ndata: b\n", want: []string{"varve.yaml:2", "line 1 already"}},
		{file: "wal-budget: much\n", want: []string{"varve.yaml:1", `"much" is not a size`}},
		{file: "data:\n", want: []string{"varve.yaml:1", "missing"}},
		{file: "data: {a: b}\n", want: []string{"varve.yaml:1", "plain value"}},
		{file: "- data\n", want: []string{"varve.yaml:1", "key: value"}},
		{file: "data: a\n---\ndata: b\n", want: []string{"varve.yaml", "more than one document"}},
		{file: "data: [\n", want: []string{"varve.yaml", "line"}},
		{env: "x", want: []string{"VARVE_WAL_BUDGET", `"x" is not a size`}},
		{env: "-1", want: []string{"VARVE_WAL_BUDGET"}},
		{args: []string{"--listen=0.0.0.0:4400"}, want: []string{"--listen", "--insecure"}},
		{args: []string{"--listen=:4400"}, want: []string{"--listen", "--insecure"}},
		{args: []string{"--admin-listen=10.0.0.1:1"}, want: []string{"--admin-listen", "--insecure"}},
		{args: []string{"--listen=4400"}, want: []string{"HOST:PORT"}},
		{args: []string{"--fsync=never"}, want: []string{"--fsync", "periodic"}},
		{args: []string{"--wal-budget=1MiB"}, want: []string{"--wal-budget", "at least 64MiB"}},
		{args: []string{"--segment-age=-1s"}, want: []string{"--segment-age", "above 0"}},
		{args: []string{"--broker=Hello"}, want: []string{"--broker"}},
	} {
		env := map[string]string{}
		if c.env != "" {
			env["VARVE_WAL_BUDGET"] = c.env
		}
		_, err := load(t, c.file, env, c.args...)
		var usage *UsageError
		if !errors.As(err, &usage) {
			t.Errorf("%q %q %v: error is %v, want a usage error", c.file, c.env, c.args, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q %q %v: %q does not say %q", c.file, c.env, c.args, err, want)
			}
		}
	}
}

func TestInsecureIsTheWordForOtherAddresses(t *testing.T) {
	for _, args := range [][]string{{"--listen=0.0.0.0:1", "--insecure"}, {"--listen=[::1]:1"}, {"--listen=localhost:0"}} {
		if _, err := load(t, "", nil, args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"4096": 4096, "64KiB": 64 << 10, "1 GiB": 1 << 30, "1MB": 1000000, "256MiB": 256 << 20} {
		var b, again Bytes
		if err := b.Set(text); err != nil || b != want {
			t.Errorf("%q: %d, %v; want %d", text, b, err, want)
		}
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%q does not read back: %d, %v", b, again, err)
		}
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	logger, err := Logger(&out, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	logger.Info("quiet")
	logger.Warn("loud", "shard", 3)
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"shard":3`) {
		t.Errorf("logged %q", got)
	}
	if _, err := Logger(&out, "loud", "json"); err == nil {
		t.Error("an unknown level is accepted")
	}
	if _, err := Logger(&out, "info", "xml"); err == nil {
		t.Error("an unknown format is accepted")
	}
}

func TestRegistriesAreIndependent(t *testing.T) {
	for range 2 { // a global one would panic the second time
		if families, err := Registry().Gather(); err != nil || len(families) == 0 {
			t.Errorf("%d families, %v", len(families), err)
		}
	}
}
