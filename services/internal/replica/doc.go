// Package replica is the replica of one shard: a pure state machine, with no
// goroutine, clock, file, socket or random number of its own. A broker, a
// simulator and an explorer drive the same code.
//
//	assignment, message, written(seq), failed,              writes     (for the WAL, in order)
//	tick(now), connected, propose, resign   -> Step ->      messages   (each after the write it names is durable)
//	                                                        answers    (each proposal's, exactly once)
//	                                                        committed  (what readers may see)
//
// A [Replica] is not safe for concurrent use; whoever drives it gives it one input
// at a time and carries out what comes out before the next. Slices in a [Ready]
// live until the next Step. The bytes of a batch are kept, with base offset and
// leader epoch written into them, until their write is durable.
//
// # What survives and what a crash drops
//
// [Durable] is the fold of the records that were given to the WAL, in order. The
// live replica and a replay change it through the same [Durable.Apply], so the same
// records and the same commit mark give the same bytes. All else (role, tenure,
// what is believed of other copies, unanswered proposals) is gone after a crash.
//
//	    log start                    commit mark                 end
//	        |                             |                       |
//	. . . . +-----------------------------+-----------------------+
//	        |   State: point, vector,     |  overlay: one item an |  tail: the point
//	        |   marks, client table       |  entry, not folded    |  at the end
//
// The client table, marks and vector are folded up to the commit mark only. What
// lies above is an overlay: a commit folds it, a truncation drops it, and a
// checkpoint keeps it apart. Checks look at the end, overlay included. The small
// part of the state, the point, is kept for the end as well.
//
// The commit mark itself goes into the log with state records (promises, and every
// 1024 commits), so a replayed copy knows an earlier mark than the live one did,
// never a later one.
//
// # A leadership
//
// One member goes the same way as three:
//
//	Following --granted to this boot--> Promising   own promise, durable
//	                                    Fencing     Fence to every member; a majority promises
//	                                    Copying     truncate to the best log's divergence, copy the rest
//	                                    Opening     the opening entry, not durable here yet
//	                                    Leading     it is; serving once it is committed
//	any of them --a higher epoch, another assignment, resign--> Following
//	any of them --something that must not be--> Stopped    data is kept
//	any of them --a write failed--> Poisoned               for good
//
// A follower promises, durably, before it answers a fence; is measured by the
// leader's vector (Reconcile), which is the only message that ever cuts a log, and
// only one that has not adopted the epoch; then takes entries that fit exactly. It
// has adopted the epoch when it holds the opening entry durably: only then does it
// count, believe commit marks, or confirm. What a majority of adopters holds at or
// past the opening entry is committed.
//
// A leader's message names the follower's boot and instance; an answer names its
// sender's. What comes from or is meant for another boot or instance is passed
// over. A [Message] of entries names a range; the driver attaches the bytes, any
// run from its start, and the receiver's core gets decoded entries.
//
// # Answers
//
// Checks run in this order, at the end of the log: duplicate, fence token, expected
// offset. An answer leaves once all that it was computed from is committed, in an
// epoch whose opening entry is; a refusal and a CheckTail of several members also
// after a round of confirmations that began after they came. Refusals that depend
// on nothing in the log (a malformed batch, no leader) leave at once. When a tenure
// ends, everything that waits is answered: unknown for what stands in the log.
//
// # The client table
//
// Per producer: its newest epoch, and of its last 32 batches first sequence, count,
// checksum, offset and append time. A resend is a duplicate only if count and
// checksum are the same; a sequence is never reused for other content. The table
// is bounded in bytes, so that it fits an archive mark: from Limits.TableSoft on,
// producers that are not in it are refused; from TableHard on, also those whose
// window still grows; a proposal may name a stream's own bound on the number of
// producers. Nobody is evicted early. Silent producers leave after
// Config.Expiry of log age, which counts each step between append times as at most
// 60 s; expiry is looked at 128 times in that period, at batches and commands alike,
// so that it is a function of the log alone. The expiry is stored when the shard is
// formed.
//
// # Archive marks
//
// [Replica.Seal] gives the committed range from the archived end to the commit
// mark, with the state encoded at that very moment: nothing is folded twice. A range
// that has to end earlier is sealed with [Refold]: the archiver reads the entries
// of the range anyway, and the fold is a pure function of them. A mark applies
// only if its start is the archived end and its parent the newest applied mark, as
// of its place in the log. The confirmation moves the droppable LSN.
//
// After a base, the archived end is where the log begins.
//
// # Formats
//
// All numbers are little-endian. State, in archive marks, manifests and checkpoints:
//
//	"vST1" | u16 version = 1
//	u64 LSN | u64 epoch | u64 next offset | u64 start offset | u64 append time (us)
//	u64 log age (us) | u64 expiry (us) | u64 closed epoch
//	u64 archived end | u64 archived offset | u64 newest mark
//	u64 confirmed mark | u64 droppable LSN | u64 confirmed offset
//	u8 strict | u16 length, fence token
//	u32 count | count x (u64 epoch, u64 LSN)                                      vector
//	u32 count | count x (u64 LSN, u64 end, u64 parent, u64 next, u64 start)       unconfirmed marks
//	u32 count | count x client, by producer id
//	client: u64 id | u16 epoch | u64 log age | u8 n | n x (u32 sequence, u32 count, u32 crc, u64 offset, u64 time)
//
// Durable, a shard's section in a checkpoint:
//
//	"vDU1" | u16 version = 1 | u16 length, state record | u64 log start | State
//	u32 count | count x item, in order; LSN and offset follow from the one before
//	item: u8 kind | u64 epoch | u64 time | by kind:
//	  batch    u32 count | u32 crc | u64 producer | u16 producer epoch | u32 sequence
//	  fence    u8 strict | u16 length, token
//	  trim     u64 start
//	  mark     u64 start | u64 end | u64 parent | u64 start offset | u64 next offset
//	  confirm  u64 mark
//	  open, close: nothing
//
// State record:
//
//	u8 version = 1 | u8 stranger | u8 broken | u64 lineage | u64 instance | u64 promise | u64 commit mark | u64 expiry
//
// Base record:
//
//	u8 version = 1 | u8 stranger | u64 lineage | u64 instance | u64 mark | u32 length, State
package replica
