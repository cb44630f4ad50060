// Package batch is the one codec for record batches: Kafka's format, magic 2,
// encoded, compressed and checksummed once by the client, then stored,
// replicated, archived and served as it came.
//
//	 0        8        12       16    17      21           23       27      35      43       51       53        57       61
//	+--------+--------+--------+-----+-------+------------+--------+-------+-------+--------+--------+---------+--------+---------
//	| base   | length | leader |magic|CRC32C | attributes | last   | first | max   |producer|producer| base    | count  | records
//	| offset | after  | epoch  | = 2 |of all | codec in   | offset | time  | time  | id     | epoch  | sequence|        | ...
//	|        | this   |        |     | after | bits 0-2   | delta  | (ms)  | (ms)  | or -1  | or -1  | or -1   |        |
//	+--------+--------+--------+-----+-------+------------+--------+-------+-------+--------+--------+---------+--------+---------
//
//	record:  length | attributes = 0 | time delta | offset delta | key length or -1, key | value length or -1, value |
//	         header count | (name length, name | value length or -1, value) ...
//
// Header numbers are big-endian, record numbers are zigzag varints. Base offset and
// leader epoch lie outside the checksum: the shard's leader writes them in place
// ([SetBase]), all else is the client's.
//
// We are stricter than Kafka where that costs no client anything: at least one
// record, offset deltas 0, 1, 2 and so on, no transactions and no control batches,
// create times only, shortest varints, nothing left over. So each sequence of
// records has one uncompressed encoding.
//
// Every length is checked against what is there before anything is allocated or
// skipped. A batch has at most [MaxBatch] bytes, [MaxRaw] once decompressed, and
// [MaxCount] records. Null and empty are kept apart for keys, values and header
// values: nil is null.
//
// Functions and [Codec] are safe for concurrent use, [Builder] is not. The package
// imports nothing of ours. LZ4 frames are read by lz4.go; the other codecs come
// from klauspost/compress.
package batch
