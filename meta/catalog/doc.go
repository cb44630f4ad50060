// Package catalog is the control plane's memory: typed rows, compare-and-swap
// transitions, and watched views over a small key-value port ([KV]) that is
// declared here and implemented by etcdkv (embedded etcd) and memkv (tests).
//
// # What it owns
//
//	cluster                          id, generation, incarnation floor
//	level                            the format level alone, so that every transaction can compare it
//	counters/registrations           raised by every broker registration
//	counters/snapshots               numbers handed to snapshots
//	namespaces/NS                    defaults, state
//	streams/NS/NAME                  incarnation, shards, configuration, created, request id
//	tombstones/NS/NAME               deleted through incarnation N; never removed, only goes up
//	purges/NS/NAME/INCARNATION       a deleted incarnation that the bucket may still hold something of
//	shards/NS/NAME/INCARNATION/SHARD the assignment, see ShardRow
//	by-broker/ID/NS/NAME/INC/SHARD   the same row again, one copy for each member's broker
//	brokers/ID (lease)               a running broker's registration
//	copies/STORAGE-ID                start count, boot nonce, synced position
//	features/NAME                    finalized at level
//	controller (lease)               the election
//
// NAME is escaped ('/' becomes '~') and numbers are 16 hex digits, so that no
// stream's prefix reaches another's keys. Segment lists, batches and positions
// never go in.
//
// # A shard's row
//
//	           first Grant(form)                Hibernate
//	Created ---------------------> Served <------------------> Hibernating
//	                                | ^      Grant(form, base)
//	                                +-+  Grant (members verbatim, epoch+1),
//	                                     ChangeMembers, Abandon (lineage+1, epoch+1)
//
// Every write compares the row's revision, and its bytes: a store that was rewound
// counts the same revisions again, for other writes. Whoever does not know the outcome of
// a write calls [Catalog.Settle], which moves the revision before it says "failed".
//
// # Rules that hold
//
//   - Every transaction goes through one function, which adds the comparison of
//     the format level it was written for. An outdated writer's transaction fails
//     with [meta.ErrFormatLevel] and stores nothing.
//   - incarnation = max(clock in microseconds, tombstone + 1, cluster floor), in
//     one transaction that also compares the tombstone it read.
//   - A delete removes the stream, its shards and their by-broker copies, and
//     raises the tombstone, in one transaction.
//   - A row is one JSON object, fields in a fixed order, its level inside. Reading
//     refuses unknown fields and whatever does not encode back to the same bytes.
//   - A row that does not decode is an error that names its key; it is never
//     treated as absent.
//
// # Errors
//
// [meta.ErrUnavailable]: nothing was applied. [meta.ErrUnknown]: may have been
// applied. [meta.ErrConflict]: somebody else wrote first; read again.
//
// # Concurrency
//
// A [Catalog] is safe for concurrent use. A [View] has one user. Nothing here
// starts a goroutine.
package catalog
