// Package entry is the codec for entries: what a shard log is made of. An entry
// is one byte string, the same in the WAL, on the wire and in a segment.
//
//	 0      2      3    4       6        8         12     16        24      32    40       48          56
//	+------+------+----+-------+--------+---------+------+---------+-------+-----+--------+-----------+---------
//	| "vE" |format|kind| level |reserved| payload | CRC  | lineage | epoch | LSN | offset | append    | payload
//	|      | = 1  |    |       |  = 0   | length  | 32C  |         |       |     |        | time (us) | ...
//	+------+------+----+-------+--------+---------+------+---------+-------+-----+--------+-----------+---------
//
// All numbers are little-endian. The CRC32C covers everything but itself. Level
// is the format level that the writer's cluster had; an entry of an unknown kind
// or of a level above ours stops the shard that holds it and is never skipped.
// For a batch, offset is that of its first record; for a command, that of the
// next record. Append time is the leader's clock and never goes back in a shard.
//
// Commands carry a payload of their own (command.go). Decoded values alias the
// bytes they were decoded from.
package entry
