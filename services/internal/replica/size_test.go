package replica

import (
	"runtime"
	"testing"
)

// An idle shard costs little more than its client table. It is the core's part of
// that promise: bytes of a replica that has led, served and come to rest.
func TestIdleReplicaIsSmall(t *testing.T) {
	const many = 2000
	keep := make([]*Replica, 0, many)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range many {
		r, p, _ := steady()
		r.Step(p)
		r.Step(Written{Seq: r.seq})
		r.Rest()
		keep = append(keep, r)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int(after.HeapAlloc-before.HeapAlloc) / many
	runtime.KeepAlive(keep)
	t.Logf("%d bytes a replica", each)
	if each > 2048 {
		t.Fatalf("%d bytes a replica at rest", each)
	}
}
