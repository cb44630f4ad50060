package replica

import "github.com/varve-io/varve/meta"

// Diverge says up to which LSN two logs agree: the smaller of their ends within
// the last pair their vectors have in common. Known is false when that can't be
// told, since a vector is unknown (empty) or they have no pair in common;
// nothing may be cut on that account. Two vectors that both reach back to LSN 1
// and differ there agree on nothing, which is known.
func Diverge(a meta.Vector, aLast meta.LSN, b meta.Vector, bLast meta.LSN) (agreed meta.LSN, known bool) {
	if len(a) == 0 || len(b) == 0 || a.Validate() != nil || b.Validate() != nil {
		return 0, false
	}
	i, j := len(a)-1, len(b)-1
	for i >= 0 && j >= 0 {
		switch {
		case a[i] == b[j]:
			return min(spanEnd(a, i, aLast), spanEnd(b, j, bLast)), true
		case a[i].Epoch > b[j].Epoch, a[i].Epoch == b[j].Epoch && a[i].LSN > b[j].LSN:
			i--
		default:
			j--
		}
	}
	return 0, a[0].LSN == 1 && b[0].LSN == 1
}

// spanEnd is the last LSN of the i-th pair's epoch in a log that ends at last.
func spanEnd(v meta.Vector, i int, last meta.LSN) meta.LSN {
	if i+1 < len(v) {
		return min(v[i+1].LSN-1, last)
	}
	return last
}

// Better reports whether a log whose last entry is (aEpoch, aLast) is to be
// preferred over one that ends with (bEpoch, bLast): the higher epoch of the last
// entry, then the higher LSN.
func Better(aEpoch meta.Epoch, aLast meta.LSN, bEpoch meta.Epoch, bLast meta.LSN) bool {
	if aEpoch != bEpoch {
		return aEpoch > bEpoch
	}
	return aLast > bLast
}

// majority of n members.
func majority(n int) int { return n/2 + 1 }
