package tiering

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/tiering/bucket"
	"github.com/varve-io/varve/tiering/bucket/dir"
	"github.com/varve-io/varve/tiering/bucket/fault"
)

func TestUploadReference(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	ref := w.upload()
	b, _, err := w.b.Load(t.Context(), ref.Key, 1<<20)
	if err != nil || bucket.Checksum(b) != ref.CRC || int64(len(b)) != ref.Size {
		t.Fatalf("%+v %v", ref, err)
	}
	k, err := ParseSegmentKey(ref.Key)
	if err != nil || k.Shard != w.shard || k.Lineage != w.lin || k.Epoch != w.epoch || k.Base != 1 || ref.FirstLSN != 1 || ref.NextLSN != 11 {
		t.Fatalf("%+v %v", k, err)
	}
}

// An error of the log ends an upload at once and leaves no object.
func TestUploadEndsOnSourceErrors(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	rot := errors.New("log file is unreadable")
	sealed := w.sealed()
	good := sealed.Entries
	for name, entries := range map[string]func(context.Context) iter.Seq2[entry.Entry, error]{
		"unreadable": func(ctx context.Context) iter.Seq2[entry.Entry, error] {
			return func(yield func(entry.Entry, error) bool) {
				for e, err := range good(ctx) {
					if e.LSN == 7 {
						err = rot
					}
					if !yield(e, err) {
						return
					}
				}
			}
		},
		"out of order": walk([]entry.Entry{w.log[3], w.log[2]}),
		"no batch":     walk(w.log[:1]),
		"nothing":      walk(nil),
	} {
		sealed.Entries = entries
		_, err := w.s.UploadSegment(t.Context(), sealed)
		if err == nil || name == "unreadable" && !errors.Is(err, rot) {
			t.Errorf("%s: %v", name, err)
		}
		if keys := w.keys("streams/"); len(keys) > 0 {
			t.Errorf("%s: left %q", name, keys)
		}
	}
	if w.s.Stats().UploadRetries != 0 {
		t.Error("an error of the log was retried")
	}
}

// Rows: T6
// The bucket is away for an hour, in every way there is: the upload waits, with
// pauses that grow, and ends well under a new key.
func TestT6_AnHourWithoutTheBucket(t *testing.T) {
	for _, kind := range []error{bucket.ErrUnavailable, bucket.ErrDenied, bucket.ErrClock, bucket.ErrUnknown, bucket.ErrCorrupt} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(o *Options) { o.RetryMax = 0; o.Now = nil })
			w.append(9)
			w.b.ResetCounts()
			w.b.Outage(kind)
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.archive()
			}()
			time.Sleep(time.Hour)
			tries := w.b.Count(fault.Put)
			w.b.Outage(nil)
			<-done
			if tries < 50 || tries > 400 {
				t.Errorf("%v: %d attempts in an hour", kind, tries)
			}
			w.checkAll()
			w.s.Close()
		})
	}
}

// The store confirms other bytes than were sent: given up, and sent again.
func TestUploadIsVerified(t *testing.T) {
	w := newWorld(t)
	lying := &liar{Bucket: w.b, lies: 2}
	s := w.open(func(o *Options) { o.Bucket = lying })
	w.append(9)
	ref, err := s.UploadSegment(t.Context(), w.sealed())
	if err != nil || s.Stats().UploadRetries != 2 || s.Stats().UploadsGivenUp != 2 {
		t.Fatalf("%v %+v", err, s.Stats())
	}
	w.mark(&ref)
	w.write()
	w.checkAll()
}

// liar reports another checksum than the one of what it stored.
type liar struct {
	bucket.Bucket
	lies int
}

func (l *liar) Put(ctx context.Context, key string, body bucket.Body, o bucket.PutOptions) (bucket.Info, error) {
	info, err := l.Bucket.Put(ctx, key, body, o)
	if l.lies > 0 {
		l.lies--
		info.CRC32C ^= 1
	}
	return info, err
}

// Rows: T6
// However large the segment, no more than a block or two is held.
func TestT6_UploadMemoryIsBounded(t *testing.T) {
	w := newWorld(t)
	drain := &drain{Bucket: w.b}
	s := w.open(func(o *Options) { o.Bucket = drain; o.BlockSize = 64 << 10 })
	sealed := w.sealed()
	const n = 21_000
	sealed.Identity.NextLSN = n + 1
	var given, most int64
	sealed.Entries = func(context.Context) iter.Seq2[entry.Entry, error] {
		return func(yield func(entry.Entry, error) bool) {
			for i := range meta.LSN(n) {
				e := entry.Entry{Header: entry.Header{Kind: entry.Batch, Level: 1, Lineage: w.lin, Epoch: 1, LSN: i + 1, Offset: meta.Offset(i), Time: 1}, Payload: kafka(meta.Offset(i), 1, 4000, 1)}
				given += int64(e.Size())
				most = max(most, given-drain.taken.Load())
				if !yield(e, nil) {
					return
				}
			}
		}
	}
	if _, err := s.UploadSegment(t.Context(), sealed); err != nil {
		t.Fatal(err)
	}
	if given < 80<<20 || most > 3*64<<10 {
		t.Fatalf("of %d bytes up to %d were held", given, most)
	}
}

// drain takes a body and forgets it.
type drain struct {
	bucket.Bucket
	taken atomic.Int64
}

func (d *drain) Put(ctx context.Context, key string, body bucket.Body, o bucket.PutOptions) (info bucket.Info, err error) {
	if len(key) < 8 || key[:8] != "streams/" {
		return d.Bucket.Put(ctx, key, body, o)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Reader().Read(buf)
		d.taken.Add(int64(n))
		info.Size += int64(n)
		info.CRC32C = bucket.Update(info.CRC32C, buf[:n])
		if err == io.EOF {
			return info, nil
		}
		if err != nil {
			return info, err
		}
	}
}

// Rows: T3
// A leader is paused with an upload under way; another is elected. What arrives in
// the end is never named, never read, and swept.
func TestT3_DeposedUploadIsGarbage(t *testing.T) {
	w := newWorld(t)
	w.append(9)
	hold := w.b.Hold(fault.Fault{Op: fault.Put, Key: "streams/", Times: 1})
	done := make(chan meta.SegmentRef)
	old, sealed := w.s, w.sealed()
	go func() {
		ref, err := old.UploadSegment(t.Context(), sealed)
		if err != nil {
			t.Error(err)
		}
		done <- ref
	}()
	<-hold.Arrived()
	w.elect()
	w.s = w.open()
	w.append(3)
	w.archive()
	w.sweep() // lists before it lands
	hold.Release()
	late := <-done
	w.checkAll()
	if res := w.sweep(); res.Deleted != 1 || w.has(late.Key) {
		t.Fatalf("%+v", res)
	}
	w.checkAll()
}

// B56: one range that fails does not touch those before it, and only it is sent again.
func TestOneFailureAmongMany(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		w.append(4)
		w.archive()
	}
	sent := w.s.Stats().UploadBytes
	w.append(4)
	w.b.Inject(fault.Fault{Op: fault.Put, Key: "streams/", Times: 3, Before: bucket.ErrUnavailable})
	w.archive()
	if n := len(w.keys("streams/")); n != 6 || w.s.Stats().UploadBytes-sent != uint64(w.manifest.Segments[5].Size) {
		t.Fatalf("%d objects, %d bytes sent for the last", n, w.s.Stats().UploadBytes-sent)
	}
	w.checkAll()
}

// The same on a real directory, all in one life.
func TestOnADirectory(t *testing.T) {
	inner, err := dir.OpenPath(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, b: fault.New(inner), clock: &clock{t: time.Unix(1_700_000_000, 0)}, shard: shardNamed("a/b", 77), lin: meta.NewLineage(1, 1)}
	defer w.b.Close()
	w.s = w.open()
	defer w.s.Close()
	w.elect()
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 12 {
		w.append(1 + r.IntN(30))
		w.archive()
		if i%4 == 3 {
			w.trim(w.start + meta.Offset(r.IntN(int(w.next-w.start))))
			w.mark(nil)
			w.write()
			w.sweep()
		}
		w.checkAll()
	}
	if m, err := w.refetch(t.Context()); err != nil || m.ID() != w.manifest.ID() {
		t.Fatal(err)
	}
}
