package catalog_test

import (
	"context"

	"github.com/varve-io/varve/meta/catalog"
)

// between does something once, just before the first transaction: after everything
// that the transaction was computed from has been read.
type between struct {
	catalog.KV
	do func()
}

func (b *between) Commit(ctx context.Context, t catalog.Transaction) (catalog.Result, error) {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.KV.Commit(ctx, t)
}
