package tiering

import (
	"context"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
)

// manifests removes superseded manifests, each after what it alone still named,
// and then index objects that no manifest names any more.
func (sw *sweep) manifests(ctx context.Context) error {
	keys, after, err := sw.list(ctx, manifestPrefix(sw.req.Shard))
	if err != nil || len(keys) == 0 {
		return err
	}
	var indexes []manifestFile
	for _, key := range keys {
		f, err := parseManifestKey(key)
		if err != nil {
			sw.out.unknown(sw.s, key)
			continue
		}
		if f.Depth >= 0 {
			indexes = append(indexes, f)
		}
	}
	kept, err := sw.superseded(ctx)
	if err != nil {
		return err
	}
	// An index object must not go before a manifest that still needs it to find what
	// it retired: not while there is one that was not read.
	if kept != nil && !sw.unread {
		if err := sw.indexes(ctx, indexes, append(kept, sw.s.reading(sw.req.Shard)...)); err != nil {
			return err
		}
	}
	if sw.out.Deleted > 0 && len(kept) <= 3 {
		sw.s.forgetDeleted(segmentPrefix(sw.req.Shard), manifestPrefix(sw.req.Shard))
	}
	sw.out.After = after
	return nil
}

// superseded removes the manifests that it can, some at a time, and returns those
// that stay; none when the log knows of no manifest of its own lineage.
func (sw *sweep) superseded(ctx context.Context) ([]*Manifest, error) {
	for {
		if err := sw.authorize(ctx); err != nil {
			return nil, err
		}
		m := sw.auth.Manifest
		if m == nil || m.Lineage != sw.req.Lineage {
			return nil, nil
		}
		kept := []*Manifest{m, sw.newest}
		for _, x := range sw.old {
			if x.ID() == sw.previous && sw.newest == m { // the newest two stay
				kept = append(kept, x)
				continue
			}
			gone, err := sw.supersede(ctx, x)
			if err != nil {
				return nil, err
			}
			if !gone {
				kept = append(kept, x)
			}
		}
		if !sw.unread || len(kept) == len(sw.old)+2 {
			sw.out.Pinned += len(sw.pinned)
			return kept, nil
		}
	}
}

// supersede removes what a manifest names and the newest doesn't, then it. It is
// kept as long as any of that is.
func (sw *sweep) supersede(ctx context.Context, x *Manifest) (gone bool, err error) {
	var retired []string
	kept := false
	err = sw.s.diff(ctx, x, sw.auth.Manifest, func(ref *meta.SegmentRef) error {
		k, err := ParseSegmentKey(ref.Key)
		if err != nil || k.Lineage != sw.req.Lineage && !sw.req.OtherLineages || k.Shard != sw.req.Shard || sw.gone[ref.Key] {
			return nil // somebody else's to remove, or removed
		}
		if sw.keeps(ref.Key) {
			sw.out.Pinned++
			return nil // the pinned manifest goes on to name it
		}
		free, err := sw.free(ctx, ref.Key, ref.FirstLSN, true)
		if free {
			retired = append(retired, ref.Key)
		}
		kept = kept || !free
		return err
	})
	if err != nil && !missing(err) {
		return false, err
	}
	failed := sw.out.Failed
	if err := sw.remove(ctx, retired); err != nil {
		return false, err
	}
	if kept || sw.out.Failed > failed {
		return false, nil
	}
	return true, sw.remove(ctx, []string{x.Key()})
}

// indexes removes index objects of the past that none of the manifests names, nor
// one that a snapshot keeps. One of a mark above the newest manifest was put ahead
// of its own.
func (sw *sweep) indexes(ctx context.Context, found []manifestFile, inUse []*Manifest) error {
	named := make(map[string]bool)
	for _, m := range inUse {
		if err := sw.s.listNames(ctx, m.Older, named); err != nil && !missing(err) {
			return err
		}
	}
	found = slices.DeleteFunc(found, func(f manifestFile) bool {
		return named[indexKey(f.Shard, f.ID, f.Depth)] || f.ID.Mark > sw.auth.Manifest.Mark
	})
	if len(found) == 0 {
		return nil
	}
	for _, id := range sw.pinned {
		m, err := sw.s.LoadManifest(ctx, sw.req.Shard, id)
		if err == nil {
			err = sw.s.listNames(ctx, m.Older, named)
		}
		if err != nil && !missing(err) {
			return err
		}
	}
	var garbage []string
	for _, f := range found {
		key := indexKey(f.Shard, f.ID, f.Depth)
		switch {
		case f.ID.Lineage != sw.req.Lineage && !sw.req.OtherLineages:
			sw.out.OtherLineages++
		case named[key] || sw.keeps(key):
			sw.out.Pinned++
		case sw.s.seenFor(key) < sw.s.opt.Grace:
			sw.out.Waiting++
		default:
			garbage = append(garbage, key)
		}
	}
	return sw.remove(ctx, garbage)
}

func (s *Store) listNames(ctx context.Context, refs []IndexRef, into map[string]bool) error {
	for i := range refs {
		into[refs[i].Key] = true
		if refs[i].Depth == 0 {
			continue
		}
		x, err := s.list(ctx, &refs[i])
		if err == nil {
			err = s.listNames(ctx, x.Indexes, into)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// diff yields the segments that the older manifest has live and the newer hasn't.
func (s *Store) diff(ctx context.Context, older, newer *Manifest, yield func(*meta.SegmentRef) error) error {
	have := make(map[string]bool, len(newer.Older))
	for i := range newer.Older {
		have[newer.Older[i].Key] = true
	}
	check := func(refs []meta.SegmentRef) error {
		for i := range refs {
			r := &refs[i]
			if !older.live(r.NextOffset) {
				continue
			}
			named, err := s.names(ctx, newer, r.Key, r.FirstLSN)
			if err == nil && !named {
				err = yield(r)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	var walk func([]IndexRef) error
	walk = func(refs []IndexRef) error {
		for i := range refs {
			r := &refs[i]
			if have[r.Key] && newer.live(r.FirstOffset+1) || !older.live(r.NextOffset) {
				continue // all of it is live in the newer too, or none in the older
			}
			x, err := s.list(ctx, r)
			if err == nil {
				err = walk(x.Indexes)
			}
			if err == nil {
				err = check(x.Segments)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(older.Older); err != nil {
		return err
	}
	return check(older.Segments)
}

// IncarnationRequest says which deleted incarnation to sweep.
type IncarnationRequest struct {
	Stream      meta.StreamName
	Incarnation meta.Incarnation
	// Pins is called after each listing and reports what snapshots keep. Nil means
	// nothing.
	Pins  func(context.Context) (func(key string) bool, error)
	Limit int    // most objects to look at; default 10,000
	After string // where an earlier sweep ended
}

// SweepIncarnation removes everything below one deleted incarnation, whatever it
// is, manifests first; only what no client of this port could have put is reported
// and left. A [meta.ErrConflict] says that no tombstone object covers
// it yet: then nothing is touched. Another incarnation of the name never is. It
// ends uploads of the incarnation that run in this store; one that a slow broker
// finishes later is found by the next sweep.
//
// It deletes in batches, each after a check of the claim, and can be ended and
// taken up at any point.
func (s *Store) SweepIncarnation(ctx context.Context, req IncarnationRequest) (SweepResult, error) {
	if req.Limit <= 0 {
		req.Limit = defaultLimit
	}
	var out SweepResult
	covered, err := s.tombstoned(ctx, req.Stream, req.Incarnation)
	if err != nil {
		return out, err
	}
	if !covered {
		return out, meta.Errorf(meta.ErrConflict, "no tombstone object of %s covers incarnation %s: put it first", req.Stream, meta.Hex(req.Incarnation))
	}
	s.endUploads(req.Stream, req.Incarnation)
	home := req.Stream.Escaped() + "/" + meta.Hex(req.Incarnation) + "/"
	for _, folder := range []string{manifestFolder + home, streamFolder + home} {
		if req.After > folder && !within(req.After, folder) {
			continue
		}
		after, err := s.sweepFolder(ctx, folder, &req, &out)
		if err != nil || after != "" {
			out.After = after
			return out, err
		}
		req.After = ""
	}
	s.forgetDeleted(manifestFolder+home, streamFolder+home)
	s.cache.forget(func(object string) bool {
		return within(object, manifestFolder+home) || within(object, streamFolder+home)
	})
	return out, nil
}

func (s *Store) sweepFolder(ctx context.Context, folder string, req *IncarnationRequest, out *SweepResult) (after string, err error) {
	var keys []string
	for info, err := range s.bucket.List(ctx, folder, req.After) {
		if err != nil {
			return req.After, err
		}
		keys = append(keys, info.Key)
		if out.Listed++; out.Listed == req.Limit {
			after = info.Key
			break
		}
	}
	pinned := func(string) bool { return false }
	if req.Pins != nil && len(keys) > 0 {
		if pinned, err = req.Pins(ctx); err != nil {
			return req.After, err
		}
	}
	var garbage []string
	for _, key := range keys {
		switch {
		case bucket.CheckKey(key) != nil:
			out.unknown(s, key) // nobody's that uses this port, which could not remove it
		case pinned(key):
			out.Pinned++
		default:
			garbage = append(garbage, key)
		}
	}
	deleted, failed, err := s.remove(ctx, garbage)
	out.Deleted += deleted
	out.Failed += failed
	return after, err
}
