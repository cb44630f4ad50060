package wal

import (
	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/wal/frame"
)

// RecordKind says what a record is.
type RecordKind uint8

// The kinds a caller may append.
const (
	Entry    RecordKind = RecordKind(frame.Entry)    // Record.Entry at the next LSN
	Truncate RecordKind = RecordKind(frame.Truncate) // drops every entry above Record.LSN
	State    RecordKind = RecordKind(frame.State)    // Record.Data, opaque
	Base     RecordKind = RecordKind(frame.Base)     // drops every entry; the log goes on at Record.LSN + 1
	Forget   RecordKind = RecordKind(frame.Forget)   // drops the shard; its number is never used again
)

// MaxData bounds Record.Data.
const MaxData = 6 << 20

// Record is one thing said about a shard.
type Record struct {
	Kind  RecordKind
	Entry entry.Entry // its payload must stay unchanged until Done
	LSN   meta.LSN
	Data  []byte // must stay unchanged until Done
}

// Write is a run of records of one shard that is acknowledged as one. It may be
// cut short by a crash before it is acknowledged, at any record. The log owns it
// from Append until Done.
type Write struct {
	Shard   ShardNumber
	Records []Record
	Sync    bool        // on disk before Done, also in periodic mode
	Done    func(error) // called once, from the writer; must not block; may be nil

	next    *Write // in the queue
	sibling *Write // next of the same shard in the batch
	shard   *shard
	cost    int64
	turn    bool     // go on in the next file, if the current one is spent
	mark    *mark    // a checkpoint begins: where replay will start
	section *section // a capture instead of records
	moves   []move   // a copier's relocations instead of records
}

// Replayer is told, in Open and by one goroutine, what the log holds. An error
// ends Open with it.
type Replayer interface {
	// Section gives a shard's state in the named checkpoint, before any of the
	// shard's records. blob is valid during the call only.
	Section(n ShardNumber, id meta.ShardID, blob []byte) error
	// Bound names a shard that the replayed log saw first.
	Bound(n ShardNumber, id meta.ShardID) error
	// Record gives every record placed after the section, once, in order. The
	// record's bytes are valid during the call only.
	Record(n ShardNumber, r Record) error
	// Broken says that entries of that shard's section can't be read: this copy
	// is a stranger. Its log goes on, empty, at the section's end. Called after
	// Section and before any record.
	Broken(n ShardNumber, why error) error
}

type noReplay struct{}

func (noReplay) Section(ShardNumber, meta.ShardID, []byte) error { return nil }
func (noReplay) Bound(ShardNumber, meta.ShardID) error           { return nil }
func (noReplay) Record(ShardNumber, Record) error                { return nil }
func (noReplay) Broken(ShardNumber, error) error                 { return nil }
