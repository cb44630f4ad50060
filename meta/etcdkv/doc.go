// Package etcdkv is the catalog's key-value port on etcd, embedded in this
// process. It is the only room that imports go.etcd.io.
//
// # No ports
//
// A single member runs etcd's server without its network front: calls go straight
// into it, and nothing listens. Its peer address is a placeholder that nobody dials.
//
// # Values
//
// A stored value is a checksum and the value:
//
//	+----------------------------------+-------
//	| u32 LE, CRC32C of key and value  | value
//	+----------------------------------+-------
//
// etcd's data file has no checksum of its own over values; a rotted one is an
// error that names the key, never a row.
//
// # Damage
//
// etcd ends the process when its files are damaged. [Open] therefore looks first:
// the write-ahead log is read through with its checksums, and the data file page
// by page with every reference bounded, so that damage is a meta.ErrCorrupt that
// names the directory and says what to do. Whatever etcd itself would end the
// process for later (a failing disk) ends only the goroutine it happened on:
// [Store.Failed] is closed, calls fail, and the program decides.
//
// # Space
//
// Compaction keeps the last revisions only. Once the quota is in use, new keys are
// refused (meta.ErrExhausted), while deletes and assignments still fit in what is
// kept back above it. Should the file fill that too, etcd refuses every write and
// raises an alarm; [Store.Maintain], which also runs on its own, drops history,
// defragments and clears it.
//
// # Concurrency
//
// A [Store] is safe for concurrent use. Its goroutines (etcd's, one for
// maintenance, one a watch) end before Close returns.
package etcdkv
