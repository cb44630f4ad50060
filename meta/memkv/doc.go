// Package memkv is the catalog's key-value port in memory, with the revision
// semantics of the real one: one global revision, reads in the past until a
// compaction, watches from a revision, leases on an injected clock.
//
// Faults can be scripted ([Store.Inject]): an answer lost after the commit, a
// commit that lands later, a plain failure. [Store.Rewind] puts an older state in
// place, as restoring an old backup does.
//
// # Concurrency
//
// A [Store] is safe for concurrent use. It starts no goroutine except, for each
// watch, a pump that ends with [Store.Close] or the watch's Close, both of which
// wait for it.
package memkv
