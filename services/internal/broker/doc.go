// Package broker is one broker: its shards, its write-ahead log, its part of the
// catalog and of the bucket. It is where wal, meta and tiering meet.
//
// # A record's way
//
//	edge -> Append -> lead (epoch, once a boot) -> wal.Reserve (room, backpressure)
//	     -> replica.Step(propose): LSN, offset, time, checks
//	     -> wal.Append: one group, one sync for all shards
//	     -> replica.Step(written): majority, commit mark
//	     -> answers leave, waiting readers wake
//
//	archive: seal -> upload -> mark through the log -> manifest -> confirm through the log -> wal.Drop
//	read:    the log while the entry is local, else the bucket through the block cache
//
// # What it owns
//
// A shard is a replica core and its driver (shard.go): inputs go in under the
// shard's lock, and what comes out (writes, answers, the commit mark) is handed
// on under the same lock, in order. Nothing blocks under it. The log's writer
// calls back with what became durable. A shard costs no goroutine and no file;
// the broker has a handful of goroutines (upkeep, archiving, watching, purging),
// all owned by the group that Open is given.
//
// What is done periodically costs what is active, not what is held: the lists of
// busy.go name the shards that were stepped or have something to archive. A shard
// that nobody used since the start is its durable state and no core; one that
// falls idle gives its buffers back.
//
// # Invariants
//
//   - Tombstones are applied before any shard opens.
//   - Data of a shard goes only on a tombstone's word (or an operator's). A shard
//     that the catalog does not know and no tombstone covers is kept and reported.
//   - An epoch is asked for at a shard's first use after a start, never at the start.
//   - The log drops an entry only when a confirmed manifest covers it.
//   - Everything that is kept for a stream is kept per incarnation.
//
// All exported methods are safe for concurrent use.
package broker
