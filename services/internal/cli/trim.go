package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/varve-io/varve/sdk"
)

func trimCommand() *cobra.Command {
	r := &remote{}
	var shard uint32
	cmd := &cobra.Command{
		Use: "trim NAMESPACE/STREAM OFFSET", Short: "Drop a shard's records below an offset; it cannot be undone", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := strconv.ParseUint(args[1], 10, 63)
			if err != nil {
				return usage("%q is not an offset: want 0 to %d", args[1], uint64(1)<<63-1)
			}
			return r.call(cmd, func(c *sdk.Client) error {
				t, err := c.Trim(cmd.Context(), sdk.Shard{Stream: args[0], Number: shard}, before)
				if err != nil {
					return err
				}
				if r.json {
					return printJSON(cmd.OutOrStdout(), map[string]uint64{"start": t.Start, "tail": t.Next})
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s shard %d holds offsets %d to %d\n", args[0], shard, t.Start, t.Next)
				return err
			})
		},
	}
	r.bindCall(cmd)
	cmd.Flags().Uint32Var(&shard, "shard", 0, "the shard")
	return cmd
}

func fenceCommand() *cobra.Command {
	r := &remote{}
	var shard uint32
	var strict, clear bool
	cmd := &cobra.Command{
		Use: "fence NAMESPACE/STREAM [TOKEN]", Short: "Set a shard's fence token, or take it away with --clear", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			token := ""
			if len(args) == 2 {
				token = args[1]
			}
			if clear == (token != "") || clear && strict {
				return usage("%s: say a token, or --clear alone", cmd.CommandPath())
			}
			return r.call(cmd, func(c *sdk.Client) error {
				tail, err := c.Fence(cmd.Context(), sdk.Shard{Stream: args[0], Number: shard}, token, strict)
				if err != nil {
					return err
				}
				if r.json {
					return printJSON(cmd.OutOrStdout(), map[string]uint64{"tail": tail})
				}
				what := "holds"
				if clear {
					what = "is taken away"
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s shard %d: the fence %s from offset %d on\n", args[0], shard, what, tail)
				return err
			})
		},
	}
	r.bindCall(cmd)
	cmd.Flags().Uint32Var(&shard, "shard", 0, "the shard")
	cmd.Flags().BoolVar(&strict, "strict", false, "refuse appends that name no token, too")
	cmd.Flags().BoolVar(&clear, "clear", false, "take the fence away")
	return cmd
}
