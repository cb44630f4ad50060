package catalog

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/varve-io/varve/meta"
)

// Session is a broker's registration and the lease it hangs on. Whoever
// registered keeps it alive by calling Renew, at about a third of the lease's
// time. Not for concurrent use.
type Session struct {
	c     *Catalog
	Row   BrokerRow
	Lease LeaseID
}

// Register announces a running broker under a lease of ttl, at least 2 s, and
// raises the registration counter. A registration anew, by the same or a later
// start, replaces the old one at once; an earlier start of the same storage id is
// a meta.ErrStranger, a broker that cannot read the cluster's format level or
// lacks a finalized feature a meta.ErrFormatLevel.
func (c *Catalog) Register(ctx context.Context, row BrokerRow, ttl time.Duration) (*Session, error) {
	if err := row.ID.Validate(); err != nil {
		return nil, err
	}
	if row.Storage.IsZero() || row.Boot == 0 {
		return nil, meta.Invalidf("broker %s registers without storage id or boot nonce", row.ID)
	}
	lease, err := c.kv.Lease(ctx, max(ttl, 2*time.Second))
	if err != nil {
		return nil, err
	}
	row, err = change(ctx, c, "register broker "+string(row.ID), func() (BrokerRow, error) {
		return c.registerOnce(ctx, row, lease)
	})
	if err != nil {
		// Best effort: what is left ends with its time.
		_ = c.kv.Revoke(context.WithoutCancel(ctx), lease)
		return nil, err
	}
	return &Session{c: c, Row: row, Lease: lease}, nil
}

func (c *Catalog) registerOnce(ctx context.Context, row BrokerRow, lease LeaseID) (BrokerRow, error) {
	if row.Level < c.Level() {
		return row, meta.Errorf(meta.ErrFormatLevel, "broker %s knows format levels up to %d, the cluster writes by %d: upgrade it", row.ID, row.Level, c.Level())
	}
	// The counter is read first: a feature finalized after this point either sees
	// this registration's counter or makes its comparison fail.
	_, counted, count, err := c.counter(ctx, keyRegistrations)
	if err != nil {
		return row, err
	}
	if err := c.lacksFeature(ctx, row); err != nil {
		return row, err
	}
	kv, found, _, err := c.kv.Get(ctx, brokerKey(row.ID))
	if err != nil {
		return row, err
	}
	if found {
		old, err := decodeBroker(kv)
		if err != nil {
			return row, err
		}
		if old.Storage == row.Storage && old.Start > row.Start {
			return row, meta.Errorf(meta.ErrStranger, "broker %s: start %d of its directory registered already, this is start %d", row.ID, old.Start, row.Start)
		}
		if kv.Lease == lease {
			row.Revision = kv.Mod
			return row, nil // an attempt of ours whose answer was lost
		}
	}
	r, err := c.commit(ctx, Transaction{
		If:   append(counted, unchanged(brokerKey(row.ID), kv.Mod, kv.Value)...),
		Then: []Op{count, {Key: brokerKey(row.ID), Value: encodeBroker(row), Lease: lease}},
	})
	if err == nil && !r.Applied {
		err = errRaced
	}
	row.Revision = r.Revision
	return row, err
}

// Renew keeps the lease alive and checks that the registration is still this
// one's. ErrLease: it is gone or somebody else's; register anew.
func (s *Session) Renew(ctx context.Context) error {
	if err := s.c.kv.KeepAlive(ctx, s.Lease); err != nil {
		return err
	}
	kv, found, _, err := s.c.kv.Get(ctx, brokerKey(s.Row.ID))
	if err != nil {
		return err
	}
	if !found || kv.Lease != s.Lease {
		return meta.Errorf(ErrLease, "broker %s: its registration was replaced or has ended", s.Row.ID)
	}
	return nil
}

// Update rewrites what the registration says, as when it begins to drain.
func (s *Session) Update(ctx context.Context, row BrokerRow) error {
	if row.ID != s.Row.ID || row.Storage != s.Row.Storage || row.Boot != s.Row.Boot || row.Start != s.Row.Start {
		return meta.Invalidf("broker %s: a registration keeps its id, storage and boot", s.Row.ID)
	}
	r, err := s.c.commit(ctx, Transaction{
		If:   unchanged(brokerKey(row.ID), s.Row.Revision, encodeBroker(s.Row)),
		Then: []Op{{Key: brokerKey(row.ID), Value: encodeBroker(row), Lease: s.Lease}},
	})
	if err != nil {
		return err
	}
	if !r.Applied {
		return meta.Errorf(ErrLease, "broker %s: its registration was replaced or has ended", row.ID)
	}
	row.Revision = r.Revision
	s.Row = row
	return nil
}

// End takes the registration back, as a broker does that stops.
func (s *Session) End(ctx context.Context) error {
	if err := s.c.kv.Revoke(ctx, s.Lease); err != nil && !errors.Is(err, ErrLease) {
		return err
	}
	return nil
}

// Brokers lists the registered brokers by id.
func (c *Catalog) Brokers(ctx context.Context) ([]BrokerRow, error) {
	items, _, err := readAll(ctx, c.kv, dirBrokers)
	if err != nil {
		return nil, err
	}
	rows := make([]BrokerRow, 0, len(items))
	for _, kv := range items {
		b, err := decodeBroker(kv)
		if err != nil {
			return nil, err
		}
		rows = append(rows, b)
	}
	return rows, nil
}

// FinalizeFeature makes a feature binding, one way: refused (meta.ErrInvalid)
// while a registered broker lacks it; afterwards a registration without it is refused.
func (c *Catalog) FinalizeFeature(ctx context.Context, name string) error {
	if err := meta.ValidateNamespace(name); err != nil {
		return meta.Invalidf("feature %q: want 1 to 200 characters of a-z 0-9 . _ -", clip(name))
	}
	_, err := change(ctx, c, "finalize feature "+name, func() (struct{}, error) {
		none := struct{}{}
		_, found, _, err := c.kv.Get(ctx, featureKey(name))
		if err != nil || found {
			return none, err
		}
		_, guard, _, err := c.counter(ctx, keyRegistrations)
		if err != nil {
			return none, err
		}
		brokers, err := c.Brokers(ctx)
		if err != nil {
			return none, err
		}
		for _, b := range brokers {
			if !slices.Contains(b.Features, name) {
				return none, meta.Invalidf("broker %s does not implement feature %s: upgrade it, or stop it for good, first", b.ID, name)
			}
		}
		r, err := c.commit(ctx, Transaction{
			If:   append(guard, unchanged(featureKey(name), 0, nil)...),
			Then: []Op{{Key: featureKey(name), Value: encodeNumber(uint64(c.Level()))}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		return none, err
	})
	return err
}

// Features lists the finalized features by name.
func (c *Catalog) Features(ctx context.Context) ([]string, error) {
	items, _, err := readAll(ctx, c.kv, dirFeatures)
	names := make([]string, 0, len(items))
	for _, kv := range items {
		names = append(names, kv.Key[len(dirFeatures):])
	}
	return names, err
}

func (c *Catalog) lacksFeature(ctx context.Context, row BrokerRow) error {
	names, err := c.Features(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.Contains(row.Features, name) {
			return meta.Errorf(meta.ErrFormatLevel, "broker %s does not implement feature %s, which this cluster has finalized: upgrade it", row.ID, name)
		}
	}
	return nil
}

// readAll reads everything below a prefix at one revision, page by page; a
// compaction between two pages starts it over.
func readAll(ctx context.Context, kv KV, prefix string) ([]KeyValue, Revision, error) {
	for {
		items, at, err := readOnce(ctx, kv, prefix, 0)
		if errors.Is(err, ErrCompacted) {
			continue
		}
		return items, at, err
	}
}

func readOnce(ctx context.Context, kv KV, prefix string, at Revision) ([]KeyValue, Revision, error) {
	var all []KeyValue
	r := RangeRequest{Prefix: prefix, Limit: 1000, Revision: at}
	for {
		p, err := kv.Range(ctx, r)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, p.Items...)
		if !p.More {
			return all, p.Revision, nil
		}
		r.Revision, r.After = p.Revision, p.Items[len(p.Items)-1].Key
	}
}
