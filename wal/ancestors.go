package wal

import (
	"encoding/binary"
	"slices"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// maxAncestors bounds how many changes of its id a directory remembers, beside the
// last one.
const maxAncestors = 32

// Ancestors are the ids that a directory had before its predecessor, newest first;
// behind them come zeroes. A shard that rested while the id changed more than once
// still names one of them.
type Ancestors [maxAncestors]meta.StorageID

// DescendsFrom reports whether the directory bore an id before.
func (i *Identity) DescendsFrom(id meta.StorageID) bool {
	return !id.IsZero() && (id == i.Predecessor || slices.Contains(i.Ancestors[:], id))
}

// with returns the list with one more in front; the oldest falls off a full one.
func (a Ancestors) with(id meta.StorageID) Ancestors {
	if id.IsZero() {
		return a
	}
	var b Ancestors
	copy(b[1:], a[:])
	b[0] = id
	return b
}

// count is how many there are.
func (a *Ancestors) count() int {
	if n := slices.Index(a[:], meta.StorageID{}); n >= 0 {
		return n
	}
	return len(a)
}

// append encodes the list: a count, u16, and the ids.
func (a *Ancestors) append(b []byte) []byte {
	n := a.count()
	b = binary.LittleEndian.AppendUint16(b, uint16(n))
	for _, id := range a[:n] {
		b = append(b, id[:]...)
	}
	return b
}

func decodeAncestors(d *entry.Decoder) (a Ancestors) {
	n := int(d.U16())
	if n > len(a) {
		d.Fail("%d ancestors: at most %d", n, len(a))
		return a
	}
	for i := range n {
		if copy(a[i][:], d.Bytes(len(a[i]))); a[i].IsZero() {
			d.Fail("ancestor %d is zero", i)
			return a
		}
	}
	return a
}
