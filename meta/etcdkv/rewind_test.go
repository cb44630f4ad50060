package etcdkv_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
)

// An older copy of the catalog's directory is put in place while a broker watches
// from another process, whose connection comes back by itself. The view notices and
// reads everything. Public failure report B126.
func TestRewindUnderARunningBroker(t *testing.T) {
	ctx := t.Context()
	urls := free(t, 2)
	opt := options(t.TempDir())
	opt.Network = &etcdkv.Network{ListenClients: urls[0], ListenPeers: urls[1], Members: map[string]string{"varve": urls[1]}}
	server := open(t, opt)
	if _, err := catalog.Initialize(ctx, server, catalog.Cluster{ID: meta.ClusterID{1}, Generation: 1, Level: 1}); err != nil {
		t.Fatal(err)
	}
	assign := func(kv catalog.KV, stream string) meta.ShardID {
		c, err := catalog.Open(ctx, kv, catalog.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.CreateNamespace(ctx, "logs", catalog.NamespaceConfig{}, "r"); err != nil {
			t.Fatal(err)
		}
		row, _, err := c.Create(ctx, catalog.CreateStream{Name: meta.StreamName{Namespace: "logs", Name: stream}})
		if err != nil {
			t.Fatal(err)
		}
		shard, err := c.Shard(ctx, row.Shard(0))
		if err != nil {
			t.Fatal(err)
		}
		m := meta.Member{Broker: "b1", Storage: meta.StorageID{1}}
		if _, err := c.Grant(ctx, shard, m, 1, []meta.Member{m}); err != nil {
			t.Fatal(err)
		}
		return shard.ID
	}
	assign(server, "kept")
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	old := t.TempDir()
	if err := os.CopyFS(old, os.DirFS(opt.Dir)); err != nil {
		t.Fatal(err)
	}
	server = open(t, opt)
	lost := assign(server, "lost")

	client, err := etcdkv.Connect(ctx, etcdkv.ConnectOptions{Endpoints: urls[:1]})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := catalog.Open(ctx, client, catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	view := c.View("b1", catalog.ViewOptions{Audit: time.Hour})
	defer view.Close()
	if u, err := view.Next(ctx); err != nil || len(u.Assigned) != 2 {
		t.Fatal(u, err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	opt.Dir = old
	open(t, opt)
	for {
		u, err := view.Next(ctx)
		if errors.Is(err, meta.ErrUnavailable) {
			continue
		}
		if err != nil || !u.Rewound || len(u.Removed) != 1 || u.Removed[0] != lost || len(u.Deleted) != 0 {
			t.Errorf("%+v, %v", u, err)
		}
		return
	}
}
