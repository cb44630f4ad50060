package etcdkv

import (
	"log/slog"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// Options configure an embedded member. Only Dir is needed.
type Options struct {
	// Dir is the directory of etcd's files; it is made when absent.
	Dir string
	// Name is the member's name within etcd; "" means "varve". It must not change
	// over the life of the directory.
	Name string
	// Prefix stands before every key; "" means "varve/".
	Prefix string
	// SegmentBytes is the size etcd preallocates for each of its two log files, for
	// the whole process; 0 means etcd's own 64 MB. Small for development and tests.
	SegmentBytes int64
	// Quota is how much the catalog may hold, history included, in bytes; beyond it
	// nothing new is taken. The file may grow a quarter and 8 MiB larger. 0 means 4 GiB.
	Quota int64
	// KeepRevisions is how many revisions of history compaction leaves; 0 means 100,000.
	KeepRevisions int64
	// MaintainEvery is how often space is looked after; 0 means 30 s.
	MaintainEvery time.Duration
	// Tick is etcd's heartbeat; elections take ten of them. 0 means 100 ms.
	Tick time.Duration
	// NoSync leaves out every fsync. Only for state that may be lost.
	NoSync bool
	// Network makes it one member of several; nil is a lone one without any port.
	Network *Network
	// StartTimeout bounds the start; 0 means 60 s.
	StartTimeout time.Duration
	// Log takes etcd's own messages from warnings upward; nil drops them.
	Log *slog.Logger

	syncDir func(path string) error // tests watch it
}

func (o Options) withDefaults() Options {
	set(&o.Name, "varve")
	set(&o.Prefix, "varve/")
	set(&o.Quota, 4<<30)
	set(&o.KeepRevisions, 100_000)
	set(&o.MaintainEvery, 30*time.Second)
	set(&o.Tick, 100*time.Millisecond)
	set(&o.StartTimeout, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.NoSync:
		o.syncDir = func(string) error { return nil }
	case o.syncDir == nil:
		o.syncDir = syncFolder
	}
	return o
}

// maxRequest leaves room around a transaction's keys and values.
const maxRequest = catalog.MaxRequestBytes + 1<<20

func set[T comparable](field *T, usual T) {
	var zero T
	if *field == zero {
		*field = usual
	}
}

func (o Options) validate() error {
	switch {
	case o.Dir == "":
		return meta.Invalidf("catalog: no directory given")
	case o.Quota < 1<<20:
		return meta.Invalidf("catalog: quota of %d bytes: at least 1 MiB", o.Quota)
	case o.Tick < time.Millisecond:
		return meta.Invalidf("catalog: tick of %s: at least 1ms", o.Tick)
	case o.SegmentBytes != 0 && o.SegmentBytes < 64<<10:
		return meta.Invalidf("catalog: log segments of %d bytes: at least 64 KiB", o.SegmentBytes)
	case o.Network != nil:
		return o.Network.validate(o.Name)
	}
	return nil
}

var _ catalog.KV = (*Store)(nil)
