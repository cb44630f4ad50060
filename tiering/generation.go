package tiering

import (
	"context"

	"github.com/varve-io/varve/meta"
)

// NextGeneration is the generation that a new cluster's claim will have, so that
// its catalog can be written before the claim is made. A prefix that another
// cluster owns is a [meta.ErrForeign].
func (s *Store) NextGeneration(ctx context.Context) (uint32, error) {
	claims, err := s.Claims(ctx)
	if err != nil {
		return 0, err
	}
	top := newest(claims)
	switch {
	case len(top) == 0:
		return 1, nil
	case len(top) == 1 && !top[0].Released && top[0].Cluster != s.opt.Cluster:
		return 0, s.foreign(top[0])
	case top[0].Generation+1 == 0:
		return 0, meta.Errorf(meta.ErrExhausted, "claims below %s have reached the last generation; use another prefix", s.bucket.Location())
	}
	return top[0].Generation + 1, nil
}
