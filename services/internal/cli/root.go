package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/varve-io/varve/services/internal/run"
)

// Version is the program's; the linker may set it.
var Version = "dev"

// Main runs the command line and returns the exit code.
func Main(args []string, in io.Reader, out, errs io.Writer) int {
	ctx, stop := run.Signals(context.Background(), nil)
	defer stop()
	root := Root(in, out, errs)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var signal *run.SignalError
	if err != nil && !errors.As(err, &signal) {
		fmt.Fprintln(errs, "varve:", err)
	}
	return run.ExitCode(err)
}

// Root is the whole command tree.
func Root(in io.Reader, out, errs io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "varve",
		Short:         "Durable streams: a replicated hot tail, a past in object storage",
		Version:       Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			like := ""
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				like = fmt.Sprintf("; did you mean %q?", near[0])
			}
			return usage("varve has no command %q%s: see varve --help", args[0], like)
		},
	}
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%s: %w; see %s --help", cmd.CommandPath(), err, cmd.CommandPath())
	})
	root.AddCommand(
		devCommand(), serverCommand(),
		streamCommand(), appendCommand(), readCommand(), tailCommand(), trimCommand(), fenceCommand(),
		namespaceCommand(), shardCommand(), walCommand(), segmentCommand(),
	)
	strict(root)
	return root
}

// strict makes a wrong number of arguments a mistake in usage, like a wrong flag.
func strict(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usage("%s: %w; see %s --help", cmd.CommandPath(), err, cmd.CommandPath())
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		strict(c)
	}
}

// load fills the flags that the command line left alone from the environment and
// the file at path.
func load(cmd *cobra.Command, path string) error {
	return run.Load(cmd.Flags(), os.LookupEnv, path)
}
