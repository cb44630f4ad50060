package replica

import (
	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// Ready is what the driver must do after a step, in this order: hand Writes to
// the WAL, send Messages (each after the write it names is durable), deliver
// Answers, look at Committed and Alarm. Its slices are valid until the next Step.
type Ready struct {
	Writes   []Write
	Messages []Message
	Answers  []Answer
	// Committed is set when the commit mark, the start offset or the droppable
	// LSN moved.
	Committed *Committed
	// Changed says that Status has something new: role, epoch, what is waited for.
	Changed bool
	// Alarm is something an operator must hear of; the shard may have stopped.
	Alarm error
}

// Committed is what readers may see.
type Committed struct {
	LSN    meta.LSN    // the last committed entry
	Offset meta.Offset // the next offset: readers see what is below
	Start  meta.Offset // the start offset
	// Droppable: nothing below this LSN is needed from the WAL any more.
	Droppable meta.LSN
}

// Write goes to the WAL in order. The driver answers with [Written].
type Write struct {
	Seq     uint64 // 1, 2, 3, ...
	Records []Record
	Sync    bool // by fsync, also in periodic mode
}

// RecordKind says what a record is.
type RecordKind uint8

// The records of a shard in the WAL.
const (
	KindEntry    RecordKind = iota + 1 // Entry follows the last one
	KindTruncate                       // LSN is the last one kept
	KindState                          // Data: promise, lineage, instance, stranger, mark
	KindBase                           // Data: a base; the log goes on at LSN+1
)

// Record is one change of a replica's durable state.
type Record struct {
	Kind  RecordKind
	Entry entry.Entry
	LSN   meta.LSN
	Data  []byte
}

// Applied says whether a proposal took effect.
type Applied uint8

// Whether a proposal took effect.
const (
	AppliedNo Applied = iota
	AppliedYes
	AppliedUnknown
)

// Answer is the outcome of one proposal.
type Answer struct {
	ID      uint64
	Err     error
	Applied Applied

	Duplicate     bool // the batch had been stored before: the figures are the first answer's
	OffsetUnknown bool // it had, but so long ago that its offset is not known any more
	NoEffect      bool // Mark, Confirm: committed, but it did not apply

	LSN         meta.LSN    // of the entry, when one was appended
	First, Next meta.Offset // Batch: of its first record, and after its last
	Time        meta.Micros // append time
	Start, Tail meta.Offset // start offset and committed end when the answer left
}
