package tiering

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
)

// Authority is what a shard's log says about its objects. It is asked for after
// candidates were listed, and must be of that moment or later.
type Authority struct {
	// Through: an unnamed object whose key has this epoch or a lower one is
	// garbage. For a live shard it is the leader's own epoch less one, given only
	// once the epoch's opening entry is committed, so that every mark of a lower
	// epoch is either in Marked or will never commit. For a hibernating shard it is
	// the row's epoch. 0 means that no epoch is over.
	Through meta.Epoch
	// Manifest is the newest written one that the log confirms; nil when there is
	// none, and then nothing counts as retired. The row's base, from an earlier
	// lineage, protects what it names and retires nothing.
	Manifest *Manifest
	// Marked reports whether an archive mark in the log names the object, committed
	// or not, whether its manifest is written or not. Nil means that none does.
	Marked func(key string) bool
	// Pinned reports whether a snapshot keeps the object. Nil means that none does.
	Pinned func(key string) bool
}

// SweepRequest says what to sweep. Who may call is the log's business too: a live
// shard's leader, or the one controller for a shard that hibernates.
type SweepRequest struct {
	Shard   meta.ShardID
	Lineage meta.Lineage // the own one; objects of others are left alone
	// Authority is called after each listing. An error ends the sweep: so a leader
	// that is deposed meanwhile returns one.
	Authority func(context.Context) (Authority, error)
	// OtherLineages also removes what this shard's manifests retired of earlier
	// lineages: only on an operator's word.
	OtherLineages bool
	Limit         int    // most objects to look at; default 10,000
	After         string // where an earlier sweep ended: its SweepResult.After
}

// SweepResult says what a sweep did.
type SweepResult struct {
	Listed, Deleted, Failed int
	Pinned, Waiting         int // garbage kept for a reader or snapshot, and for the grace
	OtherLineages           int // unnamed objects of another lineage, left alone
	Unknown                 int // keys that belong to nothing known, left alone
	UnknownKeys             []string
	// After is where to go on; empty when the shard was swept to its end.
	After string
}

const (
	defaultLimit = 10_000
	deleteBatch  = 500
	maxReported  = 100
)

// Sweep removes a shard's garbage, as the log and the keys prove it, never by age:
//
//   - an unnamed segment of an epoch that is over;
//   - a segment that this store gave up ([Store.UploadSegment], [Store.GiveUp]);
//   - a segment or index object that an older manifest names and the newest
//     written one no longer does;
//   - manifests older than the newest two, once what they retired is gone.
//
// Named, marked or pinned objects, objects of other lineages, and keys it doesn't
// know are never touched. It deletes in batches, each after a check of the claim
// no older than the delete window, and can be ended and taken up at any point.
// A delete that failed is counted and found again by the next sweep.
func (s *Store) Sweep(ctx context.Context, req SweepRequest) (SweepResult, error) {
	if req.Limit <= 0 {
		req.Limit = defaultLimit
	}
	sw := &sweep{s: s, req: &req, gone: make(map[string]bool)}
	var err error
	if !within(req.After, manifestFolder) {
		if err = sw.segments(ctx); err != nil || sw.out.After != "" {
			return sw.out, err
		}
		req.After = ""
	}
	err = sw.manifests(ctx)
	return sw.out, err
}

type sweep struct {
	s    *Store
	req  *SweepRequest
	auth Authority
	old  []*Manifest // written before the authority's and not pinned, oldest first, at most maxOld

	newest   *Manifest       // the authority's, or a later one that the bucket has
	pinned   []ManifestID    // written before the authority's, and kept by a snapshot
	unread   bool            // there are more than are in old: an unnamed object may be retired
	previous ManifestID      // the last one before the authority's
	gone     map[string]bool // deleted by this sweep
	out      SweepResult
}

// list collects up to the limit's keys and says where it ended, "" for the end.
func (sw *sweep) list(ctx context.Context, prefix string) (keys []string, after string, err error) {
	for info, err := range sw.s.bucket.List(ctx, prefix, sw.req.After) {
		if err != nil {
			return nil, "", err
		}
		keys = append(keys, info.Key)
		if len(keys) == sw.req.Limit {
			after = info.Key
			break
		}
	}
	sw.out.Listed += len(keys)
	return keys, after, nil
}

func (r *SweepResult) unknown(s *Store, key string) {
	r.Unknown++
	if len(r.UnknownKeys) < maxReported {
		r.UnknownKeys = append(r.UnknownKeys, key)
	}
	if f := s.opt.Events.UnknownKey; f != nil {
		f(key)
	}
}

func (sw *sweep) segments(ctx context.Context) error {
	keys, after, err := sw.list(ctx, segmentPrefix(sw.req.Shard))
	if err != nil {
		return err
	}
	var segs []SegmentKey
	for _, key := range keys {
		k, err := ParseSegmentKey(key)
		if err != nil {
			sw.out.unknown(sw.s, key)
			continue
		}
		segs = append(segs, k)
	}
	if len(segs) > 0 {
		if err := sw.authorize(ctx); err != nil {
			return err
		}
	}
	var garbage []string
	for _, k := range segs {
		gone, err := sw.garbage(ctx, k)
		if err != nil {
			return err
		}
		if gone {
			garbage = append(garbage, k.String())
		}
	}
	if err := sw.remove(ctx, garbage); err != nil {
		return err
	}
	sw.out.After = after
	return nil
}

// authorize asks the log, after the candidates were listed, and reads the older
// manifests: what they name was given to readers once.
func (sw *sweep) authorize(ctx context.Context) (err error) {
	if sw.auth, err = sw.req.Authority(ctx); err != nil {
		return err
	}
	m := sw.auth.Manifest
	if m != nil && (m.Shard != sw.req.Shard || m.Lineage > sw.req.Lineage) {
		return meta.Invalidf("sweep of %s in lineage %s: got manifest %s", sw.req.Shard, meta.Hex(sw.req.Lineage), m.Key())
	}
	sw.old, sw.pinned, sw.newest, sw.previous, sw.unread = nil, nil, m, ManifestID{}, false
	var ids []ManifestID
	last := ManifestID{}
	for info, err := range sw.s.bucket.List(ctx, manifestPrefix(sw.req.Shard), "") {
		if err != nil {
			return err
		}
		f, err := parseManifestKey(info.Key)
		if err != nil || f.Depth >= 0 {
			continue
		}
		if f.ID.Lineage == sw.req.Lineage {
			last = f.ID
		}
		if m != nil && older(f.ID, m.ID()) && (f.ID.Lineage == m.Lineage || sw.req.OtherLineages) {
			sw.previous = f.ID
			if sw.keeps(info.Key) {
				sw.pinned = append(sw.pinned, f.ID)
			} else {
				ids = append(ids, f.ID)
			}
		}
	}
	// The caller's view may be older than the bucket: what a written manifest of the
	// own lineage names, a committed mark named.
	if !last.IsZero() && (m == nil || older(m.ID(), last)) {
		if sw.newest, err = sw.s.LoadManifest(ctx, sw.req.Shard, last); err != nil {
			return err
		}
	}
	sw.unread = sw.newest != m || len(ids) > maxOld
	if m != nil && m.Lineage != sw.req.Lineage {
		return nil // the base from an earlier lineage: it protects and retires nothing
	}
	for _, id := range ids[:min(maxOld, len(ids))] {
		x, err := sw.s.LoadManifest(ctx, sw.req.Shard, id)
		if missing(err) {
			continue // swept by somebody else since it was listed
		}
		if err != nil {
			return err
		}
		sw.old = append(sw.old, x)
	}
	return nil
}

// maxOld bounds how many older manifests one sweep holds in memory; the rest
// follows once these are gone.
const maxOld = 16

// keeps reports whether a snapshot keeps the object.
func (sw *sweep) keeps(key string) bool { return sw.auth.Pinned != nil && sw.auth.Pinned(key) }

func older(a, b ManifestID) bool {
	return a.Lineage < b.Lineage || a.Lineage == b.Lineage && a.Mark < b.Mark
}

// garbage is the rule for segments.
func (sw *sweep) garbage(ctx context.Context, k SegmentKey) (bool, error) {
	key := k.String()
	if named, err := sw.named(ctx, key, k.Base); named || err != nil {
		sw.s.unseen(key)
		return false, err
	}
	if age := sw.s.opt.Twins.GarbageByAge; age > 0 {
		return sw.s.seenFor(key) >= age, nil
	}
	if sw.auth.Marked != nil && sw.auth.Marked(key) {
		return false, nil
	}
	retired, err := sw.retired(ctx, key, k.Base)
	if err != nil {
		return false, err
	}
	switch {
	case k.Lineage != sw.req.Lineage && !(retired && sw.req.OtherLineages):
		sw.out.OtherLineages++
		return false, nil
	case !retired && k.Epoch > sw.auth.Through && !sw.s.wasGivenUp(key):
		return false, nil
	}
	return sw.free(ctx, key, k.Base, retired || sw.unread)
}

// free says whether nobody reads garbage any more.
func (sw *sweep) free(ctx context.Context, key string, base meta.LSN, retired bool) (bool, error) {
	pinned, err := sw.inUse(ctx, key, base)
	if err != nil {
		return false, err
	}
	if pinned {
		sw.out.Pinned++
		return false, nil
	}
	if retired && sw.s.seenFor(key) < sw.s.opt.Grace {
		sw.out.Waiting++
		return false, nil
	}
	return true, nil
}

func (sw *sweep) named(ctx context.Context, key string, base meta.LSN) (bool, error) {
	for _, m := range []*Manifest{sw.auth.Manifest, sw.newest} {
		if m == nil {
			continue
		}
		if yes, err := sw.s.names(ctx, m, key, base); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

// retired reports whether an older manifest names what the newest does not.
func (sw *sweep) retired(ctx context.Context, key string, base meta.LSN) (bool, error) {
	for _, m := range sw.old {
		yes, err := sw.s.names(ctx, m, key, base)
		if missing(err) {
			continue // its index objects are swept: nothing is left of what it retired
		}
		if yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

func (sw *sweep) inUse(ctx context.Context, key string, base meta.LSN) (bool, error) {
	if sw.keeps(key) {
		return true, nil
	}
	for _, m := range sw.s.reading(sw.req.Shard) {
		if yes, err := sw.s.names(ctx, m, key, base); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

// names reports whether a manifest lists a segment that starts at that LSN under
// that key, at or above its start offset. Where segments overlap, several cover it.
func (s *Store) names(ctx context.Context, m *Manifest, key string, base meta.LSN) (named bool, err error) {
	if base >= m.ArchivedEnd {
		return false, nil
	}
	err = s.from(ctx, m, aboveLSN(base), func(ref *meta.SegmentRef) (more bool) {
		named = ref.Key == key && m.live(ref.NextOffset)
		return ref.Key != key && ref.FirstLSN <= base
	})
	return named, err
}

// reading returns the manifests that running readers of a shard read by.
func (s *Store) reading(shard meta.ShardID) []*Manifest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*Manifest
	for r := range s.readers {
		if m := r.m.Load(); m != nil && m.Shard == shard {
			out = append(out, m)
		}
	}
	return out
}

func (s *Store) wasGivenUp(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.givenUp[key]
	return ok
}

// seenFor is for how long sweeps of this store have known an object as garbage. One
// that is deleted has no more time to wait for: an older manifest may name it still.
func (s *Store) seenFor(key string) time.Duration {
	now := s.opt.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.seen[key]
	if !ok {
		s.seen[key], first = now, now
	}
	return now.Sub(first)
}

func (s *Store) unseen(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, key)
}

// forgetDeleted drops what is known of objects that are gone from a folder, once no
// manifest is left that names them.
func (s *Store) forgetDeleted(folders ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, first := range s.seen {
		if first.IsZero() && slices.ContainsFunc(folders, func(f string) bool { return within(key, f) }) {
			delete(s.seen, key)
		}
	}
}

// remove deletes keys in batches, each within the delete window.
func (sw *sweep) remove(ctx context.Context, keys []string) error {
	deleted, failed, err := sw.s.remove(ctx, keys)
	sw.out.Deleted += deleted
	sw.out.Failed += failed
	if err == nil && failed == 0 {
		for _, key := range keys {
			sw.gone[key] = true
		}
	}
	return err
}

func (s *Store) remove(ctx context.Context, keys []string) (deleted, failed int, err error) {
	for len(keys) > 0 {
		batch := keys[:min(deleteBatch, len(keys))]
		keys = keys[len(batch):]
		until, err := s.deleteUntil(ctx)
		if err != nil {
			return deleted, failed, err
		}
		dctx, cancel := context.WithTimeout(ctx, until.Sub(s.opt.Now()))
		err = s.bucket.Delete(dctx, batch)
		cancel()
		left, err := s.settle(batch, err)
		deleted += len(batch) - left
		failed += left
		if err != nil {
			return deleted, failed, err
		}
	}
	return deleted, failed, nil
}

// settle counts and forgets what is gone, and reports what is not.
func (s *Store) settle(batch []string, err error) (left int, _ error) {
	refused := make(map[string]error)
	var d *bucket.DeleteError
	switch {
	case errors.As(err, &d):
		for _, f := range d.Failed {
			refused[f.Key] = f.Err
		}
	case err != nil:
		return len(batch), err
	}
	s.mu.Lock()
	for _, key := range batch {
		if _, no := refused[key]; !no {
			if _, ok := s.seen[key]; ok {
				s.seen[key] = time.Time{}
			}
			delete(s.givenUp, key)
		}
	}
	s.mu.Unlock()
	for _, key := range batch {
		if why, no := refused[key]; no {
			s.count.refused.Add(1)
			if f := s.opt.Events.DeleteFailed; f != nil {
				f(key, why)
			}
			continue
		}
		s.count.deleted.Add(1)
		if f := s.opt.Events.Deleted; f != nil {
			f(key)
		}
	}
	return len(refused), nil
}
