package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/varve-io/varve/services/internal/run"
)

func serverCommand() *cobra.Command {
	var cfg run.Config
	var file string
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server",
		Long:  "Run a server. Every flag is also a key of the file named by --config and an environment variable: --wal-budget is wal-budget and VARVE_WAL_BUDGET.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd, file); err != nil {
				return err
			}
			return start(cmd, &cfg, func(address string) {})
		},
	}
	cfg.Bind(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "YAML file with settings")
	return cmd
}

func devCommand() *cobra.Command {
	var cfg run.Config
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, on this machine only",
		Long: `Run everything in one process: the catalog, one broker, objects in a local
directory. Nothing to install or configure; state is kept in ./varve-data.
A stream comes into being with its first append, a namespace with its first stream.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := load(cmd, ""); err != nil {
				return err
			}
			if cfg.Ephemeral {
				dir, err := os.MkdirTemp("", "varve-dev-")
				if err != nil {
					return err
				}
				defer os.RemoveAll(dir)
				cfg.Data = filepath.Join(dir, "data")
			}
			return start(cmd, &cfg, func(address string) {
				server := ""
				if address != defaultServer {
					server = " --server " + address
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "varve is ready at %s; try:\n  echo hello | varve append demo/first%s\n  varve read demo/first%s\n", address, server, server)
			})
		},
	}
	cfg.Bind(cmd.Flags())
	cmd.Flags().BoolVar(&cfg.Ephemeral, "ephemeral", false, "keep nothing after the end")
	_ = cmd.Flags().Set("auto-create", "true")
	cmd.Flags().Lookup("auto-create").Changed = false
	cmd.Flags().Lookup("auto-create").DefValue = "true"
	return cmd
}

func start(cmd *cobra.Command, cfg *run.Config, ready func(string)) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	logger, err := run.Logger(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	unix.Umask(0o077) // whatever a part makes below the data directory is private to the user
	return serve(cmd.Context(), cfg, logger, ready)
}
