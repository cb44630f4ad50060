package catalog

import (
	"context"
	"strings"

	"github.com/varve-io/varve/meta"
)

// Purge is a deleted incarnation whose tombstone object or data may still have to
// be seen to in the bucket. Its key is written by the delete's own transaction and
// removed once the work is done, so that a delete interrupted anywhere is
// finished, and what is left to do is found without looking at every tombstone.
type Purge struct {
	Stream      meta.StreamName
	Incarnation meta.Incarnation
}

// dirPurges holds purges/NS/NAME/INCARNATION.
const dirPurges = "purges/"

func purgeKey(n meta.StreamName, i meta.Incarnation) string {
	return dirPurges + n.Escaped() + "/" + meta.Hex(i)
}

// Purges lists what is left to purge, in key order, from the first one after
// `after` (the zero Purge: from the start), at most limit (0 means 1,000).
func (c *Catalog) Purges(ctx context.Context, after Purge, limit int) ([]Purge, error) {
	from := ""
	if after != (Purge{}) {
		from = strings.TrimPrefix(purgeKey(after.Stream, after.Incarnation), dirPurges)
	}
	items, _, err := c.list(ctx, dirPurges, "", from, limit)
	if err != nil {
		return nil, err
	}
	var rows []Purge
	for _, kv := range items {
		rest := strings.TrimPrefix(kv.Key, dirPurges)
		at := strings.LastIndexByte(rest, '/')
		if at < 0 {
			return nil, meta.Errorf(meta.ErrCorrupt, "catalog key %q: want purges/NAMESPACE/NAME/INCARNATION", kv.Key)
		}
		p := Purge{}
		if p.Stream, err = meta.UnescapeStreamName(rest[:at]); err != nil {
			return nil, corrupt(kv, err)
		}
		if p.Incarnation, err = meta.ParseHex[meta.Incarnation](rest[at+1:]); err != nil {
			return nil, corrupt(kv, err)
		}
		rows = append(rows, p)
	}
	return rows, nil
}

// PurgeDone says that nothing of a deleted incarnation is left in the bucket and
// that its tombstone object is there.
func (c *Catalog) PurgeDone(ctx context.Context, p Purge) error {
	_, err := change(ctx, c, "finish the purge of "+p.Stream.String(), func() (struct{}, error) {
		_, err := c.commit(ctx, Transaction{Then: []Op{{Key: purgeKey(p.Stream, p.Incarnation), Delete: true}}})
		return struct{}{}, err
	})
	return err
}
