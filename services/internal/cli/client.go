package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/varve-io/varve/sdk"
	"github.com/varve-io/varve/services/internal/run"
)

// defaultServer is where a server listens unless it is told otherwise.
const defaultServer = "127.0.0.1:4400"

// remote is what every command that talks to a server shares.
type remote struct {
	server string
	json   bool
	wait   time.Duration // for the answer of a single call; 0: for ever
}

func (r *remote) bind(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&r.server, "server", defaultServer, "address of a server, or several with commas between")
	cmd.PersistentFlags().BoolVar(&r.json, "json", false, "print JSON")
}

// bindCall is bind for commands that are one call, which give up at some time.
func (r *remote) bindCall(cmd *cobra.Command) {
	r.bind(cmd)
	cmd.PersistentFlags().DurationVar(&r.wait, "timeout", 30*time.Second, "give up when it takes longer; 0: never")
}

// call runs f with a client and closes it afterwards.
func (r *remote) call(cmd *cobra.Command, f func(*sdk.Client) error) (err error) {
	if err := load(cmd, ""); err != nil {
		return err
	}
	if r.wait < 0 {
		return usage("--timeout is %v: want 0 or more", r.wait)
	}
	if r.wait > 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), r.wait)
		defer cancel()
		cmd.SetContext(ctx)
	}
	c, err := sdk.Dial(r.server, sdk.Options{Events: sdk.Events{Retry: notice(cmd.ErrOrStderr())}})
	if err != nil {
		return &run.UsageError{Err: err}
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return f(c)
}

// notice tells a person why nothing happens: at the first failed try, and then
// every few seconds.
func notice(w io.Writer) func(error, time.Duration) {
	const every = 5 * time.Second
	var mu sync.Mutex
	var last time.Time
	return func(err error, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < every {
			return
		}
		last = time.Now()
		fmt.Fprintf(w, "varve: %v; trying on\n", err)
	}
}

// print writes one message: as JSON, or as the lines that text makes of it.
func (r *remote) print(cmd *cobra.Command, m proto.Message, text func(io.Writer)) error {
	if !r.json {
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 4, 2, ' ', 0)
		text(w)
		return w.Flush()
	}
	b, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	return printJSON(cmd.OutOrStdout(), json.RawMessage(b))
}

// printJSON writes one value on one line.
func printJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v) // also takes protojson's random spaces away
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// usage makes an error of the command line.
func usage(format string, args ...any) error {
	return &run.UsageError{Err: fmt.Errorf(format, args...)}
}

// parseFrom reads --from: start, end, an offset, -N (records before the tail), or
// a time.
func parseFrom(s string) (sdk.ReadOption, error) {
	switch s {
	case "start":
		return sdk.FromStart(), nil
	case "end", "tail":
		return sdk.FromTail(), nil
	}
	if n, ok := strings.CutPrefix(s, "-"); ok {
		back, err := strconv.ParseUint(n, 10, 64)
		if err != nil {
			return nil, usage("--from %q: after the minus comes a number of records before the tail", s)
		}
		return sdk.FromLast(back), nil
	}
	if offset, err := strconv.ParseUint(s, 10, 64); err == nil {
		return sdk.FromOffset(offset), nil
	}
	t, err := parseTime(s)
	if err != nil {
		return nil, usage("--from %q is none of start, end, an offset, -N, or a time like 2026-01-31T12:00:00Z", s)
	}
	return sdk.FromTime(t), nil
}

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, usage("%q is not a time like 2026-01-31T12:00:00Z", s)
	}
	return t, nil
}
