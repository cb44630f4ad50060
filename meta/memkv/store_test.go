package memkv_test

import (
	"sync"
	"testing"
	"time"

	"github.com/varve-io/varve/meta/catalog/kvtest"
	"github.com/varve-io/varve/meta/memkv"
)

func TestConformance(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kvtest.Harness {
		var mu sync.Mutex
		now := time.Unix(1000, 0)
		s := memkv.New(memkv.Options{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
		t.Cleanup(func() { s.Close() })
		return kvtest.Harness{KV: s, Compact: s.Compact, Lapse: func(d time.Duration) {
			mu.Lock()
			now = now.Add(d)
			mu.Unlock()
			s.Expire()
		}}
	})
}
