package tiering

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
)

// passing reports whether trying again may help.
func passing(err error) bool {
	return errors.Is(err, meta.ErrUnavailable) || errors.Is(err, meta.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// retry runs op until it succeeds, fails for good, ctx ends, or for has passed (0:
// no limit), with growing pauses and jitter. When it gives up, the error is op's
// last one, or a [meta.ErrUnavailable] that says what was waited for.
func retry[T any](ctx context.Context, s *Store, limit time.Duration, op func() (T, error), again func(error) bool, notify backoff.Notify) (T, error) {
	var last error
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = min(200*time.Millisecond, s.opt.RetryMax)
	b.MaxInterval = s.opt.RetryMax
	v, err := backoff.Retry(ctx, func() (T, error) {
		v, err := op()
		last = err
		if err != nil && (ctx.Err() != nil || !again(err)) {
			err = backoff.Permanent(err)
		}
		return v, err
	}, backoff.WithBackOff(b), backoff.WithMaxElapsedTime(limit), backoff.WithNotify(notify))
	switch {
	case err == nil:
		return v, nil
	case last == nil:
		return v, meta.Errorf(meta.ErrUnavailable, "bucket %s: %w", s.bucket.Location(), err)
	case ctx.Err() != nil && !errors.Is(last, ctx.Err()):
		return v, meta.Errorf(meta.ErrUnavailable, "given up (%w) while: %w", context.Cause(ctx), last)
	}
	return v, last
}

// putSmall stores an immutable object of which anyone may be the writer, and is
// content when the same bytes lie there already. It tries until ctx ends.
func (s *Store) putSmall(ctx context.Context, key string, data []byte) error {
	sum := bucket.Checksum(data)
	op := func() (struct{}, error) {
		rctx, cancel := context.WithTimeout(ctx, s.opt.GetTimeout)
		defer cancel()
		_, err := s.bucket.Put(rctx, key, bucket.Bytes(data), bucket.PutOptions{IfAbsent: true, CRC32C: &sum})
		if errors.Is(err, bucket.ErrExists) {
			err = s.same(rctx, key, data)
		}
		return struct{}{}, err
	}
	_, err := retry(ctx, s, 0, op, passing, func(err error, wait time.Duration) {
		if f := s.opt.Events.UploadRetry; f != nil {
			f(key, err, wait)
		}
	})
	return err
}

// same reports whether an object holds exactly these bytes.
func (s *Store) same(ctx context.Context, key string, data []byte) error {
	got, _, err := s.bucket.Load(ctx, key, maxDocument)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return meta.Errorf(meta.ErrConflict, "object %s in %s is there with other content: %d bytes, want %d; somebody else writes to this prefix", key, s.bucket.Location(), len(got), len(data))
	}
	return nil
}

// load reads a whole small object. Errors name it.
func (s *Store) load(ctx context.Context, key string) ([]byte, error) {
	op := func() ([]byte, error) {
		release, err := s.permit(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
		rctx, cancel := context.WithTimeout(ctx, s.opt.GetTimeout)
		defer cancel()
		b, _, err := s.bucket.Load(rctx, key, maxDocument)
		s.count.gets.Add(1)
		s.count.getBytes.Add(uint64(len(b)))
		return b, err
	}
	return retry(ctx, s, s.opt.FetchFor, op, passing, func(error, time.Duration) { s.count.getRetries.Add(1) })
}

// permit waits for one of the requests that may run at once.
func (s *Store) permit(ctx context.Context) (release func(), err error) {
	select {
	case s.permits <- struct{}{}:
		return func() { <-s.permits }, nil
	case <-ctx.Done():
		return nil, meta.Errorf(meta.ErrUnavailable, "wait for a download slot: %w", context.Cause(ctx))
	}
}

// PutManifest stores a step's index objects, then its manifest. Anyone may, any
// number of times; it tries until ctx ends. An error that is a [meta.ErrConflict]
// means that the key holds something else.
func (s *Store) PutManifest(ctx context.Context, step *Step) error {
	for _, o := range step.objects {
		if err := s.putSmall(ctx, o.key, o.data); err != nil {
			return err
		}
	}
	s.count.manifests.Add(1)
	return nil
}

// LoadManifest reads one manifest and checks that it is the one asked for. A
// missing one is a [bucket.ErrNotExist]; one that does not verify a
// [*DamagedError] that names it.
func (s *Store) LoadManifest(ctx context.Context, shard meta.ShardID, id ManifestID) (*Manifest, error) {
	key := ManifestKey(shard, id)
	b, err := s.load(ctx, key)
	if err != nil {
		return nil, err
	}
	m, err := DecodeManifest(b)
	if err == nil && (m.Shard != shard || m.ID() != id) {
		err = meta.Errorf(meta.ErrCorrupt, "it is the manifest %s", m.Key())
	}
	if err != nil {
		return nil, s.damaged(&DamagedError{Key: key, Len: int64(len(b)), Err: err})
	}
	return m, nil
}

// Newest returns a shard's newest written manifest of its own lineage; when there
// is none yet, the one its row is based on, if base names one; else nil. Other
// lineages are not believed, however new.
func (s *Store) Newest(ctx context.Context, shard meta.ShardID, lineage meta.Lineage, base ManifestID) (*Manifest, error) {
	var had ManifestID
	for {
		id, err := s.newestID(ctx, shard, lineage)
		if err != nil {
			return nil, err
		}
		if id.IsZero() {
			id = base
		}
		if id.IsZero() {
			return nil, nil
		}
		m, err := s.LoadManifest(ctx, shard, id)
		if !missing(err) || id == had {
			return m, err
		}
		had = id // superseded and swept since it was listed: then there are newer ones
	}
}

func (s *Store) newestID(ctx context.Context, shard meta.ShardID, lineage meta.Lineage) (id ManifestID, err error) {
	for info, err := range s.bucket.List(ctx, manifestPrefix(shard)+meta.Hex(lineage)+"-", "") {
		if err != nil {
			return id, err
		}
		if f, err := parseManifestKey(info.Key); err == nil && f.Depth < 0 && f.ID.Mark > id.Mark {
			id = f.ID
		}
	}
	return id, nil
}

// ManifestInfo is one manifest object in the bucket.
type ManifestInfo struct {
	Shard meta.ShardID
	ID    ManifestID
	Size  int64
}

// Manifests lists all manifests of the prefix in the order of their keys, by one
// flat listing: those of a shard stand together, oldest lineage and mark first.
// Keys that are no manifest's are left out. A pair with an error is the last.
func (s *Store) Manifests(ctx context.Context) iter.Seq2[ManifestInfo, error] {
	return func(yield func(ManifestInfo, error) bool) {
		for info, err := range s.bucket.List(ctx, manifestFolder, "") {
			if err != nil {
				yield(ManifestInfo{}, err)
				return
			}
			f, err := parseManifestKey(info.Key)
			if err != nil || f.Depth >= 0 {
				continue
			}
			if !yield(ManifestInfo{f.Shard, f.ID, info.Size}, nil) {
				return
			}
		}
	}
}

// PutTombstone stores the object of one deleted incarnation. Twice is harmless.
func (s *Store) PutTombstone(ctx context.Context, t meta.Tombstone) error {
	b, err := encodeTombstone(t)
	if err != nil {
		return err
	}
	return s.putSmall(ctx, tombstoneKey(t.Stream, t.Through), b)
}

// Tombstones lists the tombstone objects of the prefix, several for a name that
// was deleted several times, lowest first. A pair with an error is the last.
func (s *Store) Tombstones(ctx context.Context) iter.Seq2[meta.Tombstone, error] {
	return s.tombstones(ctx, tombstoneFolder)
}

func (s *Store) tombstones(ctx context.Context, prefix string) iter.Seq2[meta.Tombstone, error] {
	return func(yield func(meta.Tombstone, error) bool) {
		for info, err := range s.bucket.List(ctx, prefix, "") {
			if err != nil {
				yield(meta.Tombstone{}, err)
				return
			}
			t, err := parseTombstoneKey(info.Key)
			if err != nil {
				continue
			}
			if !yield(t, nil) {
				return
			}
		}
	}
}

// tombstoned returns the lowest tombstone object that covers an incarnation.
func (s *Store) tombstoned(ctx context.Context, stream meta.StreamName, inc meta.Incarnation) (bool, error) {
	for t, err := range s.tombstones(ctx, tombstoneFolder+stream.Escaped()+"/") {
		if err != nil {
			return false, err
		}
		if t.Covers(inc) {
			b, err := s.load(ctx, tombstoneKey(t.Stream, t.Through))
			if err != nil {
				return false, err
			}
			got, err := decodeTombstone(b)
			return err == nil && got == t, err
		}
	}
	return false, nil
}

type tombstoneText struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Through   hexNumber `json:"deleted_through"`
}

func encodeTombstone(t meta.Tombstone) ([]byte, error) {
	if err := t.Stream.Validate(); err != nil {
		return nil, err
	}
	return encodeDocument(tombstoneMagic, &tombstoneText{t.Stream.Namespace, t.Stream.Name, hexNumber(t.Through)})
}

func decodeTombstone(b []byte) (meta.Tombstone, error) {
	var t tombstoneText
	if err := decodeDocument(tombstoneMagic, b, &t); err != nil {
		return meta.Tombstone{}, err
	}
	out := meta.Tombstone{Stream: meta.StreamName{Namespace: t.Namespace, Name: t.Name}, Through: meta.Incarnation(t.Through)}
	if err := out.Stream.Validate(); err != nil {
		return meta.Tombstone{}, meta.Errorf(meta.ErrCorrupt, "tombstone: %w", err)
	}
	return out, nil
}
