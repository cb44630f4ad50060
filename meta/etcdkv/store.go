package etcdkv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
)

// sum is the checksum that stands before a value.
func sum(key string, value []byte) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum([]byte(key), t), t, value)
}

func (s *Store) seal(key string, value []byte) []byte {
	b := make([]byte, 4, 4+len(value))
	binary.LittleEndian.PutUint32(b, sum(s.opt.Prefix+key, value))
	return append(b, value...)
}

func unseal(key string, b []byte) ([]byte, error) {
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != sum(key, b[4:]) {
		return nil, meta.Errorf(meta.ErrCorrupt, "catalog key %q: its stored value does not match its checksum", key)
	}
	return bytes.Clone(b[4:]), nil
}

func (s *Store) keyValue(kv *mvccpb.KeyValue) (catalog.KeyValue, error) {
	v, err := unseal(string(kv.Key), kv.Value)
	return catalog.KeyValue{
		Key: strings.TrimPrefix(string(kv.Key), s.opt.Prefix), Value: v,
		Created: catalog.Revision(kv.CreateRevision), Mod: catalog.Revision(kv.ModRevision), Lease: catalog.LeaseID(kv.Lease),
	}, err
}

// call makes a context that also ends when the store closes or fails.
func (s *Store) call(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, meta.Errorf(meta.ErrUnavailable, "%w", err)
	}
	if s.ctx.Err() != nil {
		return nil, nil, meta.Errorf(meta.ErrUnavailable, "%w", context.Cause(s.ctx))
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// Get implements catalog.KV.
func (s *Store) Get(ctx context.Context, key string) (catalog.KeyValue, bool, catalog.Revision, error) {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return catalog.KeyValue{}, false, 0, err
	}
	defer done()
	r, err := s.client.Get(ctx, s.opt.Prefix+key)
	if err != nil {
		return catalog.KeyValue{}, false, 0, translate(err, meta.ErrUnavailable)
	}
	at := catalog.Revision(r.Header.Revision)
	if len(r.Kvs) == 0 {
		return catalog.KeyValue{}, false, at, nil
	}
	kv, err := s.keyValue(r.Kvs[0])
	return kv, err == nil, at, err
}

// Range implements catalog.KV.
func (s *Store) Range(ctx context.Context, q catalog.RangeRequest) (catalog.Page, error) {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return catalog.Page{}, err
	}
	defer done()
	from := s.opt.Prefix + q.Prefix
	end := clientv3.GetPrefixRangeEnd(from)
	if q.After != "" {
		from = max(from, s.opt.Prefix+q.After+"\x00")
	}
	limit := q.Limit
	if limit <= 0 || limit > catalog.MaxPage {
		limit = catalog.MaxPage
	}
	r, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit)), clientv3.WithRev(int64(q.Revision)))
	if err != nil {
		return catalog.Page{}, translate(err, meta.ErrUnavailable)
	}
	p := catalog.Page{Revision: q.Revision, More: r.More, Items: make([]catalog.KeyValue, 0, len(r.Kvs))}
	if p.Revision == 0 {
		p.Revision = catalog.Revision(r.Header.Revision)
	}
	for _, kv := range r.Kvs {
		item, err := s.keyValue(kv)
		if err != nil {
			return catalog.Page{}, err
		}
		p.Items = append(p.Items, item)
	}
	return p, nil
}

// Commit implements catalog.KV.
func (s *Store) Commit(ctx context.Context, t catalog.Transaction) (catalog.Result, error) {
	if err := catalog.CheckTransaction(t); err != nil {
		return catalog.Result{}, err
	}
	if err := s.room(t); err != nil {
		return catalog.Result{}, err
	}
	ctx, done, err := s.call(ctx)
	if err != nil {
		return catalog.Result{}, err
	}
	defer done()
	r, err := s.client.Txn(ctx).If(s.compares(t.If)...).Then(s.ops(t.Then)...).Else(s.reads(t.If)...).Commit()
	if err != nil {
		err = translate(err, meta.ErrUnknown)
		if errors.Is(err, meta.ErrExhausted) {
			s.askMaintenance()
		}
		return catalog.Result{}, err
	}
	res := catalog.Result{Applied: r.Succeeded, Revision: catalog.Revision(r.Header.Revision)}
	if r.Succeeded {
		return res, nil
	}
	res.Found = make(map[string]catalog.KeyValue)
	for _, one := range r.Responses {
		for _, kv := range one.GetResponseRange().GetKvs() {
			item, err := s.keyValue(kv)
			if err != nil {
				return catalog.Result{}, err
			}
			res.Found[item.Key] = item
		}
	}
	return res, nil
}

func (s *Store) compares(cs []catalog.Compare) []clientv3.Cmp {
	out := make([]clientv3.Cmp, 0, len(cs))
	for _, c := range cs {
		key := s.opt.Prefix + c.Key
		switch c.Kind {
		case catalog.CompareMod:
			out = append(out, clientv3.Compare(clientv3.ModRevision(key), "=", int64(c.Revision)))
		case catalog.CompareValue:
			out = append(out, clientv3.Compare(clientv3.Value(key), "=", string(s.seal(c.Key, c.Value))))
		case catalog.ComparePresent:
			out = append(out, clientv3.Compare(clientv3.CreateRevision(key), ">", 0))
		case catalog.CompareEmpty:
			out = append(out, clientv3.Compare(clientv3.CreateRevision(key), "=", 0).WithPrefix())
		}
	}
	return out
}

func (s *Store) ops(ops []catalog.Op) []clientv3.Op {
	out := make([]clientv3.Op, 0, len(ops))
	for _, op := range ops {
		key := s.opt.Prefix + op.Key
		if op.Delete {
			out = append(out, clientv3.OpDelete(key))
			continue
		}
		out = append(out, clientv3.OpPut(key, string(s.seal(op.Key, op.Value)), clientv3.WithLease(clientv3.LeaseID(op.Lease))))
	}
	return out
}

func (s *Store) reads(cs []catalog.Compare) []clientv3.Op {
	out := make([]clientv3.Op, 0, len(cs))
	seen := make(map[string]bool, len(cs))
	for _, c := range cs {
		if c.Kind != catalog.CompareEmpty && !seen[c.Key] {
			seen[c.Key] = true
			out = append(out, clientv3.OpGet(s.opt.Prefix+c.Key))
		}
	}
	return out
}

// Lease implements catalog.KV. etcd counts whole seconds, and at least 1.5 elections.
func (s *Store) Lease(ctx context.Context, ttl time.Duration) (catalog.LeaseID, error) {
	if ttl < time.Second {
		return 0, meta.Invalidf("lease of %s: at least 1s", ttl)
	}
	ctx, done, err := s.call(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	r, err := s.client.Grant(ctx, int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		// A lease that was made all the same ends by itself.
		return 0, translate(err, meta.ErrUnavailable)
	}
	return catalog.LeaseID(r.ID), nil
}

// KeepAlive implements catalog.KV.
func (s *Store) KeepAlive(ctx context.Context, id catalog.LeaseID) error {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	r, err := s.client.KeepAliveOnce(ctx, clientv3.LeaseID(id))
	if err == nil && r.TTL <= 0 {
		return catalog.ErrLease
	}
	return translate(err, meta.ErrUnavailable)
}

// Revoke implements catalog.KV.
func (s *Store) Revoke(ctx context.Context, id catalog.LeaseID) error {
	ctx, done, err := s.call(ctx)
	if err != nil {
		return err
	}
	defer done()
	_, err = s.client.Revoke(ctx, clientv3.LeaseID(id))
	return translate(err, meta.ErrUnknown)
}

// translate turns etcd's errors into the port's; other is for those that leave
// the outcome open.
func translate(err, other error) error {
	if err == nil {
		return nil
	}
	known := rpctypes.Error(err)
	switch {
	case errors.Is(known, rpctypes.ErrCompacted):
		return catalog.ErrCompacted
	case errors.Is(known, rpctypes.ErrFutureRev):
		return catalog.ErrFuture
	case errors.Is(known, rpctypes.ErrLeaseNotFound):
		return catalog.ErrLease
	case errors.Is(known, rpctypes.ErrNoSpace):
		return meta.Errorf(meta.ErrExhausted, "the catalog has reached its space quota: delete streams that are not needed")
	case errors.Is(known, rpctypes.ErrTooManyOps), errors.Is(known, rpctypes.ErrRequestTooLarge), errors.Is(known, rpctypes.ErrDuplicateKey):
		return meta.Errorf(meta.ErrInvalid, "catalog transaction: %w", err)
	case errors.Is(known, rpctypes.ErrTooManyRequests):
		return meta.Errorf(meta.ErrUnavailable, "the catalog is overloaded: %w", err)
	}
	return meta.Errorf(other, "catalog: %w", err)
}
