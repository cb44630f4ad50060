package catalog

import (
	"context"

	"github.com/varve-io/varve/meta"
)

// Export is the catalog at one revision: what a snapshot keeps of it.
type Export struct {
	Revision   Revision
	Cluster    Cluster
	Features   []string
	Namespaces []NamespaceRow
	Streams    []StreamRow
	Tombstones []meta.Tombstone
	Shards     []ShardRow
}

// Export reads the catalog at one revision.
func (c *Catalog) Export(ctx context.Context) (Export, error) { panic("soon") }
