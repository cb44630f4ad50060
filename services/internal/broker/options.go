package broker

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/wal"
)

// Options say what a broker is made of. Group, Catalog and Store are required.
type Options struct {
	Group   *run.Group       // owns the broker's goroutines
	Catalog *catalog.Catalog // the control plane
	Store   *tiering.Store   // the bucket; its prefix is claimed
	Log     wal.Options      // the log; Replay and Events are the broker's own

	Addresses  []string              // where clients and peers reach this broker
	Version    string                // of the program
	Defaults   catalog.StreamConfig  // what streams have that say nothing, nor their namespace
	AutoCreate bool                  // a namespace comes into being with its first stream, and streams in it by appending
	Purge      time.Duration         // between two looks for deleted streams and garbage; default 1 min
	Now        func() time.Time      // wall clock; default time.Now
	Logger     *slog.Logger          // default slog.Default
	Metrics    prometheus.Registerer // nil: none
	Twins      Twins
}

// Twins switch single rules off, for tests that show that the rule is needed.
// Each is read at exactly one place.
type Twins struct {
	OpenFirst  bool // N6: shards open before tombstones are applied
	DropAtMark bool // T1: the log drops at the mark, not at the confirmation
}

// serverDefaults are a stream's settings when nobody said anything.
var serverDefaults = catalog.StreamConfig{
	SegmentBytes:   64 << 20,
	SegmentAge:     10 * time.Minute,
	MaxRecordBytes: 1 << 20,
	ProducersMax:   10_000,
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Purge <= 0 {
		o.Purge = time.Minute
	}
	o.Defaults = o.Defaults.Over(serverDefaults)
	return o
}

func (o *Options) validate() error {
	if o.Group == nil || o.Catalog == nil || o.Store == nil {
		return meta.Invalidf("broker options: Group, Catalog and Store are required")
	}
	return o.Defaults.Validate()
}
