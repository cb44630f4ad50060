package broker_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/fault"
	"github.com/varve-io/varve/wal"
	"github.com/varve-io/varve/wal/vfs"
)

// mishap makes something around the node go wrong, or ends that.
func (w *walk) mishap() {
	w.set(&w.troubled, true)
	switch w.r.IntN(16) {
	case 0, 14:
		w.note("bucket out")
		w.n.Faults.Outage(bucket.ErrUnavailable)
	case 1, 2:
		w.note("bucket back")
		w.n.Faults.Clear()
	case 3:
		w.n.Faults.Inject(fault.Fault{Op: []fault.Op{fault.Put, fault.Delete, fault.Any}[w.r.IntN(3)], After: bucket.ErrUnknown, Skip: w.r.IntN(6), Times: 1 + w.r.IntN(4)})
	case 4:
		w.n.Faults.Inject(fault.Fault{Delay: time.Duration(w.r.IntN(8000)) * time.Millisecond, Skip: w.r.IntN(6), Times: 1 + w.r.IntN(8)})
	case 5:
		w.n.Faults.Inject(fault.Fault{Before: []error{bucket.ErrDenied, bucket.ErrFull, bucket.ErrUnavailable}[w.r.IntN(3)], Skip: w.r.IntN(6), Times: 1 + w.r.IntN(8)})
	case 6:
		w.set(&w.spoilt, true)
		w.n.Faults.Inject(fault.Fault{Op: fault.Get, Corrupt: true, Skip: w.r.IntN(6)})
	case 7, 8:
		all := []memkv.Fault{memkv.LoseAnswer, memkv.LandLate, memkv.LoseRequest, memkv.FailCommit, memkv.FailRead, memkv.Pass}
		for range 1 + w.r.IntN(4) {
			w.kv.Inject(all[w.r.IntN(len(all))])
		}
	case 9:
		w.kv.Land()
	case 10:
		w.kv.DropWatches()
	case 11:
		if w.r.IntN(2) == 0 {
			w.kv.Compact(w.kv.Revision())
		}
	case 12:
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.n.Broker.Checkpoint(ctx); err != nil && !w.get(&w.sick) && !errors.Is(err, meta.ErrExhausted) {
			w.t.Errorf("checkpoint: %v", err)
		}
	case 15:
		w.note("slow disk")
		time.AfterFunc(time.Duration(w.r.IntN(20000))*time.Millisecond, w.fs.HoldSync(nil))
	case 13:
		w.note("little room on the disk")
		free, _ := w.disk.Free("data")
		if free > 1<<39 {
			w.disk.SetCapacity(int64(w.used()) + int64(w.r.IntN(1<<20)))
		} else {
			w.disk.SetCapacity(0)
		}
	}
}

// used is what the disk holds.
func (w *walk) used() (n uint64) {
	w.disk.SetCapacity(1 << 40)
	free, err := w.disk.Free("data")
	if err != nil {
		w.t.Error(err)
	}
	w.disk.SetCapacity(0)
	return 1<<40 - free
}

func (w *walk) set(b *bool, to bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*b = to
}

func (w *walk) get(b *bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *b
}

// restart ends the process in some way and starts it again on what that leaves.
func (w *walk) restart() {
	poisoned, machine := false, false
	switch w.r.IntN(10) {
	case 0, 1:
		poisoned = true
		w.set(&w.sick, true)
		kind := []vfs.OpKind{vfs.OpSync, vfs.OpSync, vfs.OpWrite, vfs.OpSyncDir, vfs.OpRename}[w.r.IntN(5)]
		w.fs.Fail(vfs.Rule{Kind: kind, Nth: 1 + w.r.IntN(5), Count: 1 + w.r.IntN(3), Err: syscall.EIO, Short: w.r.IntN(2000)})
		for range 20 {
			w.mu.Lock()
			if k := w.pick(); k != nil {
				w.opAppend(k)
			}
			w.mu.Unlock()
		}
		time.Sleep(time.Duration(w.r.IntN(10)) * time.Second)
	}
	how := w.r.IntN(5)
	w.set(&w.ending, true)
	switch how {
	case 0:
		if err := w.n.Stop(); err != nil && !poisoned {
			w.t.Errorf("stop: %v", err)
		}
	default:
		w.n.Kill()
	}
	if err := w.n.Err; err != nil && !errors.Is(err, context.Canceled) && !poisoned {
		w.t.Errorf("the broker ended: %v", err)
	}
	w.ops.Wait()
	w.set(&w.ending, false)
	w.leave(how, &machine)
	w.note("restart %d (0: stop, 1, 2: kill, 3, 4: machine), poisoned %v", how, poisoned)
	w.n.Faults.Clear()
	w.set(&w.spoilt, false)
	cut := w.n.Mode == wal.Periodic && (machine || poisoned)
	w.whileDown()
	for try := range 40 {
		half := w.r.IntN(3) == 0 && try < 3
		if half { // it fails on the way, or soon after
			w.fs.Fail(vfs.Rule{Match: func(o vfs.Op) bool { return o.Kind.Changes() }, Nth: 1 + w.r.IntN(60), Count: -1})
			cut = cut || w.n.Mode == wal.Periodic
		}
		err := w.n.Open()
		if err == nil && !half {
			break
		}
		w.n.Kill()
		if try == 39 {
			w.t.Fatalf("restart: %v", err)
		}
		w.note("start failed: %v", err)
		for range 5 {
			_, _, _, _ = w.kv.Get(context.Background(), "any")
		}
		if try >= 2 {
			w.disk.SetCapacity(0)
		}
		w.leave(1+w.r.IntN(4), &machine)
		cut = cut || w.n.Mode == wal.Periodic && machine
	}
	w.fs.Heal()
	w.set(&w.sick, false)
	w.mu.Lock()
	for _, k := range w.shards {
		if cut {
			k.mayCut()
		}
		for c, st := range k.stages {
			if st.busy {
				w.fault("client %d of %s is still busy", c, k.id)
			}
		}
	}
	w.mu.Unlock()
	if cut {
		w.disk.SetCapacity(0) // what follows has to work
		w.checkAll(true)
	}
}

// whileDown deletes a stream, and makes another of its name, while no broker runs.
func (w *walk) whileDown() {
	if w.r.IntN(3) > 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k := w.pick()
	if k == nil || k.life == deleted {
		return
	}
	ctx := context.Background()
	k.life = maybe
	if _, err := w.n.Catalog.Delete(ctx, k.id.Stream, k.id.Incarnation); err != nil {
		return
	}
	k.life = deleted
	if row, _, err := w.n.Catalog.Create(ctx, catalog.CreateStream{Name: k.id.Stream}); err == nil {
		w.shards[row.Shard(0)] = newKnown(row.Shard(0))
	}
}

// wipe loses the disk: every shard goes on from the bucket, on an operator's word.
func (w *walk) wipe() {
	w.wipes++
	w.set(&w.ending, true)
	w.n.Kill()
	w.ops.Wait()
	w.set(&w.ending, false)
	w.note("wipe")
	w.disk = vfs.NewMem(w.r.Uint64())
	w.fs = vfs.NewFault(w.disk)
	w.n.FS = w.fs
	w.n.Faults.Clear()
	w.set(&w.spoilt, false)
	w.set(&w.troubled, true)
	w.drain()
	if err := w.n.Open(); err != nil {
		w.t.Fatalf("start with an empty directory: %v", err)
	}
	w.mu.Lock()
	list := w.sorted()
	for _, k := range list {
		k.mayCut()
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for _, k := range list {
		d, err := w.n.Broker.Describe(ctx, k.id)
		if errors.Is(err, meta.ErrNotFound) && k.life != live {
			continue
		}
		if err != nil {
			w.t.Errorf("describe %s: %v", k.id, err)
			continue
		}
		var lost []meta.StorageID
		for _, m := range d.Row.Members {
			lost = append(lost, m.Storage)
		}
		if len(lost) == 0 {
			continue // it never had a leader
		}
		if a, err := w.n.Broker.Abandon(ctx, k.id, lost, false); err != nil {
			w.t.Errorf("abandon %s: %+v, %v", k.id, a, err)
		}
	}
	w.checkAll(true)
}

// drain uses up what is left of the catalog's mishaps.
func (w *walk) drain() {
	w.kv.Land()
	for range 200 {
		_, _, _, _ = w.kv.Get(context.Background(), "any")
		_, _ = w.kv.Commit(context.Background(), catalog.Transaction{})
	}
	w.kv.Land()
}

// leave puts in place what a kill or a power cut leaves of the disk.
func (w *walk) leave(how int, machine *bool) {
	if how >= 3 {
		*machine = true
		keeps := []vfs.Keep{vfs.KeepNone, vfs.KeepAll, vfs.KeepSectors, vfs.KeepBytes, vfs.KeepLast, vfs.KeepPrefix}
		w.disk = w.disk.CrashClone(vfs.CrashOptions{Data: keeps[w.r.IntN(6)], Names: keeps[w.r.IntN(6)], Prefix: int64(w.r.IntN(50000))})
		w.boots++
		w.n.BootID = fmt.Sprint("boot ", w.boots)
	} else if how > 0 {
		w.disk = w.disk.KillClone()
	}
	w.fs = vfs.NewFault(w.disk)
	w.n.FS = w.fs
}
