// Package tiering keeps a shard's past in one bucket: it uploads sealed segments,
// writes the manifests that name them, serves cold reads from any broker, and
// removes what the log proves to be garbage. Everything about a bucket is in a
// [Store]; what a shard's log decides (what is committed, who leads) is told to
// it, never guessed.
//
// # Objects
//
//	claims/<generation>-<cluster id>.json
//	manifests/<namespace>/<name>/<incarnation>/<shard>/<lineage>-<mark LSN>.json
//	manifests/<namespace>/<name>/<incarnation>/<shard>/<lineage>-<mark LSN>-<depth>.index.json
//	streams/<namespace>/<name>/<incarnation>/<shard>/<lineage>-<epoch>-<base LSN>-<uuid>.seg
//	tombstones/<namespace>/<name>/<incarnation>.json
//
// Numbers are 16 lower-case hex digits, a '/' in a name is '~'. Objects are
// immutable and no key is written twice with different content. Segments are
// package segment's; the others are one line of JSON each:
//
//	{"magic":"varve manifest","version":1,"crc32c":"9ae0daaf","body":{ ... }}
//	  what it is ^            ^ layout      ^ of the bytes of body, as they stand
//
// with one spelling: decoding and encoding again gives the same bytes, and bytes
// that don't are refused.
//
// # Manifests
//
// A manifest is a pure function ([Next]) of its parent and one committed archive
// mark, so anyone may put it and twice is harmless:
//
//	mark 12            mark 40             mark 77
//	+----------+       +----------+        +----------+
//	| manifest |<------| manifest |<-------| manifest |   at most 1,024 segments inline
//	+----------+parent +----------+parent  +-----+----+
//	                                             | older: the 1,024 oldest of 1,025 go to an index
//	                                        +----v----+   object, put before the manifest that
//	                                        |  index  |   names it; 1,024 of those go to one of
//	                                        +---------+   depth 1, and so on
//
// Segments wholly below the start offset are omitted. The first manifest of a
// lineage names its parent in the lineage before.
//
// # Concurrency
//
// A [Store] is safe for concurrent use, a [Reader] has one user at a time. Close
// waits for every download. Cancelling a wait never cancels a shared download.
package tiering
