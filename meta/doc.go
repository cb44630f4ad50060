// Package meta holds the nouns of the house and their legal moves: names,
// incarnations, lineages, epochs, log positions, storage ids, members, segment
// references, tombstones, and the errors that cross rooms.
//
// It imports nothing of ours and does no I/O. All types are plain values, safe
// to copy; functions are safe for concurrent use.
//
// # A name is not an identity
//
// A [StreamName] is what users type. An [Incarnation] numbers one creation of
// that name and is never handed out twice. Whatever is stored, cached or sent
// for a stream is keyed by [ShardID], which holds both.
//
// # One escape
//
// The catalog and the bucket spell a stream name the same way ([StreamName.Escaped]):
// '/' becomes '~', which no name may hold, so no stream's prefix lies inside
// another's. Numbers in keys are 16 lower-case hex digits ([Hex]).
package meta
