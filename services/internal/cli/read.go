package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/sdk"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

type readFlags struct {
	remote
	from, until, format string
	limit               int64
	follow, clamp       bool
	wait, timeout       time.Duration
	shard               int
}

func readCommand() *cobra.Command {
	f := &readFlags{}
	cmd := &cobra.Command{
		Use:     "read NAMESPACE/STREAM",
		Short:   "Print records, up to the tail or following it",
		Example: "  varve read logs/app --from 2026-01-31T12:00:00Z --limit 100\n  varve read logs/app --follow | grep panic",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.flags(cmd, "start", 30*time.Second)
	cmd.Flags().BoolVar(&f.follow, "follow", false, "stay at the tail for more")
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "stay at the tail for so long after the last record")
	return cmd
}

func tailCommand() *cobra.Command {
	f := &readFlags{follow: true}
	cmd := &cobra.Command{
		Use:   "tail NAMESPACE/STREAM",
		Short: "Print records as they are appended",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.flags(cmd, "end", 0)
	return cmd
}

func (f *readFlags) flags(cmd *cobra.Command, from string, timeout time.Duration) {
	f.bind(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", from, "start, end, an offset, -N (records before the tail), or a time")
	flags.StringVar(&f.until, "until", "", "stop before the first record appended at or after this time")
	flags.Int64Var(&f.limit, "limit", -1, "stop after so many records")
	flags.StringVar(&f.format, "format", "lines", "lines, json or raw")
	flags.BoolVar(&f.clamp, "clamp", false, "take the nearest end for a start that lies outside the stream")
	flags.DurationVar(&f.timeout, "timeout", timeout, "without --follow: give up once the server has not answered for so long; 0: never")
	flags.IntVar(&f.shard, "shard", -1, "read one shard; without it, all")
}

func (f *readFlags) run(cmd *cobra.Command, stream string) error {
	options, err := f.options(cmd)
	if err != nil {
		return err
	}
	if f.json {
		f.format = "json"
	}
	write := printers[f.format]
	if write == nil {
		return usage("--format %q is none of lines, json, raw", f.format)
	}
	return f.call(cmd, func(c *sdk.Client) error {
		out := newFlusher(cmd.OutOrStdout(), f.follow || f.wait > 0)
		defer out.stop()
		for r, err := range c.Read(cmd.Context(), stream, options...) {
			if err != nil {
				_ = out.flush() // what came before is good
				if errors.Is(err, sdk.ErrOffsetOutOfRange) {
					return fmt.Errorf("%w; --clamp takes the nearest end", err)
				}
				return err
			}
			if err := out.write(func(w *bufio.Writer) error { return write(w, &r) }); err != nil {
				return err
			}
		}
		return out.flush()
	})
}

func (f *readFlags) options(cmd *cobra.Command) ([]sdk.ReadOption, error) {
	from, err := parseFrom(f.from)
	if err != nil {
		return nil, err
	}
	list := []sdk.ReadOption{from}
	if f.until != "" {
		t, err := parseTime(f.until)
		if err != nil {
			return nil, usage("--until: %w", err)
		}
		list = append(list, sdk.Until(t))
	}
	switch {
	case cmd.Flags().Changed("limit") && f.limit < 0:
		return nil, usage("--limit is %d: want 0 or more", f.limit)
	case f.wait < 0 || f.timeout < 0:
		return nil, usage("--wait and --timeout are not negative")
	case cmd.Flags().Changed("shard") && f.shard < 0:
		return nil, usage("--shard is %d: want 0 or more", f.shard)
	}
	if f.limit >= 0 {
		list = append(list, sdk.Limit(uint64(f.limit)))
	}
	if f.follow {
		list = append(list, sdk.Follow())
	}
	if f.wait > 0 {
		list = append(list, sdk.Wait(f.wait))
	}
	if f.timeout > 0 && !f.follow {
		list = append(list, sdk.GiveUpAfter(f.timeout))
	}
	if f.clamp {
		list = append(list, sdk.Clamp())
	}
	if f.shard >= 0 {
		list = append(list, sdk.InShard(uint32(f.shard)))
	}
	return list, nil
}

// printers write one record each.
var printers = map[string]func(*bufio.Writer, *sdk.Record) error{
	"lines": func(w *bufio.Writer, r *sdk.Record) error {
		_, _ = w.Write(r.Value)
		return w.WriteByte('\n')
	},
	"raw": func(w *bufio.Writer, r *sdk.Record) error {
		_, err := w.Write(r.Value)
		return err
	},
	"json": func(w *bufio.Writer, r *sdk.Record) error {
		out := &varvev1.Record{Key: r.Key, Value: r.Value, Offset: proto.Uint64(r.Offset), AppendTime: timestamppb.New(r.AppendTime), CreateTime: timestamppb.New(r.Time)}
		for _, h := range r.Headers {
			out.Headers = append(out.Headers, &varvev1.Header{Key: h.Key, Value: h.Value})
		}
		b, err := protojson.Marshal(out)
		if err != nil {
			return err
		}
		return printJSON(w, json.RawMessage(b))
	},
}

// flusher buffers output; while a command follows, it is never kept back for
// longer than a moment.
type flusher struct {
	mu     sync.Mutex // guards w
	w      *bufio.Writer
	done   chan struct{}
	ticker sync.WaitGroup
}

func newFlusher(w io.Writer, live bool) *flusher {
	f := &flusher{w: bufio.NewWriterSize(w, 256<<10), done: make(chan struct{})}
	if live {
		f.ticker.Go(func() {
			t := time.NewTicker(20 * time.Millisecond)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					_ = f.flush() // the error sticks and comes with the next write
				case <-f.done:
					return
				}
			}
		})
	}
	return f
}

func (f *flusher) write(put func(*bufio.Writer) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return put(f.w)
}

func (f *flusher) flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.w.Flush()
}

func (f *flusher) stop() {
	close(f.done)
	f.ticker.Wait()
}
