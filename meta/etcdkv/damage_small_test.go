package etcdkv_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/etcdkv"
)

const rounds = 60

func contextFor(opt etcdkv.Options) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), opt.StartTimeout+10*time.Second)
}

func TestMissingLogIsRefused(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	if err := os.RemoveAll(filepath.Join(dir, "member", "wal")); err != nil {
		t.Fatal(err)
	}
	if _, err := etcdkv.Open(t.Context(), options(dir)); !errors.Is(err, meta.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, options(dir))
	if _, err := etcdkv.Open(t.Context(), options(dir)); !errors.Is(err, meta.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}
