package replica

import (
	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// MessageKind says what a message is.
type MessageKind uint8

// The messages between the replicas of one shard.
const (
	MsgFence         MessageKind = iota + 1 // promise Epoch
	MsgFenceAnswer                          // Vector, Last (the durable end), Commit, Stranger
	MsgReconcile                            // the leader's Vector and Last: cut what differs
	MsgAppend                               // entries [First, Last] after Prev; Commit
	MsgAppendAnswer                         // Last (the durable end), Commit; with Vector when Prev did not match
	MsgCommitMark                           // Commit
	MsgFetch                                // a candidate asks the best copy for [First, Last]
	MsgFetchAnswer                          // entries [First, Last] after Prev
	MsgConfirm                              // do you still follow this epoch? Round
	MsgConfirmAnswer                        // Round
	MsgStaleRoute                           // Held: what the sender holds instead
)

var messageNames = [...]string{
	MsgFence: "fence", MsgFenceAnswer: "fence-answer", MsgReconcile: "reconcile", MsgAppend: "append",
	MsgAppendAnswer: "append-answer", MsgCommitMark: "commit-mark", MsgFetch: "fetch", MsgFetchAnswer: "fetch-answer",
	MsgConfirm: "confirm", MsgConfirmAnswer: "confirm-answer", MsgStaleRoute: "stale-route",
}

func (k MessageKind) String() string {
	if int(k) < len(messageNames) && messageNames[k] != "" {
		return messageNames[k]
	}
	return "unknown message"
}

// Held is what a copy holds of a shard's name.
type Held struct {
	Incarnation meta.Incarnation
	Lineage     meta.Lineage
	Promise     meta.Epoch
}

// Message goes from one copy of a shard to another. Which fields matter depends
// on the kind. Everything in an answer belongs to the sender's storage id, boot
// and instance.
type Message struct {
	Kind     MessageKind
	From, To meta.Member
	Boot     meta.BootNonce // the sender's
	ToBoot   meta.BootNonce // the receiver's, as its fence answer said; 0 in fences and answers
	Instance uint64         // of the follower's copy, in both directions; 0: not known yet
	Shard    meta.ShardID
	Lineage  meta.Lineage
	Epoch    meta.Epoch

	Vector   meta.Vector // nil: unknown
	Last     meta.LSN
	Commit   meta.LSN
	Stranger bool // the sender does not count
	Adopted  bool // the sender holds the epoch's opening entry durably

	PrevEpoch meta.Epoch // of the entry before First; 0 with PrevLSN 0
	PrevLSN   meta.LSN
	First     meta.LSN // in a fence answer: the first entry of the sender's log
	// Entries are attached by the driver, read from the WAL: as many of
	// [First, Last] as it likes to send, at least one. The receiver's core may
	// keep them until the write they go into is durable.
	Entries []entry.Entry

	Floor meta.LSN // Fence: the row's base; a copy that ends below it must install it first
	Round uint64
	Stamp uint64 // counts what the sender sent in this boot: later answers have higher ones
	Held  Held

	// After is the write of the sender that must be durable before the message
	// leaves; 0: none. It is not sent.
	After uint64
}
