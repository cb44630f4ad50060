package catalog

import (
	"context"
	"strings"

	"github.com/varve-io/varve/meta"
)

// CreateNamespace makes a namespace. A repeated request (same non-empty id) gets
// the row it made before. Errors: meta.ErrExists, meta.ErrInvalid.
func (c *Catalog) CreateNamespace(ctx context.Context, name string, cfg NamespaceConfig, request string) (NamespaceRow, error) {
	if err := meta.ValidateNamespace(name); err != nil {
		return NamespaceRow{}, err
	}
	if err := cfg.Validate(); err != nil {
		return NamespaceRow{}, err
	}
	if request == "" {
		request = token()
	}
	row := NamespaceRow{Name: name, Config: cfg, Created: meta.MicrosOf(c.opt.Now()), Request: request}
	return change(ctx, c, "create namespace "+name, func() (NamespaceRow, error) {
		key := namespaceKey(name)
		kv, found, _, err := c.kv.Get(ctx, key)
		if err != nil {
			return NamespaceRow{}, err
		}
		if found {
			old, err := decodeNamespace(kv)
			if err == nil && old.Request != request {
				err = meta.Errorf(meta.ErrExists, "namespace %s exists already", name)
			}
			return old, err
		}
		r, err := c.commit(ctx, Transaction{
			If:   []Compare{{Kind: CompareMod, Key: key}},
			Then: []Op{{Key: key, Value: encodeNamespace(row)}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		row.Revision = r.Revision
		return row, err
	})
}

// Namespace reads one namespace; meta.ErrNotFound when there is none.
func (c *Catalog) Namespace(ctx context.Context, name string) (NamespaceRow, error) {
	if err := meta.ValidateNamespace(name); err != nil {
		return NamespaceRow{}, err
	}
	kv, found, _, err := c.kv.Get(ctx, namespaceKey(name))
	if err != nil {
		return NamespaceRow{}, err
	}
	if !found {
		return NamespaceRow{}, meta.Errorf(meta.ErrNotFound, "namespace %s does not exist: create it first", name)
	}
	return decodeNamespace(kv)
}

// UpdateNamespace replaces a namespace's settings. at is the revision the caller
// read; 0 means whatever is there. Errors: meta.ErrNotFound, meta.ErrConflict.
func (c *Catalog) UpdateNamespace(ctx context.Context, name string, cfg NamespaceConfig, at Revision) (NamespaceRow, error) {
	if err := cfg.Validate(); err != nil {
		return NamespaceRow{}, err
	}
	return change(ctx, c, "update namespace "+name, func() (NamespaceRow, error) {
		row, err := c.Namespace(ctx, name)
		if err != nil || row.Config == cfg {
			return row, err
		}
		if at != 0 && row.Revision != at {
			return row, meta.Errorf(meta.ErrConflict, "namespace %s was changed by somebody else: read it again", name)
		}
		read := unchanged(namespaceKey(name), row.Revision, encodeNamespace(row))
		row.Config = cfg
		r, err := c.commit(ctx, Transaction{
			If:   read,
			Then: []Op{{Key: namespaceKey(name), Value: encodeNamespace(row)}},
		})
		if err == nil && !r.Applied {
			err = errRaced
		}
		row.Revision = r.Revision
		return row, err
	})
}

// DeleteNamespace removes an empty namespace; with a stream in it, also one that
// is being created at the same moment, it is refused (meta.ErrInvalid).
func (c *Catalog) DeleteNamespace(ctx context.Context, name string) error {
	tried := false
	_, err := change(ctx, c, "delete namespace "+name, func() (struct{}, error) {
		none := struct{}{}
		row, err := c.Namespace(ctx, name)
		if err != nil {
			if tried && isNotFound(err) {
				err = nil // an earlier attempt whose answer was lost did it
			}
			return none, err
		}
		p, err := c.kv.Range(ctx, RangeRequest{Prefix: dirStreams + name + "/", Limit: 1})
		if err != nil {
			return none, err
		}
		if len(p.Items) > 0 {
			return none, meta.Invalidf("namespace %s is not empty: it holds %s; delete its streams first", name, strings.TrimPrefix(p.Items[0].Key, dirStreams))
		}
		guards := unchanged(namespaceKey(name), row.Revision, encodeNamespace(row))
		if !c.opt.Twins.NamespaceDeleteUnguarded {
			guards = append(guards, Compare{Kind: CompareEmpty, Key: dirStreams + name + "/"})
		}
		r, err := c.commit(ctx, Transaction{If: guards, Then: []Op{{Key: namespaceKey(name), Delete: true}}})
		if err == nil && !r.Applied {
			return none, errRaced
		}
		tried = tried || isUnknown(err)
		return none, err
	})
	return err
}

// Namespaces lists namespaces by name, from the first one after `after`, at most
// limit (0 means 1,000). next is the cursor of the following page, "" at the end.
func (c *Catalog) Namespaces(ctx context.Context, prefix, after string, limit int) (rows []NamespaceRow, next string, err error) {
	items, more, err := c.list(ctx, dirNamespaces, prefix, after, limit)
	if err != nil {
		return nil, "", err
	}
	for _, kv := range items {
		row, err := decodeNamespace(kv)
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, row)
	}
	if more {
		next = rows[len(rows)-1].Name
	}
	return rows, next, nil
}

// list reads one page below dir.
func (c *Catalog) list(ctx context.Context, dir, prefix, after string, limit int) ([]KeyValue, bool, error) {
	const usual = 1000
	if limit <= 0 || limit > MaxPage {
		limit = usual
	}
	r := RangeRequest{Prefix: dir + prefix, Limit: limit}
	if after != "" {
		r.After = dir + after
	}
	p, err := c.kv.Range(ctx, r)
	return p.Items, p.More, err
}
