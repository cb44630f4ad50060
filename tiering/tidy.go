package tiering

import (
	"context"
	"time"
)

// leftover is how old an unfinished upload must be before it is taken for one that a
// killed process left: far above what any attempt lasts.
const leftover = 24 * time.Hour

// Tidy removes what interrupted uploads of killed processes left behind in the
// store (parts that no object is made of, and that cost money) and says how many
// there were. It touches no object.
func (s *Store) Tidy(ctx context.Context) (int, error) {
	return s.bucket.Tidy(ctx, max(leftover, 4*s.opt.UploadTimeout))
}
