package tiering

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	miniogo "github.com/minio/minio-go/v7"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/segment"
)

// audit holds a whole prefix against what its manifests say. It knows the formats
// and none of the Store's code: what it reads comes from a client of its own.
type audit struct {
	objects map[string][]byte
	faults  []string
	named   map[string]bool // by the newest two manifests of a shard, or one of these
}

func (a *audit) fault(format string, args ...any) {
	a.faults = append(a.faults, fmt.Sprintf(format, args...))
}

func newAudit(objects map[string][]byte) *audit {
	a := &audit{objects: objects, named: make(map[string]bool)}
	written := make(map[meta.ShardID][]*Manifest) // oldest first, lineages in order
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		f, err := parseManifestKey(key)
		if err != nil || f.Depth >= 0 {
			continue
		}
		m, err := DecodeManifest(objects[key])
		if err != nil || m.Key() != key {
			a.fault("%s: %v", key, err)
			continue
		}
		written[m.Shard] = append(written[m.Shard], m)
	}
	for _, list := range written {
		m := list[len(list)-1]
		a.named[m.Key()] = true
		a.manifest(m)
		if len(list) > 1 {
			a.named[list[len(list)-2].Key()] = true
			a.lists(list[len(list)-2].Older, list[len(list)-2])
		}
	}
	return a
}

// manifest checks that everything that can be read is there, once, and verifies.
func (a *audit) manifest(m *Manifest) {
	refs := append(a.lists(m.Older, m), m.Segments...)
	at, lsn := m.StartOffset, meta.LSN(0)
	for i, r := range refs {
		if r.NextOffset <= m.StartOffset {
			continue
		}
		a.named[r.Key] = true
		if r.FirstOffset > at || lsn != 0 && (r.FirstOffset < at || r.FirstLSN < lsn) {
			a.fault("%s: segment %d %s begins at offset %d LSN %d, not at %d, %d", m.Key(), i, r.Key, r.FirstOffset, r.FirstLSN, at, lsn)
		}
		at, lsn = r.NextOffset, r.NextLSN
		a.segment(&r)
	}
	if at != m.NextOffset || lsn > m.ArchivedEnd {
		a.fault("%s: its segments end at offset %d LSN %d, it at %d, %d", m.Key(), at, lsn, m.NextOffset, m.ArchivedEnd)
	}
}

// lists returns the segments below index objects, checking those on the way.
func (a *audit) lists(older []IndexRef, m *Manifest) (out []meta.SegmentRef) {
	for _, r := range older {
		a.named[r.Key] = true
		b, ok := a.objects[r.Key]
		if !ok || int64(len(b)) != r.Size || bucket.Checksum(b) != r.CRC {
			a.fault("%s: index object %s: there %v, %d bytes with %08x", m.Key(), r.Key, ok, len(b), bucket.Checksum(b))
			continue
		}
		x, err := decodeIndexObject(b)
		if err != nil || x.Shard != m.Shard || x.Depth != r.Depth {
			a.fault("%s: %v", r.Key, err)
			continue
		}
		n := len(out)
		out = append(append(out, a.lists(x.Indexes, m)...), x.Segments...)
		if uint64(len(out)-n) != r.Segments {
			a.fault("%s lists %d segments, its reference says %d", r.Key, len(out)-n, r.Segments)
		}
	}
	return out
}

func (a *audit) segment(r *meta.SegmentRef) {
	b, ok := a.objects[r.Key]
	if !ok || int64(len(b)) != r.Size || bucket.Checksum(b) != r.CRC {
		a.fault("segment %s: there %v, %d bytes with %08x: want %d with %08x", r.Key, ok, len(b), bucket.Checksum(b), r.Size, r.CRC)
		return
	}
	rep, err := segment.Inspect(bytes.NewReader(b), int64(len(b)))
	if err != nil || len(rep.Faults) > 0 {
		a.fault("segment %s: %v %v", r.Key, err, rep)
		return
	}
	x := rep.Index
	is := meta.SegmentRef{
		Key: SegmentKey{x.Shard, x.Lineage, x.Epoch, x.FirstLSN, segmentID(r.Key)}.String(), Size: x.Size, CRC: r.CRC, IndexAt: r.IndexAt, IndexLen: r.IndexLen,
		FirstLSN: x.FirstLSN, NextLSN: x.NextLSN, FirstOffset: x.FirstOffset, NextOffset: x.NextOffset,
		FirstTime: x.FirstTime, LastTime: x.LastTime, FirstEpoch: x.FirstEpoch, LastEpoch: x.LastEpoch,
	}
	if is != *r || x.StateAt+int64(x.StateLen) != r.IndexAt || rep.Records != uint64(x.NextOffset-x.FirstOffset) {
		a.fault("segment %s with %d records is %+v, its reference %+v", r.Key, rep.Records, is, *r)
	}
}

func segmentID(key string) (id [16]byte) {
	if k, err := ParseSegmentKey(key); err == nil {
		id = k.ID
	}
	return id
}

// unnamed are the objects of shards that no manifest in use names.
func (a *audit) unnamed() (out []string) {
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if !a.named[key] && (within(key, streamFolder) || within(key, manifestFolder)) {
			out = append(out, key)
		}
	}
	return out
}

// download reads all of a prefix with a client that is not ours.
func download(ctx context.Context, c *miniogo.Client, name, prefix string) (map[string][]byte, error) {
	out := make(map[string][]byte)
	for o := range c.ListObjects(ctx, name, miniogo.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, o.Err
		}
		r, err := c.GetObject(ctx, name, o.Key, miniogo.GetObjectOptions{})
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		r.Close()
		if miniogo.ToErrorResponse(err).Code == miniogo.NoSuchKey {
			continue // swept since it was listed
		}
		if err != nil || int64(len(b)) != o.Size {
			return nil, fmt.Errorf("%s: %d of %d bytes: %w", o.Key, len(b), o.Size, err)
		}
		out[o.Key[len(prefix):]] = b
	}
	return out, nil
}

func (w *world) audit() *audit {
	w.t.Helper()
	objects := make(map[string][]byte)
	for _, key := range w.keys("") {
		b, _, err := w.b.Load(w.t.Context(), key, 1<<30)
		if err != nil {
			w.t.Fatal(err)
		}
		objects[key] = b
	}
	return newAudit(objects)
}

// The audit sees each kind of damage that it is there for.
func TestAuditSees(t *testing.T) {
	for name, harm := range map[string]func(w *world, m *Manifest){
		"":        func(*world, *Manifest) {},
		"missing": func(w *world, m *Manifest) { w.b.Delete(t.Context(), []string{m.Segments[1].Key}) },
		"rot": func(w *world, m *Manifest) {
			w.overwrite(m.Segments[1].Key, func(b []byte) []byte { b[300] ^= 4; return b })
		},
		"swapped": func(w *world, m *Manifest) {
			other, _, _ := w.b.Load(t.Context(), m.Segments[2].Key, 1<<20)
			w.overwrite(m.Segments[1].Key, func([]byte) []byte { return other })
		},
		"gap": func(w *world, m *Manifest) {
			m.Segments = slices.Delete(slices.Clone(m.Segments), 1, 2)
			b, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			w.overwrite(m.Key(), func([]byte) []byte { return b })
		},
		"garbage": func(w *world, _ *Manifest) { w.append(1); w.upload() },
	} {
		w := newWorld(t)
		for range 4 {
			w.append(5)
			w.archive()
		}
		w.sweep()
		m := *w.manifest
		harm(w, &m)
		a := w.audit()
		if (len(a.faults) == 0) != (name == "" || name == "garbage") || (len(a.unnamed()) == 0) == (name == "garbage" || name == "gap") {
			t.Errorf("%q: faults %q, unnamed %q", name, a.faults, a.unnamed())
		}
	}
}
