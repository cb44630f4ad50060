package dir

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"sort"
	"strings"
	"time"

	"github.com/varve-io/varve/tiering/bucket"
)

// List walks the tree in the byte order of keys. It holds the names of the folders
// on the way to the current one in memory.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		if err := bucket.CheckPrefix(prefix); err != nil {
			yield(bucket.Info{}, &bucket.Error{Op: "list", Bucket: b.Location(), Key: prefix, Kind: bucket.ErrInvalid, Err: err})
			return
		}
		if err := b.here("list", prefix); err != nil {
			yield(bucket.Info{}, err)
			return
		}
		folder := prefix[:strings.LastIndexByte(prefix, '/')+1]
		w := &walk{b: b, ctx: ctx, prefix: prefix, after: after, yield: yield}
		if w.folder(folder) {
			// A root that went away meanwhile looks like one without objects.
			if err := b.here("list", prefix); err != nil {
				yield(bucket.Info{}, err)
			}
		}
	}
}

type walk struct {
	b             *Bucket
	ctx           context.Context
	prefix, after string
	yield         func(bucket.Info, error) bool
}

// folder walks a folder, "" or with a slash at its end, and says whether to go on.
func (w *walk) folder(folder string) bool {
	if err := w.ctx.Err(); err != nil {
		w.yield(bucket.Info{}, w.b.fail("list", w.prefix, err))
		return false
	}
	name := strings.TrimSuffix(folder, "/")
	if name == "" {
		name = "."
	}
	entries, err := w.b.readDir(name)
	if isMissing(err) {
		return true // never there, or its last object was deleted meanwhile
	}
	if err != nil {
		w.yield(bucket.Info{}, w.b.fail("list", w.prefix, err))
		return false
	}
	for _, e := range entries {
		if folder == "" && strings.HasPrefix(e.Name(), ".") {
			continue // ours, or no key
		}
		key := folder + e.Name()
		if e.IsDir() {
			key += "/"
			if !w.beside(key) && !w.folder(key) {
				return false
			}
			continue
		}
		if !w.object(key, e) {
			return false
		}
	}
	return true
}

// beside says that no key below folder can be wanted.
func (w *walk) beside(folder string) bool {
	if !strings.HasPrefix(folder, w.prefix) && !strings.HasPrefix(w.prefix, folder) {
		return true
	}
	return folder < w.after && !strings.HasPrefix(w.after, folder)
}

func (w *walk) object(key string, e fs.DirEntry) bool {
	if !strings.HasPrefix(key, w.prefix) || key <= w.after || !e.Type().IsRegular() || bucket.CheckKey(key) != nil {
		return true
	}
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return true // deleted meanwhile
	}
	if err != nil {
		w.yield(bucket.Info{}, w.b.fail("list", key, err))
		return false
	}
	return w.yield(bucket.Info{Key: key, Size: info.Size()}, nil)
}

// readDir returns a folder's entries in the order of the keys they lead to: a
// folder counts with the slash that follows it, so "a-b" stands before "a/b".
func (b *Bucket) readDir(folder string) ([]fs.DirEntry, error) {
	d, err := b.root.Open(folder)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	name := func(i int) string {
		if entries[i].IsDir() {
			return entries[i].Name() + "/"
		}
		return entries[i].Name()
	}
	sort.Slice(entries, func(i, j int) bool { return name(i) < name(j) })
	return entries, nil
}

// Tidy removes the uploads of processes that are gone, whatever their age: a lock
// tells that, no clock.
func (b *Bucket) Tidy(ctx context.Context, _ time.Duration) (int, error) {
	leave, err := b.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	n, err := b.sweep()
	if err != nil {
		return n, b.fail("tidy", "", err)
	}
	return n, nil
}
