package broker_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket/dir"
	"github.com/varve-io/varve/wal/vfs"
)

// Benchmarks print what a machine's speed does not change much: figures beside the
// same bytes written, read or fetched by the plainest means in the same run (x-raw:
// more is better, 1 is as fast), and syncs an append.

// onDisk is a node with its log and bucket in real folders.
func onDisk(b *testing.B) (n *servicetest.Node, syncs *atomic.Int64) {
	disk := vfs.NewFault(vfs.OS())
	syncs = new(atomic.Int64)
	disk.Hook(nil, func(o vfs.Op, _ error) {
		if o.Kind == vfs.OpSync && strings.HasSuffix(o.Path, ".log") {
			syncs.Add(1)
		}
	})
	objects, err := dir.OpenPath(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	n = servicetest.Start(b, servicetest.Options{
		World:  servicetest.World{FS: disk, Dir: filepath.Join(b.TempDir(), "varve"), Bucket: objects},
		Budget: 1 << 30, FileSize: 32 << 20,
		Defaults: catalog.StreamConfig{SegmentBytes: 1 << 30}, // archiving has a row of its own
	})
	return n, syncs
}

// sized is a batch of about that many bytes.
func sized(bytes int) []byte {
	const record = 1000
	values := make([]string, max(bytes/record, 1))
	for i := range values {
		values[i] = strings.Repeat("v", min(bytes, record))
	}
	return servicetest.Batch(batch.NoProducer(), values...)
}

// BenchmarkAppend appends from many callers, each waiting for its answer. Raw is
// one writer that writes and syncs the same batches one by one.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1000, 256 << 10} {
		for _, callers := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%dB/callers=%d", size, callers), func(b *testing.B) {
				n, syncs := onDisk(b)
				id := n.Create("bench/append")
				n.Append(id, "first")
				one := sized(size)
				b.SetBytes(int64(len(one)))
				b.ReportAllocs()
				syncs.Store(0)
				b.ResetTimer()
				appendMany(b, n, id, one, callers)
				b.StopTimer()
				took := b.Elapsed()
				b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/append")
				b.ReportMetric(float64(rawAppend(b, one, min(b.N, 2000)))/(float64(took)/float64(b.N)), "x-raw")
			})
		}
	}
}

func appendMany(b *testing.B, n *servicetest.Node, id meta.ShardID, one []byte, callers int) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				own := append([]byte(nil), one...) // the broker owns it from here on
				if _, err := n.Send(context.Background(), id, broker.Append{Batch: own, Level: replica.Quorum}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// rawAppend is what one write and fdatasync takes, into a file written before.
func rawAppend(b *testing.B, one []byte, times int) time.Duration {
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	room := int64(min(times*len(one), 64<<20))
	if _, err := io.CopyN(f, blank{}, room); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	for i := range times {
		at := int64(i) * int64(len(one)) % max(room-int64(len(one)), 1)
		if _, err := f.WriteAt(one, at); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start) / time.Duration(times)
}

type blank struct{}

func (blank) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

const scanBatches = 128 // of 256 KiB

// BenchmarkScanLog reads a shard from its start to its tail out of the log. Raw is
// the same number of bytes read from a file in pieces of 1 MiB.
func BenchmarkScanLog(b *testing.B) {
	n, _ := onDisk(b)
	id := n.Create("bench/scan")
	one := sized(256 << 10)
	for range scanBatches {
		if _, err := n.Send(b.Context(), id, broker.Append{Batch: append([]byte(nil), one...), Level: replica.Quorum}); err != nil {
			b.Fatal(err)
		}
	}
	raw := rawRead(b, scanBatches*int64(len(one)))
	scan(b, n, id, raw, false)
}

// BenchmarkScanBucket reads the same out of the bucket, past the cache of a node that
// has just started. Raw gets the segment's object whole.
func BenchmarkScanBucket(b *testing.B) {
	n, _ := onDisk(b)
	id := n.Create("bench/scan")
	one := sized(256 << 10)
	for i := range scanBatches {
		level := replica.Quorum
		if i == scanBatches-1 {
			level = replica.Archive
		}
		if _, err := n.Send(b.Context(), id, broker.Append{Batch: append([]byte(nil), one...), Level: level}); err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	for _, key := range n.Keys("streams/") {
		body, info, err := n.Bucket.Load(b.Context(), key, 1<<30)
		if err != nil || int64(len(body)) != info.Size {
			b.Fatalf("%d bytes, %v", len(body), err)
		}
	}
	scan(b, n, id, time.Since(start), true)
}

func scan(b *testing.B, n *servicetest.Node, id meta.ShardID, raw time.Duration, cold bool) {
	b.ReportAllocs()
	bytes := 0
	for b.Loop() {
		r, err := n.Broker.Reader(b.Context(), id)
		if err != nil {
			b.Fatal(err)
		}
		bytes = 0
		for from := meta.Offset(0); ; {
			p, err := r.Read(b.Context(), from, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			if len(p.Entries) == 0 {
				break
			}
			if p.Cold != cold {
				b.Fatalf("offset %d: cold is %t", from, p.Cold)
			}
			for _, e := range p.Entries {
				bytes += len(e.Payload)
			}
			from = p.Next
		}
		r.Close()
	}
	b.SetBytes(int64(bytes))
	b.ReportMetric(float64(raw)/(float64(b.Elapsed())/float64(b.N)), "x-raw")
}

func rawRead(b *testing.B, bytes int64) time.Duration {
	name := filepath.Join(b.TempDir(), "raw")
	if err := os.WriteFile(name, make([]byte, bytes), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	start := time.Now()
	for at := int64(0); at < bytes; at += 1 << 20 {
		piece := make([]byte, min(1<<20, bytes-at))
		if _, err := f.ReadAt(piece, at); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}
