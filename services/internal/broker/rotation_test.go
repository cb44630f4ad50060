package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/mem"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

// The machine goes down several times while a shard rests, in periodic mode: its row
// still names an id from long ago, and it goes on without an operator.
//
// Rows: D2, D13
func TestD13_ShardRestsThroughSeveralRotations(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{Mode: wal.Periodic})
	id, busy := n.Create("logs/rests"), n.Create("logs/busy")
	n.Append(id, "a", "b")
	n.Append(busy, "0")
	all := []string{"0"}
	for i := range 5 {
		disk := n.Disk().CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll})
		n.Kill()
		n.BootID = fmt.Sprint("boot ", i)
		n.Restart(disk)
		if i == 2 { // a clean stop in between changes nothing
			n.Restart(stops["clean stop"](n))
		}
		v := fmt.Sprint(i + 1)
		n.Append(busy, v)
		all = append(all, v)
	}
	want(t, n.Read(busy, 0), all...)
	want(t, n.Read(id, 0), "a", "b")
	n.Append(id, "c")
	want(t, n.Read(id, 0), "a", "b", "c")
}

// An older state of the directory, put back after a clean stop, is refused as often
// as it is tried: its start count catches up with each try, its log does not.
//
// Rows: D1
func TestD1_OlderStateIsRefusedHoweverOftenItTries(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Append(id, "one")
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	old := n.Disk().KillClone()
	n.Restart(nil)
	n.Append(id, "two") // nothing is reported in the short life of this start
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	newest := n.Disk().KillClone()
	n.FS = old
	for i := range 4 {
		if err := n.Open(); !errors.Is(err, meta.ErrStranger) {
			t.Fatalf("try %d with an older state: %v", i, err)
		}
	}
	n.Restart(newest)
	want(t, n.Read(id, 0), "one", "two")
}

// uploads calls a function before each segment goes into the bucket.
type uploads struct {
	*mem.Bucket
	before func()
}

func (u *uploads) Put(ctx context.Context, key string, body bucket.Body, o bucket.PutOptions) (bucket.Info, error) {
	if strings.HasSuffix(key, ".seg") && u.before != nil {
		u.before()
	}
	return u.Bucket.Put(ctx, key, body, o)
}

// A power cut takes a mark and leaves its manifest in the bucket, in a lineage that
// began with an older one's: archiving goes on from the mark that the copy has.
//
// Rows: D2, T1
func TestD2_MarkLostAndManifestKept(t *testing.T) {
	store := &uploads{Bucket: mem.New("test")}
	n := servicetest.Start(t, servicetest.Options{Mode: wal.Periodic, World: servicetest.World{Bucket: store}})
	id := n.Create("logs/app")
	keep := vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll}
	cut := func(boot string, disk *vfs.Mem) {
		n.Kill()
		n.BootID = boot
		n.Restart(disk)
	}
	n.Archive(id, "a")
	cut("second", n.Disk().CrashClone(keep))
	var left *vfs.Mem
	store.before = func() { left = n.Disk().CrashClone(keep) }
	n.Archive(id, "b")
	store.before = nil
	cut("third", left) // holds b, but neither its mark nor the confirmation
	n.Archive(id, "c")
	want(t, n.Read(id, 0), "a", "b", "c")
	cut("fourth", n.Disk().CrashClone(keep))
	n.Archive(id, "d")
	want(t, n.Read(id, 0), "a", "b", "c", "d")
}
