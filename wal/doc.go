// Package wal is one broker's durable memory: the shared write-ahead log of all its
// shards, and what says which copy of the data the directory holds. Ten thousand
// shards cost one fsync.
//
// It owns
//
//	<data>/storage-id, run-state, superblock.a and .b   identity: identity.go and its neighbours
//	<data>/checkpoints/                                 every shard's state: checkpoint.go
//	<data>/wal/                                         log files: the rest
//	<data>/ballast                                      room for two checkpoints on a full disk
//	<data>/lock                                         held while a log is open
//
// It knows entries, LSNs and shard numbers, and nothing of replicas, producers or
// leaders: state blobs and base data are opaque. Frames, group headers and file
// headers are drawn in package frame.
//
// # The way of a write
//
//	Append --> queue --> writer: lay out groups --> WriteAt --> fsync --> index --> Done
//	              all shards          one goroutine            one for all
//
// A batch is what was queued while the one before it was synced; within it each
// shard's frames lie next to each other, so an extent (a run of frames) is short to
// describe. The index learns of frames when they are acknowledged, in log order,
// through [index.apply], which the replay uses too: one fold, live and replayed.
//
// # The end of the log
//
// A group header names where the log ended before it and what was on disk when it
// was written. 20 ms after the last sync a bare header vouches for the last group;
// a clean stop records the end. At a start, the first place that doesn't verify is
//
//	      before a position that something vouches for?
//	yes: rot. Refuse, and say where.   no: a torn tail. Cut it: zero the rest of
//	                                   the file and sync, then never look at it again.
//
// What lies between the proven position and the end is rewritten and synced first,
// since after a failed sync the page cache shows what the disk doesn't have.
//
// # The life of a log file
//
//	      zeroes, fsync            salt, position,           named by the last
//	      and its name             fsync                     group before it
//	made ---------------> free ---------------> next ---------------------> current
//	                       ^                                                   | full
//	                       |   checkpoint references nothing in it,            v
//	                       +-- superblock durable, replay starts after it -- in use
//
// # Invariants
//
//   - A position is a byte count that is never reset or used twice; so is a shard number.
//   - Nothing is acknowledged that is not on disk (in commit mode, or with Sync), and nothing
//     is ever acknowledged after a write or sync failed.
//   - Room is promised only out of files that exist and are written: a full disk is
//     met in Reserve, never by the writer.
//   - The order is checkpoint, superblock, recycling; a failing step withholds the rest.
//   - Entries are found through extents and replay, never by scanning older files.
//   - A copied entry counts only if the index still maps its LSN to where it was copied from.
//
// # Concurrency
//
// All methods of [Log] may be called from anywhere, at once. Two goroutines, the
// writer and the preparer of files, live from Open to Close. One mutex guards the
// index, the queue and the count of room; no disk is touched under it. Order
// between appends to one shard is the caller's: it appends under its own lock.
package wal
