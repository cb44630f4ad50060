package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/tiering"
)

// Description is what this broker, the catalog and the bucket know of a shard.
type Description struct {
	Row     catalog.ShardRow
	Self    meta.Member
	Held    bool // this broker holds a copy; Copy and Alarm say what it is
	Copy    replica.Status
	Alarm   error
	Archive *tiering.Manifest // nil: nothing is archived
}

// Describe looks at a shard and changes nothing.
func (b *Broker) Describe(ctx context.Context, id meta.ShardID) (Description, error) {
	row, err := b.opts.Catalog.Shard(ctx, id)
	if err != nil {
		return Description{}, err
	}
	d := Description{Row: row, Self: b.self}
	b.mu.RLock()
	s := b.shards[id]
	b.mu.RUnlock()
	if s != nil {
		s.mu.Lock()
		d.Held, d.Copy, d.Alarm = true, s.core().Status(), s.alarm
		s.mu.Unlock()
	}
	d.Archive, err = b.newest(ctx, row)
	return d, err
}

func (b *Broker) newest(ctx context.Context, row catalog.ShardRow) (*tiering.Manifest, error) {
	return b.opts.Store.Newest(ctx, row.ID, row.Lineage, manifestID(row.Base))
}

// Source says where an abandoned shard goes on from.
type Source string

// The sources, best first: whichever reaches furthest.
const (
	FromCopy    Source = "copy"
	FromBucket  Source = "bucket"
	FromNothing Source = "nothing"
)

// Abandoned says what an abandon keeps and gives up.
type Abandoned struct {
	Old, New  meta.Lineage
	Source    Source
	KeptLSN   meta.LSN    // the last one kept
	Next      meta.Offset // what lay at this offset and above is given up
	Committed meta.LSN    // the row had been committed at least to here
	GivenUp   []meta.Member
}

// Abandon is the operator's word that a shard goes on without its members: in the
// next lineage, from the furthest of this broker's copy and the bucket. lost must
// name the storage id of every member. It is refused while the members could still
// elect a leader. With dryRun it only says what would happen.
func (b *Broker) Abandon(ctx context.Context, id meta.ShardID, lost []meta.StorageID, dryRun bool) (Abandoned, error) {
	d, err := b.Describe(ctx, id)
	if err != nil {
		return Abandoned{}, err
	}
	if err := b.mayAbandon(d, lost); err != nil {
		return Abandoned{}, err
	}
	a := Abandoned{Old: d.Row.Lineage, Committed: d.Row.Committed, GivenUp: d.Row.Members}
	var base catalog.Base
	switch a.Source, base = goOnFrom(d.Copy, d.Archive); a.Source {
	case FromCopy:
		a.KeptLSN, a.Next = d.Copy.Last, d.Copy.Next
	case FromBucket:
		a.KeptLSN, a.Next = base.Through, d.Archive.NextOffset
	}
	next := catalog.Abandonment{Survivor: b.self, Boot: b.boot, Base: base}
	row, err := catalog.Abandoned(d.Row, next)
	if err != nil {
		return Abandoned{}, err
	}
	a.New = row.Lineage
	if dryRun {
		return a, nil
	}
	if row, err = b.opts.Catalog.Abandon(ctx, d.Row, next); err != nil {
		return Abandoned{}, err
	}
	a.New = row.Lineage
	b.opts.Logger.Warn("shard abandoned on an operator's word", "shard", id.String(), "from", string(a.Source),
		"kept LSN", a.KeptLSN, "next offset", a.Next, "given up", fmt.Sprint(a.GivenUp), "lineage", a.New)
	s, err := b.shard(ctx, id)
	if err != nil {
		return a, err
	}
	err = s.lead(ctx)
	if Waits(err) { // an attempt that was under way went by the old row
		err = s.lead(ctx)
	}
	return a, err
}

// goOnFrom chooses what a shard is re-formed from: the furthest of this broker's
// copy (the zero Status when it holds none) and the bucket's newest manifest. The
// base names that manifest also when the copy goes further, since only the base
// tells the next lineage what the bucket holds of those before.
func goOnFrom(held replica.Status, archive *tiering.Manifest) (Source, catalog.Base) {
	var base catalog.Base
	if archive != nil && archive.ArchivedEnd > 1 {
		base = catalog.Base{Through: archive.ArchivedEnd - 1, Lineage: archive.Lineage, Mark: archive.Mark}
	}
	switch {
	case held.Last > 0 && held.Last >= base.Through:
		return FromCopy, base
	case !base.IsZero():
		return FromBucket, base
	default:
		return FromNothing, base
	}
}

// mayAbandon refuses what would give up a shard that can still be served, and an
// operator's word that doesn't cover every member.
func (b *Broker) mayAbandon(d Description, lost []meta.StorageID) error {
	if d.Row.State != catalog.ShardServed {
		return meta.Invalidf("shard %s is %s: it waits for nobody, there is nothing to abandon", d.Row.ID, d.Row.State)
	}
	if d.Held && d.Copy.Serving {
		return meta.Invalidf("shard %s is being served by this broker: there is nothing to abandon", d.Row.ID)
	}
	if m, ok := d.Row.Member(b.self.Broker); ok && m == b.self && !d.Copy.Stranger {
		return meta.Invalidf("shard %s: this broker's copy is the member and is whole; an append or a read makes it lead", d.Row.ID)
	}
	var missing []string
	for _, m := range d.Row.Members {
		if !slices.Contains(lost, m.Storage) {
			missing = append(missing, fmt.Sprintf("%s/%s", m.Broker, m.Storage))
		}
	}
	if len(missing) > 0 {
		return meta.Invalidf("shard %s waits for %s: bring it back, or say by its storage id (after the slash) that it is lost for good", d.Row.ID, strings.Join(missing, ", "))
	}
	for _, id := range lost {
		if !slices.ContainsFunc(d.Row.Members, func(m meta.Member) bool { return m.Storage == id }) {
			return meta.Invalidf("storage %s is no member of shard %s: `varve shard describe` shows who is", id, d.Row.ID)
		}
	}
	return nil
}

// Waits reports whether an error is a shard that waits for copies.
func Waits(err error) bool {
	var q *meta.NoQuorum
	return errors.As(err, &q)
}
