package dir

import (
	"testing"

	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/buckettest"
)

func open(t *testing.T, path string) *Bucket {
	t.Helper()
	b, err := OpenPath(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func TestConformance(t *testing.T) {
	buckettest.Run(t, buckettest.Options{}, func(t *testing.T) bucket.Bucket { return open(t, t.TempDir()) })
}
