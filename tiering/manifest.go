package tiering

import (
	"encoding/json"
	"sort"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

const (
	// width is how many segments stand in a manifest, and in each index object.
	width = 1024
	// maxDepth bounds the tree of index objects: 1,024 to the power of 4 segments.
	maxDepth = 3
)

// Manifest lists a shard's segments and holds the shard's state at their end: all
// that is needed to stand the shard up again. Read-only once made.
type Manifest struct {
	Shard   meta.ShardID
	Lineage meta.Lineage
	Mark    meta.LSN   // LSN of the mark it was built from
	Epoch   meta.Epoch // of that mark
	Parent  ManifestID // the manifest it continues, of another lineage for the first of its own; zero for the very first
	Level   uint16     // format level

	ArchivedEnd meta.LSN    // all below is in segments, or below the start offset
	StartOffset meta.Offset // first that may be read
	NextOffset  meta.Offset // of the next record after the archived ones
	// Vector holds the pair that covers ArchivedEnd-1, if any entry is archived:
	// what every copy still knows, however late it builds this manifest.
	Vector meta.Vector

	Row   []byte // the stream's catalog row as of the mark; opaque
	State []byte // shard state folded up to exactly ArchivedEnd-1; opaque

	Older    []IndexRef        // index objects, oldest first
	Segments []meta.SegmentRef // the newest, oldest first, at most 1,024
}

// IndexRef names an index object and what the segments below it cover.
type IndexRef struct {
	Key      string
	Size     int64
	CRC      uint32 // CRC32C of the whole object
	Depth    int    // 0: it lists segments; else index objects of one less
	Segments uint64 // below it, in all
	Bytes    uint64 // of those

	FirstLSN, NextLSN       meta.LSN
	FirstOffset, NextOffset meta.Offset
	FirstTime, LastTime     meta.Micros
}

// indexObject is 1,024 references that no longer fit a manifest.
type indexObject struct {
	Shard    meta.ShardID
	ID       ManifestID // of the manifest that moved them out
	Depth    int
	Segments []meta.SegmentRef // of depth 0
	Indexes  []IndexRef        // of the others
}

// ID is the manifest's own name.
func (m *Manifest) ID() ManifestID { return ManifestID{Lineage: m.Lineage, Mark: m.Mark} }

// Key is where the manifest lies.
func (m *Manifest) Key() string { return ManifestKey(m.Shard, m.ID()) }

// Count is how many segments the manifest names in all, and their bytes. Segments
// in index objects below the start offset are counted until their index object goes.
func (m *Manifest) Count() (segments, bytes uint64) {
	for i := range m.Older {
		segments += m.Older[i].Segments
		bytes += m.Older[i].Bytes
	}
	for i := range m.Segments {
		segments++
		bytes += uint64(m.Segments[i].Size)
	}
	return segments, bytes
}

// live reports whether a reference that ends there still holds a readable record.
func (m *Manifest) live(next meta.Offset) bool { return next > m.StartOffset }

func (m *Manifest) validate() error {
	bad := func(format string, args ...any) error {
		return meta.Errorf(meta.ErrCorrupt, "manifest "+m.Key()+": "+format, args...)
	}
	if err := m.Shard.Stream.Validate(); err != nil {
		return bad("%w", err)
	}
	if err := m.Vector.Validate(); err != nil {
		return bad("%w", err)
	}
	switch {
	case m.Shard.Incarnation == 0 || m.Shard.Shard >= meta.MaxShards || m.Mark == 0 || m.ArchivedEnd == 0:
		return bad("incarnation, shard, mark or archived end is out of range")
	case m.ArchivedEnd > m.Mark:
		return bad("archived end %d lies above its own mark", m.ArchivedEnd)
	case m.NextOffset > meta.MaxOffset || m.StartOffset > m.NextOffset:
		return bad("start offset %d, next %d", m.StartOffset, m.NextOffset)
	case len(m.Segments) > width || len(m.Older) > width*(maxDepth+1):
		return bad("%d segments and %d index objects", len(m.Segments), len(m.Older))
	}
	depth, lsn, offset := maxDepth, meta.LSN(0), meta.Offset(0)
	for i := range m.Older {
		x := &m.Older[i]
		if x.Depth > depth || x.Depth < 0 || !follows(x.FirstLSN, x.NextLSN, lsn) || x.NextOffset < offset || !x.sound() {
			return bad("index object %s does not follow the one before it", x.Key)
		}
		depth, lsn, offset = x.Depth, x.NextLSN, x.NextOffset
	}
	if err := checkSegments(m.Segments, lsn, offset); err != nil {
		return bad("%w", err)
	}
	if n := len(m.Segments); n > 0 && m.Segments[n-1].NextLSN > m.ArchivedEnd {
		return bad("its last segment ends at LSN %d, above the archived end %d", m.Segments[n-1].NextLSN, m.ArchivedEnd)
	}
	return nil
}

func (x *IndexRef) sound() bool {
	return x.Size > 0 && x.Segments > 0 && x.NextOffset > x.FirstOffset && x.NextOffset <= meta.MaxOffset && x.LastTime >= x.FirstTime
}

func follows(first, next, after meta.LSN) bool { return first > 0 && next > first && next >= after }

// checkSegments wants ends and starts that never go back, which is all a look-up
// needs. Ranges may overlap: a reader takes each offset once.
func checkSegments(refs []meta.SegmentRef, lsn meta.LSN, offset meta.Offset) error {
	first := meta.LSN(0)
	for i := range refs {
		r := &refs[i]
		if !follows(r.FirstLSN, r.NextLSN, lsn) || r.FirstLSN < first || r.NextOffset < offset || r.NextOffset <= r.FirstOffset || r.NextOffset > meta.MaxOffset ||
			r.LastTime < r.FirstTime || r.IndexAt < 0 || r.IndexLen <= 0 || r.IndexAt > r.Size-r.IndexLen {
			return meta.Errorf(meta.ErrCorrupt, "segment %s does not follow the one before it", r.Key)
		}
		first, lsn, offset = r.FirstLSN, r.NextLSN, r.NextOffset
	}
	return nil
}

func (x *indexObject) validate() error {
	n := len(x.Segments)
	if x.Depth > 0 {
		n = len(x.Indexes)
	}
	if n == 0 || n > width || x.Depth < 0 || x.Depth > maxDepth || (x.Depth == 0) == (len(x.Segments) == 0) {
		return meta.Errorf(meta.ErrCorrupt, "segment list of depth %d holds %d segments and %d lists", x.Depth, len(x.Segments), len(x.Indexes))
	}
	lsn, offset := meta.LSN(0), meta.Offset(0)
	for i := range x.Indexes {
		r := &x.Indexes[i]
		if r.Depth != x.Depth-1 || !follows(r.FirstLSN, r.NextLSN, lsn) || r.NextOffset < offset || !r.sound() {
			return meta.Errorf(meta.ErrCorrupt, "segment list %s does not follow the one before it", r.Key)
		}
		lsn, offset = r.NextLSN, r.NextOffset
	}
	return checkSegments(x.Segments, 0, 0)
}

// ends are the upper ends of a reference, by which all look-ups go.
type ends struct {
	lsn    meta.LSN
	offset meta.Offset
	time   meta.Micros
}

func (x *IndexRef) ends() ends                  { return ends{x.NextLSN, x.NextOffset, x.LastTime} }
func endsOf(s *meta.SegmentRef) ends            { return ends{s.NextLSN, s.NextOffset, s.LastTime} }
func aboveOffset(o meta.Offset) func(ends) bool { return func(e ends) bool { return e.offset > o } }
func aboveLSN(n meta.LSN) func(ends) bool       { return func(e ends) bool { return e.lsn > n } }
func notBefore(t meta.Micros) func(ends) bool   { return func(e ends) bool { return e.time >= t } }

// searchSegments finds the first reference that passes; ends only grow.
func searchSegments(refs []meta.SegmentRef, pass func(ends) bool) int {
	return sort.Search(len(refs), func(i int) bool { return pass(endsOf(&refs[i])) })
}

func searchIndexes(refs []IndexRef, pass func(ends) bool) int {
	return sort.Search(len(refs), func(i int) bool { return pass(refs[i].ends()) })
}

// Encode returns the object's bytes; the same manifest always gives the same.
func (m *Manifest) Encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	return encodeDocument(manifestMagic, &manifestJSON{m})
}

// DecodeManifest reads a manifest and checks all of it. Errors are
// [meta.ErrCorrupt] or [meta.ErrFormatLevel].
func DecodeManifest(b []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := decodeDocument(manifestMagic, b, &manifestJSON{m}); err != nil {
		return nil, err
	}
	if m.Level > entry.Level {
		return nil, meta.Errorf(meta.ErrFormatLevel, "manifest %s has format level %d: this build knows up to %d; start a newer build", m.Key(), m.Level, entry.Level)
	}
	return m, m.validate()
}

var (
	_ json.Marshaler   = (*manifestJSON)(nil)
	_ json.Unmarshaler = (*manifestJSON)(nil)
)
