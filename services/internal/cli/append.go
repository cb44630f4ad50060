package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/varve-io/varve/sdk"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// maxLine bounds a line before it is held: a little above the largest record that
// any stream takes.
const maxLine = 5 << 20

type appendFlags struct {
	remote
	key, format, compression, ack, token string
	headers                              []string
	expected                             int64
	timeout                              time.Duration
}

func appendCommand() *cobra.Command {
	f := &appendFlags{}
	cmd := &cobra.Command{
		Use:   "append NAMESPACE/STREAM",
		Short: "Append records from standard input",
		Long: `Append records from standard input. With --format lines each line is a record,
without its end; an empty line is an empty record. With json each line is an
object as "varve read --format json" prints it. With raw all of the input is one
record. The command rides through restarts of the server; it ends when all of
the input is acknowledged, and fails when a record can't be.`,
		Example: "  tail -F app.log | varve append logs/app",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.bind(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.key, "key", "", "key of every record")
	flags.StringArrayVar(&f.headers, "header", nil, "header NAME=VALUE of every record; may be repeated")
	flags.StringVar(&f.format, "format", "lines", "lines, json or raw")
	flags.StringVar(&f.compression, "compression", "none", "none or zstd")
	flags.StringVar(&f.ack, "ack", "quorum", "none, leader, quorum or archive")
	flags.StringVar(&f.token, "fence-token", "", "append only while this is the fence token")
	flags.Int64Var(&f.expected, "expected-offset", -1, "append all of the input as one batch, only if this is the next offset")
	flags.DurationVar(&f.timeout, "timeout", 0, "give up on a record that is not acknowledged in time; 0: never")
	return cmd
}

func (f *appendFlags) run(cmd *cobra.Command, stream string) error {
	o, err := f.options(cmd)
	if err != nil {
		return err
	}
	template, err := f.template(cmd)
	if err != nil {
		return err
	}
	records := reading(cmd.InOrStdin(), f.format, template)
	if records == nil {
		return usage("--format %q is none of lines, json, raw", f.format)
	}
	return f.call(cmd, func(c *sdk.Client) error {
		if f.expected >= 0 {
			return f.once(cmd, c, stream, records, o)
		}
		return f.pump(cmd, c.Producer(stream, o), records)
	})
}

func (f *appendFlags) options(cmd *cobra.Command) (o sdk.ProducerOptions, err error) {
	switch f.compression {
	case "none":
	case "zstd":
		o.Compression = sdk.Zstd
	default:
		return o, usage("--compression %q is neither none nor zstd", f.compression)
	}
	acks := map[string]sdk.Ack{"none": sdk.AckNone, "leader": sdk.AckLeader, "quorum": sdk.AckQuorum, "archive": sdk.AckArchive}
	var ok bool
	if o.Ack, ok = acks[f.ack]; !ok {
		return o, usage("--ack %q is none of none, leader, quorum, archive", f.ack)
	}
	if f.timeout < 0 || f.expected < -1 {
		return o, usage("--timeout and --expected-offset are not negative")
	}
	o.DeliveryTimeout = f.timeout
	if cmd.Flags().Changed("fence-token") {
		o.FenceToken = &f.token
	}
	return o, nil
}

// template is what every record has.
func (f *appendFlags) template(cmd *cobra.Command) (r sdk.Record, err error) {
	if cmd.Flags().Changed("key") {
		r.Key = []byte(f.key)
	}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return r, usage("--header %q: want NAME=VALUE", h)
		}
		r.Headers = append(r.Headers, sdk.Header{Key: name, Value: []byte(value)})
	}
	return r, nil
}

// closing is how long a stop by signal waits for what was read before it.
const closing = 5 * time.Second

// tally counts answers.
type tally struct {
	mu     sync.Mutex
	stored uint64
	err    error // the first; later ones are consequences
}

// pump appends every record, pipelined, and waits for all answers.
//
// The input is read by a goroutine, since nothing ends a read of standard input:
// after a signal it stays behind, and the process ends without it.
func (f *appendFlags) pump(cmd *cobra.Command, p *sdk.Producer, next func() (sdk.Record, error)) error {
	var t tally
	ctx, stop := context.WithCancelCause(context.WithoutCancel(cmd.Context())) // a signal cuts no record in hand
	defer stop(nil)
	done := func(_ sdk.Position, err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if err == nil {
			t.stored++
		} else if t.err == nil {
			t.err = err
			stop(err)
		}
	}
	turn := make(chan struct{}, 1) // held while a record is handed over
	read := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			var r sdk.Record
			if r, err = next(); err != nil {
				if !errors.Is(err, io.EOF) {
					err = fmt.Errorf("%w; the records before it are appended", err)
				}
			} else {
				turn <- struct{}{}
				err = p.AppendAsync(ctx, r, done)
				<-turn
			}
		}
		read <- err
	}()
	var bad error
	select {
	case bad = <-read:
	case <-cmd.Context().Done():
		bad = context.Cause(cmd.Context())
	}
	if errors.Is(bad, io.EOF) {
		bad = nil
	}
	// What was read is delivered even when the input turned bad. A failed record
	// ends the wait; a signal bounds it.
	if signal := context.Cause(cmd.Context()); signal != nil {
		wait, cancel := context.WithTimeout(ctx, closing)
		defer cancel()
		var err error
		select {
		case turn <- struct{}{}: // and kept: nothing more is taken
			err = p.Close(wait)
		case <-wait.Done():
			err = errors.Join(wait.Err(), p.Close(wait))
		}
		if err != nil {
			return fmt.Errorf("%v, with records that are not acknowledged: %v", signal, err)
		}
		bad = signal
	} else if err := p.Close(ctx); bad == nil {
		bad = err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		bad = t.err
	}
	if f.json && bad == nil {
		return printJSON(cmd.OutOrStdout(), map[string]uint64{"records": t.stored})
	}
	return bad
}

// once appends all of the input as one batch, on a condition.
func (f *appendFlags) once(cmd *cobra.Command, c *sdk.Client, stream string, next func() (sdk.Record, error), o sdk.ProducerOptions) error {
	var list []sdk.Record
	size := 0
	for {
		r, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w; nothing is appended", err)
		}
		r.Value = bytes.Clone(r.Value)
		if size += len(r.Value) + len(r.Key); size > 4<<20 {
			return fmt.Errorf("--expected-offset: the input is larger than one batch may be (4 MiB); nothing is appended")
		}
		list = append(list, r)
	}
	expected := uint64(f.expected)
	at, err := c.Append(cmd.Context(), stream, list, sdk.AppendOptions{
		ExpectedOffset: &expected, FenceToken: o.FenceToken, Ack: o.Ack, Compression: o.Compression, Idempotent: true,
	})
	if err != nil {
		return err
	}
	if f.json {
		return printJSON(cmd.OutOrStdout(), map[string]uint64{"first": at.Offset, "next": at.Next, "tail": at.Tail})
	}
	return nil
}

// reading returns a function that gives the input's records, io.EOF at the end;
// nil for an unknown format. A record's bytes hold until the next call.
func reading(in io.Reader, format string, template sdk.Record) func() (sdk.Record, error) {
	switch format {
	case "lines":
		next := lines(in)
		return func() (sdk.Record, error) {
			r := template
			var err error
			r.Value, err = next()
			return r, err
		}
	case "json":
		next := lines(in)
		number := 0
		return func() (sdk.Record, error) {
			number++
			line, err := next()
			if err != nil {
				return sdk.Record{}, err
			}
			r, err := parseRecord(line, template)
			if err != nil {
				return r, fmt.Errorf("line %d of the input: %w", number, err)
			}
			return r, nil
		}
	case "raw":
		done := false
		return func() (sdk.Record, error) {
			if done {
				return sdk.Record{}, io.EOF
			}
			done = true
			r := template
			var err error
			r.Value, err = io.ReadAll(io.LimitReader(in, maxLine+1))
			if err == nil && len(r.Value) > maxLine {
				err = fmt.Errorf("the input is larger than any record may be (%d bytes); append it in parts", maxLine)
			}
			return r, err
		}
	}
	return nil
}

// lines gives one line after the other, without its end.
func lines(in io.Reader) func() ([]byte, error) {
	buf := bufio.NewReaderSize(in, 256<<10)
	var long []byte
	number := 0
	return func() ([]byte, error) {
		number++
		long = long[:0]
		for {
			part, err := buf.ReadSlice('\n')
			switch {
			case err == nil && len(long) == 0:
				return part[: len(part)-1 : len(part)-1], nil
			case err == nil:
				long = append(long, part[:len(part)-1]...)
				return long, nil
			case errors.Is(err, bufio.ErrBufferFull):
				if long = append(long, part...); len(long) > maxLine {
					return nil, fmt.Errorf("line %d of the input is longer than any record may be (%d bytes)", number, maxLine)
				}
			case errors.Is(err, io.EOF):
				if long = append(long, part...); len(long) == 0 {
					return nil, io.EOF
				}
				return long, nil // a last line without an end; the next call finds the end
			default:
				return nil, fmt.Errorf("standard input: %w", err)
			}
		}
	}
}

// parseRecord reads one line of --format json: a record as the API spells it. What
// the server gave (offset, append time) is left out.
func parseRecord(line []byte, template sdk.Record) (sdk.Record, error) {
	var w varvev1.Record
	if err := protojson.Unmarshal(line, &w); err != nil {
		return sdk.Record{}, fmt.Errorf("not a record as \"varve read --format json\" prints it: %w", err)
	}
	r := template
	if w.Key != nil {
		r.Key = w.Key
	}
	r.Value = w.Value
	for _, h := range w.GetHeaders() {
		r.Headers = append(r.Headers[:len(r.Headers):len(r.Headers)], sdk.Header{Key: h.GetKey(), Value: h.Value})
	}
	if t := w.GetCreateTime(); t != nil {
		if err := t.CheckValid(); err != nil {
			return r, fmt.Errorf("create time: %w", err)
		}
		r.Time = t.AsTime()
	}
	return r, nil
}
