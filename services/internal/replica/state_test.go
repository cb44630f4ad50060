package replica

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/sdk/batch"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The client table survives checkpoint and restart, and never holds what was not
// committed: an entry in the checkpoint's overlay is cut by the next leader, and
// its resend is stored.
// Rows: W11
func TestW11_OverlayIsNotCheckpointed(t *testing.T) {
	twin(t, Twins{FoldOverlay: true}, func(t *testing.T, twins Twins) {
		w, ns := three(t, twins)
		kept := ns[0].append(idem(9, 0, 0, "kept"))
		w.run()
		ns[0].good(kept)
		ns[0].append(idem(9, 0, 1, "lost"))
		ns[0].save()
		w.net = nil
		ns[0].crash(0)
		w.grant(1, 1, 2)
		w.run(1, 2)
		w.tick()
		w.run()
		w.grant(0)
		w.run()
		must(ns[0].r.Status().Serving, "node 0: %+v", ns[0].r.Status())
		again := ns[0].append(idem(9, 0, 0, "kept"))
		lost := ns[0].append(idem(9, 0, 1, "lost"))
		w.run()
		must(ns[0].good(again).Duplicate && ns[0].good(again).First == 0, "%+v", ns[0].good(again))
		must(!ns[0].good(lost).Duplicate && ns[0].good(lost).First == 1, "%+v", ns[0].good(lost))
		w.tick()
		w.run()
		w.same()
	})
}

// Request 5, sent again after checkpoint, restart, failover and restore, gets its
// first answer.
// Rows: W11, C3
func TestW11_RetryGetsTheFirstAnswer(t *testing.T) {
	w, ns := three(t, Twins{})
	var first Answer
	for i := range int32(8) {
		id := ns[0].append(idem(4, 0, i, "v"))
		w.run()
		if i == 5 {
			first = ns[0].good(id)
		}
	}
	check := func(n *node, what string) {
		t.Helper()
		id := n.append(idem(4, 0, 5, "v"))
		w.run()
		n.w.run()
		if a := n.good(id); !a.Duplicate || a.First != first.First || a.Next != first.Next || a.Time != first.Time {
			t.Fatalf("after %s: %+v, first %+v", what, a, first)
		}
	}
	check(ns[0], "nothing")
	ns[0].save()
	ns[0].crash(0)
	w.grant(0)
	w.run()
	check(ns[0], "checkpoint and restart")
	w.grant(1)
	w.run()
	check(ns[1], "failover")
	mark := archive(w, ns[1])
	check(ns[1], "archive")
	p, err := entry.DecodeMark(ns[1].log[mark-1].Payload)
	if err != nil {
		t.Fatal(err)
	}
	r := restored(t, Seal{End: p.End, State: p.State}, p.End-1)
	check(r, "restore")
	if a := r.good(func() uint64 { id := r.append(idem(4, 0, 8, "next")); r.w.run(); return id }()); a.First != 8 {
		t.Fatalf("%+v", a)
	}
}

// The same log gives the same bytes, whenever the commit mark moved and wherever a
// checkpoint was taken.
// Rows: W12, W10
func TestW12_OneFold(t *testing.T) {
	n := rich(t)
	var records []Record
	for _, wr := range n.writes {
		records = append(records, wr.Records...)
	}
	want := n.r.d.Encode()
	rnd := newRand(t, 5)
	for range 50 {
		d := NewDurable()
		for i := range records {
			if err := d.Apply(&records[i]); err != nil {
				t.Fatal(err)
			}
			if rnd.IntN(4) == 0 {
				d.advance(min(n.r.d.Commit(), d.Commit()+meta.LSN(rnd.IntN(3))))
			}
			if rnd.IntN(6) == 0 {
				b := d.Encode()
				var err error
				if d, err = DecodeDurable(b); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(d.Encode(), b) {
					t.Fatal("encode(decode(x)) is not x")
				}
			}
		}
		d.advance(n.r.d.Commit())
		if !bytes.Equal(d.Encode(), want) {
			t.Fatal("replay and live differ")
		}
	}
}

// rich is a lone node with at least two of everything, some of it pending.
func rich(t testing.TB) *node {
	w, n := lone(t, Twins{})
	for i := range int32(40) {
		n.append(idem(11, 2, i*2, "a", "b"))
		n.append(idem(12, 0, i, "c"))
	}
	n.propose(Propose{Kind: ProposeFence, Token: "one", Strict: true})
	n.propose(Propose{Kind: ProposeTrim, Start: 7})
	w.run()
	archive(w, n)
	for range 2 {
		n.propose(Propose{Kind: ProposeTrim, Start: n.r.d.tail.start + 1})
		w.run()
		s, ok := n.r.Seal()
		must(ok, "nothing to seal")
		n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
		w.run()
	}
	w.grant(0)
	w.run()
	// Pending, one of each kind.
	marks := n.r.Marks()
	n.propose(Propose{Kind: ProposeBatch, Bytes: idem(13, 0, 0, "pending", "too"), FenceToken: token("one")})
	n.propose(Propose{Kind: ProposeBatch, Bytes: idem(13, 0, 2, "pending"), FenceToken: token("one")})
	n.propose(Propose{Kind: ProposeFence, Token: "two"})
	n.append(plain("no producer"))
	n.propose(Propose{Kind: ProposeTrim, Start: 12})
	s, ok := n.r.Seal()
	must(ok, "nothing to seal")
	n.propose(Propose{Kind: ProposeMark, Bytes: markOf(s)})
	n.propose(Propose{Kind: ProposeConfirm, LSN: marks[0].LSN})
	n.propose(Propose{Kind: ProposeClose})
	return n
}

// A log that broke stays a stranger's, whatever was written before; its promise is
// kept; what comes after a new base counts again.
func TestBrokenLogReplays(t *testing.T) {
	w, n := lone(t, Twins{})
	n.append(plain("a"))
	w.run()
	n.save() // the section whose entries turn out to be broken
	w.grant(0)
	w.run()
	n.append(plain("b"))
	w.run()
	d, err := DecodeDurable(n.checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	d.Break()
	for _, wr := range n.writes[n.placed:] {
		for i := range wr.Records {
			if err := d.Apply(&wr.Records[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	again, err := DecodeDurable(d.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Durable{d, again} {
		if !d.Stranger() || !d.broken || d.Last() != 0 || d.Promise() != 2 || d.Vector() != nil {
			t.Fatalf("stranger %v, broken %v, last %d, promise %d", d.stranger, d.broken, d.Last(), d.Promise())
		}
	}
	base := installation{lineage: lineage, instance: 1, stranger: true}
	if err := d.Apply(&Record{Kind: KindBase, Data: base.encode()}); err != nil || d.broken || !d.stranger || d.Promise() != 2 {
		t.Fatalf("%v, %+v", err, d.View())
	}
}

// Every format has a golden file.
// It is the core's part of U3.
// Rows: W10
func TestGolden(t *testing.T) {
	n := rich(t)
	state, local := n.r.d.state.Encode(), n.r.d.local()
	for name, b := range map[string][]byte{
		"state":   state,
		"durable": n.r.d.Encode(),
		"local":   local.encode(),
		"base":    (&installation{base: Base{Mark: 100, State: state}, lineage: lineage, instance: 3, stranger: true}).encode(),
	} {
		path := filepath.Join("testdata", name+".hex")
		if *update {
			text := ""
			for line := range slices.Chunk(b, 32) {
				text += hex.EncodeToString(line) + "\n"
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s: what is written is not what %s holds", name, path)
		}
		switch name {
		case "state":
			s, err := DecodeState(want)
			if err != nil || !bytes.Equal(s.Encode(), want) {
				t.Errorf("%s: %v", name, err)
			}
		case "durable":
			d, err := DecodeDurable(want)
			if err != nil || !bytes.Equal(d.Encode(), want) {
				t.Errorf("%s: %v", name, err)
			}
		case "local":
			l, err := decodeLocal(want)
			if err != nil || !bytes.Equal(l.encode(), want) {
				t.Errorf("%s: %v", name, err)
			}
		case "base":
			i, err := decodeInstallation(90, want)
			if err != nil || !bytes.Equal(i.encode(), want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A count is checked against what is left before anything is allocated.
// It is the core's part of E9, C6.
func TestCountsAreBounded(t *testing.T) {
	n := rich(t)
	whole := n.r.d.state.Encode()
	for cut := range whole {
		if _, err := DecodeState(whole[:cut]); err == nil {
			t.Fatalf("cut at byte %d is accepted", cut)
		}
	}
	huge := bytes.Repeat([]byte{0xff}, 4)
	for at := 0; at+4 <= len(whole); at++ {
		b := slices.Clone(whole)
		copy(b[at:], huge)
		allocs := testing.AllocsPerRun(1, func() { DecodeState(b) })
		if allocs > 400 {
			t.Fatalf("4 GiB at byte %d: %.0f allocations", at, allocs)
		}
	}
}

// A full table, with every window full and a vector at its bound, fits a mark's payload.
func TestFullStateFitsAMark(t *testing.T) {
	cfg := Config{}.withDefaults()
	worst := cfg.Limits.TableHard + 16*meta.MaxVector + 40*maxMarks + 1024
	if row := 16 << 10; worst+row > entry.MaxPayload {
		t.Fatalf("%d bytes of state: a mark takes %d", worst, entry.MaxPayload)
	}
}

// The append path of one member allocates nothing once its buffers have grown.
func TestAppendAllocates(t *testing.T) {
	r, p, bytes := steady()
	var seq uint64 = r.seq
	sequence := int32(0)
	got := testing.AllocsPerRun(2000, func() {
		p.ID++
		p.Now++
		batch.SetProducer(bytes, batch.Producer{ID: 1, Epoch: 0, Sequence: sequence})
		sequence++
		ready := r.Step(p)
		if len(ready.Writes) != 1 {
			t.Fatalf("%+v", ready)
		}
		seq++
		if ready = r.Step(Written{Seq: seq}); len(ready.Answers) != 1 || ready.Answers[0].Err != nil {
			t.Fatalf("%+v", ready)
		}
	})
	const ceiling = 1 // now and then the commit mark's record
	if got > ceiling {
		t.Fatalf("%.1f allocations an append: at most %d", got, ceiling)
	}
	t.Logf("%.1f allocations an append", got)
}

func steady() (*Replica, *Propose, []byte) {
	m := meta.Member{Broker: "b", Storage: meta.StorageID{1}}
	r := New(Config{Shard: shardID, Self: m, Boot: 1}, NewDurable())
	ready := r.Step(&Assignment{Revision: 1, Shard: shardID, Lineage: lineage, Epoch: 1, Leader: m, Boot: 1, Members: []meta.Member{m}})
	for len(ready.Writes) > 0 {
		ready = r.Step(Written{Seq: ready.Writes[len(ready.Writes)-1].Seq})
	}
	b := idem(1, 0, 0, strings.Repeat("v", 1000))
	return r, &Propose{Kind: ProposeBatch, Bytes: b, Now: 1_700_000_000_000_000}, b
}

func BenchmarkAppend(b *testing.B) {
	r, p, bytes := steady()
	b.ReportAllocs()
	seq, sequence := r.seq, int32(0)
	for b.Loop() {
		p.ID++
		p.Now++
		batch.SetProducer(bytes, batch.Producer{ID: 1, Epoch: 0, Sequence: sequence})
		sequence++
		r.Step(p)
		seq++
		r.Step(Written{Seq: seq})
	}
}

// A deep pipeline costs the same an append: nothing walks what is pending.
func BenchmarkPipeline(b *testing.B) {
	for _, depth := range []int{1, 100, 10_000} {
		b.Run(strconv.Itoa(depth), func(b *testing.B) {
			r, p, bytes := steady()
			b.ReportAllocs()
			seq, sequence := r.seq, int32(0)
			for i := 0; b.Loop(); i++ {
				if i%(2*depth) < depth {
					p.ID++
					p.Now++
					batch.SetProducer(bytes, batch.Producer{ID: int64(p.ID % 7), Epoch: 0, Sequence: sequence / 7})
					sequence++
					r.Step(p)
				} else {
					seq++
					r.Step(Written{Seq: seq})
				}
			}
		})
	}
}

func FuzzDecodeState(f *testing.F) {
	n := rich(f)
	f.Add(n.r.d.state.Encode())
	s := newState(5)
	f.Add(s.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := DecodeState(b); err == nil && !bytes.Equal(s.Encode(), b) {
			t.Fatal("encode(decode(x)) is not x")
		}
	})
}

func FuzzDecodeDurable(f *testing.F) {
	n := rich(f)
	f.Add(n.r.d.Encode())
	f.Add(NewDurable().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := DecodeDurable(b); err == nil && !bytes.Equal(d.Encode(), b) {
			t.Fatal("encode(decode(x)) is not x")
		}
	})
}

func FuzzApplyRecord(f *testing.F) {
	n := rich(f)
	for _, wr := range n.writes {
		for _, r := range wr.Records {
			f.Add(uint8(r.Kind), uint64(r.LSN), r.Data, r.Entry.Payload)
		}
	}
	state := n.r.d.Encode()
	f.Fuzz(func(t *testing.T, kind uint8, lsn uint64, data, payload []byte) {
		d, err := DecodeDurable(state)
		if err != nil {
			t.Fatal(err)
		}
		r := Record{Kind: RecordKind(kind), LSN: meta.LSN(lsn), Data: data}
		r.Entry = entry.Entry{Header: entry.Header{Kind: entry.Kind(lsn % 9), Level: 1, Epoch: d.tail.epoch, LSN: d.tail.lsn + 1, Offset: d.tail.next, Time: d.tail.time}, Payload: payload}
		if d.Apply(&r) != nil {
			return
		}
		d.advance(d.Last())
		if _, err := DecodeDurable(d.Encode()); err != nil {
			t.Fatalf("what was applied can't be read back: %v", err)
		}
	})
}
