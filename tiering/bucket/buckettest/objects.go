package buckettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing/iotest"

	"github.com/varve-io/varve/tiering/bucket"
)

// roundTrip stores every form of body in many sizes.
func (s *suite) roundTrip(ctx context.Context, b bucket.Bucket) error {
	for i, size := range []int64{0, 1, 4095, 65536, 1<<20 + 1, s.opts.Large} {
		p := random(int64(i), size)
		crc := bucket.Checksum(p)
		for form, body := range map[string]func() bucket.Body{
			"bytes":  func() bucket.Body { return bucket.Bytes(p) },
			"at":     func() bucket.Body { return bucket.At(bytes.NewReader(p), size) },
			"stream": func() bucket.Body { return bucket.Stream(iotest.HalfReader(bytes.NewReader(p))) },
			"eof":    func() bucket.Body { return bucket.Stream(iotest.DataErrReader(bytes.NewReader(p))) },
		} {
			for name, opts := range map[string]bucket.PutOptions{"plain": {}, "full": {IfAbsent: true, CRC32C: &crc}} {
				key := fmt.Sprintf("round/%s-%s/%d.seg", form, name, size)
				info, err := b.Put(ctx, key, body(), opts)
				if err != nil {
					return err
				}
				if info.Key != key || info.Size != size || info.CRC32C != crc {
					return fmt.Errorf("put %s answered %+v, want size %d, checksum %08x", key, info, size, crc)
				}
				if err := s.holds(ctx, b, key, p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ranges reads parts, up to the last byte and beyond it.
func (s *suite) ranges(ctx context.Context, b bucket.Bucket) error {
	p := random(7, 100_000)
	if err := put(ctx, b, "r/x.seg", p); err != nil {
		return err
	}
	for _, r := range [][2]int64{{0, 1}, {0, 100_000}, {99_999, 1}, {5, 77}, {65_535, 2}, {50_000, 50_000}, {0, 0}, {100_000, 0}} {
		got, err := b.Get(ctx, "r/x.seg", r[0], r[1])
		if err != nil {
			return err
		}
		if !bytes.Equal(got, p[r[0]:r[0]+r[1]]) {
			return fmt.Errorf("range %v: got %d other bytes", r, len(got))
		}
	}
	for _, r := range [][2]int64{{0, 100_001}, {99_999, 2}, {100_000, 1}, {200_000, 10}, {1 << 40, 1 << 20}} {
		_, err := b.Get(ctx, "r/x.seg", r[0], r[1])
		if err := want(err, bucket.ErrCorrupt, "range %v of 100000 bytes", r); err != nil {
			return err
		}
	}
	for _, r := range [][2]int64{{-1, 5}, {0, -1}} {
		_, err := b.Get(ctx, "r/x.seg", r[0], r[1])
		if err := want(err, bucket.ErrInvalid, "range %v", r); err != nil {
			return err
		}
	}
	if _, err := b.Get(ctx, "r/x.seg", math.MaxInt64-1, math.MaxInt64); err == nil {
		return errors.New("a range beyond all numbers was read")
	}
	return nil
}

func (s *suite) missing(ctx context.Context, b bucket.Bucket) error {
	if err := put(ctx, b, "here/a", []byte("a")); err != nil {
		return err
	}
	for _, key := range []string{"none", "here", "here/b", "here/a/b", "there/a"} {
		if err := absent(ctx, b, key); err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) ifAbsent(ctx context.Context, b bucket.Bucket) error {
	first, second := []byte("the first"), []byte("the second")
	opts := bucket.PutOptions{IfAbsent: true}
	if _, err := b.Put(ctx, "claims/1.json", bucket.Bytes(first), opts); err != nil {
		return err
	}
	for name, body := range map[string]bucket.Body{
		"other":  bucket.Bytes(second),
		"same":   bucket.Bytes(first),
		"stream": bucket.Stream(bytes.NewReader(second)),
		"large":  bucket.Stream(bytes.NewReader(random(1, s.opts.Large))),
	} {
		_, err := b.Put(ctx, "claims/1.json", body, opts)
		if err := want(err, bucket.ErrExists, "second put, %s", name); err != nil {
			return err
		}
		if err := s.holds(ctx, b, "claims/1.json", first); err != nil {
			return err
		}
	}
	if err := b.Delete(ctx, []string{"claims/1.json"}); err != nil {
		return err
	}
	if _, err := b.Put(ctx, "claims/1.json", bucket.Bytes(second), opts); err != nil {
		return fmt.Errorf("after a delete the key is free: %w", err)
	}
	return s.holds(ctx, b, "claims/1.json", second)
}

// oneWinner races writers of different content for one key, in several rounds.
func (s *suite) oneWinner(ctx context.Context, b bucket.Bucket) error {
	const writers = 12
	for round := range 10 {
		key := fmt.Sprintf("race/%d/x.json", round)
		var wins atomic.Int32
		var winner atomic.Int64
		err := each(writers, func(i int) error {
			_, err := b.Put(ctx, key, bucket.Bytes(random(int64(i), 2000)), bucket.PutOptions{IfAbsent: true})
			if err == nil {
				wins.Add(1)
				winner.Store(int64(i))
				return nil
			}
			return want(err, bucket.ErrExists, "a loser")
		})
		if err != nil {
			return err
		}
		if wins.Load() != 1 {
			return fmt.Errorf("round %d: %d winners", round, wins.Load())
		}
		if err := s.holds(ctx, b, key, random(winner.Load(), 2000)); err != nil {
			return fmt.Errorf("the object is not the winner's: %w", err)
		}
	}
	return nil
}

// overwrite: a plain put replaces, in one step, shorter or longer.
func (s *suite) overwrite(ctx context.Context, b bucket.Bucket) error {
	for _, size := range []int64{5000, 10, 0, 70_000} {
		p := random(size, size)
		if err := put(ctx, b, "over/x", p); err != nil {
			return err
		}
		if err := s.holds(ctx, b, "over/x", p); err != nil {
			return err
		}
	}
	return nil
}

// badChecksum: bytes that don't match are refused, and what was there stays.
func (s *suite) badChecksum(ctx context.Context, b bucket.Bucket) error {
	old := []byte("the old one")
	if err := put(ctx, b, "sum/old", old); err != nil {
		return err
	}
	for _, size := range []int64{0, 1000, s.opts.Large} {
		p := random(3, size)
		wrong := bucket.Checksum(p) ^ 1
		for form, body := range map[string]func() bucket.Body{
			"bytes":  func() bucket.Body { return bucket.Bytes(p) },
			"stream": func() bucket.Body { return bucket.Stream(bytes.NewReader(p)) },
		} {
			for _, key := range []string{"sum/new-" + form, "sum/old"} {
				_, err := b.Put(ctx, key, body(), bucket.PutOptions{CRC32C: &wrong})
				if err := want(err, bucket.ErrCorrupt, "a %s body of %d bytes with a wrong checksum", form, size); err != nil {
					return err
				}
			}
			if err := absent(ctx, b, "sum/new-"+form); err != nil {
				return err
			}
		}
	}
	return s.holds(ctx, b, "sum/old", old)
}

var errBody = errors.New("the body broke")

// badBody: a body that fails or ends early stores nothing; its error comes through.
func (s *suite) badBody(ctx context.Context, b bucket.Bucket) error {
	for _, good := range []int64{0, 10, 100_000, s.opts.Large - 1} {
		r := io.MultiReader(bytes.NewReader(random(1, good)), iotest.ErrReader(errBody))
		_, err := b.Put(ctx, "bad/stream", bucket.Stream(r), bucket.PutOptions{})
		if err := want(err, errBody, "a stream that fails after %d bytes", good); err != nil {
			return err
		}
		if err := absent(ctx, b, "bad/stream"); err != nil {
			return err
		}
	}
	crc := uint32(1)
	for _, size := range []int64{20, s.opts.Large} {
		for _, opts := range []bucket.PutOptions{{}, {CRC32C: &crc}} {
			_, err := b.Put(ctx, "bad/short", bucket.At(strings.NewReader("ten bytes."), size), opts)
			if err := want(err, bucket.ErrCorrupt, "10 bytes announced as %d", size); err != nil {
				return err
			}
			_, err = b.Put(ctx, "bad/short", bucket.At(brokenAt{size / 2}, size), opts)
			if err := want(err, errBody, "a source of %d bytes that fails half-way", size); err != nil {
				return err
			}
			if err := absent(ctx, b, "bad/short"); err != nil {
				return err
			}
		}
	}
	return nil
}

// brokenAt reads zeroes, and fails from a position on.
type brokenAt struct{ from int64 }

func (r brokenAt) ReadAt(p []byte, off int64) (int, error) {
	n := max(0, min(int64(len(p)), r.from-off))
	if clear(p[:n]); n < int64(len(p)) {
		return int(n), errBody
	}
	return int(n), nil
}

func (s *suite) limit(ctx context.Context, b bucket.Bucket) error {
	if err := put(ctx, b, "limit/x", random(1, 1000)); err != nil {
		return err
	}
	_, _, err := b.Load(ctx, "limit/x", 999)
	if err := want(err, bucket.ErrTooLarge, "1000 bytes with a limit of 999"); err != nil {
		return err
	}
	_, _, err = b.Load(ctx, "limit/x", 1000)
	return err
}

// ownBuffers: what a call returned or was given belongs to the caller afterwards.
func (s *suite) ownBuffers(ctx context.Context, b bucket.Bucket) error {
	p := random(5, 5000)
	keep := bytes.Clone(p)
	if err := put(ctx, b, "own/x", p); err != nil {
		return err
	}
	clear(p)
	for range 2 {
		got, err := b.Get(ctx, "own/x", 0, 5000)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, keep) {
			return errors.New("a buffer of the caller's is the store's as well")
		}
		clear(got)
		whole, _, err := b.Load(ctx, "own/x", 5000)
		if err != nil {
			return err
		}
		clear(whole)
	}
	return s.holds(ctx, b, "own/x", keep)
}

// cancelled: calls with an ended context fail, and store nothing.
func (s *suite) cancelled(ctx context.Context, b bucket.Bucket) error {
	if err := put(ctx, b, "cancel/a", []byte("a")); err != nil {
		return err
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, putErr := b.Put(gone, "cancel/b", bucket.Bytes([]byte("b")), bucket.PutOptions{})
	_, streamErr := b.Put(gone, "cancel/b", bucket.Stream(strings.NewReader("b")), bucket.PutOptions{})
	_, getErr := b.Get(gone, "cancel/a", 0, 1)
	_, _, loadErr := b.Load(gone, "cancel/a", 1)
	_, headErr := b.Head(gone, "cancel/a")
	_, listErr := list(gone, b, "", "")
	deleteErr := b.Delete(gone, []string{"cancel/a"})
	for i, err := range []error{putErr, streamErr, getErr, loadErr, headErr, listErr, deleteErr} {
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("call %d with a cancelled context: %v", i, err)
		}
		if errors.Is(err, bucket.ErrUnknown) {
			return fmt.Errorf("call %d with a context that had ended before is said to be unknown: %v", i, err)
		}
	}
	if err := absent(ctx, b, "cancel/b"); err != nil {
		return err
	}
	return s.holds(ctx, b, "cancel/a", []byte("a"))
}

// concurrent mixes all calls on keys that share folders, which come and go.
func (s *suite) concurrent(ctx context.Context, b bucket.Bucket) error {
	return each(96, func(i int) error {
		key := fmt.Sprintf("mix/%d/%d/x.seg", i%3, i%7+100*i)
		p := random(int64(i), int64(i*500))
		if err := put(ctx, b, key, p); err != nil {
			return err
		}
		if err := s.holds(ctx, b, key, p); err != nil {
			return err
		}
		if keys, err := list(ctx, b, key, ""); err != nil || len(keys) != 1 {
			return fmt.Errorf("list %s: %v, %w", key, keys, err)
		}
		if err := b.Delete(ctx, []string{key}); err != nil {
			return err
		}
		return absent(ctx, b, key)
	})
}

// errors name the bucket, the call and the key.
func (s *suite) errors(ctx context.Context, b bucket.Bucket) error {
	_, err := b.Get(ctx, "who/am/i", 0, 1)
	if err == nil {
		return errors.New("read an object that is not there")
	}
	for _, part := range []string{"who/am/i", b.Location(), "get"} {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%q is not in the error %q", part, err)
		}
	}
	return nil
}

// tidy touches no object.
func (s *suite) tidy(ctx context.Context, b bucket.Bucket) error {
	p := random(1, s.opts.Large)
	if err := put(ctx, b, "tidy/x", p); err != nil {
		return err
	}
	if n, err := b.Tidy(ctx, 0); err != nil || n != 0 {
		return fmt.Errorf("tidied %d, %w", n, err)
	}
	return s.holds(ctx, b, "tidy/x", p)
}
