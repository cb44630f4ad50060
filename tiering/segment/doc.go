// Package segment is the format of a sealed run of a shard's committed batches:
// one immutable object, readable by anyone with nothing but the object.
//
//	0        8    10     12    16
//	+--------+----+------+-----+--------------------------------+-----+
//	|VARVESEG|ver |level |  n  | identity (n bytes)             | CRC |  header
//	+--------+----+------+-----+--------------------------------+-----+
//	| entry | entry | entry ...                                       |  block 0, about 1 MiB
//	+-----------------------------------------------------------------+
//	| entry | entry ...                                               |  block 1 ... a block ends at an entry
//	+-----------------------------------------------------------------+
//	| folded shard state, opaque                                      |  state
//	+-----------------------------------------------------------------+
//	| n | identity | ranges | epoch vector | blocks                   |  index   <- IndexAt
//	+--------+----+------+-----------+--------+--------+--------+-----+
//	|VARVEEND|ver |level | index CRC |index at|index n |state at|...  |  footer, 64 bytes
//	+--------+----+------+-----------+--------+--------+--------+-----+  <- IndexAt+IndexLen = size
//
//	identity  u16 length, namespace | u16 length, name | u64 incarnation | u32 shard |
//	          u64 lineage | u64 epoch of the writer | u64 first LSN | u64 next LSN
//	ranges    u64 first offset | u64 next offset | i64 first append time | i64 last append time |
//	          u64 first epoch | u64 last epoch
//	vector    u32 count, then (u64 epoch | u64 LSN) each
//	blocks    u32 count, then 60 bytes each:
//	          u32 length | u32 CRC | u32 entries | u64 first LSN | u64 last LSN |
//	          u64 first offset | u64 next offset | i64 first append time | i64 last append time
//	footer     0 "VARVEEND" | 8 u16 version | 10 u16 level | 12 u32 index CRC | 16 u64 index at |
//	          24 u64 index length | 32 u64 state at | 40 u32 state length | 44 u32 state CRC |
//	          48 u64 object size | 56 u32 header length | 60 u32 CRC of the footer before it
//
// All numbers are little-endian, all checksums CRC32C. The header says what is
// known before the first entry; what only the last entry tells (offset and time
// range, epochs) stands in the index, so one pass with bounded memory writes an
// object of any size. The identity is repeated in the index: the end of the
// object is enough to know whose it is.
//
// Entries are the batches of the LSN range exactly as they are stored elsewhere;
// commands are left out and the range covers them. A batch's offsets come from
// its entry and from the last offset delta of its Kafka header (KIP-98, byte 23).
//
// # Two requests
//
// The last [TailSize] bytes hold the whole index of any segment of ordinary size
// ([ParseTail] says how many are needed if they don't); with a manifest's
// reference the range is exact. One more request gets a block.
//
// # Look-ups
//
// Blocks are ordered in LSN, offset and append time. An offset is in the first
// block that ends above it. A time finds the first offset whose append time is
// not before it: in the first block whose last append time is not before it.
//
// # Concurrency
//
// A [Writer] has one user. An [Index] is read-only once parsed and safe for
// concurrent use.
package segment
