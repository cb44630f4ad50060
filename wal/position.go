package wal

import "github.com/varve-io/varve/meta"

// Position is a place in the log: a count of bytes since the log began, never
// reset and never used twice.
type Position uint64

// ShardNumber is a shard's number within one data directory. It is never used
// twice there; 0 is no shard.
type ShardNumber uint64

// Extent is a run of one shard's frames that lie next to each other in one log
// file. Its live entries are the LSNs from First up to, but not including, Next;
// frames in it with other LSNs are dead.
type Extent struct {
	Position Position    // of the first frame
	Bytes    uint32      // of all frames in the run
	First    meta.LSN    // first live entry
	Next     meta.LSN    // the LSN after the last live entry
	Offset   meta.Offset // no larger than the first live entry's
	Time     meta.Micros // no later than the first live entry's append time
}

// End is the position after the last frame.
func (e Extent) End() Position { return e.Position + Position(e.Bytes) }
