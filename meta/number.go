package meta

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Incarnation numbers one creation of a stream name; never reused. It is
// max(creator's clock in microseconds, the name's tombstone + 1, cluster floor).
// Zero means "none".
type Incarnation uint64

// Lineage numbers a shard's history: claim generation in the high 32 bits, a
// counter in the low 32. Every restore and every abandon opens the next one.
type Lineage uint64

// NewLineage builds a lineage from the generation of the cluster's claim on the
// bucket prefix and a counter within it.
func NewLineage(generation, counter uint32) Lineage {
	return Lineage(uint64(generation)<<32 | uint64(counter))
}

// Generation is the claim generation that opened the lineage.
func (l Lineage) Generation() uint32 { return uint32(l >> 32) }

// Counter is the lineage's place within its generation.
func (l Lineage) Counter() uint32 { return uint32(l) }

// Epoch numbers one leadership of a shard by one boot of one broker. Zero means
// "no grant yet" and has no entry.
type Epoch uint64

// LSN is an entry's position in its shard log, counted from 1. Zero means
// "before the first entry".
type LSN uint64

// Offset is a record's position in its shard, counted from 0; commands take none.
// Valid offsets are 0 to [MaxOffset].
type Offset uint64

// MaxOffset is the largest offset; record batches carry it as a signed 64-bit number.
const MaxOffset Offset = math.MaxInt64

// Micros is a wall time in microseconds since the Unix epoch.
type Micros int64

// MicrosOf converts a time, rounding down to the microsecond.
func MicrosOf(t time.Time) Micros { return Micros(t.UnixMicro()) }

// Time converts back to a time in UTC.
func (m Micros) Time() time.Time { return time.UnixMicro(int64(m)).UTC() }

// Hex writes a number as it stands in keys: 16 lower-case hex digits.
func Hex[T ~uint64](n T) string { return fmt.Sprintf("%016x", uint64(n)) }

// ParseHex is the strict inverse of [Hex].
func ParseHex[T ~uint64](s string) (T, error) {
	if len(s) != 16 {
		return 0, Invalidf("number %q: want 16 hex digits", clip(s))
	}
	n, err := strconv.ParseUint(s, 16, 64)
	if err != nil || Hex(n) != s {
		return 0, Invalidf("number %q: want 16 lower-case hex digits", clip(s))
	}
	return T(n), nil
}
