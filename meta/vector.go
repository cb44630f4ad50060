package meta

// EpochStart says at which LSN an epoch's opening entry stands.
type EpochStart struct {
	Epoch Epoch
	LSN   LSN
}

// MaxVector bounds the length of an epoch vector on the wire and on disk; it is
// checked before anything is allocated.
const MaxVector = 4096

// Vector is the epoch vector of a shard log: strictly advancing in both fields.
// It is derived from the entries; nil means "unknown", which agrees with nothing.
type Vector []EpochStart

// Validate checks length and strict order.
func (v Vector) Validate() error {
	if len(v) > MaxVector {
		return Invalidf("epoch vector has %d pairs: at most %d", len(v), MaxVector)
	}
	for i, p := range v {
		if p.Epoch == 0 || p.LSN == 0 {
			return Invalidf("epoch vector pair %d is (%d, %d): epochs and LSNs count from 1", i, p.Epoch, p.LSN)
		}
		if i > 0 && (p.Epoch <= v[i-1].Epoch || p.LSN <= v[i-1].LSN) {
			return Invalidf("epoch vector pair %d (%d, %d) does not advance on (%d, %d)",
				i, p.Epoch, p.LSN, v[i-1].Epoch, v[i-1].LSN)
		}
	}
	return nil
}

// EpochAt is the epoch of the entry at that LSN, or 0 when the vector does not cover it.
func (v Vector) EpochAt(at LSN) Epoch {
	for i := len(v) - 1; i >= 0; i-- {
		if v[i].LSN <= at {
			return v[i].Epoch
		}
	}
	return 0
}
