package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/tiering/segment"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

func walCommand() *cobra.Command {
	var asJSON, summary bool
	inspect := &cobra.Command{
		Use: "inspect DIRECTORY", Short: "Print what a data directory's log holds, damage included; changes nothing", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err != nil {
				return usage("data directory: %w", err)
			}
			if !holdsLog(args[0]) {
				return usage("%s holds no log: name a data directory, what --data is to the server", args[0])
			}
			damage := 0
			var failed error
			err := wal.Inspect(vfs.OS(), args[0], func(f wal.Fact) bool {
				if f.Kind == wal.FactDamage {
					damage++
				}
				if summary && f.Kind == wal.FactFrame {
					return true
				}
				failed = printFact(cmd.OutOrStdout(), f, asJSON)
				return failed == nil
			})
			if err := errors.Join(err, failed); err != nil {
				return err
			}
			if damage > 0 {
				return meta.Errorf(meta.ErrCorrupt, "%s: %d damaged places; a torn tail after a crash is one, and is cut at the next start", args[0], damage)
			}
			return nil
		},
	}
	inspect.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	inspect.Flags().BoolVar(&summary, "summary", false, "leave single frames out")
	cmd := &cobra.Command{Use: "wal", Short: "Look into a write-ahead log", RunE: needVerb}
	cmd.AddCommand(inspect)
	return cmd
}

// holdsLog reports whether dir looks like a data directory, however damaged.
func holdsLog(dir string) bool {
	for _, name := range []string{"wal", "storage-id", "superblock.a", "superblock.b"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

func printFact(w io.Writer, f wal.Fact, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(w, f)
		return err
	}
	out := map[string]any{"kind": f.Kind, "file": f.File, "position": f.Position, "offset": f.Offset, "bytes": f.Bytes}
	if f.Shard != 0 {
		out["shard"] = f.Shard
	}
	if f.Text != "" {
		out["text"] = f.Text
	}
	if f.Err != nil {
		out["error"] = f.Err.Error()
	}
	return printJSON(w, out)
}

func segmentCommand() *cobra.Command {
	var cfg run.Config
	var asJSON bool
	inspect := &cobra.Command{
		Use:   "inspect FILE|KEY",
		Short: "Check one sealed segment and print what it holds",
		Long: `Check one sealed segment and print what it holds: a file, or, with --objects, a
key of the bucket.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := load(cmd, ""); err != nil {
				return err
			}
			report, err := inspectSegment(cmd, &cfg, args[0])
			if err != nil {
				return fmt.Errorf("segment %s: %w", args[0], err)
			}
			if err := printSegment(cmd.OutOrStdout(), report, asJSON); err != nil {
				return err
			}
			return errors.Join(report.Faults...)
		},
	}
	inspect.Flags().StringVar(&cfg.Objects, "objects", "", "bucket's URL, as for varve server")
	inspect.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd := &cobra.Command{Use: "segment", Short: "Look into a sealed segment", RunE: needVerb}
	cmd.AddCommand(inspect)
	return cmd
}

func inspectSegment(cmd *cobra.Command, cfg *run.Config, name string) (*segment.Report, error) {
	if cfg.Objects == "" {
		f, err := os.Open(name)
		if err != nil {
			return nil, usage("%w", err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		return segment.Inspect(f, info.Size())
	}
	b, err := openBucket(cmd.Context(), cfg)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	info, err := b.Head(cmd.Context(), name)
	if err != nil {
		return nil, err
	}
	return segment.Inspect(readerAt(func(p []byte, at int64) (int, error) {
		data, err := b.Get(cmd.Context(), name, at, int64(len(p)))
		n := copy(p, data)
		if err == nil && n < len(p) {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}), info.Size)
}

type readerAt func(p []byte, at int64) (int, error)

func (f readerAt) ReadAt(p []byte, at int64) (int, error) { return f(p, at) }

func printSegment(w io.Writer, r *segment.Report, asJSON bool) error {
	if !asJSON {
		_, err := r.WriteTo(w)
		return err
	}
	var faults []string
	for _, f := range r.Faults {
		faults = append(faults, strings.TrimSpace(f.Error()))
	}
	x := r.Index
	return printJSON(w, map[string]any{
		"shard": x.Shard.String(), "lineage": meta.Hex(x.Lineage), "epoch": x.Epoch, "first_lsn": x.FirstLSN, "next_lsn": x.NextLSN,
		"first_offset": x.FirstOffset, "next_offset": x.NextOffset, "blocks": len(x.Blocks), "records": r.Records, "state_bytes": len(r.State), "faults": faults,
	})
}
