// Package dir is a bucket in a directory of the local disk, the embedded default.
//
//	<root>/streams/...            one file an object, mode 0600, named by its key
//	<root>/.varve/lock            taken (flock) while a process enters or leaves
//	<root>/.varve/<random>/       uploads of one process that runs,
//	<root>/.varve/<random>/lock   which holds this lock (flock) for life
//	<root>/.varve/<random>/<n>    one upload
//
// A put writes a file of its own in the process's folder, syncs it, gives it the key
// by link(2) (or by rename(2) where it may replace an object), syncs the folder and
// every folder above it up to the root, and only then returns. link(2) fails when
// the name is taken, so IfAbsent has exactly one winner, among processes too.
//
// The checksum of an object is kept in the file's attribute user.varve.crc32c, so
// that the file holds the object's bytes and nothing else. A file system without
// user attributes keeps no checksum, and Info.Checked is false.
//
// Opening makes the root's own name durable, and removes the folders of processes
// that are gone. Folders that the last
// object leaves are removed with it.
//
// Names are resolved below the root only (os.Root): no link in the tree leads out
// of it. When the root itself is moved, unmounted or replaced, all calls fail with
// ErrUnavailable; nothing is then reported as missing.
//
// A Bucket is safe for concurrent use, and several processes may share a root on a
// file system with working flock and link. It starts no goroutine. A put holds
// 256 KiB of memory, whatever the object's size.
package dir
