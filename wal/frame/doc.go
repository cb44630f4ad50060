// Package frame is the codec of log files: file headers, group headers and
// frames, with the checksums that tell them from anything else. It does no I/O
// and keeps no state; all functions are safe for concurrent use.
//
// A log file of a fixed size holds the log's bytes from its first position on:
//
//	0        2048     4096                                              size-4096    size
//	+--------+--------+-------------+--------+-------------+--------+-------+----------+
//	| header | the    | group: head | frames | group: head | frames |  ...  | last     |
//	| copy 1 | copy 2 | frame frame |   0 0  | frame       |   0 0  |       | block    |
//	+--------+--------+-------------+--------+-------------+--------+-------+----------+
//
// Groups start at multiples of 4 KiB; what is left of the last block is not part
// of the log. The last block is kept for the group that names the next file.
//
// All numbers are little-endian. File header:
//
//	0      4       6    8      16      24     32           48    52
//	+------+-------+----+------+-------+------+------------+-----+
//	|"vLOG"|version| 0  | size | first | salt | storage id | CRC |
//	|      |  = 1  |    |      | pos.  |      |            |     |
//	+------+-------+----+------+-------+------+------------+-----+
//
// Group header. Previous is where the log ended before this group, so that the
// groups form a chain; synced is the position known to be on disk when the group
// was written; next is the salt of the next file, or 0:
//
//	0      4       6    8          16         24       32     40    44
//	+------+-------+----+----------+----------+--------+------+-----+
//	|"vGRP"|version| 0  | position | previous | synced | next | CRC |
//	+------+-------+----+----------+----------+--------+------+-----+
//
// Frame. An entry's frame takes the CRC that the entry carries, so its payload is
// summed once; other bodies are summed where they stand:
//
//	0        4      5     8       16    20
//	+--------+------+-----+-------+-----+------
//	| length | kind | 0 0 | shard | CRC | body
//	|        |      | 0   |       |     |
//	+--------+------+-----+-------+-----+------
//
// The CRC32C of a group header or a frame covers the file's salt, the position,
// and everything in the header but itself (and a frame's, the body's CRC). A salt
// is random and lives as long as one use of a file. So neither what an earlier
// life of the file left, nor a record that imitates a frame, nor a frame at
// another place ever verifies.
package frame
