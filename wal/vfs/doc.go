// Package vfs is the small file-system port of the log: what the log may ask of
// a disk, the real one ([OS]), one in memory that loses what a power cut loses
// ([Mem]), and one that fails on cue ([Fault]).
//
// # What is durable
//
// Two things have to be made durable, and neither implies the other:
//
//	content and size of a file    File.Sync
//	a name (create, rename,       FS.SyncDir of the directory that holds
//	remove, mkdir)                the name
//
// Code that holds to this contract on [Mem] holds to it on every POSIX file
// system; most forgive more. [WriteFile] and [MkdirAllSync] are the two recipes
// that nearly everyone needs.
//
// # Concurrency
//
// An [FS] is safe for concurrent use. A [File] is safe for concurrent reads and
// for one writer beside them. Paths are slash-separated; a bare relative path
// works, and "" and "." are the current directory.
package vfs
