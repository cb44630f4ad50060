package tiering

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/varve-io/varve/meta"
)

// Claim is one cluster's claim on the prefix, as its object says.
type Claim struct {
	Generation uint32
	Cluster    meta.ClusterID
	Level      uint16        // format level when it was made
	Window     time.Duration // how long after a check of it a delete may still be sent
	Released   bool          // the cluster gave the prefix up; nobody owns it
}

// ClaimOptions say how to claim.
type ClaimOptions struct {
	Level uint16 // format level to write down
	// Takeover claims the prefix although another cluster owns it. A restore does
	// this, on an operator's word; the other cluster stops archiving and deleting
	// at its next check.
	Takeover bool
}

// Claimed is the outcome of [Store.Claim].
type Claimed struct {
	Claim
	Fresh    bool    // made now, not found
	Previous []Claim // all others in the prefix, oldest first
	// Wait is how long deletes of an owner before may still arrive: nothing that
	// was listed earlier may be relied on. 0 when there was no other.
	Wait time.Duration
}

type claimState struct {
	held    *Claim
	checked time.Time // when the last good check was begun
}

type claimText struct {
	Generation uint32 `json:"generation"`
	Cluster    string `json:"cluster"`
	Level      uint16 `json:"level"`
	WindowMS   int64  `json:"delete_window_ms"`
	Released   bool   `json:"released"`
}

func encodeClaim(c Claim) ([]byte, error) {
	return encodeDocument(claimMagic, &claimText{c.Generation, c.Cluster.String(), c.Level, c.Window.Milliseconds(), c.Released})
}

func decodeClaim(b []byte) (Claim, error) {
	var t claimText
	if err := decodeDocument(claimMagic, b, &t); err != nil {
		return Claim{}, err
	}
	id, err := meta.ParseClusterID(t.Cluster)
	if err != nil || t.WindowMS < 0 || t.WindowMS > int64(time.Hour/time.Millisecond) {
		return Claim{}, meta.Errorf(meta.ErrCorrupt, "claim of cluster %.40q with a delete window of %d ms", t.Cluster, t.WindowMS)
	}
	return Claim{t.Generation, id, t.Level, time.Duration(t.WindowMS) * time.Millisecond, t.Released}, nil
}

func parseClaimKey(key string) (generation uint32, cluster meta.ClusterID, err error) {
	bad := meta.Invalidf("key %q is no claim's", key)
	name, ok := strings.CutPrefix(key, claimFolder)
	gen, id, ok2 := strings.Cut(strings.TrimSuffix(name, jsonSuffix), "-")
	n, e1 := meta.ParseHex[uint64](gen)
	c, e2 := meta.ParseClusterID(id)
	if !ok || !ok2 || e1 != nil || e2 != nil || n > math.MaxUint32 || claimKey(uint32(n), c) != key {
		return 0, c, bad
	}
	return uint32(n), c, nil
}

// Claims reads every claim in the prefix, oldest first.
func (s *Store) Claims(ctx context.Context) ([]Claim, error) {
	var keys []string
	for info, err := range s.bucket.List(ctx, claimFolder, "") {
		if err != nil {
			return nil, err
		}
		keys = append(keys, info.Key)
	}
	out := make([]Claim, 0, len(keys))
	for _, key := range keys {
		gen, id, err := parseClaimKey(key)
		if err != nil {
			return nil, meta.Errorf(meta.ErrForeign, "%s below %s is no claim of this format; give varve a prefix of its own", key, s.bucket.Location())
		}
		b, err := s.load(ctx, key)
		if err != nil {
			return nil, err
		}
		c, err := decodeClaim(b)
		if err == nil && (c.Generation != gen || c.Cluster != id) {
			err = meta.Errorf(meta.ErrCorrupt, "it says generation %d of cluster %s", c.Generation, c.Cluster)
		}
		if err != nil {
			return nil, s.damaged(&DamagedError{Key: key, Len: int64(len(b)), Err: err})
		}
		out = append(out, c)
	}
	return out, nil
}

// newest returns the claims of the highest generation.
func newest(claims []Claim) []Claim {
	for i := range claims {
		if claims[i].Generation == claims[len(claims)-1].Generation {
			return claims[i:]
		}
	}
	return nil
}

// Claim makes the prefix ours, or finds that it is. The rules:
//
//   - the only claim of the highest generation owns the prefix, unless it says
//     released; two claims of one generation own nothing, and neither ever will:
//     who wants the prefix takes the next generation;
//   - a claim of another cluster is a [meta.ErrForeign] that names it, unless it is
//     taken over;
//   - a new claim is put first and believed only after a listing shows it alone.
//
// When an outcome is unknown the error is a [meta.ErrUnavailable]; call again.
func (s *Store) Claim(ctx context.Context, o ClaimOptions) (Claimed, error) {
	claims, err := s.Claims(ctx)
	if err != nil {
		return Claimed{}, err
	}
	top := newest(claims)
	next := uint32(1)
	if len(top) > 0 {
		next = top[0].Generation + 1
	}
	if len(top) == 1 && !top[0].Released {
		if top[0].Cluster == s.opt.Cluster {
			return s.hold(top[0], claims, false), nil
		}
		if !o.Takeover {
			return Claimed{}, s.foreign(top[0])
		}
	}
	if next == 0 {
		return Claimed{}, meta.Errorf(meta.ErrExhausted, "claims below %s have reached the last generation; use another prefix", s.bucket.Location())
	}
	return s.make(ctx, Claim{Generation: next, Cluster: s.opt.Cluster, Level: o.Level, Window: s.opt.DeleteWindow})
}

func (s *Store) make(ctx context.Context, c Claim) (Claimed, error) {
	b, err := encodeClaim(c)
	if err != nil {
		return Claimed{}, err
	}
	putErr := s.putSmall(ctx, claimKey(c.Generation, c.Cluster), b)
	// Whatever the put said, the listing tells. Each of two claimants puts before
	// it lists, so at least one of them sees both; the other one's next check does.
	claims, err := s.Claims(ctx)
	if err != nil {
		return Claimed{}, errors.Join(err, putErr)
	}
	top := newest(claims)
	if len(top) == 1 && top[0] == c {
		return s.hold(c, claims, true), nil
	}
	if putErr != nil && len(top) <= 1 {
		return Claimed{}, putErr
	}
	for _, t := range top {
		if t.Cluster != c.Cluster {
			return Claimed{}, s.foreign(t)
		}
	}
	return Claimed{}, meta.Errorf(meta.ErrUnavailable, "the claim of generation %d on %s is not there yet; try again", c.Generation, s.bucket.Location())
}

func (s *Store) hold(c Claim, all []Claim, fresh bool) Claimed {
	out := Claimed{Claim: c, Fresh: fresh}
	for _, o := range all {
		if o != c {
			out.Previous = append(out.Previous, o)
		}
		if o.Cluster != c.Cluster {
			out.Wait = max(out.Wait, o.Window)
		}
	}
	s.mu.Lock()
	s.claim = claimState{held: &c}
	s.mu.Unlock()
	return out
}

func (s *Store) foreign(c Claim) error {
	return meta.Errorf(meta.ErrForeign, "bucket %s is claimed by cluster %s (generation %d), this is cluster %s: use a prefix of its own", s.bucket.Location(), c.Cluster, c.Generation, s.opt.Cluster)
}

// Generation is that of the claim held; 0 before [Store.Claim] succeeded.
func (s *Store) Generation() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.held == nil {
		return 0
	}
	return s.claim.held.Generation
}

// CheckClaim looks whether the claim still stands: a [meta.ErrForeign] when it
// doesn't, and then nothing may be archived or deleted any more.
func (s *Store) CheckClaim(ctx context.Context) error {
	s.mu.Lock()
	held := s.claim.held
	s.mu.Unlock()
	if held == nil {
		return meta.Errorf(meta.ErrForeign, "bucket %s is not claimed by this store", s.bucket.Location())
	}
	begun := s.opt.Now()
	claims, err := s.Claims(ctx)
	if err != nil {
		return err
	}
	top := newest(claims)
	if len(top) != 1 || top[0] != *held {
		err = meta.Errorf(meta.ErrForeign, "bucket %s is no longer claimed by cluster %s: its claim of generation %d is gone", s.bucket.Location(), s.opt.Cluster, held.Generation)
		for _, c := range top {
			if c.Cluster != s.opt.Cluster {
				err = s.foreign(c)
			}
		}
		s.mu.Lock()
		s.claim.checked = time.Time{}
		s.mu.Unlock()
		if f := s.opt.Events.ClaimLost; f != nil {
			f(err)
		}
		return err
	}
	s.mu.Lock()
	s.claim.checked = begun
	s.mu.Unlock()
	return nil
}

// deleteUntil returns until when deletes may be sent, after a check if the last
// one is older than half the window.
func (s *Store) deleteUntil(ctx context.Context) (time.Time, error) {
	for range 2 {
		s.mu.Lock()
		checked, held := s.claim.checked, s.claim.held
		s.mu.Unlock()
		if held != nil && !checked.IsZero() && since(checked, s.opt.Now()) < held.Window/2 {
			return checked.Add(held.Window), nil
		}
		if err := s.CheckClaim(ctx); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, meta.Errorf(meta.ErrUnavailable, "the check of the claim on %s took longer than half the delete window", s.bucket.Location())
}

// since is the time that has passed by the clock that says more: the monotonic one
// stands still while the machine sleeps, the wall may be set back.
func since(then, now time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}

// Release gives the prefix up: the next generation says so, and any cluster may
// claim after it.
func (s *Store) Release(ctx context.Context) error {
	if err := s.CheckClaim(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	held := *s.claim.held
	s.mu.Unlock()
	held.Generation++
	held.Released = true
	b, err := encodeClaim(held)
	if err != nil {
		return err
	}
	if err := s.putSmall(ctx, claimKey(held.Generation, held.Cluster), b); err != nil {
		return err
	}
	s.mu.Lock()
	s.claim = claimState{}
	s.mu.Unlock()
	return nil
}
