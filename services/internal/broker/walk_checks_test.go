package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering"
)

// checkAll reads everything that is there. must says that it has to work.
func (w *walk) checkAll(must bool) {
	w.mu.Lock()
	list := w.sorted()
	w.mu.Unlock()
	for _, k := range list {
		if must && w.get(&w.sick) {
			return
		}
		for try := 0; ; try++ {
			w.mu.Lock()
			c, gone := k.claim(), k.life == deleted
			w.mu.Unlock()
			if gone {
				break
			}
			v, err := w.view(k.id)
			w.mu.Lock()
			if err == nil {
				if k.gen == c.gen {
					for _, f := range k.check(c, v) {
						w.fault("shard %s: %s", k.id, f)
					}
				}
				w.mu.Unlock()
				break
			}
			if k.life == live {
				w.refusal("full read", k, err)
			}
			last := !must || k.life != live || try > 300
			if must && try > 300 && k.life == live {
				w.fault("shard %s can't be read: %v", k.id, err)
			}
			w.mu.Unlock()
			if last {
				break
			}
			time.Sleep(time.Second)
		}
	}
}

// view reads a shard from its start to its tail.
func (w *walk) view(id meta.ShardID) (*view, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := w.n.Broker.CheckTail(ctx, id)
	if err != nil {
		return nil, err
	}
	v := &view{start: e.Start, tail: e.Tail, lineage: e.Lineage, records: map[meta.Offset]record{}}
	r, err := w.n.Broker.Reader(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for from := v.start; from < v.tail; {
		p, err := r.Read(ctx, from, 64<<10)
		if out := (*meta.OffsetOutOfRange)(nil); errors.As(err, &out) && out.Start > from {
			from = out.Start // trimmed meanwhile
			v.start = from
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(p.Entries) == 0 {
			return nil, fmt.Errorf("nothing at %d, below the tail %d", from, v.tail)
		}
		for _, e := range p.Entries {
			at := e.Offset
			for rec, err := range walkCodec.Records(e.Payload) {
				if err != nil {
					return nil, err
				}
				v.records[at] = record{string(rec.Value), e.Time}
				at++
			}
			from = max(from, at)
		}
	}
	return v, nil
}

// settle ends all mishaps: now everything has to work again.
func (w *walk) settle() {
	w.ops.Wait()
	w.note("settle")
	w.n.Faults.Clear()
	w.fs.Heal()
	w.disk.SetCapacity(0)
	w.drain()
	time.Sleep(time.Minute)
	w.mu.Lock()
	w.troubled, w.spoilt = false, false
	list := w.sorted()
	w.mu.Unlock()
	for _, k := range list {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		_, err := w.n.Catalog.Shard(ctx, k.id)
		w.mu.Lock()
		switch {
		case errors.Is(err, meta.ErrNotFound) && k.life != live:
			k.life = deleted
		case err == nil && k.life == maybe:
			k.life = live
		case err != nil || k.life == deleted:
			w.fault("shard %s, life %d: %v", k.id, k.life, err)
		}
		there := k.life == live
		w.mu.Unlock()
		if there {
			if err := w.progress(ctx, k); err != nil {
				w.t.Errorf("shard %s makes no progress: %v\n%s", k.id, err, strings.Join(w.log, "\n"))
			}
		}
		cancel()
	}
	w.checkAll(true)
	w.purged()
}

// progress appends at level archive to a shard whose fence it takes away.
func (w *walk) progress(ctx context.Context, k *known) error {
	for {
		_, err := w.n.Broker.Fence(ctx, k.id, "", false)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	w.mu.Lock()
	k.fence++
	k.token, k.strict, k.fencing = "", false, false
	s := k.batch(w, 9)
	s.doubt = true
	s.append = broker.Append{Level: replica.Archive, Batch: servicetest.Batch(batch.NoProducer(), s.values...)}
	floor := k.floor
	w.mu.Unlock()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Minute)
		a := s.append
		a.Batch = append([]byte(nil), a.Batch...)
		s.tries++
		r, err := servicetest.SendTo(try, w.n.Broker, k.id, a)
		cancel()
		if err == nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			return k.answered(s, floor, r)
		}
		var failure *broker.Failure
		if errors.As(err, &failure) || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Second)
	}
}

// purged waits until nothing of what was deleted is left, and holds the manifests
// against the objects.
func (w *walk) purged() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for {
		list, err := w.n.Catalog.Purges(ctx, catalog.Purge{}, 0)
		if err == nil && len(list) == 0 {
			break
		}
		if ctx.Err() != nil {
			w.t.Errorf("purges are left: %v, %v", list, err)
			return
		}
		time.Sleep(time.Second)
	}
	newest := map[string]*tiering.Manifest{}
	for info, err := range w.store.List(ctx, "", "") {
		if err != nil {
			w.t.Fatal(err)
		}
		for _, k := range w.sorted() {
			at := "/" + k.id.Stream.Escaped() + "/" + meta.Hex(k.id.Incarnation) + "/"
			if strings.Contains(info.Key, at) && k.life == deleted && !strings.HasPrefix(info.Key, "tombstones/") {
				w.t.Errorf("%s is left of a deleted stream", info.Key)
			}
		}
		if !strings.HasPrefix(info.Key, "manifests/") || !strings.HasSuffix(info.Key, ".json") {
			continue
		}
		b, _, err := w.store.Load(ctx, info.Key, 64<<20)
		if err != nil {
			continue
		}
		if m, err := tiering.DecodeManifest(b); err == nil {
			newest[info.Key[:strings.LastIndex(info.Key, "/")]] = m
		}
	}
	for dir, m := range newest {
		for _, s := range m.Segments {
			if i, err := w.store.Head(ctx, s.Key); s.NextOffset > m.StartOffset && (err != nil || i.Size != s.Size) {
				w.t.Errorf("%s names %s: %v", dir, s.Key, err)
			}
		}
		for _, x := range m.Older {
			if _, err := w.store.Head(ctx, x.Key); err != nil {
				w.t.Errorf("%s names %s: %v", dir, x.Key, err)
			}
		}
		for _, k := range w.sorted() {
			for _, s := range k.all {
				if k.id == m.Shard && k.life == live && s.acked && !s.lost && s.archived && s.result.Next > m.NextOffset {
					w.t.Errorf("%s ends at %d, and %d was acknowledged at level archive", dir, m.NextOffset, s.result.Next)
				}
			}
		}
	}
}
