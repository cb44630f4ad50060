package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/tiering"
	"github.com/varve-io/varve/wal"
)

// shard drives one replica core. The core is stepped under mu; what comes out is
// handed on before mu is let go, so that writes, answers and the commit mark keep
// their order. Nothing under mu blocks: the log only queues, answer functions
// only hand over.
//
// Two goroutines may race to step: a caller with a proposal, and the log's writer
// with a completion. Either order is fine, since the core judges each input
// against its own state alone.
type shard struct {
	b  *Broker
	id meta.ShardID

	serving atomic.Bool // leads and answers: the fast path of lead

	mu      sync.Mutex
	number  wal.ShardNumber // 0 until the shard is bound
	durable *replica.Durable
	awake   *replica.Replica // the core, from its first input on; see core
	next    uint64           // proposal id
	wait    proposals
	seen    replica.Committed // what readers may see
	moved   chan struct{}     // closed when seen moves or the shard goes; nil while nobody waits
	gone    error             // why the shard is no more; nil while it is
	row     placing           // of the newest row that was read
	stream  *Stream           // its stream, as last read; nil before the first leadership
	read    time.Time         // when that was
	alarm   error             // the last alarm

	attempt *attempt // an acquisition of leadership under way
	mention mention  // in the broker's lists of shards with something to do
	tier    tier     // archiving and cold reads
}

// tier is what a shard knows of its part of the bucket.
type tier struct {
	dirty    time.Time         // since when something may have to be archived; zero: nothing
	wanted   meta.LSN          // somebody waits until this is archived: an append at level archive, or a trim that frees objects; 0: nobody
	busy     bool              // an archiver works on it
	tryAfter time.Time         // after a failure
	failures int               // in a row
	manifest *tiering.Manifest // the newest written one, when it is known
	cancel   func()            // ends the archiving under way; nil when there is none
}

func newShard(b *Broker, id meta.ShardID, number wal.ShardNumber, d *replica.Durable) *shard {
	s := &shard{b: b, id: id, number: number, durable: d}
	v := d.View()
	s.seen = replica.Committed{LSN: v.Commit, Offset: v.Committed, Start: v.StartOffset, Droppable: v.Droppable}
	if v.Commit >= v.ArchivedEnd && v.Commit > 0 || owes(&v) {
		s.soil()
	}
	return s
}

// placing is what a shard keeps of its row.
type placing struct {
	Lineage meta.Lineage
	Epoch   meta.Epoch
	Base    catalog.Base
}

func placed(r catalog.ShardRow) placing { return placing{r.Lineage, r.Epoch, r.Base} }

// core is the shard's replica. A shard that nobody asked for anything since the
// start keeps only what is durable; a replica of that is made to be looked at.
// s.mu is held.
func (s *shard) core() *replica.Replica {
	if s.awake != nil {
		return s.awake
	}
	return s.b.cores.New(s.id, s.durable)
}

// owes reports whether a copy holds something that the bucket must get, so that
// its shard is led for that alone: records, or a mark without its manifest.
func owes(v *replica.View) bool { return v.Marks > 0 || v.Next > v.Archived }

// step gives the core one input and hands on what comes out. s.mu is held.
func (s *shard) step(in replica.Input) {
	s.awake = s.core()
	s.used()
	ready := s.awake.Step(in)
	var failed error
	for i := range ready.Writes {
		if failed = s.write(&ready.Writes[i]); failed != nil {
			break
		}
	}
	// Answers and the commit mark rest on writes that were durable before this
	// step, so they leave even when a write of this step can't be queued.
	// With one member there is nobody to send to; a copy elsewhere that is named
	// by mistake is as unreachable as one that is down.
	for _, a := range ready.Answers {
		if done := s.wait.take(a.ID); done != nil {
			done(a)
		}
	}
	if c := ready.Committed; c != nil {
		s.committed(*c)
	}
	if ready.Alarm != nil {
		s.alarm = ready.Alarm
		s.b.events.alarm(s.id, ready.Alarm)
	}
	if ready.Changed {
		st := s.awake.Status()
		s.serving.Store(st.Serving)
		s.b.events.role(s.id, st)
		if s.attempt != nil {
			s.attempt.changed()
		}
	}
	if failed != nil {
		s.b.storageFailed(failed)
		s.step(replica.Failed{Err: failed})
	}
}

// write hands a core's write to the log. s.mu is held, so the log has the shard's
// writes in the core's order.
func (s *shard) write(w *replica.Write) error {
	if s.number == 0 {
		n, err := s.b.log.Bind(s.id)
		if err != nil {
			return err
		}
		s.number = n
	}
	seq := w.Seq
	records := make([]wal.Record, len(w.Records))
	for i, r := range w.Records {
		records[i] = wal.Record{Kind: walKinds[r.Kind], Entry: r.Entry, LSN: r.LSN, Data: r.Data}
	}
	return s.b.log.Append(&wal.Write{
		Shard: s.number, Records: records, Sync: w.Sync,
		Done: func(err error) { s.written(seq, err) },
	})
}

var walKinds = [...]wal.RecordKind{
	replica.KindEntry:    wal.Entry,
	replica.KindTruncate: wal.Truncate,
	replica.KindState:    wal.State,
	replica.KindBase:     wal.Base,
}

// written is called by the log's writer.
func (s *shard) written(seq uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	if err != nil {
		s.step(replica.Failed{Err: err})
		return
	}
	s.step(replica.Written{Seq: seq})
}

// committed moves what readers may see. s.mu is held.
func (s *shard) committed(c replica.Committed) {
	before := s.seen.LSN
	s.seen = c
	s.wake()
	if w := s.tier.wanted; before < w && w <= c.LSN {
		poke(s.b.sealUp)
	}
	if c.Droppable > 0 && s.number != 0 {
		s.b.log.Drop(s.number, s.b.droppable(s, c))
	}
}

// wake lets every waiting reader look again. s.mu is held.
func (s *shard) wake() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// changes returns a channel that is closed when the commit mark moves or the
// shard goes. s.mu is held.
func (s *shard) changes() <-chan struct{} {
	if s.moved == nil {
		s.moved = make(chan struct{})
	}
	return s.moved
}

// propose gives the core a proposal; done is called once with its answer, under
// the shard's lock, and must not block or call back.
func (s *shard) propose(p *replica.Propose, done func(replica.Answer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		done(replica.Answer{Err: s.gone})
		return
	}
	s.next++
	p.ID, p.Now = s.next, meta.MicrosOf(s.b.opts.Now())
	s.wait.add(p.ID, done)
	if s.stream != nil {
		p.Producers = int(s.stream.Effective.ProducersMax)
	}
	before := s.durable.Last()
	s.step(p)
	switch p.Kind {
	case replica.ProposeBatch, replica.ProposeFence, replica.ProposeTrim:
		// Marks and confirmations alone are not worth a mark, nor is what was
		// refused or stored before.
		grew := s.durable.Last() > before
		if grew && s.tier.dirty.IsZero() {
			s.soil()
		}
		if p.Level == replica.Archive && !s.tier.dirty.IsZero() || grew && p.Kind == replica.ProposeTrim {
			s.want(s.durable.Last())
		}
	}
}

// want has the log archived up to an LSN soon: once it is committed, and with it
// what else is by then. s.mu is held.
func (s *shard) want(lsn meta.LSN) {
	s.tier.wanted = max(s.tier.wanted, lsn)
	if s.tier.wanted <= s.seen.LSN {
		s.freshen()
		poke(s.b.sealUp)
	}
}

// end answers everything that waits and lets go of the shard. Why says what
// happened to it.
func (s *shard) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(why)
}

// finish is end. s.mu is held.
func (s *shard) finish(why error) {
	if s.gone != nil {
		return
	}
	s.gone = why
	s.serving.Store(false)
	for id, done := range s.wait.all() {
		done(replica.Answer{ID: id, Err: why, Applied: replica.AppliedUnknown})
	}
	s.wake()
	if s.attempt != nil {
		s.attempt.changed()
	}
	if s.tier.cancel != nil {
		s.tier.cancel()
	}
}

// encode is the shard's section in a checkpoint: the fold of every record that
// was queued for it. yield runs under the shard's lock, so that the section's
// place in the log is exact.
func (s *shard) encode(yield func(wal.ShardNumber, []byte) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil || s.number == 0 {
		return true
	}
	return yield(s.number, s.durable.Encode())
}
