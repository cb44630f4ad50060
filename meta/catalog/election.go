package catalog

import (
	"context"
	"errors"

	"github.com/varve-io/varve/meta"
)

// ErrDeposed says that a transaction was refused as its election is over.
var ErrDeposed = errors.New("the controller's election is over")

// Election is a won election: the controller key's revision, which every
// transaction of [Catalog.Fenced] compares.
type Election struct {
	Broker   meta.BrokerID
	Revision Revision
}

// Campaign tries to become the one controller, on the broker's own lease. won is
// false, and holder set, while somebody else is. It does not wait.
func (c *Catalog) Campaign(ctx context.Context, s *Session) (e Election, holder meta.BrokerID, won bool, err error) {
	e, err = change(ctx, c, "campaign for controller", func() (Election, error) {
		kv, found, _, err := c.kv.Get(ctx, keyController)
		if err != nil {
			return Election{}, err
		}
		if found {
			holder, won = meta.BrokerID(kv.Value), kv.Lease == s.Lease
			return Election{Broker: holder, Revision: kv.Mod}, nil
		}
		r, err := c.commit(ctx, Transaction{
			If:   []Compare{{Kind: CompareMod, Key: keyController}},
			Then: []Op{{Key: keyController, Value: []byte(s.Row.ID), Lease: s.Lease}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		holder, won = s.Row.ID, err == nil
		return Election{Broker: s.Row.ID, Revision: r.Revision}, err
	})
	return e, holder, won && err == nil, err
}

// Resign gives the election up, if it is still held.
func (c *Catalog) Resign(ctx context.Context, e Election) error {
	_, err := c.commit(ctx, Transaction{
		If:   unchanged(keyController, e.Revision, []byte(e.Broker)),
		Then: []Op{{Key: keyController, Delete: true}},
	})
	return err
}
