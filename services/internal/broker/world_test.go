package broker_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/meta/memkv"
	"github.com/varve-io/varve/services/servicetest"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/mem"
	"github.com/varve-io/varve/wal/vfs"
)

// recorder takes a picture of everything that outlives a process (disk, catalog,
// bucket) just before each change of any of them. No other change is under way
// while a picture is taken, so each is what a power cut at that moment would leave.
type recorder struct {
	t     *testing.T
	disk  *vfs.Mem
	fs    *vfs.Fault
	kv    *memkv.Store
	store *mem.Bucket
	note  func() any // what the picture should remember of the moment
	keep  bool       // pictures show what a killed process leaves, not what a power cut does

	gate sync.RWMutex // held for reading by a change
	mu   sync.Mutex
	on   bool
	all  []picture
}

type picture struct {
	before string // the change that came next
	note   any
	disk   *vfs.Mem
	kv     memkv.Backup
	bucket *mem.Bucket
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{t: t, disk: vfs.NewMem(1), kv: memkv.New(memkv.Options{}), store: mem.New("test")}
	r.fs = vfs.NewFault(r.disk)
	r.fs.Hook(func(o vfs.Op) {
		if o.Kind.Changes() {
			r.change("disk: " + o.Kind.String() + " " + o.Path)
		}
	}, func(o vfs.Op, _ error) {
		if o.Kind.Changes() {
			r.gate.RUnlock()
		}
	})
	return r
}

func (r *recorder) world() servicetest.World {
	return servicetest.World{FS: r.fs, KV: gatedKV{r.kv, r}, Bucket: gatedBucket{r.store, r}}
}

// record switches the taking of pictures on or off.
func (r *recorder) record(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on = on
}

// change takes a picture if it should, and then holds the gate for reading.
func (r *recorder) change(what string) {
	r.mu.Lock()
	on := r.on
	r.mu.Unlock()
	if on {
		r.gate.Lock()
		r.take(what)
		r.gate.Unlock()
	}
	r.gate.RLock()
}

// take takes a picture. The gate is held for writing.
func (r *recorder) take(what string) {
	disk := r.disk.KillClone()
	if !r.keep {
		disk = r.disk.CrashClone(vfs.CrashOptions{})
	}
	p := picture{before: what, disk: disk, kv: r.kv.Backup(), bucket: copyBucket(r.t, r.store)}
	if r.note != nil {
		p.note = r.note()
	}
	r.mu.Lock()
	r.all = append(r.all, p)
	r.mu.Unlock()
}

// pictures takes a last one and returns all.
func (r *recorder) pictures() []picture {
	r.record(false)
	r.gate.Lock()
	r.take("the end")
	r.gate.Unlock()
	return r.all
}

// world is what the picture shows, ready to be started.
func (p *picture) world() servicetest.World {
	kv := memkv.New(memkv.Options{})
	kv.Rewind(p.kv)
	return servicetest.World{FS: p.disk, KV: kv, Bucket: p.bucket}
}

func copyBucket(t testing.TB, from bucket.Bucket) *mem.Bucket {
	to, ctx := mem.New("copy"), context.Background()
	for info, err := range from.List(ctx, "", "") {
		if err != nil {
			t.Error(err)
			return to
		}
		data, _, err := from.Load(ctx, info.Key, 64<<20)
		if err == nil {
			_, err = to.Put(ctx, info.Key, bucket.Bytes(data), bucket.PutOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	return to
}

type gatedKV struct {
	catalog.KV
	r *recorder
}

func (g gatedKV) Commit(ctx context.Context, t catalog.Transaction) (catalog.Result, error) {
	g.r.change("catalog")
	defer g.r.gate.RUnlock()
	return g.KV.Commit(ctx, t)
}

type gatedBucket struct {
	*mem.Bucket
	r *recorder
}

func (g gatedBucket) Put(ctx context.Context, key string, body bucket.Body, o bucket.PutOptions) (bucket.Info, error) {
	data, err := io.ReadAll(body.Reader()) // before the gate: it comes from the disk
	if err != nil {
		return bucket.Info{}, err
	}
	g.r.change("bucket: put " + key)
	defer g.r.gate.RUnlock()
	return g.Bucket.Put(ctx, key, bucket.Bytes(data), o)
}

func (g gatedBucket) Delete(ctx context.Context, keys []string) error {
	g.r.change("bucket: delete " + strings.Join(keys, " "))
	defer g.r.gate.RUnlock()
	return g.Bucket.Delete(ctx, keys)
}

// hookedKV calls a function after each read of a key, before its answer is given.
type hookedKV struct {
	catalog.KV
	after func(key string)
}

func (h *hookedKV) Get(ctx context.Context, key string) (catalog.KeyValue, bool, catalog.Revision, error) {
	kv, found, at, err := h.KV.Get(ctx, key)
	h.after(key)
	return kv, found, at, err
}

// journal is a log that a test reads.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

func (j *journal) has(s string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), s)
}
