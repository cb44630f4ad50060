// Package bucket is the port through which tiering reaches an object store. It
// owns the interface [Bucket], the rules for keys, the errors, and the form of
// the URL that names a store. It talks to no store itself:
//
//	bucket/s3     S3 and what speaks it (AWS, MinIO, Ceph, ...)
//	bucket/dir    a directory on the local disk, the embedded default
//	bucket/mem    in memory, for simulation and tests
//	bucket/fault  any of them, with scripted faults and counted requests
//
// bucket/buckettest is the one conformance suite that all of them pass.
//
// # What a bucket promises
//
//   - An object appears whole or not at all, and is durable when Put returns nil.
//   - A put whose body fails, or does not have the size or checksum that was
//     announced, leaves nothing behind under its key.
//   - Of any number of puts of one key with IfAbsent, one wins, on a store that
//     has conditional writes. Nothing that must hold may rest on that: claims and
//     logs decide who writes what. Objects are immutable by agreement: no key is
//     written twice with different content.
//   - Get returns exactly the bytes that were asked for. A body that ends early
//     is asked for again and is then an error; it never passes for the end of an
//     object.
//   - List yields every key once, in byte order, or ends with an error. Nothing
//     may be decided from a listing that ended with one.
//   - Delete of a missing key succeeds. What could not be deleted is named.
//
// # Keys
//
// A key is a slash-separated path relative to the bucket's prefix, checked by
// [CheckKey]. No key may be the folder of another: a store that is a directory
// can't hold both `a/x` and `a/x/y`, and MinIO takes both but never lists the
// second. dir and mem refuse the second of such a pair; S3 can't tell at
// the price of one request, so the layout of keys has to rule it out.
//
// # Outcomes
//
// [ErrUnknown] is the one error after which an object may exist, or come to
// exist later: a request of which the answer was lost may still be on its way.
// The writer gives that key up and takes a new one, or puts the same bytes
// again. All other errors of Put mean that this call stored nothing.
//
// # Concurrency
//
// All methods may be called from many goroutines. Every call ends when its
// context does; cancelling a Put leaves its outcome unknown unless nothing had
// been sent. Memory is bounded whatever the size of objects: see the
// implementations.
package bucket
