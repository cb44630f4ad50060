package mem

import (
	"testing"

	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/buckettest"
)

func TestConformance(t *testing.T) {
	buckettest.Run(t, buckettest.Options{}, func(t *testing.T) bucket.Bucket { return New(t.Name()) })
}
