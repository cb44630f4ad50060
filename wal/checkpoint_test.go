package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
	"pgregory.net/rapid"
)

func sampleSections() []checkpointSection {
	return []checkpointSection{
		{Number: 1, ID: meta.ShardID{Stream: meta.StreamName{Namespace: "ns", Name: "a/b"}, Incarnation: 77, Shard: 0},
			Position: 4096, Start: 1, End: 1, Extents: []Extent{}, Blob: []byte{}},
		{Number: 3, ID: meta.ShardID{Stream: meta.StreamName{Namespace: "ns", Name: "a"}, Incarnation: 78, Shard: 2},
			Position: 8192, Start: 5, End: 12, EndOffset: 1000, EndTime: 1_700_000_000_000_000, Blob: []byte("state"),
			Extents: []Extent{{Position: 4140, Bytes: 300, First: 5, Next: 9, Offset: 900, Time: 1_600_000_000_000_000},
				{Position: 8236, Bytes: 200, First: 9, Next: 12, Offset: 950, Time: 1_650_000_000_000_000}}},
	}
}

func each(all []checkpointSection) iter.Seq2[*checkpointSection, error] {
	return func(yield func(*checkpointSection, error) bool) {
		for i := range all {
			if !yield(&all[i], nil) {
				return
			}
		}
	}
}

func encodeCheckpoint(h checkpointHeader, all []checkpointSection) ([]byte, error) {
	var b bytes.Buffer
	w, err := newCheckpointWriter(&b, h)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := w.section(&all[i]); err != nil {
			return nil, err
		}
	}
	if size, _, err := w.finish(); err != nil || size != int64(b.Len()) {
		return nil, fmt.Errorf("size %d of %d: %w", size, b.Len(), err)
	}
	return b.Bytes(), nil
}

// decodeCheckpoint returns copies of all sections.
func decodeCheckpoint(b []byte) (h checkpointHeader, all []checkpointSection, err error) {
	h, err = readCheckpoint(bytes.NewReader(b), int64(len(b)), func(_ checkpointHeader, s *checkpointSection) error {
		c := *s
		c.Extents, c.Blob = slices.Clone(append([]Extent{}, s.Extents...)), append([]byte{}, s.Blob...)
		all = append(all, c)
		return nil
	})
	return h, all, err
}

// Rows: W10
func TestW10_CheckpointGolden(t *testing.T) {
	h := checkpointHeader{Replay: 4096, Next: 9}
	for name, all := range map[string][]checkpointSection{"checkpoint-two": sampleSections(), "checkpoint-empty": nil} {
		b, err := encodeCheckpoint(h, all)
		needNil(t, err)
		golden(t, name, b)
		gotHeader, got, err := decodeCheckpoint(b)
		needNil(t, err)
		if gotHeader != h || !reflect.DeepEqual(got, all) {
			t.Errorf("%s decodes to %+v %+v", name, gotHeader, got)
		}
	}
}

// Rows: W10
func TestW10_CheckpointRoundTrip(t *testing.T) {
	extent := rapid.Custom(func(t *rapid.T) Extent {
		return Extent{Position: Position(rapid.Uint64().Draw(t, "position")), Bytes: rapid.Uint32().Draw(t, "bytes"),
			First: meta.LSN(rapid.Uint64().Draw(t, "first")), Next: meta.LSN(rapid.Uint64().Draw(t, "next")),
			Offset: meta.Offset(rapid.Uint64().Draw(t, "offset")), Time: meta.Micros(rapid.Int64().Draw(t, "time"))}
	})
	name := rapid.StringMatching(`[a-z0-9_-]{1,20}`)
	section := rapid.Custom(func(t *rapid.T) checkpointSection {
		start := rapid.Uint64().Draw(t, "start")
		return checkpointSection{
			ID: meta.ShardID{Stream: meta.StreamName{Namespace: name.Draw(t, "ns"), Name: name.Draw(t, "name")},
				Incarnation: meta.Incarnation(rapid.Uint64().Draw(t, "incarnation")), Shard: rapid.Uint32().Draw(t, "shard")},
			Position: Position(rapid.Uint64().Draw(t, "at")), Start: meta.LSN(start), End: meta.LSN(rapid.Uint64Min(start).Draw(t, "end")),
			EndOffset: meta.Offset(rapid.Uint64().Draw(t, "offset")), EndTime: meta.Micros(rapid.Int64().Draw(t, "time")),
			Extents: append([]Extent{}, rapid.SliceOfN(extent, 0, 5).Draw(t, "extents")...),
			Blob:    append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "blob")...),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		all := append([]checkpointSection(nil), rapid.SliceOfN(section, 2, 6).Draw(t, "sections")...)
		for i := range all {
			all[i].Number = ShardNumber(1 + 3*i)
		}
		h := checkpointHeader{Replay: Position(rapid.Uint64().Draw(t, "replay")), Next: 1 << 40}
		b, err := encodeCheckpoint(h, all)
		if err != nil {
			t.Fatal(err)
		}
		gotHeader, got, err := decodeCheckpoint(b)
		if err != nil || gotHeader != h || !reflect.DeepEqual(got, all) {
			t.Fatalf("decodes to %+v %+v, %v", gotHeader, got, err)
		}
		again, err := encodeCheckpoint(gotHeader, got)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatal("encoding is not deterministic")
		}
	})
}

// Rows: W10
func TestW10_CheckpointRefusesEveryFlippedBitAndCut(t *testing.T) {
	b, err := encodeCheckpoint(checkpointHeader{Replay: 1, Next: 9}, sampleSections())
	needNil(t, err)
	for i := range len(b) * 8 {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if _, _, err := decodeCheckpoint(c); err == nil {
			t.Fatalf("bit %d flipped went unnoticed", i)
		}
	}
	for n := range len(b) {
		if _, _, err := decodeCheckpoint(b[:n]); !errors.Is(err, meta.ErrCorrupt) {
			t.Fatalf("cut to %d: %v", n, err)
		}
	}
	if _, _, err := decodeCheckpoint(append(bytes.Clone(b), 0)); !errors.Is(err, meta.ErrCorrupt) {
		t.Errorf("a byte behind the end: %v", err)
	}
}

func TestCheckpointWriterRefuses(t *testing.T) {
	good := sampleSections()
	for name, change := range map[string]func(all []checkpointSection) []checkpointSection{
		"a number twice":       func(all []checkpointSection) []checkpointSection { all[1].Number = 1; return all },
		"numbers that fall":    func(all []checkpointSection) []checkpointSection { return []checkpointSection{all[1], all[0]} },
		"no number":            func(all []checkpointSection) []checkpointSection { all[0].Number = 0; return all },
		"a number not given":   func(all []checkpointSection) []checkpointSection { all[1].Number = 9; return all },
		"an end before start":  func(all []checkpointSection) []checkpointSection { all[1].End = 4; return all },
		"a name without rules": func(all []checkpointSection) []checkpointSection { all[0].ID.Stream.Name = "../x"; return all },
		"too much state": func(all []checkpointSection) []checkpointSection {
			all[0].Blob = make([]byte, MaxData+1)
			return all
		},
	} {
		if _, err := encodeCheckpoint(checkpointHeader{Next: 9}, change(slices.Clone(good))); err == nil {
			t.Errorf("%s: was written", name)
		}
	}
}

// Rows: E9
func TestE9_CheckpointClaimsAreBoundedByTheFile(t *testing.T) {
	b, err := encodeCheckpoint(checkpointHeader{Replay: 1, Next: 9}, sampleSections())
	needNil(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for at := checkpointHead; at+4 <= len(b); at++ {
		c := bytes.Clone(b)
		copy(c[at:], []byte{0xff, 0xff, 0xff, 0x3f}) // a claim of 1 GiB anywhere
		_, _, _ = decodeCheckpoint(c)
	}
	runtime.ReadMemStats(&after)
	if got := int64(after.TotalAlloc-before.TotalAlloc) / int64(len(b)); got > 3*checkpointBuffer {
		t.Errorf("a lying length costs %d bytes on average", got)
	}
}

// A million shards are written and read with one section in memory at a time.
func TestCheckpointStreams(t *testing.T) {
	s := sampleSections()[1]
	w, err := newCheckpointWriter(io.Discard, checkpointHeader{Next: 1 << 40})
	needNil(t, err)
	s.Number = 0
	if n := testing.AllocsPerRun(1000, func() {
		s.Number++
		if err := w.section(&s); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("writing a section allocates %v times", n)
	}
	all := make([]checkpointSection, 2000)
	for i := range all {
		all[i] = sampleSections()[1]
		all[i].Number = ShardNumber(i + 1)
	}
	b, err := encodeCheckpoint(checkpointHeader{Next: 1 << 40}, all)
	needNil(t, err)
	n := testing.AllocsPerRun(5, func() {
		_, err := readCheckpoint(bytes.NewReader(b), int64(len(b)), func(checkpointHeader, *checkpointSection) error { return nil })
		needNil(t, err)
	})
	if n > 2*float64(len(all))+50 { // the two strings of a name
		t.Errorf("reading %d sections allocates %v times", len(all), n)
	}
}

func FuzzCheckpoint(f *testing.F) {
	for _, all := range [][]checkpointSection{nil, sampleSections()} {
		b, _ := encodeCheckpoint(checkpointHeader{Replay: 7, Next: 9}, all)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			b = append(b[:len(b)-4:len(b)-4], crcOf(b[:len(b)-4])...)
		}
		h, all, err := decodeCheckpoint(b)
		if err != nil {
			return
		}
		again, err := encodeCheckpoint(h, all)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x decodes to what encodes as %x, %v", b, again, err)
		}
	})
}

func FuzzCheckpointSection(f *testing.F) {
	for _, s := range sampleSections() {
		f.Add(s.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s checkpointSection
		if err := s.decode(b); err == nil && !bytes.Equal(s.append(nil), b) {
			t.Errorf("%x decodes to what encodes as %x", b, s.append(nil))
		}
	})
}

func ignoreSection(*checkpointSection) error { return nil }

// Rows: W9
func TestW9_PairingTable(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(fsys vfs.FS, ref *checkpointRef) error // to what was written and named
		refuses bool
	}{
		"none named":       {change: func(_ vfs.FS, ref *checkpointRef) error { *ref = checkpointRef{}; return nil }},
		"named and equal":  {change: func(vfs.FS, *checkpointRef) error { return nil }},
		"missing":          {change: func(f vfs.FS, ref *checkpointRef) error { return f.Remove("d/checkpoints/" + ref.Name) }, refuses: true},
		"another checksum": {change: func(_ vfs.FS, ref *checkpointRef) error { ref.CRC++; return nil }, refuses: true},
		"another size":     {change: func(_ vfs.FS, ref *checkpointRef) error { ref.Size--; return nil }, refuses: true},
		"another position": {change: func(_ vfs.FS, ref *checkpointRef) error { ref.Replay++; return nil }, refuses: true},
		"another file under its name": {change: func(f vfs.FS, ref *checkpointRef) error {
			b, err := encodeCheckpoint(checkpointHeader{Replay: 4096, Next: 10}, sampleSections()) // valid in itself
			return errors.Join(err, vfs.WriteFile(f, "d/checkpoints/"+ref.Name, b))
		}, refuses: true},
		"a rotten byte": {change: func(f vfs.FS, ref *checkpointRef) error {
			h, err := f.Open("d/checkpoints/" + ref.Name)
			if err == nil {
				_, err = h.WriteAt([]byte{0xff}, ref.Size-30)
			}
			return err
		}, refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem(1)
			c1, err := openCheckpoints(m, "d")
			needNil(t, err)
			_, err = c1.write(checkpointHeader{Replay: 1, Next: 5}, each(sampleSections()))
			needNil(t, err)
			ref, err := c1.write(checkpointHeader{Replay: 4096, Next: 9}, each(sampleSections()))
			needNil(t, err)
			needNil(t, vfs.WriteFile(m, "d/checkpoints/000000000000ffff.checkpoint", []byte("newer, named by nothing")))
			needNil(t, vfs.WriteFile(m, "d/checkpoints/0000000000010000.checkpoint.tmp", []byte("half")))
			needNil(t, vfs.WriteFile(m, "d/checkpoints/README", []byte("somebody's")))
			named := ref
			needNil(t, c.change(m, &named))
			before, err := m.List("d/checkpoints")
			needNil(t, err)

			c2, err := openCheckpoints(m, "d")
			needNil(t, err)
			var got []checkpointSection
			h, err := c2.load(named, func(s *checkpointSection) error {
				got = append(got, *s)
				return nil
			})
			if c.refuses {
				if !errors.Is(err, meta.ErrCorrupt) || !strings.Contains(err.Error(), ref.Name) {
					t.Errorf("want a refusal that names the file, got %v", err)
				}
				if after, _ := m.List("d/checkpoints"); !slices.Equal(before, after) {
					t.Errorf("a refused start changed %q to %q", before, after)
				}
				return
			}
			needNil(t, err)
			want, next := []string{"README"}, ShardNumber(1)
			if named.Name != "" {
				want, next = []string{named.Name, "README"}, 9
				if len(got) != 2 {
					t.Errorf("loaded %d sections", len(got))
				}
			}
			if h.Next != next {
				t.Errorf("next shard number %d, want %d", h.Next, next)
			}
			needNil(t, c2.prune(named))
			if after, _ := m.List("d/checkpoints"); !slices.Equal(after, want) {
				t.Errorf("left %q, want %q", after, want)
			}
			ref3, err := c2.write(checkpointHeader{Next: 9}, each(sampleSections()))
			needNil(t, err)
			if ref3.Name != "0000000000010000.checkpoint" {
				t.Errorf("the next file is %s: a number was used twice", ref3.Name)
			}
		})
	}
}

// Rows: W8, W9, E10
func TestW9_ACrashAtEveryStepOfACheckpointOpens(t *testing.T) {
	m := vfs.NewMem(1)
	f := vfs.NewFault(m)
	needNil(t, vfs.MkdirAllSync(f, "d"))
	super, err := openSuperblocks(f, "d")
	needNil(t, err)
	needNil(t, super.write(sampleFirst()))
	points, err := openCheckpoints(f, "d")
	needNil(t, err)
	low, high := Position(0), Position(0)
	check := func(o vfs.Op) {
		for _, opts := range crashes() {
			c := m.CrashClone(opts)
			s, err := openSuperblocks(c, "d")
			if err != nil {
				t.Fatalf("%+v at %+v: %v", opts, o, err)
			}
			p, err := openCheckpoints(c, "d")
			needNil(t, err)
			h, err := p.load(s.current.Checkpoint, ignoreSection)
			if err != nil || h.Replay < low || h.Replay > high {
				t.Fatalf("%+v at %+v: replay from %d (want %d to %d), %v", opts, o, h.Replay, low, high, err)
			}
			needNil(t, p.prune(s.current.Checkpoint))
		}
	}
	f.Hook(check, func(o vfs.Op, _ error) { check(o) })
	for n := Position(1); n <= 3; n++ {
		high = n
		ref, err := points.write(checkpointHeader{Replay: n, Next: 9}, each(sampleSections()))
		needNil(t, err)
		next := super.current
		next.Checkpoint = ref
		needNil(t, super.write(next))
		low = n
		needNil(t, points.prune(ref))
	}
	if names, _ := m.List("d/checkpoints"); len(names) != 1 {
		t.Errorf("left %q", names)
	}
}

func sampleFirst() superblock {
	s := sampleSuperblock()
	s.Checkpoint = checkpointRef{}
	return s
}

func TestCheckpointWriteFailsWhole(t *testing.T) {
	boom := errors.New("boom")
	m := vfs.NewMem(1)
	c, err := openCheckpoints(m, "d")
	needNil(t, err)
	_, err = c.write(checkpointHeader{Next: 9}, func(yield func(*checkpointSection, error) bool) {
		s := sampleSections()
		_ = yield(&s[0], nil) && yield(nil, boom)
	})
	if !errors.Is(err, boom) {
		t.Errorf("write = %v", err)
	}
	if names, _ := m.List("d/checkpoints"); len(names) != 0 {
		t.Errorf("left %q", names)
	}
	m.SetCapacity(4096)
	_, err = c.write(checkpointHeader{Next: 1 << 20}, func(yield func(*checkpointSection, error) bool) {
		s := sampleSections()[1]
		for s.Number = 1; s.Number < 5000 && yield(&s, nil); s.Number++ {
		}
	})
	if err == nil {
		t.Error("a full disk took a checkpoint")
	}
	if names, _ := m.List("d/checkpoints"); len(names) != 0 {
		t.Errorf("a full disk keeps %q", names)
	}
	if _, err := m.Stat("d/checkpoints/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
