package replica

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/sdk/batch"
)

var shardID = meta.ShardID{Stream: meta.StreamName{Namespace: "t", Name: "s"}, Incarnation: 7}

var codec batch.Codec

const lineage = meta.Lineage(1<<32 | 1)

// node is a scripted machine: a replica, its disk, and what it wants to send.
type node struct {
	steps      int
	w          *world
	id         int
	cfg        Config
	r          *Replica
	writes     []Write // on the disk, in order
	synced     int     // how many of them a crash keeps
	base       meta.LSN
	log        []entry.Entry // what Read would give, from base+1
	out        []Message     // wait for their write
	answers    map[uint64]Answer
	alarms     []error
	down       bool
	checkpoint []byte
	rotten     bool     // the next start finds the log broken
	placed     int      // writes before are in the checkpoint
	checked    meta.LSN // compared with the truth up to here
}

// world is some nodes and a network that delivers what the script lets through.
type world struct {
	t       testing.TB
	nodes   []*node
	net     []Message
	members []meta.Member
	epoch   meta.Epoch
	rev     uint64
	now     meta.Micros
	nextID  uint64
	row     *Assignment

	truth map[meta.LSN]string // what was committed first at each LSN
}

func newWorld(t testing.TB, n int, twins Twins) *world {
	w := &world{t: t, now: 1_700_000_000_000_000, truth: map[meta.LSN]string{}}
	for i := range n {
		m := meta.Member{Broker: meta.BrokerID(fmt.Sprintf("b%d", i)), Storage: meta.StorageID{byte(i + 1)}}
		w.members = append(w.members, m)
		nd := &node{w: w, id: i, cfg: Config{Shard: shardID, Self: m, Boot: meta.BootNonce(100 * (i + 1)), Expiry: time.Hour, Twins: twins}, answers: map[uint64]Answer{}}
		nd.r = New(nd.cfg, NewDurable())
		w.nodes = append(w.nodes, nd)
	}
	return w
}

func (n *node) step(in Input) {
	if n.down {
		return
	}
	w := n.w
	if n.steps++; n.steps%3 == 0 {
		n.r.Rest() // whenever: it changes nothing
	}
	rd := n.r.Step(in)
	for _, wr := range rd.Writes {
		wr.Records = slices.Clone(wr.Records)
		for i := range wr.Records {
			r := &wr.Records[i]
			r.Data = slices.Clone(r.Data)
			r.Entry.Payload = slices.Clone(r.Entry.Payload)
			n.note(r)
		}
		n.writes = append(n.writes, wr)
	}
	n.out = append(n.out, rd.Messages...)
	for _, a := range rd.Answers {
		if old, ok := n.answers[a.ID]; ok {
			w.t.Fatalf("node %d answered %d twice: %+v, then %+v", n.id, a.ID, old, a)
		}
		n.answers[a.ID] = a
	}
	if rd.Alarm != nil {
		n.alarms = append(n.alarms, rd.Alarm)
	}
	w.committed(n)
	n.flush()
}

// note keeps what Read would give.
func (n *node) note(r *Record) {
	switch r.Kind {
	case KindEntry:
		n.log = append(n.log, r.Entry)
	case KindTruncate:
		n.log = n.log[:r.LSN-n.base]
	case KindBase:
		n.base, n.log = r.LSN, nil
	}
}

// flush lets messages go whose write is durable.
func (n *node) flush() {
	rest := n.out[:0]
	for _, m := range n.out {
		if int(m.After) > n.synced {
			rest = append(rest, m)
			continue
		}
		if m.Kind == MsgAppend || m.Kind == MsgFetchAnswer {
			for l := m.First; l <= m.Last && l > n.base && int(l-n.base) <= len(n.log); l++ {
				m.Entries = append(m.Entries, n.log[l-n.base-1])
			}
			if len(m.Entries) == 0 {
				continue
			}
		}
		n.w.net = append(n.w.net, m)
	}
	n.out = rest
}

// sync makes the first k unsynced writes durable; all of them for k < 0.
func (n *node) sync(k int) {
	if left := len(n.writes) - n.synced; k < 0 || k > left {
		k = left
	}
	if k == 0 || n.down {
		return
	}
	n.synced += k
	n.flush()
	n.step(Written{Seq: n.writes[n.synced-1].Seq})
}

// replay folds what the disk holds, as a start does.
func (n *node) replay() *Durable {
	d, from := NewDurable(), 0
	if n.checkpoint != nil {
		var err error
		d, err = DecodeDurable(n.checkpoint)
		must(err == nil, "node %d: checkpoint: %v", n.id, err)
		from = n.placed
	}
	for _, wr := range n.writes[from:] {
		for i := range wr.Records {
			err := d.Apply(&wr.Records[i])
			must(err == nil, "node %d: replay: %v", n.id, err)
		}
	}
	return d
}

// save makes a checkpoint: what it covers is synced first.
func (n *node) save() {
	blob, placed := n.r.d.Encode(), len(n.writes)
	n.sync(-1)
	n.checkpoint, n.placed = blob, placed
}

// crash loses everything but the synced prefix, and up to keep writes more.
func (n *node) crash(keep int) {
	n.writes = n.writes[:min(n.synced+keep, len(n.writes))]
	if last := len(n.writes) - 1; last >= n.synced && keep > 1 {
		torn := &n.writes[last]
		torn.Records = torn.Records[:len(torn.Records)/2+len(torn.Records)%2]
	}
	n.base, n.log, n.out, n.checked = 0, nil, nil, 0
	for _, wr := range n.writes {
		for i := range wr.Records {
			n.note(&wr.Records[i])
		}
	}
	d, err := DecodeDurable(n.replay().Encode())
	if err != nil {
		n.w.t.Fatalf("node %d: what was encoded can't be decoded: %v", n.id, err)
	}
	if n.rotten {
		n.rotten = false
		d.Break()
		n.base, n.log = 0, nil
		n.checkpoint, n.placed = d.Encode(), len(n.writes)
	}
	// What survived is rewritten and synced before anything is answered.
	for i := range n.writes {
		n.writes[i].Seq = uint64(i + 1)
	}
	n.synced = len(n.writes)
	n.cfg.Boot++
	n.r = New(n.cfg, d)
	n.r.seq, n.r.synced = uint64(len(n.writes)), uint64(len(n.writes))
	n.down = false
	if n.w.row != nil {
		again := *n.w.row
		n.step(&again)
	}
}

// grant gives the next epoch to a node and tells everybody, or only the given.
func (w *world) grant(leader int, tell ...int) {
	w.epoch++
	w.rev++
	l := w.nodes[leader]
	a := &Assignment{Revision: w.rev, Shard: shardID, Lineage: lineage, Epoch: w.epoch, Leader: l.cfg.Self, Boot: l.cfg.Boot, Members: w.members, Instance: 1, Now: w.now}
	w.row = a
	for i, n := range w.nodes {
		if len(tell) == 0 || slices.Contains(tell, i) {
			again := *a
			n.step(&again)
		}
	}
}

// run syncs and delivers everything until nothing moves.
func (w *world) run(among ...int) {
	in := func(i int) bool { return len(among) == 0 || slices.Contains(among, i) }
	for range 1000 {
		moved := false
		for i, n := range w.nodes {
			if in(i) && !n.down && n.synced < len(n.writes) {
				n.sync(-1)
				moved = true
			}
		}
		net := w.net
		w.net = nil
		for _, m := range net {
			from, to := w.index(m.From), w.index(m.To)
			if to >= 0 && in(from) && in(to) {
				w.deliver(m)
				moved = true
			}
		}
		if !moved {
			return
		}
	}
	w.violation("the network never comes to rest")
}

func (w *world) deliver(m Message) {
	if to := w.index(m.To); to >= 0 {
		w.nodes[to].step(&m)
	}
}

func (w *world) index(m meta.Member) int {
	return slices.IndexFunc(w.nodes, func(n *node) bool { return n.cfg.Self.Broker == m.Broker })
}

// take removes and returns the messages in flight of a kind to a node.
func (w *world) take(kind MessageKind, to int) []Message {
	var got []Message
	w.net = slices.DeleteFunc(w.net, func(m Message) bool {
		if m.Kind == kind && w.index(m.To) == to {
			got = append(got, m)
			return true
		}
		return false
	})
	return got
}

func (w *world) tick() {
	for range 3 {
		w.now += 1000
		for _, n := range w.nodes {
			n.step(Tick{Now: w.now})
		}
	}
}

// committed holds what a node says is committed against what any said before.
func (w *world) committed(n *node) {
	for l := max(n.base, n.checked) + 1; l <= n.r.d.state.lsn; l++ {
		n.checked = l
		e := &n.log[l-n.base-1]
		is := fmt.Sprintf("%v epoch %d offset %d time %d sum %08x", e.Kind, e.Epoch, e.Offset, e.Time, crc32.ChecksumIEEE(e.Payload))
		if was, ok := w.truth[l]; ok && was != is {
			w.violation("LSN %d was committed as %q, node %d has %q", l, was, n.id, is)
			return
		}
		w.truth[l] = is
	}
}

// violation is what twins are caught by.
type violation struct{ text string }

func (w *world) violation(format string, args ...any) {
	panic(violation{fmt.Sprintf(format, args...)})
}

// caught runs a check and says which rule it saw broken, "" for none.
func caught(f func()) (why string) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			why = v.text
		default:
			panic(v)
		}
	}()
	f()
	return ""
}

// twin runs the same script with the rule on and off: it must pass, and it must be caught.
func twin(t *testing.T, off Twins, script func(t *testing.T, twins Twins)) {
	t.Helper()
	if why := caught(func() { script(t, Twins{}) }); why != "" {
		t.Fatalf("the real thing: %s", why)
	}
	if why := caught(func() { script(t, off) }); why == "" {
		t.Fatal("the twin was not caught")
	} else {
		t.Logf("twin caught: %s", why)
	}
}

func must(ok bool, format string, args ...any) {
	if !ok {
		panic(violation{fmt.Sprintf(format, args...)})
	}
}

func (n *node) propose(p Propose) uint64 {
	n.w.nextID++
	p.ID = n.w.nextID
	if p.Now == 0 {
		n.w.now += 1000
		p.Now = n.w.now
	}
	n.step(&p)
	return p.ID
}

// plain is a batch without a producer.
func plain(values ...string) []byte { return idem(-1, -1, -1, values...) }

// idem is a batch of a producer.
func idem(id int64, epoch int16, seq int32, values ...string) []byte {
	var records []batch.Record
	for _, v := range values {
		records = append(records, batch.Record{Value: []byte(v), Time: 1})
	}
	b, err := codec.Encode(records, batch.None, batch.Producer{ID: id, Epoch: epoch, Sequence: seq})
	if err != nil {
		panic(err)
	}
	return b
}

func (n *node) append(b []byte) uint64 { return n.propose(Propose{Kind: ProposeBatch, Bytes: b}) }

// answer is the answer to a proposal; it must be there.
func (n *node) answer(id uint64) Answer {
	a, ok := n.answers[id]
	must(ok, "node %d: proposal %d has no answer; %+v", n.id, id, n.r.Status())
	return a
}

func (n *node) silent(id uint64) {
	a, ok := n.answers[id]
	must(!ok, "node %d: proposal %d was answered too early: %+v", n.id, id, a)
}

func (n *node) good(id uint64) Answer {
	a := n.answer(id)
	must(a.Err == nil && a.Applied == AppliedYes, "node %d: proposal %d failed: %+v", n.id, id, a)
	return a
}

// lone is one node that leads epoch 1.
func lone(t testing.TB, twins Twins) (*world, *node) {
	w := newWorld(t, 1, twins)
	w.grant(0)
	w.run()
	must(w.nodes[0].r.Status().Serving, "does not serve: %+v", w.nodes[0].r.Status())
	return w, w.nodes[0]
}

// three are three nodes, the first of which leads epoch 1.
func three(t testing.TB, twins Twins) (*world, []*node) {
	w := newWorld(t, 3, twins)
	w.grant(0)
	w.run()
	must(w.nodes[0].r.Status().Serving, "does not serve: %+v", w.nodes[0].r.Status())
	return w, w.nodes
}

// same checks that all nodes hold the same log, and that replaying each gives the
// same bytes as its live state.
func (w *world) same() {
	for _, n := range w.nodes {
		d := n.replay()
		d.advance(n.r.d.Commit())
		must(bytes.Equal(d.Encode(), n.r.d.Encode()), "node %d: replay and live differ", n.id)
		must(len(n.log) == len(w.nodes[0].log), "node %d has %d entries, node 0 has %d", n.id, len(n.log), len(w.nodes[0].log))
		for i := range n.log {
			a, b := n.log[i].Append(nil), w.nodes[0].log[i].Append(nil)
			must(bytes.Equal(a, b), "node %d differs at LSN %d", n.id, n.log[i].LSN)
		}
	}
}

func newRand(t testing.TB, seed uint64) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
