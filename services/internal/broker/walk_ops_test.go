package broker_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
)

// start runs one client's request; its time is chosen at random.
func (w *walk) start(op func(ctx context.Context, b *broker.Broker)) {
	b := w.n.Broker
	patience := time.Duration(1+w.r.IntN(20)) * time.Duration(1+w.r.IntN(1000)) * time.Millisecond
	w.ops.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		op(ctx, b)
	})
}

// refusal judges an error of a request that names an incarnation. w.mu is held.
func (w *walk) refusal(what string, k *known, err error, allowed ...error) {
	var (
		throttled *meta.Throttled
		quorum    *meta.NoQuorum
	)
	switch {
	case k.life != live && errors.Is(err, meta.ErrNotFound), k.life != live && errors.Is(err, meta.ErrDeleted):
		return
	case errors.As(err, &throttled), errors.Is(err, meta.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return
	case errors.Is(err, meta.ErrUnknown), errors.Is(err, meta.ErrExhausted):
		return
	case errors.As(err, &quorum) && w.troubled:
		return
	case w.ending, w.sick && !errors.Is(err, meta.ErrCorrupt):
		return
	case w.spoilt && errors.Is(err, meta.ErrCorrupt): // a flipped bit on the way from the bucket
		return
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			return
		}
	}
	w.fault("%s: shard %s (life %d): %v", what, k.id, k.life, err)
}

func (w *walk) pick() *known {
	list := slices.DeleteFunc(w.sorted(), func(k *known) bool { return k.life == deleted && w.r.IntN(4) > 0 })
	if len(list) == 0 {
		return nil
	}
	return list[w.r.IntN(len(list))]
}

func (w *walk) level() replica.Level {
	switch w.r.IntN(6) {
	case 0:
		return replica.Archive
	default:
		return replica.Quorum
	}
}

func (w *walk) opAppend(k *known) {
	client := w.r.IntN(4)
	var s *sent
	var st *stage
	resend := false
	switch kind := w.r.IntN(10); {
	case kind < 5: // idempotent
		if st = k.stages[client]; st == nil {
			w.stamp++
			st = &stage{p: batch.Producer{ID: int64(w.stamp)}, gen: k.gen}
			k.stages[client] = st
		}
		if st.busy {
			return
		}
		if s = st.last; s == nil {
			if len(st.acked) > 0 && w.r.IntN(4) == 0 {
				s, resend = st.acked[len(st.acked)-1-w.r.IntN(min(len(st.acked), 40))], true
			} else {
				s = k.batch(w, client)
				s.producer = st
				s.append = broker.Append{Level: w.level(), Batch: servicetest.Batch(st.p, s.values...)}
				st.p.Sequence = batch.NextSequence(st.p.Sequence, len(s.values))
				w.condition(k, s)
				st.last = s
			}
		}
		st.busy = true
	default:
		s = k.batch(w, client)
		s.append = broker.Append{Level: w.level(), Batch: servicetest.Batch(batch.NoProducer(), s.values...)}
		if kind == 9 {
			s.append.Level = []replica.Level{replica.None, replica.Leader}[w.r.IntN(2)]
		} else {
			w.condition(k, s)
		}
	}
	hint := s.append.Level == replica.None || s.append.Level == replica.Leader
	before, floor, fence := s.doubt, k.floor, k.fence
	sure := !k.fencing && !resend && !before
	s.tries++
	s.doubt, s.gen = true, k.gen
	a := s.append
	a.Batch = slices.Clone(a.Batch)
	w.start(func(ctx context.Context, b *broker.Broker) {
		r, err := servicetest.SendTo(ctx, b, k.id, a)
		w.mu.Lock()
		defer w.mu.Unlock()
		if st != nil {
			st.busy = false
		}
		sure = sure && fence == k.fence
		var failure *broker.Failure
		switch {
		case err == nil && hint:
			w.count++
		case err == nil:
			w.count++
			again := s.acked
			if wrong := k.answered(s, floor, r); wrong != nil {
				w.fault("append to %s: %v", k.id, wrong)
			}
			if st != nil && !again && k.stages[client] == st {
				st.last, st.acked = nil, append(st.acked, s)
			}
			if sure && (k.strict && a.FenceToken == nil || a.FenceToken != nil && *a.FenceToken != k.token) {
				w.fault("append to %s: token %v passed the fence %q (strict: %v)", k.id, a.FenceToken, k.token, k.strict)
			}
		case errors.As(err, &failure) && failure.Unknown:
			w.refusal("append", k, err)
		default:
			s.doubt = before
			var condition *meta.ConditionFailed
			switch {
			case errors.Is(err, meta.ErrFenced) && resend:
				w.fault("a retry to %s of what was stored at %d: %v", k.id, s.result.First, err)
			case errors.Is(err, meta.ErrFenced) && sure && !(k.strict && a.FenceToken == nil || a.FenceToken != nil && *a.FenceToken != k.token):
				w.fault("append to %s: token %v did not pass the fence %q (strict: %v)", k.id, a.FenceToken, k.token, k.strict)
			case errors.Is(err, meta.ErrFenced):
			case errors.As(err, &condition):
				if a.ExpectedOffset == nil || *a.ExpectedOffset == condition.Actual || resend || condition.Actual < floor {
					w.fault("append to %s, tail at least %d, a retry: %v: %v", k.id, floor, resend, err)
				}
			default:
				w.refusal("append", k, err)
			}
			if st != nil && !before && !resend && st.last == s && k.stages[client] == st && w.gaveUp(err) {
				// Nothing of it was stored: the producer starts over with its next id.
				delete(k.stages, client)
			}
		}
	})
}

// gaveUp reports whether a producer takes a refusal for good.
func (w *walk) gaveUp(err error) bool {
	var condition *meta.ConditionFailed
	return errors.Is(err, meta.ErrFenced) || errors.As(err, &condition)
}

// condition adds conditions to a batch now and then.
func (w *walk) condition(k *known, s *sent) {
	if w.r.IntN(6) == 0 {
		o := k.floor + meta.Offset(w.r.IntN(2)*w.r.IntN(4))
		s.append.ExpectedOffset = &o
	}
	if k.token != "" && w.r.IntN(4) > 0 || w.r.IntN(20) == 0 {
		t := k.token
		if w.r.IntN(8) == 0 {
			t = "other"
		}
		s.append.FenceToken = &t
	}
}

// opUnknownProducer sends a sequence above 0 of a producer that nobody knows.
func (w *walk) opUnknownProducer(k *known) {
	w.stamp++
	b := servicetest.Batch(batch.Producer{ID: int64(w.stamp), Sequence: 5}, "never")
	w.start(func(ctx context.Context, br *broker.Broker) {
		_, err := servicetest.SendTo(ctx, br, k.id, broker.Append{Batch: b})
		w.mu.Lock()
		defer w.mu.Unlock()
		var failure *broker.Failure
		switch {
		case err == nil:
			w.fault("shard %s took sequence 5 of a producer that it can't know", k.id)
		case errors.Is(err, meta.ErrUnknownWriter):
			if !errors.As(err, &failure) || !failure.Unknown {
				w.fault("shard %s: %v: want it to say that it may be applied", k.id, err)
			}
		default:
			w.refusal("unknown producer", k, err)
		}
	})
}

func (w *walk) opRead(k *known) {
	from := k.trimmed + meta.Offset(w.r.IntN(int(k.floor-min(k.floor, k.trimmed))+3))
	most, pages := 1+w.r.IntN(64<<10), 1+w.r.IntN(5)
	byTime := w.r.IntN(4) == 0
	var t meta.Micros
	if list := k.all; byTime && len(list) > 0 {
		t = list[w.r.IntN(len(list))].result.Time
	}
	w.start(func(ctx context.Context, b *broker.Broker) {
		fail := func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			var out *meta.OffsetOutOfRange
			if errors.As(err, &out) {
				if out.Asked >= out.Start && out.Asked <= out.End {
					w.fault("read of %s: %v", k.id, err)
				}
				return
			}
			w.refusal("read", k, err)
		}
		r, err := b.Reader(ctx, k.id)
		if err != nil {
			fail(err)
			return
		}
		defer r.Close()
		if t > 0 {
			if from, err = r.FindTime(ctx, t); err != nil {
				fail(err)
				return
			}
		}
		for range pages {
			p, err := r.Read(ctx, from, most)
			if err != nil {
				fail(err)
				return
			}
			w.mu.Lock()
			for _, e := range p.Entries {
				if e.Offset > from {
					w.fault("read of %s from %d: an entry at %d", k.id, from, e.Offset)
				}
				if t > 0 && e.Time < t && e.Offset >= from {
					w.fault("read of %s from time %d: an entry at %d of time %d", k.id, t, e.Offset, e.Time)
				}
				at := e.Offset
				for rec, err := range walkCodec.Records(e.Payload) {
					if err != nil {
						w.fault("read of %s: entry at %d: %v", k.id, e.Offset, err)
						break
					}
					if k.values[string(rec.Value)] == nil {
						w.fault("read of %s, cold: %v, life %d: offset %d holds %.40q, which nobody sent to it", k.id, p.Cold, k.life, at, rec.Value)
					}
					if was, ok := k.seen[at]; ok && p.Lineage == k.lineage && was != string(rec.Value) {
						w.fault("read of %s, cold: %v: offset %d was %.40q, is %.40q", k.id, p.Cold, at, was, rec.Value)
					}
					if p.Lineage == k.lineage {
						k.seen[at] = string(rec.Value)
					}
					at++
				}
				if at != from {
					from = max(from, at)
				}
			}
			if p.Cold {
				w.cold++
			}
			w.mu.Unlock()
			if len(p.Entries) == 0 {
				return
			}
		}
	})
}

func (w *walk) opTail(k *known) {
	floor, trimmed, gen := k.floor, k.trimmed, k.gen
	w.start(func(ctx context.Context, b *broker.Broker) {
		e, err := b.CheckTail(ctx, k.id)
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case err != nil:
			w.refusal("check tail", k, err)
		case k.gen != gen || e.Lineage != k.lineage:
		case e.Tail < floor || e.Start < trimmed || e.Start > k.asked:
			w.fault("shard %s: start and tail are %d and %d; they were at least %d and %d, and a start of %d was asked for", k.id, e.Start, e.Tail, trimmed, floor, k.asked)
		default:
			k.floor = max(k.floor, e.Tail)
		}
	})
}

func (w *walk) opTrim(k *known) {
	to := k.trimmed + meta.Offset(w.r.IntN(int(k.floor-min(k.floor, k.trimmed))+2))
	k.asked = max(k.asked, to)
	w.start(func(ctx context.Context, b *broker.Broker) {
		e, err := b.Trim(ctx, k.id, to)
		w.mu.Lock()
		defer w.mu.Unlock()
		var out *meta.OffsetOutOfRange
		switch {
		case errors.As(err, &out):
		case err != nil:
			w.refusal("trim", k, err)
		case e.Start < to:
			w.fault("shard %s: a trim to %d says that it starts at %d", k.id, to, e.Start)
		default:
			k.trimmed = max(k.trimmed, to)
		}
	})
}

func (w *walk) opFence(k *known) {
	token := []string{"", "a", "b"}[w.r.IntN(3)]
	strict := token != "" && w.r.IntN(2) == 0
	alone := !k.fencing
	k.fencing = true
	k.fences++
	k.fence++
	mine := k.fence
	w.start(func(ctx context.Context, b *broker.Broker) {
		_, err := b.Fence(ctx, k.id, token, strict)
		w.mu.Lock()
		defer w.mu.Unlock()
		k.fence++
		k.fences--
		switch {
		case err != nil:
			w.refusal("fence", k, err)
			var failure *broker.Failure
			if alone && k.fence == mine+1 && k.fences == 0 && !(errors.As(err, &failure) && failure.Unknown) {
				k.fencing = false // nothing happened
			}
		case k.fence == mine+1 && k.fences == 0: // nobody else set one meanwhile
			k.token, k.strict, k.fencing = token, strict, false
		}
	})
}

func (w *walk) opDescribe(k *known) {
	w.start(func(ctx context.Context, b *broker.Broker) {
		_, err := b.Describe(ctx, k.id)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			w.refusal("describe", k, err)
		}
	})
}

func (w *walk) opDelete(k *known) {
	if k.life == deleted {
		return
	}
	k.life = maybe
	w.start(func(ctx context.Context, b *broker.Broker) {
		_, _, err := b.Delete(ctx, k.id.Stream, k.id.Incarnation)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err == nil {
			k.life = deleted
			return
		}
		w.refusal("delete", k, err)
	})
}

// opCreate finds or makes a stream as an append by name does.
func (w *walk) opCreate() {
	name := meta.StreamName{Namespace: "logs", Name: string(rune('a' + w.r.IntN(4)))}
	byHand := w.r.IntN(2) == 0
	w.start(func(ctx context.Context, b *broker.Broker) {
		var in meta.Incarnation
		if byHand {
			row, err := b.CreateStream(ctx, catalog.CreateStream{Name: name})
			if err != nil {
				return
			}
			in = row.Incarnation
		} else {
			s, err := b.FindOrCreate(ctx, name, 0, false)
			if err != nil {
				return
			}
			in = s.Incarnation
		}
		id := meta.ShardID{Stream: name, Incarnation: in}
		w.mu.Lock()
		defer w.mu.Unlock()
		if k := w.shards[id]; k == nil {
			w.shards[id] = newKnown(id)
			for _, o := range w.shards {
				if o.id.Stream == name && o.id.Incarnation > in && o.life == live {
					w.fault("%s: created after %d", id, o.id.Incarnation)
				}
			}
		}
	})
}
