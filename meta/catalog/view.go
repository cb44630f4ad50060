package catalog

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
)

// ViewOptions configure a view. The zero value is useful.
type ViewOptions struct {
	// Audit is how often the view is held against a full read, whatever the watch
	// delivers: a last resort against a store that skips events or goes back in
	// time while a watch stays open. 0 means 5 minutes.
	Audit time.Duration
	// Holds reports whether the broker holds data of a name; nil means of none.
	// Only tombstones of such names are told. It must not block.
	Holds func(meta.StreamName) bool
	// Held lists the names Holds is true of, for a full read; nil means none.
	Held func() []meta.StreamName
}

// Update is what changed for a broker since the update before.
type Update struct {
	Revision Revision
	// Full says that a gap was bridged by a full read (the first update always
	// is). Assigned then lists everything, and Removed what went meanwhile.
	Full bool
	// Rewound says that the store went back in time: an older catalog was put in
	// its place. Nothing may be deleted on the word of what is missing now.
	Rewound bool

	Assigned []ShardRow       // rows that name the broker as a member: new or changed
	Removed  []meta.ShardID   // no longer assigned; by deletion only if a tombstone covers them
	Deleted  []meta.Tombstone // of removed shards' names, and of names the broker holds
}

// View follows what concerns one broker: the rows that name it as a member, and
// the tombstones of names it holds. Whatever happens to the watch, the state that
// the updates add up to equals a full read. Not for concurrent use.
//
//	         full read at one revision
//	(start) ----------------------------> following --+
//	   ^                                      |       | changes of both watches
//	   +--------------------------------------+ <-----+
//	     compacted, dropped, rewound, audit due
type View struct {
	c      *Catalog
	broker meta.BrokerID
	opt    ViewOptions

	rows    map[meta.ShardID]struct{} // what is assigned
	at      Revision                  // up to which everything was told
	assign  Watch                     // nil: a full read is due
	stones  Watch
	audit   *time.Timer
	skipped bool // the twin's: was there a first full read
}

// View opens a view for a broker. Close it.
func (c *Catalog) View(broker meta.BrokerID, opt ViewOptions) *View {
	if opt.Audit == 0 {
		opt.Audit = 5 * time.Minute
	}
	if opt.Holds == nil {
		opt.Holds = func(meta.StreamName) bool { return false }
	}
	if opt.Held == nil {
		opt.Held = func() []meta.StreamName { return nil }
	}
	return &View{c: c, broker: broker, opt: opt, rows: make(map[meta.ShardID]struct{})}
}

// Close ends the view's watches.
func (v *View) Close() {
	v.stop()
	if v.audit != nil {
		v.audit.Stop()
	}
}

func (v *View) stop() {
	if v.assign != nil {
		v.assign.Close()
		v.stones.Close()
		v.assign, v.stones = nil, nil
	}
}

// Next waits for the next update. The first one is the full state. An error
// (meta.ErrUnavailable, meta.ErrCorrupt, the context's) loses nothing: call again.
func (v *View) Next(ctx context.Context) (Update, error) {
	for {
		if v.assign == nil {
			return v.read(ctx)
		}
		select {
		case <-ctx.Done():
			return Update{}, ctx.Err()
		case <-v.audit.C:
			v.stop()
		case ch, ok := <-v.assign.C():
			if !ok {
				v.stop()
				continue
			}
			u, err := v.applyRows(ctx, ch)
			if err != nil || !u.empty() {
				return u, err
			}
		case ch, ok := <-v.stones.C():
			if !ok {
				v.stop()
				continue
			}
			u, err := v.applyStones(ch)
			if err != nil || !u.empty() {
				return u, err
			}
		}
	}
}

func (u Update) empty() bool {
	return !u.Full && len(u.Assigned) == 0 && len(u.Removed) == 0 && len(u.Deleted) == 0
}

// read makes the state anew from assignments and tombstones at one revision and
// watches from the revision after it.
func (v *View) read(ctx context.Context) (Update, error) {
	items, at, err := readAll(ctx, v.c.kv, byBrokerDir(v.broker))
	if err != nil {
		return Update{}, err
	}
	if v.c.opt.Twins.ResumeAfterGap && v.skipped {
		v.follow(ctx, at)
		return Update{Revision: at, Full: true}, nil
	}
	u := Update{Revision: at, Full: true, Rewound: at < v.at}
	rows := make(map[meta.ShardID]struct{}, len(items))
	for _, kv := range items {
		s, err := decodeShard(kv)
		if err != nil {
			return Update{}, err
		}
		rows[s.ID] = struct{}{}
		u.Assigned = append(u.Assigned, s)
	}
	names := v.opt.Held()
	for id := range v.rows {
		if _, still := rows[id]; !still {
			u.Removed = append(u.Removed, id)
			names = append(names, id.Stream)
		}
	}
	slices.SortFunc(u.Removed, meta.ShardID.Compare)
	if u.Deleted, err = v.readStones(ctx, names, at); err != nil {
		if errors.Is(err, ErrCompacted) {
			err = meta.Errorf(meta.ErrUnavailable, "the catalog was compacted while it was read: %w", err)
		}
		return Update{}, err
	}
	v.rows, v.at, v.skipped = rows, at, true
	v.follow(ctx, at)
	return u, nil
}

func (v *View) follow(ctx context.Context, at Revision) {
	// The watches outlive this call's context; Close ends them.
	ctx = context.WithoutCancel(ctx)
	v.assign = v.c.kv.Watch(ctx, byBrokerDir(v.broker), at+1)
	v.stones = v.c.kv.Watch(ctx, dirTombstones, at+1)
	if v.audit == nil {
		v.audit = time.NewTimer(v.opt.Audit)
		return
	}
	v.audit.Reset(v.opt.Audit)
}

// readStones reads the tombstones of names, as of a revision (0: now).
func (v *View) readStones(ctx context.Context, names []meta.StreamName, at Revision) ([]meta.Tombstone, error) {
	keys := make([]string, len(names))
	for i, n := range names {
		keys[i] = tombstoneKey(n)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if len(keys) > fewNames {
		return v.joinStones(ctx, keys, at)
	}
	var stones []meta.Tombstone
	for _, key := range keys {
		// A range that can hold only this name's key, as Range alone reads the past.
		p, err := v.c.kv.Range(ctx, RangeRequest{Prefix: key, Limit: 1, Revision: at})
		if err != nil {
			return nil, err
		}
		if len(p.Items) == 0 || p.Items[0].Key != key {
			continue
		}
		t, err := decodeTombstone(p.Items[0])
		if err != nil {
			return nil, err
		}
		stones = append(stones, t)
	}
	return stones, nil
}

// fewNames is up to how many names are asked for one by one.
const fewNames = 16

// joinStones walks names and tombstones side by side, so that a broker that holds
// many streams asks once for each page of tombstones, not once for each name, and
// skips pages without a name of its own. Keys are sorted.
func (v *View) joinStones(ctx context.Context, keys []string, at Revision) (stones []meta.Tombstone, err error) {
	after := ""
	for len(keys) > 0 {
		after = max(after, keys[0][:len(keys[0])-1]) // just before the next name's place
		p, err := v.c.kv.Range(ctx, RangeRequest{Prefix: dirTombstones, After: after, Revision: at})
		if err != nil {
			return nil, err
		}
		for _, kv := range p.Items {
			n, found := slices.BinarySearch(keys, kv.Key)
			keys, after = keys[n:], kv.Key
			if !found {
				continue
			}
			t, err := decodeTombstone(kv)
			if err != nil {
				return nil, err
			}
			stones = append(stones, t)
		}
		if !p.More {
			break
		}
		n, _ := slices.BinarySearch(keys, after)
		keys = keys[n:]
	}
	return stones, nil
}

// applyRows takes a change of the broker's assignments. A removal is told together
// with the name's tombstone, so that nobody has to guess why a shard went.
func (v *View) applyRows(ctx context.Context, ch Changes) (Update, error) {
	u := Update{Revision: ch.Revision}
	put := make(map[meta.ShardID]ShardRow)
	gone := make(map[meta.ShardID]bool)
	var names []meta.StreamName
	for _, e := range ch.Events {
		if e.Deleted {
			id, err := parseShardKey(e.KV.Key[len(byBrokerDir(v.broker)):])
			if err != nil {
				v.stop()
				return Update{}, corrupt(e.KV, err)
			}
			delete(put, id)
			gone[id] = true
			names = append(names, id.Stream)
			continue
		}
		s, err := decodeShard(e.KV)
		if err != nil {
			v.stop() // read everything again next time: nothing is skipped
			return Update{}, err
		}
		delete(gone, s.ID)
		put[s.ID] = s
	}
	stones, err := v.readStones(ctx, names, 0)
	if err != nil {
		v.stop()
		return Update{}, err
	}
	u.Deleted = stones
	for id, s := range put {
		v.rows[id] = struct{}{}
		u.Assigned = append(u.Assigned, s)
	}
	for id := range gone {
		if _, had := v.rows[id]; had {
			delete(v.rows, id)
			u.Removed = append(u.Removed, id)
		}
	}
	slices.SortFunc(u.Assigned, func(a, b ShardRow) int { return a.ID.Compare(b.ID) })
	slices.SortFunc(u.Removed, meta.ShardID.Compare)
	v.at = max(v.at, ch.Revision)
	return u, nil
}

// applyStones takes changes of tombstones, of names the broker holds.
func (v *View) applyStones(ch Changes) (Update, error) {
	u := Update{Revision: ch.Revision}
	for _, e := range ch.Events {
		if e.Deleted {
			continue // tombstones are never removed; a rewind shows elsewhere
		}
		t, err := decodeTombstone(e.KV)
		if err != nil {
			v.stop()
			return Update{}, err
		}
		if v.opt.Holds(t.Stream) {
			u.Deleted = append(u.Deleted, t)
		}
	}
	v.at = max(v.at, ch.Revision)
	return u, nil
}
