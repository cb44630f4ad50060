package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

// Rows: D1
func TestD1_CopiedDirectoryIsRefused(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Append(id, "one")
	copied := n.Disk().KillClone()
	n.Kill()
	n.Restart(nil) // start 2 of the directory
	n.Append(id, "two")
	// The copy starts, too: it is start 2 of the same storage id, by another boot.
	twin := servicetest.New(t, servicetest.Options{World: servicetest.World{KV: n.KV, Bucket: n.Bucket, FS: copied}})
	isErr(t, twin.Open(), meta.ErrStranger)
	n.Append(id, "three")
	want(t, n.Read(id, 0), "one", "two", "three")
	// Again: its start count is higher now, but its log ends before what the living
	// one has reported.
	if err := n.Broker.Report(n.Context()); err != nil {
		t.Fatal(err)
	}
	isErr(t, twin.Open(), meta.ErrStranger)
}

// Rows: D1
func TestD1_RolledBackDirectoryIsRefused(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	id := n.Create("logs/app")
	n.Append(id, "one")
	old := n.Disk().KillClone()
	for range 3 {
		n.Kill()
		n.Restart(nil)
		n.Append(id, "more")
	}
	n.Kill()
	n.FS = old
	isErr(t, n.Open(), meta.ErrStranger)
}

// A directory that another start of itself overtook stops when it reports.
//
// Rows: D1
func TestD1_OvertakenStartStops(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{})
	n.Append(n.Create("logs/app"), "one")
	later := n.Disk().KillClone()
	other := servicetest.Start(t, servicetest.Options{World: servicetest.World{KV: n.KV, Bucket: n.Bucket, FS: later}})
	isErr(t, n.Broker.Report(n.Context()), meta.ErrStranger)
	if err := other.Broker.Report(n.Context()); err != nil {
		t.Fatal(err)
	}
}

// lost starts a node on a new disk, after its old one is gone, and returns the
// storage id that the shard's row still names.
func lost(n *servicetest.Node, id meta.ShardID) []meta.StorageID {
	n.T.Helper()
	row, err := n.Catalog.Shard(n.Context(), id)
	if err != nil {
		n.T.Fatal(err)
	}
	if n.Broker != nil {
		n.Kill()
	}
	n.Restart(vfs.NewMem(9))
	return []meta.StorageID{row.Members[0].Storage}
}

// Rows: D13, E34, B27
func TestD13_WipedDirectoryWaitsAndIsAbandoned(t *testing.T) {
	cases := []struct {
		name     string
		archived []string // in the bucket
		tail     []string // on the lost disk alone
		source   broker.Source
	}{
		{"from the bucket", []string{"a", "b"}, []string{"c"}, broker.FromBucket},
		{"from nothing", nil, []string{"c"}, broker.FromNothing},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{})
			id := n.Create("logs/app")
			for _, v := range c.archived {
				n.Archive(id, v)
			}
			n.Append(id, c.tail...)
			if _, err := n.Broker.Abandon(n.Context(), id, nil, true); err == nil {
				t.Fatal("a shard that is served may be abandoned")
			}
			gone := lost(n, id)

			_, err := send(n, id, servicetest.Batch(producer(1).p, "x"))
			if !broker.Waits(err) {
				t.Fatalf("append to a shard whose only copy is gone: %v", err)
			}
			// What the bucket has is still read. It never passes for the whole: the
			// reader is told that the shard waits.
			values, err := n.TryRead(n.Context(), id, 0)
			if !broker.Waits(err) {
				t.Fatalf("read %q, %v", values, err)
			}
			want(t, values, c.archived...)

			for name, lost := range map[string][]meta.StorageID{"nothing is named": nil, "another is named": {{9}}, "one too many": append([]meta.StorageID{{9}}, gone...)} {
				if _, err := n.Broker.Abandon(n.Context(), id, lost, false); !errors.Is(err, meta.ErrInvalid) {
					t.Fatalf("abandon where %s: %v", name, err)
				}
			}
			before, _ := n.Catalog.Shard(n.Context(), id)
			dry, err := n.Broker.Abandon(n.Context(), id, gone, true)
			if err != nil {
				t.Fatal(err)
			}
			if after, _ := n.Catalog.Shard(n.Context(), id); after.Revision != before.Revision {
				t.Fatal("a dry run changed the row")
			}
			done, err := n.Broker.Abandon(n.Context(), id, gone, false)
			if err != nil {
				t.Fatal(err)
			}
			if done.Source != c.source || done.Source != dry.Source || done.Next != dry.Next || done.KeptLSN != dry.KeptLSN ||
				int(done.Next) != len(c.archived) || done.New != done.Old+1 || len(done.GivenUp) != 1 {
				t.Fatalf("abandoned %+v, dry run %+v", done, dry)
			}
			want(t, n.Read(id, 0), c.archived...)
			r := n.Append(id, "new")
			if int(r.First) != len(c.archived) || r.Lineage != done.New {
				t.Fatalf("append afterwards: %+v", r)
			}
			n.Archive(id, "newer")
			all := append(append([]string{}, c.archived...), "new", "newer")
			want(t, n.Read(id, 0), all...)
			n.Restart(stops["power cut"](n))
			want(t, n.Read(id, 0), all...)
			n.Archive(id, "newest")
			n.Restart(stops["clean stop"](n))
			want(t, n.Read(id, 0), append(all, "newest")...)
		})
	}
}

// Rows: D2, D13
func TestD2_RotationsKeepThePast(t *testing.T) {
	n := servicetest.Start(t, servicetest.Options{Mode: wal.Periodic})
	id := n.Create("logs/app")
	n.Archive(id, "a")
	n.Append(id, "b", "c")
	// The machine goes down: a new storage id, which is no member of the row. The
	// log's own predecessor is, so the shard goes on without an operator.
	disk := n.Disk().CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll})
	n.Kill()
	n.BootID = "another"
	n.Restart(disk)
	want(t, n.Read(id, 0), "a", "b", "c")
	n.Archive(id, "d")
	// Twice more, with the bucket holding all of three lineages.
	for _, boot := range []string{"third", "fourth"} {
		disk = n.Disk().CrashClone(vfs.CrashOptions{Data: vfs.KeepAll, Names: vfs.KeepAll})
		n.Kill()
		n.BootID = boot
		n.Restart(disk)
		n.Append(id, boot)
	}
	n.Archive(id, "e")
	want(t, n.Read(id, 0), "a", "b", "c", "d", "third", "fourth", "e")
	n.Restart(stops["clean stop"](n))
	want(t, n.Read(id, 0), "a", "b", "c", "d", "third", "fourth", "e")
}

// A rotation while a mark waits for its manifest: the manifest is written in the
// lineage that goes on, where it is found again.
func TestD13_MarkWithoutManifestAtTheRotation(t *testing.T) {
	for _, before := range []bool{false, true} { // is something archived before
		t.Run(fmt.Sprint(before), func(t *testing.T) { markWithoutManifest(t, before) })
	}
}

func markWithoutManifest(t *testing.T, before bool) {
	r := newRecorder(t)
	r.keep = true
	n := servicetest.Start(t, servicetest.Options{World: r.world(), Mode: wal.Periodic, FileSize: 64 << 10, Budget: 1 << 20})
	id := n.Create("logs/app")
	n.Append(id, "a")
	if before {
		n.Archive(id, "b")
	}
	r.record(true)
	n.Archive(id, "c")
	pictures := r.pictures()
	n.Kill()
	for _, p := range pictures {
		w := p.world()
		n := servicetest.New(t, servicetest.Options{World: w, Mode: wal.Periodic, FileSize: 64 << 10, Budget: 1 << 20, BootID: "another"})
		if err := n.Open(); err != nil {
			t.Fatalf("before %s: %v", p.before, err)
		}
		got := n.Read(id, 0)
		if len(got) < 1 || got[0] != "a" {
			t.Fatalf("before %s: read %q", p.before, got)
		}
		// The mark gets its manifest, what it covers leaves the log, and is found.
		n.Eventually("every mark's manifest", func() bool {
			d, err := n.Broker.Describe(n.Context(), id)
			return err == nil && d.Copy.Serving && d.Copy.Marks == 0
		})
		n.Restart(stops["clean stop"](n))
		want(t, n.Read(id, 0), got...)
		for _, v := range []string{"d", "e"} {
			n.Archive(id, v)
			got = append(got, v)
			n.Restart(stops["clean stop"](n))
			want(t, n.Read(id, 0), got...)
		}
		n.Kill()
	}
}

// rot flips a byte of every place where the disk's log holds a text.
func rot(t *testing.T, disk vfs.FS, text string) {
	t.Helper()
	names, err := disk.List("data/varve/wal")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range names {
		name = "data/varve/wal/" + name
		data, err := vfs.ReadFile(disk, name, 64<<20)
		if err != nil {
			t.Fatal(err)
		}
		for at := bytes.Index(data, []byte(text)); at >= 0; at = bytes.Index(data, []byte(text)) {
			f, err := disk.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			data[at]++
			if _, err := f.WriteAt(data[at:at+1], int64(at)); err != nil {
				t.Fatal(err)
			}
			_ = f.Sync()
			_ = f.Close()
			found++
		}
	}
	if found == 0 {
		t.Fatalf("the log does not hold %q", text)
	}
}

// A broken log is a stranger's: it waits, and goes on from the bucket on an
// operator's word. The other shards of the directory are not concerned.
//
// Rows: D13, E28
func TestD13_BrokenCopyIsAbandoned(t *testing.T) {
	for _, archived := range [][]string{{"archived"}, {}} {
		t.Run(fmt.Sprintf("archived %q", archived), func(t *testing.T) {
			n := servicetest.Start(t, servicetest.Options{})
			id, other := n.Create("logs/app"), n.Create("logs/other")
			source := broker.FromNothing
			for _, v := range archived {
				n.Archive(id, v)
				source = broker.FromBucket
			}
			n.Append(id, "a rotten record")
			n.Append(other, "well")
			if err := n.Stop(); err != nil { // its checkpoint says where the entries are
				t.Fatal(err)
			}
			rot(t, n.FS, "a rotten record")
			n.Restart(nil)
			want(t, n.Read(other, 0), "well")
			_, err := send(n, id, servicetest.Batch(producer(1).p, "x"))
			if !broker.Waits(err) {
				t.Fatalf("append to a broken shard: %v", err)
			}
			self, _ := n.Broker.Identity()
			done, err := n.Broker.Abandon(n.Context(), id, []meta.StorageID{self.Storage}, false)
			if err != nil || done.Source != source || int(done.Next) != len(archived) {
				t.Fatalf("abandoned %+v, %v", done, err)
			}
			all := append(archived, "new")
			n.Append(id, "new")
			want(t, n.Read(id, 0), all...)
			n.Restart(stops["clean stop"](n))
			want(t, n.Read(id, 0), all...)
			want(t, n.Read(other, 0), "well")
		})
	}
}

// An older catalog under a broker that promised later epochs: it is overtaken, and
// nothing that was written since is lost.
//
// Rows: E17, N2
func TestE17_OlderCatalogIsOvertaken(t *testing.T) {
	kv := memkv.New(memkv.Options{})
	n := servicetest.Start(t, servicetest.Options{World: servicetest.World{KV: kv}})
	id := n.Create("logs/app")
	n.Append(id, "0")
	older := kv.Backup()
	all := []string{"0"}
	for range 4 {
		n.Restart(stops["clean stop"](n))
		all = append(all, "more")
		n.Append(id, "more")
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	kv.Rewind(older)
	n.Restart(nil)
	n.Append(id, "after")
	want(t, n.Read(id, 0), append(all, "after")...)
}
