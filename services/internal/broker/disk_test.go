package broker_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/etcdkv"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket/dir"
	"github.com/varve-io/varve/wal/vfs"
)

// The same life on what a server uses: etcd, files and a directory as the bucket.
//
// Rows: N1, C2, C3
func TestOnRealDisks(t *testing.T) {
	home := t.TempDir()
	n := servicetest.New(t, servicetest.Options{World: servicetest.World{FS: vfs.OS(), Dir: filepath.Join(home, "data"), Run: filepath.Join(home, "run")}})
	open := func() (closed func()) {
		t.Helper()
		kv, err := etcdkv.Open(n.Context(), etcdkv.Options{Dir: filepath.Join(home, "catalog"), SegmentBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		objects, err := dir.OpenPath(n.Context(), filepath.Join(home, "objects"))
		if err != nil {
			t.Fatal(err)
		}
		n.KV, n.Bucket = kv, objects
		n.Rewire()
		if err := n.Open(); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := kv.Close(); err != nil {
				t.Error(err)
			}
			if err := objects.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	closed := open()
	old := n.Create("logs/app")
	n.Archive(old, "old")
	n.Delete(old)
	id := n.Create("logs/app")
	p := producer(3)
	var first []byte
	var all []string
	for i := range 20 {
		b := p.next(fmt.Sprint(i))
		if i == 0 {
			first = b
		}
		mustSend(t, n, id, b)
		all = append(all, fmt.Sprint(i))
	}
	n.Archive(id, "archived")
	all = append(all, "archived")
	for _, clean := range []bool{false, true, true} {
		if clean {
			if err := n.Stop(); err != nil {
				t.Fatal(err)
			}
		} else {
			n.Kill()
		}
		closed()
		closed = open()
		want(t, n.Read(id, 0), all...)
		if r := mustSend(t, n, id, first); !r.Duplicate || r.First != 0 {
			t.Fatalf("retry: %+v", r)
		}
		if r := n.Append(id, "more"); r.First != meta.Offset(len(all)) {
			t.Fatalf("append: %+v, want offset %d", r, len(all))
		}
		all = append(all, "more")
	}
	n.Eventually("the purge of the old one", func() bool {
		return len(n.Keys("streams/"+old.Stream.Escaped()+"/"+meta.Hex(old.Incarnation))) == 0
	})
	n.Kill()
	closed()
}
