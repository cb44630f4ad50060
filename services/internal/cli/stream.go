package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/varve-io/varve/sdk"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/run"
)

func streamCommand() *cobra.Command {
	r := &remote{}
	cmd := &cobra.Command{Use: "stream", Short: "Create, list, describe, update and delete streams", RunE: needVerb}
	r.bindCall(cmd)
	cmd.AddCommand(streamCreate(r), streamList(r), streamDescribe(r), streamUpdate(r), streamDelete(r))
	return cmd
}

// needVerb refuses a command that only groups others.
func needVerb(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s has no command %q: see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return usage("say what to do: see %s --help", cmd.CommandPath())
}

// settings are the flags of a stream's settings.
type settings struct {
	record, segment run.Bytes
	age             time.Duration
	producers       uint64
}

func (s *settings) bind(cmd *cobra.Command) {
	run.BytesVar(cmd.Flags(), &s.record, "max-record-bytes", 0, "largest value of a record; 0: as the namespace says")
	run.BytesVar(cmd.Flags(), &s.segment, "segment-bytes", 0, "seal a segment at this size; 0: as the namespace says")
	cmd.Flags().DurationVar(&s.age, "segment-age", 0, "or at this age; 0: as the namespace says")
	cmd.Flags().Uint64Var(&s.producers, "producers-max", 0, "idempotent producers kept in mind; 0: as the namespace says")
}

// message holds only what was said.
func (s *settings) message(cmd *cobra.Command) *varvev1.StreamSettings {
	out := &varvev1.StreamSettings{}
	changed := cmd.Flags().Changed
	if changed("max-record-bytes") {
		out.MaxRecordBytes = proto.Uint64(uint64(s.record))
	}
	if changed("segment-bytes") {
		out.SegmentBytes = proto.Uint64(uint64(s.segment))
	}
	if changed("segment-age") {
		out.SegmentAge = durationpb.New(s.age)
	}
	if changed("producers-max") {
		out.ProducersMax = proto.Uint64(s.producers)
	}
	return out
}

func streamCreate(r *remote) *cobra.Command {
	var shards uint32
	var s settings
	var request string
	cmd := &cobra.Command{
		Use: "create NAMESPACE/STREAM", Short: "Create a stream", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				st, err := c.CreateStream(cmd.Context(), args[0], sdk.CreateOptions{Shards: shards, Settings: s.message(cmd), RequestID: request})
				if err != nil {
					return err
				}
				return r.print(cmd, st, func(w io.Writer) { fmt.Fprintf(w, "created %s, incarnation %d\n", st.GetName(), st.GetIncarnation()) })
			})
		},
	}
	cmd.Flags().Uint32Var(&shards, "shards", 0, "1 to 64; 0: as the namespace says")
	cmd.Flags().StringVar(&request, "request-id", "", "makes repeating the command safe")
	s.bind(cmd)
	return cmd
}

func streamList(r *remote) *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use: "list NAMESPACE", Short: "List a namespace's streams", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				for st, err := range c.Streams(cmd.Context(), args[0], prefix) {
					if err != nil {
						return err
					}
					if err := r.print(cmd, st, func(w io.Writer) {
						fmt.Fprintf(w, "%s\tshards %d\tincarnation %d\tcreated %s\n", st.GetName(), st.GetShards(), st.GetIncarnation(), st.GetCreateTime().AsTime().Format(time.RFC3339))
					}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only names, without the namespace, that begin so")
	return cmd
}

func streamDescribe(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "describe NAMESPACE/STREAM", Short: "Show a stream and where its shards begin and end", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				st, err := c.GetStream(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if err := r.print(cmd, st, func(w io.Writer) { describeStream(w, st) }); err != nil || r.json {
					return err
				}
				w := cmd.OutOrStdout()
				for n := range st.GetShards() {
					t, err := c.CheckTail(cmd.Context(), sdk.Shard{Stream: args[0], Number: n, Incarnation: st.GetIncarnation()})
					if err != nil {
						fmt.Fprintf(w, "shard %d  %v\n", n, err)
						continue
					}
					fmt.Fprintf(w, "shard %d  offsets %d to %d\n", n, t.Start, t.Next)
				}
				return nil
			})
		},
	}
}

func describeStream(w io.Writer, st *sdk.Stream) {
	e := st.GetEffective()
	fmt.Fprintf(w, "stream\t%s\n", st.GetName())
	fmt.Fprintf(w, "incarnation\t%d\n", st.GetIncarnation())
	fmt.Fprintf(w, "shards\t%d\n", st.GetShards())
	fmt.Fprintf(w, "created\t%s\n", st.GetCreateTime().AsTime().Format(time.RFC3339))
	fmt.Fprintf(w, "largest record\t%s bytes\n", strconv.FormatUint(e.GetMaxRecordBytes(), 10))
	fmt.Fprintf(w, "segments\tsealed at %d bytes or %s\n", e.GetSegmentBytes(), e.GetSegmentAge().AsDuration())
	fmt.Fprintf(w, "producers kept\t%d\n", e.GetProducersMax())
}

func streamUpdate(r *remote) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use: "update NAMESPACE/STREAM", Short: "Change a stream's settings", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				st, err := c.UpdateStream(cmd.Context(), args[0], s.message(cmd), 0, 0)
				if err != nil {
					return err
				}
				return r.print(cmd, st, func(w io.Writer) { describeStream(w, st) })
			})
		},
	}
	s.bind(cmd)
	return cmd
}

func streamDelete(r *remote) *cobra.Command {
	var yes bool
	var incarnation uint64
	cmd := &cobra.Command{
		Use: "delete NAMESPACE/STREAM", Short: "Delete a stream and all its records; it cannot be undone", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return usage("deleting %s removes all its records for good: say --yes if that is what you want", args[0])
			}
			return r.call(cmd, func(c *sdk.Client) error {
				d, err := c.DeleteStream(cmd.Context(), args[0], incarnation)
				if err != nil {
					return err
				}
				return r.print(cmd, &varvev1.DeleteStreamResponse{Incarnation: d.Incarnation, Safe: d.Safe}, func(w io.Writer) {
					fmt.Fprintf(w, "deleted %s, incarnation %d\n", args[0], d.Incarnation)
					if !d.Safe {
						fmt.Fprintln(w, "not yet safe against a restore: the bucket is out of reach, the server goes on trying")
					}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "yes, delete it")
	cmd.Flags().Uint64Var(&incarnation, "incarnation", 0, "only this incarnation")
	return cmd
}
