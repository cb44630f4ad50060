package wal

import (
	"context"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// shard, section and move are filled in by index.go, checkpointing and relocation.
type (
	shard   struct{}
	section struct{}
	move    struct{}
)

// Tail is what a shard keeps in the log.
type Tail struct {
	Shard ShardNumber
	ID    meta.ShardID
	Bytes int64    // of its live frames
	Start Position // of its oldest live frame
}

// Status is a moment's figures.
type Status struct {
	Files, FreeFiles int
	Bytes, Budget    int64 // bytes of all log files on disk, and their bound
	Used             int64 // bytes of the files that hold something
	Live             int64 // bytes of live frames
	Shards           int
	End, Synced      Position
	Reserved, Queued int64 // bytes
}

// Log is one broker's shared log. All methods are safe for concurrent use.
type Log struct{}

// Open recovers the log in a data directory, or makes one, and locks it.
func Open(ctx context.Context, opts Options) (*Log, error) { panic("skeleton") }

// Bind returns the number of a shard in this directory, giving it one if it has
// none. The number is durable with the shard's first record.
func (l *Log) Bind(id meta.ShardID) (ShardNumber, error) { panic("skeleton") }

// Append queues a write and never blocks on the disk. The order of calls for a
// shard is its order in the log. After an error Done is not called.
func (l *Log) Append(w *Write) error { panic("skeleton") }

// Reserve waits for room for an append of that many payload bytes, until ctx's
// deadline (then *meta.Throttled). Call release once the append is done or given up.
func (l *Log) Reserve(ctx context.Context, bytes int64) (release func(), err error) { panic("skeleton") }

// ReserveCommand is Reserve from the room kept back for commands.
func (l *Log) ReserveCommand(ctx context.Context, bytes int64) (release func(), err error) {
	panic("skeleton")
}

// Read returns whole entries from an LSN on: at least one if there is one, and
// then up to about most bytes. The caller owns them.
func (l *Log) Read(n ShardNumber, from meta.LSN, most int) ([]entry.Entry, error) { panic("skeleton") }

// FindOffset returns the batch entry that holds an offset.
func (l *Log) FindOffset(n ShardNumber, o meta.Offset) (meta.LSN, bool, error) { panic("skeleton") }

// FindTime returns the first batch entry whose append time is not before t.
func (l *Log) FindTime(n ShardNumber, t meta.Micros) (meta.LSN, bool, error) { panic("skeleton") }

// Bounds returns the first local LSN and the one after the last.
func (l *Log) Bounds(n ShardNumber) (start, end meta.LSN) { panic("skeleton") }

// Drop says that no entry below an LSN is needed any more.
func (l *Log) Drop(n ShardNumber, below meta.LSN) { panic("skeleton") }

// Tails lists what shards keep in the log, biggest first.
func (l *Log) Tails() []Tail { panic("skeleton") }

// Checkpoint copies small tails forward, writes every shard's state, and recycles
// the files that nothing needs any more. See the interface of capture in doc.go.
func (l *Log) Checkpoint(ctx context.Context, capture func(yield func(ShardNumber, []byte) bool)) error {
	panic("skeleton")
}

// Status returns figures for metrics.
func (l *Log) Status() Status { panic("skeleton") }

// Synced is the position before which everything is on disk.
func (l *Log) Synced() Position { panic("skeleton") }

// Failed is closed when the log is poisoned.
func (l *Log) Failed() <-chan struct{} { panic("skeleton") }

// Err is the failure that poisoned the log, or nil.
func (l *Log) Err() error { panic("skeleton") }

// Close drains the queue, syncs, and records a clean stop.
func (l *Log) Close(ctx context.Context) error { panic("skeleton") }

// Kill stops the log as a crash would. For tests.
func (l *Log) Kill() { panic("skeleton") }
