package servicetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/run"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
	"github.com/varve-io/varve/tiering/bucket/mem"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

// World is what outlives a node's process. Zero fields are made anew.
type World struct {
	KV     catalog.KV    // default an in-memory store
	Bucket bucket.Bucket // default one in memory; [Node.Faults] wraps it
	FS     vfs.FS        // default an in-memory disk
	Dir    string        // the data directory; default "data/varve"
	Run    string        // the runtime directory, on another disk; default "run/varve"
}

// Options shape a node.
type Options struct {
	World
	ID       meta.BrokerID // default "a"
	Mode     wal.Mode
	BootID   string // of the machine; default "boot"
	Budget   int64  // of the log; default 64 MiB
	FileSize int64  // default 1 MiB
	Defaults catalog.StreamConfig
	Strict   bool          // namespaces are made by hand only: broker.Options.AutoCreate is off
	Purge    time.Duration // default an hour: purges run when something asks for one
	Now      func() time.Time
	Logger   *slog.Logger // default none
	Twins    broker.Twins
	Tiering  func(*tiering.Options) // last changes to the store's options
}

func (o Options) withDefaults() Options {
	if o.KV == nil {
		o.KV = memkv.New(memkv.Options{})
	}
	if o.Bucket == nil {
		o.Bucket = mem.New("test")
	}
	if o.FS == nil {
		o.FS = vfs.NewMem(1)
	}
	if o.Dir == "" {
		o.Dir = "data/varve"
	}
	if o.Run == "" {
		o.Run = "run/varve"
	}
	if o.ID == "" {
		o.ID = "a"
	}
	if o.BootID == "" {
		o.BootID = "boot"
	}
	if o.Budget == 0 {
		o.Budget = 64 << 20
	}
	if o.FileSize == 0 {
		o.FileSize = 1 << 20
	}
	if o.Purge == 0 {
		o.Purge = time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Node is one running node, or one that was killed and can be started again.
type Node struct {
	Options
	T       testing.TB
	Faults  *fault.Bucket // between node and bucket
	Broker  *broker.Broker
	Catalog *catalog.Catalog
	Store   *tiering.Store
	Err     error // what the broker's goroutines ended with, after Kill or Stop

	group *run.Group
}

// ClusterID is that of every node here.
var ClusterID = meta.ClusterID{1, 2, 3}

// Start runs a node until the test ends. It fails the test when it can't.
func Start(t testing.TB, o Options) *Node {
	t.Helper()
	n := New(t, o)
	if err := n.Open(); err != nil {
		t.Fatalf("start: %v", err)
	}
	return n
}

// New makes a node that is not running yet: see [Node.Open].
func New(t testing.TB, o Options) *Node {
	n := &Node{Options: o.withDefaults(), T: t}
	n.Rewire()
	t.Cleanup(func() {
		n.Faults.Clear()
		n.Kill()
	})
	return n
}

// Rewire puts the faults in front of the Bucket that is set now, for a node that
// is not running.
func (n *Node) Rewire() { n.Faults = fault.New(n.Bucket) }

// Open starts the node's process.
func (n *Node) Open() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cluster, err := catalog.Initialize(ctx, n.KV, catalog.Cluster{ID: ClusterID, Level: catalog.Level, Generation: 1})
	if err != nil {
		return err
	}
	if n.Catalog, err = catalog.Open(ctx, n.KV, catalog.Options{Now: n.Now}); err != nil {
		return err
	}
	to := tiering.Options{
		Bucket: n.Faults, Cluster: cluster.ID, CacheBytes: 8 << 20, Grace: -1, RetryMax: 20 * time.Millisecond,
		FetchFor: 5 * time.Second, Now: n.Now,
	}
	if n.Options.Tiering != nil {
		n.Options.Tiering(&to)
	}
	if n.Store, err = tiering.New(to); err != nil {
		return err
	}
	if _, err = n.Store.Claim(ctx, tiering.ClaimOptions{Level: cluster.Level}); err != nil {
		return errors.Join(err, n.Store.Close())
	}
	n.group = run.NewGroup(context.Background())
	b, err := broker.Open(ctx, broker.Options{
		Group: n.group, Catalog: n.Catalog, Store: n.Store,
		Log: wal.Options{
			FS: n.FS, Dir: n.Dir, Cluster: cluster.ID, Broker: n.ID, Mode: n.Mode, Budget: n.Budget,
			FileSize: n.FileSize, BootID: n.BootID, WitnessDir: n.Run,
		},
		Defaults: n.Defaults, AutoCreate: !n.Strict, Purge: n.Purge, Now: n.Now, Logger: n.Logger, Twins: n.Twins,
	})
	if err != nil {
		n.group.Stop()
		return errors.Join(err, n.group.Wait(), n.Store.Close())
	}
	n.Broker = b
	return nil
}

// Kill ends the process as a crash would: nothing is flushed. Killing twice is harmless.
func (n *Node) Kill() {
	if n.Broker == nil {
		return
	}
	n.Broker.Kill()
	n.end()
}

// Stop ends the process cleanly.
func (n *Node) Stop() error {
	n.Broker.Drain()
	n.group.Stop()
	_ = n.group.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := n.Broker.Close(ctx)
	n.end()
	return err
}

func (n *Node) end() {
	n.group.Stop()
	n.Err = n.group.Wait()
	_ = n.Store.Close()
	n.Broker = nil
}

// Restart starts the process again after a Kill or Stop, on another disk if one
// is given.
func (n *Node) Restart(disk vfs.FS) {
	n.T.Helper()
	if disk != nil {
		n.FS = disk
	}
	if err := n.Open(); err != nil {
		n.T.Fatalf("restart: %v", err)
	}
}

// Disk is the disk when it is one in memory.
func (n *Node) Disk() *vfs.Mem {
	n.T.Helper()
	m, ok := n.FS.(*vfs.Mem)
	if !ok {
		n.T.Fatalf("the disk is a %T", n.FS)
	}
	return m
}

// Wait returns when the broker's goroutines ended by themselves, with their error.
func (n *Node) Wait() error {
	select {
	case <-n.group.Context().Done():
		return n.group.Wait()
	case <-time.After(time.Minute):
		return fmt.Errorf("the broker runs on")
	}
}
