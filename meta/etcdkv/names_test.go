package etcdkv_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/etcdkv"
)

// synced is what a power cut would leave of a tree of names: those that a folder
// held when it was synced last.
type synced map[string][]string

func (s synced) sync(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	s[folder] = names
	return nil
}

// holds reports whether a path would be found after a power cut.
func (s synced) holds(path, root string) bool {
	for ; path != root; path = filepath.Dir(path) {
		if !slices.Contains(s[filepath.Dir(path)], filepath.Base(path)) {
			return false
		}
	}
	return true
}

// Rows: E10. What the catalog acknowledged is found again after a power cut, which
// takes every name that was not synced.
func TestE10_NamesOfTheCatalogAreSynced(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	opt := options(filepath.Join(root, "data", "catalog"))
	opt.NoSync = false
	names := synced{}
	opt.OnSyncDir(names.sync)
	s := open(t, opt)
	if _, err := s.Commit(t.Context(), catalog.Transaction{Then: []catalog.Op{{Key: "k", Value: []byte("v")}}}); err != nil {
		t.Fatal(err)
	}
	found := 0
	err := filepath.WalkDir(opt.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".wal") && filepath.Base(path) != "db" {
			return err
		}
		found++
		if !names.holds(path, root) {
			t.Errorf("%s would be gone after a power cut", path)
		}
		return nil
	})
	if err != nil || found < 2 {
		t.Fatalf("%d files of etcd's found, %v", found, err)
	}
}

// A folder that can't be synced is no place for a catalog.
func TestCatalogWithoutNamesIsRefused(t *testing.T) {
	t.Parallel()
	opt := options(t.TempDir())
	opt.NoSync = false
	opt.OnSyncDir(func(string) error { return os.ErrInvalid })
	if s, err := etcdkv.Open(t.Context(), opt); err == nil {
		s.Close()
		t.Fatal("opened")
	}
}
