package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/varve-io/varve/sdk"
)

func namespaceCommand() *cobra.Command {
	r := &remote{}
	cmd := &cobra.Command{Use: "namespace", Short: "Create, list, describe, update and delete namespaces", RunE: needVerb}
	r.bindCall(cmd)
	cmd.AddCommand(namespaceWrite(r, "create"), namespaceWrite(r, "update"), namespaceList(r), namespaceDescribe(r), namespaceDelete(r))
	return cmd
}

// namespaceWrite makes the commands create and update, which take the same settings.
func namespaceWrite(r *remote, verb string) *cobra.Command {
	var s settings
	var onAppend, onRead bool
	var shards uint32
	cmd := &cobra.Command{
		Use: verb + " NAMESPACE", Short: map[string]string{"create": "Create a namespace", "update": "Change a namespace's settings"}[verb], Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			set := &sdk.NamespaceSettings{Streams: s.message(cmd)}
			changed := cmd.Flags().Changed
			if changed("create-on-append") {
				set.CreateOnAppend = proto.Bool(onAppend)
			}
			if changed("create-on-read") {
				set.CreateOnRead = proto.Bool(onRead)
			}
			if changed("default-shards") {
				set.DefaultShards = proto.Uint32(shards)
			}
			return r.call(cmd, func(c *sdk.Client) error {
				var ns *sdk.Namespace
				var err error
				if verb == "create" {
					ns, err = c.CreateNamespace(cmd.Context(), args[0], set, "")
				} else {
					ns, err = c.UpdateNamespace(cmd.Context(), args[0], set, 0)
				}
				if err != nil {
					return err
				}
				return r.print(cmd, ns, func(w io.Writer) { describeNamespace(w, ns) })
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&onAppend, "create-on-append", false, "an append to a stream that does not exist creates it")
	f.BoolVar(&onRead, "create-on-read", false, "a read of a stream that does not exist creates it")
	f.Uint32Var(&shards, "default-shards", 0, "shards of streams created without a number; 0: one")
	s.bind(cmd)
	return cmd
}

func describeNamespace(w io.Writer, ns *sdk.Namespace) {
	s := ns.GetSettings()
	fmt.Fprintf(w, "namespace\t%s\n", ns.GetName())
	fmt.Fprintf(w, "created\t%s\n", ns.GetCreateTime().AsTime().Format(time.RFC3339))
	fmt.Fprintf(w, "creates streams\ton append: %t, on read: %t\n", s.GetCreateOnAppend(), s.GetCreateOnRead())
	fmt.Fprintf(w, "default shards\t%d\n", max(s.GetDefaultShards(), 1))
}

func namespaceList(r *remote) *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use: "list", Short: "List namespaces", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				for ns, err := range c.Namespaces(cmd.Context(), prefix) {
					if err != nil {
						return err
					}
					if err := r.print(cmd, ns, func(w io.Writer) { fmt.Fprintln(w, ns.GetName()) }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only names that begin so")
	return cmd
}

func namespaceDescribe(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "describe NAMESPACE", Short: "Show a namespace", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				ns, err := c.GetNamespace(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return r.print(cmd, ns, func(w io.Writer) { describeNamespace(w, ns) })
			})
		},
	}
}

func namespaceDelete(r *remote) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAMESPACE", Short: "Delete a namespace that holds no stream", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.call(cmd, func(c *sdk.Client) error {
				if err := c.DeleteNamespace(cmd.Context(), args[0]); err != nil {
					return err
				}
				if r.json {
					return printJSON(cmd.OutOrStdout(), map[string]string{"deleted": args[0]})
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "deleted %s\n", args[0])
				return err
			})
		},
	}
}
