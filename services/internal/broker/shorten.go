package broker

import (
	"context"

	"github.com/varve-io/varve/services/internal/replica"
)

// shorten ends a sealed range after about as many bytes as a segment should hold.
// A tail may be many times that: what came in while the bucket was away. One
// object of it would take too long to upload in one go, and would let the log drop
// nothing before all of it is up. The state at the earlier end is folded anew, from
// the one that the mark before carries.
func (s *shard) shorten(ctx context.Context, seal replica.Seal, most int64) (replica.Seal, error) {
	s.mu.Lock()
	tail, expiry := s.b.log.Tail(s.number).Bytes, s.core().Expiry()
	s.mu.Unlock()
	if tail <= most+most/2 { // two segments of very different size help nobody
		return seal, nil
	}
	parent, err := s.parent(ctx, replica.MarkRef{LSN: seal.End, Parent: seal.Parent})
	if err != nil {
		return seal, err
	}
	var before []byte
	if parent != nil {
		before = parent.State
	}
	fold, err := replica.NewRefold(before, expiry)
	if err != nil {
		return seal, err
	}
	if parent != nil && parent.ArchivedEnd != seal.Start {
		fold.Rebase(seal.Start-1, seal.Parent) // the first mark after a base
	}
	size := int64(0)
	for e, err := range s.entries(ctx, seal.Start, seal.End) {
		if err != nil {
			return seal, err
		}
		if err := fold.Apply(&e); err != nil {
			return seal, err
		}
		if size += int64(e.Size()); size >= most {
			seal.End = e.LSN + 1
			break
		}
	}
	st := fold.State()
	seal.NextOffset, seal.StartOffset, seal.State = st.NextOffset(), st.StartOffset(), st.Encode()
	return seal, nil
}
