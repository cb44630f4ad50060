package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/varve-io/varve/sdk"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

func shardCommand() *cobra.Command {
	r := &remote{}
	cmd := &cobra.Command{Use: "shard", Short: "Describe a shard, or give up what only lost copies of it hold", RunE: needVerb}
	r.bindCall(cmd)
	cmd.AddCommand(shardDescribe(r), shardAbandon(r))
	return cmd
}

func shardDescribe(r *remote) *cobra.Command {
	var shard uint32
	cmd := &cobra.Command{
		Use: "describe NAMESPACE/STREAM", Short: "Show what the catalog, this broker and the bucket know of a shard", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				d, err := c.DescribeShard(cmd.Context(), sdk.Shard{Stream: args[0], Number: shard})
				if err != nil {
					return err
				}
				return r.print(cmd, d, func(w io.Writer) { describeShard(w, args[0], shard, d) })
			})
		},
	}
	cmd.Flags().Uint32Var(&shard, "shard", 0, "the shard")
	return cmd
}

func describeShard(w io.Writer, stream string, shard uint32, d *varvev1.DescribeShardResponse) {
	fmt.Fprintf(w, "shard\t%s %d, incarnation %d\n", stream, shard, d.GetIncarnation())
	fmt.Fprintf(w, "catalog\t%s, lineage %016x, epoch %d\n", d.GetState(), d.GetLineage(), d.GetEpoch())
	if l := d.GetLeader(); l != nil {
		fmt.Fprintf(w, "leader\t%s storage %s\n", l.GetBroker(), l.GetStorage())
	}
	for _, m := range d.GetMembers() {
		fmt.Fprintf(w, "member\t%s storage %s\n", m.GetBroker(), m.GetStorage())
	}
	if c := d.GetCopy(); c != nil {
		role := c.GetRole()
		if c.GetStranger() {
			role += ", a stranger"
		}
		fmt.Fprintf(w, "copy\t%s storage %s: %s\n", c.GetMember().GetBroker(), c.GetMember().GetStorage(), role)
		fmt.Fprintf(w, "\tLSN %d to %d, committed %d, archived below %d\n", c.GetFirstLsn(), c.GetLastLsn(), c.GetCommittedLsn(), c.GetArchivedEnd())
		fmt.Fprintf(w, "\toffsets %d to %d, %d producers\n", c.GetStartOffset(), c.GetTail(), c.GetProducers())
		for _, why := range c.GetWaiting() {
			fmt.Fprintf(w, "\twaits for %s\n", why)
		}
		if c.GetAlarm() != "" {
			fmt.Fprintf(w, "\talarm: %s\n", c.GetAlarm())
		}
	}
	if d.GetCopy() == nil {
		fmt.Fprintf(w, "copy\tnone on the broker that was asked; it makes one when it is a member\n")
	}
	if a := d.GetArchive(); a != nil {
		fmt.Fprintf(w, "bucket\tall below LSN %d, offsets %d to %d, segments %d, bytes %d\n", a.GetEndLsn(), a.GetStartOffset(), a.GetNextOffset(), a.GetSegments(), a.GetBytes())
		fmt.Fprintf(w, "\t%s\n", a.GetManifest())
	}
}

func shardAbandon(r *remote) *cobra.Command {
	var shard uint32
	var lost []string
	var dryRun, yes bool
	cmd := &cobra.Command{
		Use: "abandon NAMESPACE/STREAM", Short: "Give up what only lost copies of a shard hold; it cannot be undone",
		Long: `Give up what only lost copies of a shard hold, and let it go on from the
furthest of this broker's copy and the bucket. Name each lost member by its
storage id; "varve shard describe" shows them. Make sure that those brokers are
stopped and stay so. Without --yes, or with --dry-run, the command only says what
would be given up.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				only := dryRun || !yes
				a, err := c.AbandonShard(cmd.Context(), sdk.Shard{Stream: args[0], Number: shard}, lost, only)
				if err != nil {
					return err
				}
				return r.print(cmd, a, func(w io.Writer) { describeAbandon(w, a, only) })
			})
		},
	}
	cmd.Flags().Uint32Var(&shard, "shard", 0, "the shard")
	cmd.Flags().StringArrayVar(&lost, "lost", nil, "storage id of a member that is lost for good; may be repeated")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be given up")
	cmd.Flags().BoolVar(&yes, "yes", false, "yes, give it up")
	return cmd
}

func describeAbandon(w io.Writer, a *varvev1.AbandonShardResponse, only bool) {
	verb := "goes on"
	if only {
		verb = "would go on"
	}
	fmt.Fprintf(w, "the shard %s in lineage %016x (before: %016x) from the %s\n", verb, a.GetLineage(), a.GetOldLineage(), a.GetSource())
	fmt.Fprintf(w, "kept: up to LSN %d, offsets below %d\n", a.GetKeptLsn(), a.GetNextOffset())
	given := fmt.Sprintf("given up: all above LSN %d, offsets from %d on", a.GetKeptLsn(), a.GetNextOffset())
	if c := a.GetCommittedLsn(); c > a.GetKeptLsn() {
		given += fmt.Sprintf("; known to have been committed: up to LSN %d", c)
	}
	fmt.Fprintln(w, given)
	fmt.Fprintf(w, "members given up: %s\n", strings.Join(a.GetGivenUp(), ", "))
	if only {
		fmt.Fprintln(w, "nothing was changed: say --yes to do it")
	}
}
