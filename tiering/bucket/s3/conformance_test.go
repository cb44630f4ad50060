package s3

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varve-io/varve/infra/minio"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/buckettest"
)

// server is the MinIO of this package's tests. Where it can't be had, they fail.
var (
	server  *minio.Server
	prefixN atomic.Int32
)

const testBucket = "varve-test"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "varve-minio-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	if server, err = minio.Start(ctx, minio.Options{Dir: dir}); err == nil {
		defer server.Kill()
		err = server.MakeBucket(ctx, testBucket)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func testOptions() Options {
	return Options{AccessKey: server.AccessKey(), SecretKey: server.SecretKey(), PutLimit: 6 << 20, PartSize: 5 << 20, Buffers: 3}
}

// open opens a bucket below a prefix of its own.
func open(t *testing.T, opts Options) *Bucket {
	t.Helper()
	return openAt(t, server.URL(testBucket, fmt.Sprintf("t%d", prefixN.Add(1))), opts)
}

func openAt(t *testing.T, url string, opts Options) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// Rows: T6, and B97, B100, B102 of the public failures on a real store.
func TestConformance(t *testing.T) {
	buckettest.Run(t, buckettest.Options{Large: 11<<20 + 5, FoldersUnchecked: true}, func(t *testing.T) bucket.Bucket {
		return open(t, testOptions())
	})
}
