package etcdkv_test

import (
	"testing"
	"time"

	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/catalog/kvtest"
	"github.com/varve-io/varve/meta/etcdkv"
)

func options(dir string) etcdkv.Options {
	return etcdkv.Options{Dir: dir, NoSync: true, SegmentBytes: 256 << 10, Tick: 10 * time.Millisecond}
}

func open(t *testing.T, opt etcdkv.Options) *etcdkv.Store {
	t.Helper()
	s, err := etcdkv.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kvtest.Harness {
		s := open(t, options(t.TempDir()))
		return kvtest.Harness{
			KV: s,
			Compact: func(r catalog.Revision) {
				if err := s.Compact(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			},
			Lapse: func(time.Duration) {}, // etcd's own clock; the test waits for the event
		}
	})
}
