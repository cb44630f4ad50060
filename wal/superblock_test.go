package wal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

func needNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// golden compares bytes with a hex dump in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name+".hex")
	if *update {
		needNil(t, os.MkdirAll("testdata", 0o755))
		needNil(t, os.WriteFile(file, []byte(hex.Dump(got)), 0o644))
	}
	want, err := os.ReadFile(file)
	needNil(t, err)
	if string(want) != hex.Dump(got) {
		t.Errorf("%s differs from %s:\n%s", name, file, hex.Dump(got))
	}
}

func id16(b byte) (id [16]byte) {
	for i := range id {
		id[i] = b + byte(i)
	}
	return id
}

func sampleSuperblock() superblock {
	return superblock{Sequence: 7, Start: 3, Cluster: id16(0x10), Broker: "broker-1", Storage: id16(0x20), Predecessor: id16(0x30), Origin: id16(0x40),
		Ancestors:  Ancestors{id16(0x50), id16(0x60)},
		Checkpoint: checkpointRef{Name: "000000000000002a.checkpoint", Size: 1234, CRC: 0xdeadbeef, Replay: 1 << 33}}
}

// Rows: W10
func TestW10_SuperblockGolden(t *testing.T) {
	full := sampleSuperblock()
	plain := superblock{Sequence: 1, Cluster: id16(1), Broker: "b", Storage: id16(2), Origin: id16(2)}
	for name, s := range map[string]superblock{"superblock-full": full, "superblock-first": plain} {
		b := s.encode()
		golden(t, name, b)
		got, err := decodeSuperblock("x", b)
		needNil(t, err)
		if *got != s || !bytes.Equal(got.encode(), b) {
			t.Errorf("%s: decoded %+v, want %+v", name, *got, s)
		}
	}
}

// Rows: W6, W10
func TestW6_EveryFlippedBitAndEveryCutIsUnreadable(t *testing.T) {
	s := sampleSuperblock()
	b := s.encode()
	for i := range len(b) * 8 {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if _, err := decodeSuperblock("x", c); !errors.Is(err, meta.ErrCorrupt) {
			t.Fatalf("bit %d flipped: %v", i, err)
		}
	}
	for n := range len(b) {
		if _, err := decodeSuperblock("x", b[:n]); !errors.Is(err, meta.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
	if _, err := decodeSuperblock("x", append(bytes.Clone(b), 0)); !errors.Is(err, meta.ErrCorrupt) {
		t.Errorf("a byte behind the end: %v", err)
	}
}

func FuzzSuperblock(f *testing.F) {
	s := sampleSuperblock()
	f.Add(s.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 { // a fuzzer doesn't guess checksums
			b = append(b[:len(b)-4:len(b)-4], crcOf(b[:len(b)-4])...)
		}
		if s, err := decodeSuperblock("x", b); err == nil && !bytes.Equal(s.encode(), b) {
			t.Errorf("%x decodes to what encodes as %x", b, s.encode())
		}
	})
}

func crcOf(b []byte) []byte {
	s := sealText(string(b))
	raw, _ := hex.DecodeString(string(s[len(s)-9 : len(s)-1]))
	return []byte{raw[3], raw[2], raw[1], raw[0]}
}

// slots makes a directory whose slots hold that, or nothing where nil.
func slots(t *testing.T, a, b []byte) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem(1)
	needNil(t, m.MkdirAll("d"))
	for i, c := range [][]byte{a, b} {
		if c != nil {
			needNil(t, vfs.WriteFile(m, "d/"+superblockSlots[i], c))
		}
	}
	return m
}

// Rows: W6
func TestW6_SlotsTable(t *testing.T) {
	seq := func(n uint64) []byte {
		s := sampleSuperblock()
		s.Sequence = n
		return s.encode()
	}
	future := func(n uint64) []byte {
		b := seq(n)
		b[4] = 9
		return append(b[:len(b)-4], crcOf(b[:len(b)-4])...)
	}
	damaged := func(n uint64) []byte {
		b := seq(n)
		b[60] ^= 1
		return b
	}
	for name, c := range map[string]struct {
		a, b    []byte
		want    uint64 // sequence; 0 with refuse "" means empty
		refuse  string
		version bool
	}{
		"empty":                          {},
		"the first":                      {a: seq(1), want: 1},
		"the second":                     {a: seq(1), b: seq(2), want: 2},
		"a is newer":                     {a: seq(3), b: seq(2), want: 3},
		"b is newer":                     {a: seq(3), b: seq(4), want: 4},
		"older slot damaged":             {a: damaged(3), b: seq(4), refuse: "superblock.a"},
		"newer slot damaged":             {a: seq(3), b: damaged(4), refuse: "superblock.b"},
		"both damaged":                   {a: damaged(3), b: damaged(4), refuse: "superblock.a"},
		"only one, damaged":              {a: damaged(1), refuse: "superblock.a"},
		"b is an empty file":             {a: seq(1), b: []byte{}, refuse: "superblock.b"},
		"a is zeroes":                    {a: make([]byte, 200), b: seq(2), refuse: "superblock.a"},
		"too large":                      {a: make([]byte, maxSmallFile+1), b: seq(2), refuse: "superblock.a"},
		"newer slot missing":             {a: seq(3), refuse: "superblock.b"},
		"older slot missing":             {b: seq(4), refuse: "superblock.a"},
		"an old one put back":            {a: seq(3), b: seq(8), refuse: "do not follow"},
		"the same twice":                 {a: seq(3), b: seq(3), refuse: "other slot"},
		"swapped":                        {a: seq(4), b: seq(3), refuse: "other slot"},
		"newer build wrote b":            {a: seq(3), b: future(4), refuse: "version 9", version: true},
		"newer build wrote both":         {a: future(3), b: future(4), refuse: "version 9", version: true},
		"newer build, then damaged":      {a: future(3), b: damaged(4), refuse: "version 9", version: true},
		"unknown version that is damage": {a: seq(3), b: append([]byte("vSUP\x09"), make([]byte, 200)...), refuse: "superblock.b"},
	} {
		t.Run(name, func(t *testing.T) {
			m := slots(t, c.a, c.b)
			f := vfs.NewFault(m)
			f.Fail(vfs.Rule{Match: func(o vfs.Op) bool { return o.Kind.Changes() }, Count: -1})
			s, err := openSuperblocks(f, "d")
			if c.refuse == "" {
				needNil(t, err)
				if s.current.Sequence != c.want {
					t.Errorf("sequence %d, want %d", s.current.Sequence, c.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.refuse) {
				t.Fatalf("want a refusal with %q, got %v", c.refuse, err)
			}
			if got := errors.Is(err, meta.ErrFormatLevel); got != c.version {
				t.Errorf("is a version error: %v, want %v (%v)", got, c.version, err)
			}
			for i, want := range [][]byte{c.a, c.b} {
				if got, err := vfs.ReadFile(m, "d/"+superblockSlots[i], 1<<20); want != nil && !bytes.Equal(got, want) {
					t.Errorf("slot %d was changed (%v)", i, err)
				}
			}
		})
	}
}

// crashes lists crash options that between them leave about everything a power cut can.
func crashes() (all []vfs.CrashOptions) {
	for _, names := range []vfs.Keep{vfs.KeepNone, vfs.KeepAll, vfs.KeepLast} {
		for _, data := range []vfs.Keep{vfs.KeepNone, vfs.KeepAll, vfs.KeepLast} {
			all = append(all, vfs.CrashOptions{Data: data, Names: names})
		}
	}
	for seed := uint64(1); seed <= 4; seed++ {
		all = append(all, vfs.CrashOptions{Data: vfs.KeepSectors, Names: vfs.KeepSectors, Seed: seed},
			vfs.CrashOptions{Data: vfs.KeepBytes, Names: vfs.KeepBytes, Seed: seed})
	}
	return all
}

// Rows: W6, E10
func TestW6_ACrashAtEveryStepLeavesTheOldOneOrTheNew(t *testing.T) {
	m := vfs.NewMem(1)
	needNil(t, vfs.MkdirAllSync(m, "d"))
	f := vfs.NewFault(m)
	s, err := openSuperblocks(f, "d")
	needNil(t, err)
	low, high := uint64(0), uint64(1)
	check := func(o vfs.Op) {
		for _, c := range crashes() {
			got, err := openSuperblocks(m.CrashClone(c), "d")
			if err != nil {
				t.Fatalf("%+v at %+v: %v", c, o, err)
			}
			if n := got.current.Sequence; n < low || n > high || n != 0 && got.current.Start != 100+n {
				t.Fatalf("%+v at %+v: sequence %d, start %d; want %d to %d", c, o, n, got.current.Start, low, high)
			}
		}
	}
	f.Hook(check, func(o vfs.Op, _ error) { check(o) })
	for n := uint64(1); n <= 5; n++ {
		low, high = n-1, n
		next := sampleSuperblock()
		next.Start = 100 + n
		needNil(t, s.write(next))
		low = n
		check(vfs.Op{})
	}
}

// Rows: W6, W8
func TestW6_AFailedWriteCanBeRepeated(t *testing.T) {
	for nth := 1; ; nth++ {
		for _, r := range []vfs.Rule{{}, {Applied: true}, {Err: syscall.ENOSPC, Short: 10}} {
			m := vfs.NewMem(1)
			needNil(t, vfs.MkdirAllSync(m, "d"))
			f := vfs.NewFault(m)
			s, err := openSuperblocks(f, "d")
			needNil(t, err)
			needNil(t, s.write(sampleSuperblock()))
			r.Nth, r.Match = nth, func(o vfs.Op) bool { return o.Kind.Changes() }
			f.Fail(r)
			failed := s.write(sampleSuperblock()) != nil
			switch {
			case !failed && nth > 6:
				return // the write takes six steps
			case !failed && nth == 1 && r.Applied:
				continue // there was no leftover to remove
			case !failed:
				t.Fatalf("failing operation %d (%+v) went unnoticed", nth, r)
			}
			if s.current.Sequence != 1 {
				t.Fatalf("after a failed write the current one is %d", s.current.Sequence)
			}
			needNil(t, s.write(sampleSuperblock()))
			got, err := openSuperblocks(m.CrashClone(vfs.CrashOptions{}), "d")
			needNil(t, err)
			if got.current.Sequence != 2 {
				t.Fatalf("after the repeated write a crash leaves %d", got.current.Sequence)
			}
		}
	}
}

// Rows: W6
func TestW6_TwoWritersTrip(t *testing.T) {
	f := vfs.NewFault(vfs.NewMem(1))
	s := &superblocks{fs: f, dir: "."}
	var caught any
	f.Hook(func(o vfs.Op) {
		if o.Kind == vfs.OpRename {
			func() {
				defer func() { caught = recover() }()
				_ = s.write(sampleSuperblock())
			}()
		}
	}, nil)
	needNil(t, s.write(sampleSuperblock()))
	if caught == nil {
		t.Error("a second writer during the first one's rename did not panic")
	}
}

// Rows: W10
func TestW10_SuperblockRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Custom(func(t *rapid.T) (id [16]byte) {
			copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
			id[0] |= 1
			return id
		})
		s := superblock{
			Sequence: rapid.Uint64Min(1).Draw(t, "sequence"), Start: rapid.Uint64().Draw(t, "start"),
			Cluster: id.Draw(t, "cluster"), Storage: id.Draw(t, "storage"), Predecessor: id.Draw(t, "predecessor"), Origin: id.Draw(t, "origin"),
			Broker: meta.BrokerID(rapid.StringMatching(`[a-z0-9_-]{1,200}`).Draw(t, "broker")),
		}
		for range rapid.IntRange(0, maxAncestors).Draw(t, "ancestors") {
			s.Ancestors = s.Ancestors.with(id.Draw(t, "ancestor"))
		}
		if rapid.Bool().Draw(t, "has checkpoint") {
			s.Checkpoint = checkpointRef{Name: fmt.Sprintf("%016x.checkpoint", rapid.Uint64().Draw(t, "number")),
				Size: rapid.Int64Min(0).Draw(t, "size"), CRC: rapid.Uint32().Draw(t, "crc"), Replay: Position(rapid.Uint64().Draw(t, "replay"))}
		}
		got, err := decodeSuperblock("x", s.encode())
		if err != nil || *got != s {
			t.Fatalf("decoded %+v, %v; want %+v", got, err, s)
		}
	})
}
