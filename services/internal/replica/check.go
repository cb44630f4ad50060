package replica

import (
	"errors"

	"github.com/varve-io/varve/meta"
)

// verdict is what the client table says of a batch, at the end of the log.
type verdict struct {
	duplicate bool
	forgotten bool // a duplicate older than the window
	offset    meta.Offset
	time      meta.Micros
	lsn       meta.LSN // the pending entry it is a duplicate of; 0: a committed one
	err       error
	unknown   bool // err, but it may have been applied and forgotten
	known     bool // the producer is in the table or above it
	grows     bool // storing it makes the table larger
}

// judge holds a batch against what its producer sent before: first what is pending
// above the commit mark, newest first, then the table.
func (d *Durable) judge(b *batchHeader) verdict {
	c := d.state.table.find(b.producer)
	at := d.over.last[b.producer]
	var next int32
	switch {
	case at != 0:
		newest := &d.over.at(at).batch
		next = seqAfter(newest.seq, newest.count)
		if v := b.against(newest.epoch, next); v.known {
			v.grows = true
			return v
		}
	case c != nil:
		next = c.next()
		if v := b.against(c.epoch, next); v.known {
			v.grows = len(c.batches) < window
			return v
		}
	case b.seq == 0:
		return verdict{grows: true}
	default:
		gap := &meta.SequenceGap{Producer: b.producer, ProducerEpoch: b.epoch, Got: b.seq, UnknownApplied: true}
		return verdict{err: meta.Errorf(meta.ErrUnknownWriter, "producer %d is not known here, it may have been forgotten: %w; begin a new session", b.producer, gap), unknown: true}
	}
	return d.behind(b, c, at, next)
}

// behind looks for a batch that lies behind its producer's next sequence.
func (d *Durable) behind(b *batchHeader, c *client, at meta.LSN, next int32) verdict {
	seen, oldest := 0, int32(-1)
	for at != 0 {
		it := d.over.at(at)
		if it == nil || it.batch.epoch != b.epoch { // nil: committed since
			break
		}
		s := stored{it.batch.seq, it.batch.count, it.batch.crc, it.offset, it.time}
		if b.within(&s) {
			return b.repeats(&s, it.lsn)
		}
		seen, oldest, at = seen+1, s.seq, it.prev
	}
	if c != nil && c.epoch == b.epoch {
		for i := len(c.batches) - 1; i >= 0; i-- {
			s := &c.batches[i]
			if b.within(s) {
				return b.repeats(s, 0)
			}
			seen, oldest = seen+1, s.seq
		}
	}
	if oldest == 0 && seen < window { // nothing was ever forgotten: it never came
		return verdict{known: true, err: &meta.SequenceGap{Producer: b.producer, ProducerEpoch: b.epoch, Got: b.seq, Want: next}}
	}
	return verdict{known: true, duplicate: true, forgotten: true}
}

// against compares with a producer's newest epoch and next sequence. The verdict
// is final when it is known; else the batch lies behind and is looked for.
func (b *batchHeader) against(epoch int16, next int32) verdict {
	switch {
	case b.epoch < epoch:
		return verdict{known: true, err: meta.Errorf(meta.ErrProducerFence, "producer %d epoch %d: epoch %d took its place; stop, or begin a new session", b.producer, b.epoch, epoch)}
	case b.epoch > epoch:
		next = 0
	}
	if b.seq == next {
		return verdict{known: true}
	}
	if back := seqBack(b.seq, next); b.epoch == epoch && back <= 1<<30 {
		return verdict{}
	}
	return verdict{known: true, err: &meta.SequenceGap{Producer: b.producer, ProducerEpoch: b.epoch, Got: b.seq, Want: next}}
}

// within reports whether the batch begins in the sequences of a stored one.
func (b *batchHeader) within(s *stored) bool { return uint32(b.seq-s.seq)&0x7fffffff < uint32(s.count) }

// repeats is the verdict on a batch that begins within a stored one: the same
// batch again, or sequences that are used for other content.
func (b *batchHeader) repeats(s *stored, lsn meta.LSN) verdict {
	if b.seq != s.seq || b.count != s.count || b.crc != s.crc {
		return verdict{known: true, lsn: lsn, err: meta.Errorf(meta.ErrInvalid,
			"producer %d epoch %d reuses sequence %d for other content: it was stored with %d records and checksum %08x at offset %d; begin a new session",
			b.producer, b.epoch, b.seq, s.count, s.crc, s.offset)}
	}
	return verdict{known: true, duplicate: true, offset: s.offset, time: s.time, lsn: lsn}
}

var errClosed = errors.New("the shard is being put to sleep: try again, it wakes up in its next epoch")

// conditions checks fence token and expected offset, in this order, at the log's end.
func (r *Replica) conditions(p *Propose) error {
	t := &r.d.tail
	if err := r.token(p); err != nil {
		return err
	}
	if p.FenceToken == nil && t.strict && t.token != "" {
		return meta.Errorf(meta.ErrFenced, "the stream takes only appends that name its fence token: name it")
	}
	if p.ExpectedOffset != nil && *p.ExpectedOffset != t.next {
		return &meta.ConditionFailed{Expected: *p.ExpectedOffset, Actual: t.next}
	}
	return nil
}

func (r *Replica) token(p *Propose) error {
	if p.FenceToken != nil && *p.FenceToken != r.d.tail.token {
		return meta.Errorf(meta.ErrFenced, "fence token %q is not the stream's: another writer took over", *p.FenceToken)
	}
	return nil
}

// room refuses a batch that the client table has no room for: producers that are
// new from TableSoft on, any that still grows from TableHard on. What is pending
// counts as if all of it grew the table. Most bounds the number of producers, for
// one that is new; 0 means no such bound.
func (r *Replica) room(v *verdict, most int) error {
	if !v.grows {
		return nil
	}
	// The exact count walks what is pending: only where the bound is near.
	if !v.known && most > 0 && len(r.d.state.table.clients)+len(r.d.over.last) >= most {
		if n := r.producers(); n >= most {
			return meta.Errorf(meta.ErrExhausted, "shard %s has %d producers and takes at most %d: use fewer, longer sessions, or raise the stream's producers_max", r.shard, n, most)
		}
	}
	size := r.d.state.table.bytes + len(r.d.over.last)*clientSize + r.d.over.len()*storedSize
	limit := r.cfg.Limits.TableHard
	if !v.known {
		limit = r.cfg.Limits.TableSoft
	}
	if size+clientSize+storedSize > limit {
		return meta.Errorf(meta.ErrExhausted, "the table of producers of shard %s is full (%d bytes): use fewer, longer sessions, or append without a producer id", r.shard, size)
	}
	return nil
}

// producers counts those in the table and those that pending batches bring.
func (r *Replica) producers() int {
	n := len(r.d.state.table.clients)
	for id := range r.d.over.last {
		if r.d.state.table.find(id) == nil {
			n++
		}
	}
	return n
}

// closed reports whether appends are ended in this epoch.
func (r *Replica) closed() bool { return r.d.tail.closed == r.epoch }
