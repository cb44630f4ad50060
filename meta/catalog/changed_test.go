package catalog_test

import (
	"context"
	"errors"
	"testing"

	"github.com/varve-io/varve/meta/catalog"
)

func TestChanged(t *testing.T) {
	onBoth(t, func(t *testing.T, kv compactor) {
		ctx := t.Context()
		c := setUp(t, kv, catalog.Options{})
		at, err := c.Revision(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s := create(t, c, "a")
		got, err := c.Changed(ctx, catalog.AreaStreams, at) // it has happened already
		if err != nil || got != s.Revision {
			t.Errorf("%d, %v; want %d", got, err, s.Revision)
		}
		done := make(chan error)
		go func() {
			_, err := c.Changed(ctx, catalog.AreaShards, s.Revision)
			done <- err
		}()
		row := grant(t, c, s, "b1")
		if err := <-done; err != nil {
			t.Error(err)
		}
		kv.compact(row.Revision)
		if got, err := c.Changed(ctx, catalog.AreaBrokers, at); err != nil || got < row.Revision {
			t.Errorf("a gap: %d, %v", got, err)
		}
		if got, err := c.Changed(ctx, catalog.AreaBrokers, row.Revision+100); err != nil || got != row.Revision {
			t.Errorf("a rewind: %d, %v", got, err)
		}
		short, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := c.Changed(short, catalog.AreaBrokers, row.Revision); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}
