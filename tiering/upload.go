package tiering

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/segment"
)

// Sealed is a committed run of a shard's log, to be uploaded as one segment.
type Sealed struct {
	Identity segment.Identity // whose, by which leader, which LSN range
	Vector   meta.Vector      // as of Identity.NextLSN
	State    []byte           // folded up to exactly Identity.NextLSN-1
	// Entries starts a walk over the range's entries, in log order, commands or
	// not; each attempt starts anew. Entries are not kept after the next is asked
	// for. An error ends the walk and the upload.
	Entries func(ctx context.Context) iter.Seq2[entry.Entry, error]
}

// upload is one attempt in flight, so that a deleted stream can end it.
type upload struct {
	shard  meta.ShardID
	cancel context.CancelCauseFunc
}

var errDeleted = meta.Errorf(meta.ErrDeleted, "the stream was deleted during the upload")

// sourceError is a failure of the log that is being read, not of the store.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the sealed range: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// UploadSegment writes a sealed run as a segment under a new key and returns its
// reference, once the store has confirmed size and checksum of the whole. Memory
// is bounded whatever the size.
//
// It tries until ctx ends, each time under a new key: an attempt whose outcome is
// unknown may have left an object, which a later sweep removes. It ends early on
// an error of the entries ([meta.ErrCorrupt], or the walk's own), on a range
// without a batch ([meta.ErrInvalid]), and when the incarnation is swept
// meanwhile ([meta.ErrDeleted]). A reference that no mark will name must be
// handed to [Store.GiveUp].
func (s *Store) UploadSegment(ctx context.Context, sealed Sealed) (meta.SegmentRef, error) {
	uctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := &upload{shard: sealed.Identity.Shard, cancel: cancel}
	s.mu.Lock()
	s.uploads[u] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.uploads, u)
		s.mu.Unlock()
	}()

	var key string
	op := func() (meta.SegmentRef, error) {
		id, err := s.newID()
		if err != nil {
			return meta.SegmentRef{}, err
		}
		i := &sealed.Identity
		key = SegmentKey{Shard: i.Shard, Lineage: i.Lineage, Epoch: i.Epoch, Base: i.FirstLSN, ID: id}.String()
		return s.attempt(uctx, key, &sealed)
	}
	again := func(err error) bool {
		var src *sourceError
		return !errors.As(err, &src) && (passing(err) || errors.Is(err, meta.ErrCorrupt))
	}
	ref, err := retry(uctx, s, 0, op, again, func(err error, wait time.Duration) {
		s.count.uploadRetries.Add(1)
		if f := s.opt.Events.UploadRetry; f != nil {
			f(key, err, wait)
		}
	})
	if err != nil && errors.Is(context.Cause(uctx), errDeleted) {
		return meta.SegmentRef{}, errDeleted
	}
	if err != nil {
		return meta.SegmentRef{}, err
	}
	s.count.uploads.Add(1)
	s.count.uploadBytes.Add(uint64(ref.Size))
	return ref, nil
}

func (s *Store) newID() (uuid.UUID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return uuid.NewRandomFromReader(s.opt.Rand)
}

// attempt streams one object. When it may have left one although it failed, the
// key is given up.
func (s *Store) attempt(ctx context.Context, key string, sealed *Sealed) (ref meta.SegmentRef, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.UploadTimeout)
	defer cancel()
	r, w := io.Pipe()
	type written struct {
		ref meta.SegmentRef
		err error
	}
	done := make(chan written, 1)
	go func() {
		ref, err := s.write(ctx, w, sealed)
		w.CloseWithError(err)
		done <- written{ref, err}
	}()
	info, err := s.bucket.Put(ctx, key, bucket.Stream(r), bucket.PutOptions{})
	r.CloseWithError(context.Canceled)
	out := <-done
	var src *sourceError
	stored := err == nil || errors.Is(err, meta.ErrUnknown)
	switch {
	case err == nil && out.err != nil, errors.As(out.err, &src):
		err = out.err
	case err == nil && (info.Size != out.ref.Size || info.CRC32C != out.ref.CRC):
		err = meta.Errorf(meta.ErrCorrupt, "upload of %s: the store holds %d bytes with checksum %08x, sent were %d and %08x", key, info.Size, info.CRC32C, out.ref.Size, out.ref.CRC)
	}
	if err != nil {
		if stored {
			s.giveUp(key, err)
		}
		return meta.SegmentRef{}, err
	}
	out.ref.Key = key
	return out.ref, nil
}

// write puts the segment's bytes into the pipe. Only errors of the sealed range
// itself are a sourceError.
func (s *Store) write(ctx context.Context, out io.Writer, sealed *Sealed) (meta.SegmentRef, error) {
	pipe := &pipeWriter{out: out}
	wrap := func(err error) error {
		if pipe.err != nil {
			return pipe.err
		}
		return &sourceError{err}
	}
	w, err := segment.NewWriter(pipe, sealed.Identity, sealed.Vector, segment.Options{BlockSize: s.opt.BlockSize})
	if err != nil {
		return meta.SegmentRef{}, wrap(err)
	}
	for e, err := range sealed.Entries(ctx) {
		if err == nil {
			err = w.Add(e)
		}
		if err != nil {
			return meta.SegmentRef{}, wrap(err)
		}
	}
	ref, err := w.Finish(sealed.State)
	if err != nil {
		return meta.SegmentRef{}, wrap(err)
	}
	return ref, nil
}

// pipeWriter remembers that it was the pipe that failed.
type pipeWriter struct {
	out io.Writer
	err error
}

func (p *pipeWriter) Write(b []byte) (int, error) {
	n, err := p.out.Write(b)
	p.err = err
	return n, err
}

// GiveUp says that no mark will ever name an uploaded object: the caller has not
// appended one and won't. The leader's next sweep removes it.
func (s *Store) GiveUp(key string) {
	s.giveUp(key, meta.Errorf(meta.ErrConflict, "no mark will name it"))
}

// maxGivenUp bounds the keys remembered. One that is forgotten is swept in the
// next epoch instead.
const maxGivenUp = 1 << 16

func (s *Store) giveUp(key string, why error) {
	s.mu.Lock()
	for k := range s.givenUp {
		if len(s.givenUp) < maxGivenUp {
			break
		}
		delete(s.givenUp, k)
	}
	s.givenUp[key] = struct{}{}
	s.mu.Unlock()
	s.count.givenUp.Add(1)
	if f := s.opt.Events.UploadGivenUp; f != nil {
		f(key, why)
	}
}

// endUploads cancels the uploads of deleted incarnations.
func (s *Store) endUploads(stream meta.StreamName, inc meta.Incarnation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for u := range s.uploads {
		if u.shard.Stream == stream && u.shard.Incarnation == inc {
			u.cancel(errDeleted)
		}
	}
}
