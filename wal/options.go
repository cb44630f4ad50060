package wal

import (
	"crypto/rand"
	"io"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/frame"
	"github.com/varve-io/varve/wal/vfs"
)

// Mode says when an append is acknowledged.
type Mode uint8

const (
	// Commit acknowledges once the bytes are on disk.
	Commit Mode = iota
	// Periodic acknowledges from the page cache and syncs every interval.
	Periodic
)

func (m Mode) String() string {
	if m == Periodic {
		return "periodic"
	}
	return "commit"
}

const (
	defaultBudget   = 1 << 30
	defaultInterval = 250 * time.Millisecond
	largestDefault  = 64 << 20
	smallestDefault = frame.MaxSize + 4*frame.Block // holds the largest frame
	minFiles        = 6
	// idleVouch is how long after the last sync, with nothing queued, a bare
	// group header vouches for the last group.
	idleVouch = 20 * time.Millisecond
)

// Options configure a log. FS, Dir, Cluster and Broker are required.
type Options struct {
	FS      vfs.FS
	Dir     string // the data directory; a relative path works
	Cluster meta.ClusterID
	Broker  meta.BrokerID

	Mode     Mode
	Interval time.Duration // longest time between syncs in periodic mode; default 250 ms

	// Budget bounds the allocated bytes of the wal folder; default 1 GiB.
	Budget int64
	// FileSize is the size of every log file, a multiple of 4 KiB. Default:
	// Budget/16, at most 64 MiB, and at least what the largest frame needs.
	FileSize int64

	BootID     string // of the kernel; empty means unknown
	WitnessDir string // a folder outside this disk that a reboot empties; empty means none

	Replay Replayer // told what the log holds, in Open; nil drops it
	Events Events
	Rand   io.Reader // salts, storage ids and nonces; default crypto/rand
	Twins  Twins
}

// Twins are deliberate mistakes that tests switch on to see that they are caught.
type Twins struct {
	CrashKeepsID       bool // an unclean stop keeps the storage id
	NoDirSync          bool // names of new files are not synced
	AckBeforeSync      bool // Done is called before the sync
	ScanWithoutRewrite bool // the page cache is believed after an unclean stop
	DropFirst          bool // files are recycled before the superblock is written
	CopyIsAppend       bool // a relocated entry is applied without looking at the index
}

// Events tell a log's owner what happens in it. Any may be nil. They are called
// from the log's goroutines and must not block or call back.
type Events struct {
	Synced   func(bytes int, took time.Duration)         // one group commit reached the disk
	Pressure func(used, budget int64)                    // the files in use passed half of the budget, and each further file
	Damaged  func(shard ShardNumber, err error)          // a read met bytes that do not verify
	Cut      func(file string, at Position, bytes int64) // Open cut a torn tail
	Failed   func(err error)                             // the log is poisoned
}

func (o Options) withDefaults() Options {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Budget == 0 {
		o.Budget = defaultBudget
	}
	if o.FileSize == 0 {
		o.FileSize = min(o.Budget/16, largestDefault) &^ (frame.Block - 1)
		if o.FileSize < smallestDefault && o.Budget/minFiles >= smallestDefault {
			o.FileSize = smallestDefault
		}
	}
	if o.Replay == nil {
		o.Replay = noReplay{}
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return o
}

func (o *Options) validate() error {
	switch {
	case o.FS == nil:
		return meta.Invalidf("log options: FS is missing")
	case o.Dir == "":
		return meta.Invalidf("log options: Dir is empty")
	case o.Cluster.IsZero():
		return meta.Invalidf("log options: Cluster is missing")
	case o.Interval < 0:
		return meta.Invalidf("log options: Interval is %s: want a time above zero", o.Interval)
	case o.FileSize < 8*frame.Block || o.FileSize%frame.Block != 0 || o.FileSize > 1<<30:
		return meta.Invalidf("log options: FileSize is %d: want a multiple of %d from %d to %d", o.FileSize, frame.Block, 8*frame.Block, 1<<30)
	case o.Budget < minFiles*o.FileSize:
		return meta.Invalidf("log options: Budget is %d: want at least %d files of %d bytes", o.Budget, minFiles, o.FileSize)
	case o.Mode > Periodic:
		return meta.Invalidf("log options: Mode is %d: want commit or periodic", o.Mode)
	}
	return o.Broker.Validate()
}
