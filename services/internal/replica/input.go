package replica

import "github.com/varve-io/varve/meta"

// Input is one thing that happened to a replica: [*Assignment], [*Message],
// [Written], [Failed], [Tick], [Connected], [*Propose] or [Resign].
type Input interface{ input() }

func (*Assignment) input() {}
func (*Message) input()    {}
func (Written) input()     {}
func (Failed) input()      {}
func (Tick) input()        {}
func (Connected) input()   {}
func (*Propose) input()    {}
func (Resign) input()      {}

// Assignment is the shard's catalog row as of one revision. The replica keeps
// the pointer's contents; the caller must not change them afterwards.
type Assignment struct {
	Revision uint64 // of the row; an older one than seen is ignored
	Shard    meta.ShardID
	Lineage  meta.Lineage
	Epoch    meta.Epoch     // 0: no grant yet
	Leader   meta.Member    // whom the epoch was granted to
	Boot     meta.BootNonce // and the boot of that broker
	Members  []meta.Member  // the replica set, verbatim from the row
	Level    uint16         // the cluster's format level, stamped into entries; 0 means entry.Level
	Instance uint64         // instance number for a copy that begins with this assignment
	Now      meta.Micros    // this broker's clock, for the opening entry
	Base     *Base          // the row's base; installed before anything else when the copy's log ends below it
	Reform   *Reform        // set by an abandon that re-forms the shard from copies
}

// Base is shard state at an LSN, installed whole: it replaces the copy's log and
// state and never lowers its promise. It comes from a manifest. One at LSN 0
// without State says, on an operator's word, that the lineage begins from nothing.
type Base struct {
	Lineage meta.Lineage // the manifest's; what is installed belongs to the row's
	LSN     meta.LSN     // the log goes on at LSN+1; not below the end of the mark's range
	Mark    meta.LSN     // the archive mark whose manifest it is
	State   []byte       // the mark's State bytes: the fold to the end of its range
}

// Reform says that the next lineage goes on from the log of the one before, up
// to an entry. A copy that holds that entry keeps its log to there and counts.
type Reform struct {
	From  meta.Lineage
	Epoch meta.Epoch // of the last entry kept
	LSN   meta.LSN   // of the last entry kept
}

// Written says that every write up to Seq is durable by the broker's mode; by
// fsync for writes that ask for it.
type Written struct{ Seq uint64 }

// Failed says that a write or sync failed. The replica acknowledges nothing more, for good.
type Failed struct{ Err error }

// Tick is the passing of time: unanswered messages are sent again.
type Tick struct{ Now meta.Micros }

// Connected says what a broker is now, as the handshake of a connection to it told:
// what is believed of its copies under another storage id or boot is dropped, on an
// idle shard too.
type Connected struct {
	Peer meta.Member
	Boot meta.BootNonce
}

// Resign makes the replica give up leadership: whatever waits is answered.
// Reason (may be nil) is the error for proposals that were not appended.
type Resign struct{ Reason error }

// ProposeKind says what is proposed.
type ProposeKind uint8

// The proposals. All are answered exactly once, in [Ready.Answers].
const (
	ProposeBatch   ProposeKind = iota + 1 // append Bytes
	ProposeFence                          // set the fence token to Token (empty: take it away), Strict
	ProposeTrim                           // move the start offset up to Start
	ProposeMark                           // append the archive mark encoded in Bytes
	ProposeConfirm                        // the manifest of the mark at LSN is in the bucket
	ProposeClose                          // end appends in this epoch
	CheckTail                             // where does the log end? linearizable
)

// Level is when an append is answered.
type Level uint8

// The acknowledgement levels. None and Leader are a hint only: an append with an
// expected offset, a fence token or a producer id is refused at them.
const (
	Quorum  Level = iota // a majority of the members has it (the default)
	None                 // as Leader; the caller does not wait for it
	Leader               // durable at the leader, by its mode
	Archive              // in the bucket, named by a written manifest
)

// Propose asks the leader for something. Only the fields of its kind matter.
type Propose struct {
	ID   uint64 // chosen by the caller, not 0, unique among what is unanswered
	Kind ProposeKind
	Now  meta.Micros // the leader's clock

	// Batch: a Kafka record batch that passed batch.Check. The replica writes base
	// offset and leader epoch into it and keeps it until the write is durable.
	// Mark: the encoded entry.MarkPayload.
	Bytes []byte

	ExpectedOffset *meta.Offset // Batch: refuse unless the next offset is this one
	FenceToken     *string      // Batch, Fence, Trim: refuse unless the token is this one
	Level          Level        // Batch
	Producers      int          // Batch: most producers in the client table, for one that is not in it; 0: bounded by bytes alone

	Token  string      // Fence
	Strict bool        // Fence
	Start  meta.Offset // Trim
	LSN    meta.LSN    // Confirm: the mark's LSN
}
