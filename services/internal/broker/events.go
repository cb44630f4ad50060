package broker

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/wal"
)

// events is where a broker's doings become log lines and metrics. Metrics carry
// no stream names: what is kept per stream would outlive it.
type events struct {
	logger  *slog.Logger
	metrics prometheus.Registerer

	appendBatches, appendRecords, appendBytes, duplicates prometheus.Counter
	refusals                                              *prometheus.CounterVec
	readBytes, readRecords                                *prometheus.CounterVec
	syncs, syncBytes                                      prometheus.Counter
	syncSeconds                                           prometheus.Histogram
	archives, archiveBytes, archiveFailures               prometheus.Counter
	alarms                                                prometheus.Counter
}

func newEvents(logger *slog.Logger, metrics prometheus.Registerer) *events {
	if metrics == nil {
		metrics = prometheus.NewRegistry()
	}
	count := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "varve_" + name, Help: help})
		metrics.MustRegister(c)
		return c
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "varve_" + name, Help: help}, []string{label})
		metrics.MustRegister(c)
		return c
	}
	e := &events{
		logger: logger, metrics: metrics,
		appendBatches:   count("append_batches_total", "Batches stored."),
		appendRecords:   count("append_records_total", "Records stored."),
		appendBytes:     count("append_bytes_total", "Bytes of batches stored, as encoded by the clients."),
		duplicates:      count("append_duplicates_total", "Batches that had been stored before."),
		refusals:        vec("append_refused_total", "Appends refused, by reason.", "reason"),
		readBytes:       vec("read_bytes_total", "Bytes of batches read, by where they came from: log or bucket.", "from"),
		readRecords:     vec("read_records_total", "Records read, by where they came from: log or bucket.", "from"),
		syncs:           count("wal_syncs_total", "Group commits that reached the disk."),
		syncBytes:       count("wal_synced_bytes_total", "Bytes that group commits brought to the disk."),
		archives:        count("archive_marks_total", "Archive marks whose manifest is written."),
		archiveBytes:    count("archive_bytes_total", "Bytes of segments in written manifests."),
		archiveFailures: count("archive_failures_total", "Archive rounds that failed and are tried again."),
		alarms:          count("alarms_total", "Things that must not happen and that an operator must look at."),
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "varve_wal_sync_seconds", Help: "Time of one group commit.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 16),
		}),
	}
	metrics.MustRegister(e.syncSeconds)
	return e
}

func (e *events) appended(bytes int, records int64, duplicate bool) {
	if duplicate {
		e.duplicates.Inc()
		return
	}
	e.appendBatches.Inc()
	e.appendRecords.Add(float64(records))
	e.appendBytes.Add(float64(bytes))
}

func (e *events) refused(err error) { e.refusals.WithLabelValues(reason(err)).Inc() }

// reason is a short, bounded label.
func reason(err error) string {
	var condition *meta.ConditionFailed
	var gap *meta.SequenceGap
	switch {
	case errors.As(err, &condition):
		return "condition"
	case errors.As(err, &gap), errors.Is(err, meta.ErrUnknownWriter):
		return "sequence"
	case errors.Is(err, meta.ErrFenced):
		return "fence"
	case errors.Is(err, meta.ErrProducerFence):
		return "producer-epoch"
	case errors.Is(err, meta.ErrExhausted):
		return "exhausted"
	case errors.Is(err, meta.ErrInvalid):
		return "invalid"
	default:
		return "other"
	}
}

func (e *events) read(entries []entry.Entry, cold bool) {
	from := "log"
	if cold {
		from = "bucket"
	}
	var bytes, records int
	for i := range entries {
		bytes += len(entries[i].Payload)
		records += batchCount(entries[i].Payload)
	}
	e.readBytes.WithLabelValues(from).Add(float64(bytes))
	e.readRecords.WithLabelValues(from).Add(float64(records))
}

func (e *events) alarm(id meta.ShardID, err error) {
	e.alarms.Inc()
	e.logger.Error("alarm: an operator should look at this shard", "shard", id.String(), "error", err)
}

func (e *events) role(id meta.ShardID, st replica.Status) {
	e.logger.Debug("shard", "shard", id.String(), "role", st.Role.String(), "lineage", st.Lineage, "epoch", st.Epoch, "waiting", st.Waiting)
}

func (e *events) archived(id meta.ShardID, p *entry.MarkPayload) {
	e.archives.Inc()
	if p.Segment != nil {
		e.archiveBytes.Add(float64(p.Segment.Size))
	}
	e.logger.Debug("archived", "shard", id.String(), "from", p.Start, "to", p.End)
}

func (e *events) archiveFailed(id meta.ShardID, err error, pause time.Duration) {
	e.archiveFailures.Inc()
	e.logger.Warn("archiving failed; the data stays in the log", "shard", id.String(), "error", err, "again in", pause)
}

// log is what the write-ahead log tells.
func (e *events) log(pressure func(used, budget int64)) wal.Events {
	return wal.Events{
		Synced: func(bytes int, took time.Duration) {
			e.syncs.Inc()
			e.syncBytes.Add(float64(bytes))
			e.syncSeconds.Observe(took.Seconds())
		},
		Pressure: pressure,
		Damaged: func(n wal.ShardNumber, err error) {
			e.alarms.Inc()
			e.logger.Error("alarm: bytes of the log do not verify", "shard number", n, "error", err)
		},
		Cut: func(file string, at wal.Position, bytes int64) {
			e.logger.Info("cut the torn tail of the log; nothing of it was acknowledged", "file", file, "position", at, "bytes", bytes)
		},
		Failed: func(err error) {
			e.alarms.Inc()
			e.logger.Error("alarm: the log failed; this broker acknowledges nothing more and stops", "error", err)
		},
	}
}

// collect registers the figures that are read when they are asked for.
func (e *events) collect(b *Broker) {
	gauge := func(name, help string, f func() float64) {
		e.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "varve_" + name, Help: help}, f))
	}
	gauge("shards", "Shards held by this broker.", func() float64 {
		b.mu.RLock()
		defer b.mu.RUnlock()
		return float64(len(b.shards))
	})
	gauge("wal_budget_bytes", "Most bytes that the log's files may take.", func() float64 { return float64(b.log.Status().Budget) })
	gauge("wal_files_bytes", "Bytes that the log's files take.", func() float64 { return float64(b.log.Status().Bytes) })
	gauge("wal_used_bytes", "Bytes of log files that hold something.", func() float64 { return float64(b.log.Status().Used) })
	gauge("wal_live_bytes", "Bytes of entries that are still needed: the archive's lag.", func() float64 { return float64(b.log.Status().Live) })
	gauge("store_gets_total", "Ranged reads that the bucket answered.", func() float64 { return float64(b.opts.Store.Stats().Gets) })
	gauge("store_get_bytes_total", "Bytes that the bucket answered.", func() float64 { return float64(b.opts.Store.Stats().GetBytes) })
	gauge("store_upload_bytes_total", "Bytes of segments uploaded.", func() float64 { return float64(b.opts.Store.Stats().UploadBytes) })
	gauge("store_cache_bytes", "Bytes of blocks in memory.", func() float64 { return float64(b.opts.Store.Stats().CacheBytes) })
	gauge("store_deleted_total", "Objects deleted as garbage.", func() float64 { return float64(b.opts.Store.Stats().Deleted) })
}
