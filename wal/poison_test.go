package wal

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// inLog matches operations on log files.
func inLog(op vfs.Op) bool { return strings.Contains(op.Path, "/wal/") }

// Rows: E3, W13. One failed write or sync ends the log for good, although every
// later one would succeed. Scenarios: B13, B15.
func TestE3_AFailedWriteOrSyncPoisons(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpWrite, vfs.OpSync} {
		for _, mode := range []Mode{Commit, Periodic} {
			t.Run(kind.String()+"/"+mode.String(), func(t *testing.T) {
				mem := vfs.NewMem(1)
				fault := vfs.NewFault(mem)
				opts := testOptions(fault)
				opts.Mode = mode
				failed := make(chan error, 1)
				opts.Events.Failed = func(err error) { failed <- err }
				r := open(t, opts)
				n := r.bind(1)
				r.add(n, 2, 100)
				acked := r.fold.clone()
				// All of them, as the first may be that of a file in the making.
				fault.Fail(vfs.Rule{Kind: kind, Match: inLog, Count: -1})
				done := make(chan error, 8)
				for range 3 {
					// What is queued behind a failure fails as well.
					_ = r.log.Append(&Write{Shard: n, Records: r.entries(n, 1, 200), Sync: true, Done: func(err error) { done <- err }})
					for _, rec := range r.entries(n, 1, 200) {
						r.fold.apply(n, rec)
						r.next[n]++
					}
				}
				isKind(t, <-done, meta.ErrPoisoned)
				isKind(t, <-failed, syscall.EIO)
				<-r.log.Failed()
				isKind(t, r.log.Err(), syscall.EIO)
				fault.Heal()
				isKind(t, r.log.Append(&Write{Shard: n}), meta.ErrPoisoned)
				if _, err := r.log.Reserve(context.Background(), 1); !errors.Is(err, meta.ErrPoisoned) {
					t.Errorf("Reserve: %v", err)
				}
				isKind(t, r.checkpoint(), meta.ErrPoisoned)
				isKind(t, r.log.Close(context.Background()), meta.ErrPoisoned)
				// After the restart there is no hole, and what was acknowledged is there.
				o := open(t, opts)
				if err := o.readAll(); err != nil {
					t.Fatal(err)
				}
				got, want := o.fold.shard(n).Sums, acked.shard(n).Sums
				if len(got) < len(want) || len(got) > len(want)+3 {
					t.Fatalf("%d entries: %d were acknowledged, 3 more are in doubt", len(got), len(want))
				}
				if kept := o.log.Identity().Kept; kept != (mode == Commit) {
					t.Errorf("storage id kept: %v in %s mode", kept, mode)
				}
				o.add(n, 1, 100)
				if err := o.readAll(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// believing runs: a sync fails and leaves clean, readable pages; the process is
// killed; the next one opens the log and answers; then the power fails. What was
// answered must be there.
func believing(t *testing.T, twins Twins) error {
	mem := vfs.NewMem(1)
	fault := vfs.NewFault(mem)
	opts := testOptions(fault)
	opts.Twins = twins
	r := open(t, opts)
	n := r.bind(1)
	r.add(n, 2, 100)
	fault.Fail(vfs.Rule{Kind: vfs.OpSync, Match: inLog, Count: -1})
	isKind(t, r.write(n, r.entries(n, 1, 300)...), meta.ErrPoisoned)
	r.log.Kill()
	fault.Heal()
	disk := mem.KillClone()
	opts.FS = disk
	o := open(t, opts)
	answered := o.fold.clone()
	power := disk.CrashClone(vfs.CrashOptions{})
	o.log.Kill()
	opts.FS = power
	p, err := tryOpen(t, opts)
	if err != nil {
		return err
	}
	return errors.Join(same(answered, p.fold), p.readAll())
}

func TestE3_ARestartDoesNotBelieveThePageCache(t *testing.T) {
	if err := believing(t, Twins{}); err != nil {
		t.Error(err)
	}
}

func TestE3_TwinScanWithoutRewriteIsCaught(t *testing.T) {
	err := believing(t, Twins{ScanWithoutRewrite: true})
	if err == nil {
		t.Error("not caught")
	}
	t.Log(err)
}

// The tail that has to be rewritten can't be: in commit mode the start is refused,
// and the next one finds everything.
func TestE3_ATailThatCannotBeRewrittenRefuses(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpWrite, vfs.OpSync} {
		mem := vfs.NewMem(1)
		r := open(t, testOptions(mem))
		n := r.bind(1)
		r.add(n, 3, 100)
		r.log.Kill()
		fault := vfs.NewFault(mem)
		fault.Fail(vfs.Rule{Kind: kind, Match: inLog, Count: -1})
		opts := r.opts
		opts.FS = fault
		_, err := tryOpen(t, opts)
		isKind(t, err, meta.ErrPoisoned)
		fault.Heal()
		o := open(t, opts)
		if err := errors.Join(same(r.fold, o.fold), o.readAll()); err != nil {
			t.Fatal(err)
		}
	}
}

// Rows: E21. What was written is what is marked durable: while the sync of one group
// is held, later ones wait, and nothing of them counts as synced.
func TestE21_OnlyWhatWasSyncedCounts(t *testing.T) {
	mem := vfs.NewMem(1)
	fault := vfs.NewFault(mem)
	r := open(t, testOptions(fault))
	n := r.bind(1)
	r.add(n, 1, 100)
	before := r.log.Synced()
	release := fault.HoldSync(inLog)
	reached := make(chan struct{}, 8)
	fault.Hook(func(op vfs.Op) {
		if op.Kind == vfs.OpSync && inLog(op) {
			reached <- struct{}{}
		}
	}, nil)
	first, second := make(chan error, 1), make(chan error, 1)
	r.must(r.submit(n, r.entries(n, 1, 100), func(err error) { first <- err }))
	<-reached
	r.must(r.submit(n, r.entries(n, 1, 100), func(err error) { second <- err }))
	if got := r.log.Synced(); got != before {
		t.Errorf("synced up to %d while the sync is held: want %d", got, before)
	}
	if _, end := r.log.Bounds(n); end != 2 {
		t.Errorf("the log ends at %d while the sync is held: want 2", end)
	}
	select {
	case <-first:
		t.Error("acknowledged before the sync")
	case <-second:
		t.Error("acknowledged before the sync")
	default:
	}
	// The second group isn't written yet: a power cut now keeps the first entry only.
	opts := r.opts
	opts.FS = mem.CrashClone(vfs.CrashOptions{})
	o := open(t, opts)
	if got := len(o.fold.shard(n).Sums); got != 1 {
		t.Errorf("%d entries after a power cut: want 1", got)
	}
	fault.Hook(nil, nil)
	release()
	r.must(<-first)
	r.must(<-second)
	if r.log.Synced() <= before {
		t.Error("the synced position didn't move")
	}
}

// Scenario: B12. A long pause before a periodic sync loses nothing that was
// acknowledged with Sync, and a kill loses nothing at all.
func TestPeriodicModeKeepsWhatAKillLeaves(t *testing.T) {
	mem := vfs.NewMem(1)
	opts := testOptions(mem)
	opts.Mode, opts.Interval = Periodic, 1<<40
	r := open(t, opts)
	n := r.bind(1)
	r.add(n, 2, 100)
	done := make(chan error, 1)
	recs := r.entries(n, 1, 100)
	r.must(r.log.Append(&Write{Shard: n, Records: recs, Sync: true, Done: func(err error) { done <- err }}))
	r.must(<-done)
	r.fold.apply(n, recs[0])
	r.next[n]++
	synced := r.fold.clone()
	r.add(n, 2, 100)
	r.log.Kill()
	opts.FS = mem.KillClone()
	o := open(t, opts)
	if err := same(r.fold, o.fold); err != nil || !o.log.Identity().Kept {
		t.Errorf("after a kill: %v, %+v", err, o.log.Identity())
	}
	opts.FS = mem.CrashClone(vfs.CrashOptions{})
	p := open(t, opts)
	if err := same(synced, p.fold); err != nil || p.log.Identity().Kept {
		t.Errorf("after a power cut: %v, %+v", err, p.log.Identity())
	}
}

// A start fails at one of its writes or syncs, which leaves pages that are readable
// and clean. The next start must not build on them without writing them again: what
// comes behind would be lost, or in doubt, once the power takes them.
func TestE3_WhatAFailedStartWroteIsNotBelieved(t *testing.T) {
	for _, before := range []struct{ clean, used bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		for _, kind := range []vfs.OpKind{vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpRename} {
			failed := 0
			for nth := range 12 {
				if failedStart(t, before.clean, before.used, vfs.Rule{Kind: kind, Nth: nth + 1}) {
					failed++
				}
			}
			if failed < 2 {
				t.Errorf("%d starts failed at a %s", failed, kind)
			}
		}
	}
}

// failedStart reports whether the rule made a start fail.
func failedStart(t *testing.T, clean, used bool, rule vfs.Rule) bool {
	mem := vfs.NewMem(1)
	r := open(t, testOptions(mem))
	n := r.bind(1)
	if used { // some files were recycled
		for range 8 {
			r.must(r.put(soon(t), n, 20000))
		}
		_, end := r.log.Bounds(n)
		r.log.Drop(n, end)
		r.must(r.checkpoint())
	}
	r.add(n, 2, 100)
	if clean {
		r.must(r.log.Close(context.Background()))
	}
	r.log.Kill()
	fault := vfs.NewFault(mem)
	fault.Fail(rule)
	opts := r.opts
	opts.FS = fault
	first, err := tryOpen(t, opts)
	if err == nil {
		first.log.Kill() // the failure did no harm
	}
	fault.Heal()
	opts.FS = mem
	o := open(t, opts)
	for size := 100; size < 30000; size *= 2 {
		r.must(errors.Join(o.put(soon(t), n, size), o.put(soon(t), n, size))) // over several files
		opts.FS = mem.CrashClone(vfs.CrashOptions{})
		p, err := tryOpen(t, opts)
		if err == nil {
			err = errors.Join(same(o.fold, p.fold), p.readAll())
			p.log.Kill()
		}
		if err != nil {
			t.Fatalf("%s %d failed, clean stop %v, entries of %d bytes: %v", rule.Kind, rule.Nth, clean, size, err)
		}
	}
	o.log.Kill()
	return err != nil
}
