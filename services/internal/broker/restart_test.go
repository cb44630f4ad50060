package broker_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

func want(t *testing.T, got []string, values ...string) {
	t.Helper()
	if !slices.Equal(got, values) {
		t.Fatalf("read %q, want %q", got, values)
	}
}

// isErr fails the test unless err is kind.
func isErr(t *testing.T, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error %v, want one that is %q", err, kind)
	}
}

// sequence is an idempotent producer's next batches.
type sequence struct{ p batch.Producer }

func producer(id int64) *sequence { return &sequence{batch.Producer{ID: id}} }

func (s *sequence) next(values ...string) []byte {
	b := servicetest.Batch(s.p, values...)
	s.p.Sequence = batch.NextSequence(s.p.Sequence, len(values))
	return b
}

func send(n *servicetest.Node, id meta.ShardID, b []byte) (broker.Result, error) {
	return n.Send(n.Context(), id, broker.Append{Batch: slices.Clone(b)})
}

func mustSend(t *testing.T, n *servicetest.Node, id meta.ShardID, b []byte) broker.Result {
	t.Helper()
	r, err := send(n, id, b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stops are the ways in which a process ends, each with the disk it leaves.
var stops = map[string]func(*servicetest.Node) vfs.FS{
	"clean stop": func(n *servicetest.Node) vfs.FS {
		if err := n.Stop(); err != nil {
			n.T.Fatal(err)
		}
		return n.FS
	},
	"killed": func(n *servicetest.Node) vfs.FS {
		disk := n.Disk().KillClone()
		n.Kill()
		return disk
	},
	"power cut": func(n *servicetest.Node) vfs.FS {
		disk := n.Disk().CrashClone(vfs.CrashOptions{})
		n.Kill()
		return disk
	},
	"power cut, some kept": func(n *servicetest.Node) vfs.FS {
		disk := n.Disk().CrashClone(vfs.CrashOptions{Data: vfs.KeepSectors, Names: vfs.KeepSectors, Seed: 7})
		n.Kill()
		return disk
	},
}

// Rows: C2, B10, B11
func TestC2_OffsetsGoOnOverEveryStop(t *testing.T) {
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{})
			id := n.Create("logs/app")
			var all []string
			for i := range 5 {
				for j := range 3 {
					v := fmt.Sprintf("%d-%d", i, j)
					r := n.Append(id, v, v+"'")
					if r.First != meta.Offset(len(all)) || r.Next != r.First+2 || r.Tail < r.Next {
						t.Fatalf("append %s: offsets %d to %d, tail %d; want from %d", v, r.First, r.Next, r.Tail, len(all))
					}
					all = append(all, v, v+"'")
				}
				want(t, n.Read(id, 0), all...)
				n.Restart(stop(n))
			}
			want(t, n.Read(id, 0), all...)
			want(t, n.Read(id, 7), all[7:]...)
			ends, err := n.Broker.CheckTail(n.Context(), id)
			if err != nil || ends.Tail != meta.Offset(len(all)) || ends.Start != 0 {
				t.Fatalf("ends %+v, %v", ends, err)
			}
		})
	}
}

// Rows: C3, W11
func TestC3_W11_ResendGetsFirstAnswerOverEveryStop(t *testing.T) {
	for name, stop := range stops {
		for _, archived := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, archived %t", name, archived), func(t *testing.T) {
				n := servicetest.Start(t, servicetest.Options{})
				id := n.Create("logs/app")
				p := producer(77)
				var sent [][]byte
				var first []broker.Result
				for i := range 40 {
					sent = append(sent, p.next(fmt.Sprint(i)))
					first = append(first, mustSend(t, n, id, sent[i]))
				}
				if archived {
					n.Archive(id, "archived")
				}
				n.Restart(stop(n))
				for i := 39; i >= 8; i-- {
					r := mustSend(t, n, id, sent[i])
					if !r.Duplicate || r.OffsetUnknown || r.First != first[i].First || r.Time != first[i].Time {
						t.Fatalf("resend %d: %+v, first answer %+v", i, r, first[i])
					}
				}
				if r := mustSend(t, n, id, sent[7]); !r.Duplicate || !r.OffsetUnknown {
					t.Fatalf("resend beyond the window: %+v", r)
				}
				next := mustSend(t, n, id, p.next("new"))
				if next.Duplicate {
					t.Fatalf("a new batch is called a duplicate: %+v", next)
				}
				if got := n.Read(id, 0); len(got) != int(next.Next) || got[len(got)-1] != "new" {
					t.Fatalf("%d records, want %d", len(got), next.Next)
				}
			})
		}
	}
}

// Rows: E24, D2
func TestE24_EveryStartLeadsAnEpochOfItsOwn(t *testing.T) {
	for _, mode := range []wal.Mode{wal.Commit, wal.Periodic} {
		for name, stop := range stops {
			t.Run(fmt.Sprintf("%s, %s", mode, name), func(t *testing.T) {
				n := servicetest.Start(t, servicetest.Options{Mode: mode})
				id := n.Create("logs/app")
				var epoch meta.Epoch
				for range 3 {
					n.Append(id, "x")
					row, err := n.Catalog.Shard(n.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					if _, boot := n.Broker.Identity(); row.Boot != boot || row.Epoch <= epoch {
						t.Fatalf("row %+v is not a new epoch of boot %d", row, boot)
					}
					epoch = row.Epoch
					n.Restart(stop(n))
				}
			})
		}
	}
}

// A leader that dies between taking a batch and writing it: nothing was answered,
// and the next start may not go on in the same epoch.
func TestE24_KilledBetweenSendAndWrite(t *testing.T) {
	disk := vfs.NewMem(1)
	faults := vfs.NewFault(disk)
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{FS: faults}})
	id := n.Create("logs/app")
	n.Append(id, "stored")
	before, err := n.Catalog.Shard(n.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	release := faults.HoldSync(nil)
	answered := make(chan error, 1)
	err = n.Broker.Append(n.Context(), id, broker.Append{Batch: servicetest.Batch(batch.NoProducer(), "lost")},
		func(_ broker.Result, err error) { answered <- err })
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		t.Fatalf("answered before it was on disk: %v", err)
	default:
	}
	left := disk.CrashClone(vfs.CrashOptions{})
	release()
	n.Kill()
	n.Restart(left)
	want(t, n.Read(id, 0), "stored")
	r := n.Append(id, "next")
	if r.First != 1 {
		t.Fatalf("first offset %d, want 1", r.First)
	}
	after, err := n.Catalog.Shard(n.Context(), id)
	if err != nil || after.Epoch <= before.Epoch {
		t.Fatalf("epoch %d after %d, %v", after.Epoch, before.Epoch, err)
	}
}

// Rows: D2, C2, B12
func TestD2_PeriodicModeAfterAPowerCutGoesOnInTheNextLineage(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{Mode: wal.Periodic})
	id := n.Create("logs/app")
	n.Append(id, "a", "b")
	n.Archive(id, "c")
	before, _ := n.Broker.Identity()
	disk := n.Disk().CrashClone(vfs.CrashOptions{Data: vfs.KeepNone})
	n.Kill()
	n.BootID = "another boot"
	n.Restart(disk)
	if now, _ := n.Broker.Identity(); now == before {
		t.Fatal("the machine went down in periodic mode, and the storage id was kept")
	}
	// What was archived is there whatever the disk lost.
	want(t, n.Read(id, 0), "a", "b", "c")
	if r := n.Append(id, "d"); r.First != 3 || r.Lineage.Counter() != 1 {
		t.Fatalf("append after the rotation: %+v", r)
	}
	n.Archive(id, "e")
	n.Restart(stops["clean stop"](n))
	want(t, n.Read(id, 0), "a", "b", "c", "d", "e")
	row, err := n.Catalog.Shard(n.Context(), id)
	if err != nil || row.Lineage.Counter() != 1 {
		t.Fatalf("row %+v, %v: want the next lineage", row, err)
	}
}
