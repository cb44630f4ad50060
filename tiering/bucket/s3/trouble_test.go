package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/varve-io/varve/infra/minio"
	"github.com/varve-io/varve/tiering/bucket"
)

// B105: while uploads fail, reads go on and the request rate stays low; after healing
// all waiting uploads pass.
func TestT6_UploadsDoNotStarveReads(t *testing.T) {
	p := newProxy(t)
	opts := testOptions()
	opts.Writes = Budget{For: time.Minute, PerSecond: 20}
	opts.MaxBackoff = 50 * time.Millisecond
	b := p.openWith(t, opts)
	if _, err := b.Put(t.Context(), "read/x", bucket.Bytes([]byte("readable")), ifAbsent); err != nil {
		t.Fatal(err)
	}
	var failed atomic.Int32
	sick := on(method("PUT"), -1, answer(503, "SlowDown"))
	p.script(func(w http.ResponseWriter, r *http.Request, f http.Handler) bool {
		hit := sick(w, r, f)
		if hit {
			failed.Add(1)
		}
		return hit
	})
	begun := time.Now()
	const uploads = 100
	var wg sync.WaitGroup
	for i := range uploads {
		wg.Go(func() {
			if _, err := b.Put(t.Context(), fmt.Sprintf("up/%d", i), bucket.Bytes([]byte("x")), bucket.PutOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for failed.Load() < uploads+40 {
		if got, err := b.Get(t.Context(), "read/x", 0, 8); err != nil || string(got) != "readable" {
			t.Errorf("a read while uploads fail: %q, %v", got, err)
			break
		}
	}
	// All first tries may be under way before the first fails; then the rate holds, however
	// long this took.
	if n, most := int(failed.Load()), uploads+20+int(20*time.Since(begun).Seconds())+1; n > most {
		t.Errorf("%d requests to a store that asks to slow down, want at most %d", n, most)
	}
	p.script()
	wg.Wait()
}

// A class that failed takes no turn for granted, and says why it fails.
func TestClassSaysWhy(t *testing.T) {
	p := newProxy(t)
	opts := within(testOptions(), 100*time.Millisecond)
	opts.Reads.PerSecond = 1
	b := p.openWith(t, opts)
	p.script(on(method("GET"), -1, answer(503, "SlowDown")))
	for range 5 {
		if _, err := b.Get(t.Context(), "x", 0, 1); !errors.Is(err, bucket.ErrUnavailable) || !strings.Contains(err.Error(), "SlowDown") {
			t.Fatalf("got %v", err)
		}
	}
}

// Memory is bounded by the part buffers, whatever is uploaded at once.
func TestT6_BoundedMemory(t *testing.T) {
	b := open(t, testOptions()) // 3 buffers of 5 MiB
	var peak atomic.Uint64
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			src := &zeroes{n: 30 << 20, each: func() {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				for old := peak.Load(); m.HeapAlloc > old && !peak.CompareAndSwap(old, m.HeapAlloc); old = peak.Load() {
				}
			}}
			info, err := b.Put(t.Context(), fmt.Sprintf("m/%d", i), bucket.Stream(src), bucket.PutOptions{})
			if err != nil || info.Size != 30<<20 {
				t.Errorf("%+v, %v", info, err)
			}
		})
	}
	wg.Wait()
	if got := peak.Load(); got > 120<<20 {
		t.Errorf("180 MiB went through a heap of %d MiB", got>>20)
	}
	if len(b.buffers) != 3 {
		t.Errorf("%d of 3 buffers came back", len(b.buffers))
	}
}

type zeroes struct {
	n    int
	each func()
}

func (z *zeroes) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	z.each()
	n := min(z.n, len(p))
	clear(p[:n])
	z.n -= n
	return n, nil
}

// B106: credentials that were refused are looked up again, without a restart.
func TestT6_CredentialsAreRenewed(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "revoked")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "revoked-secret")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	opts := testOptions()
	opts.AccessKey, opts.SecretKey = "", ""
	b := open(t, opts)
	if _, err := b.Put(t.Context(), "x", bucket.Bytes(nil), ifAbsent); !errors.Is(err, bucket.ErrDenied) {
		t.Fatalf("revoked credentials: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey())
	t.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey())
	if _, err := b.Put(t.Context(), "x", bucket.Bytes(nil), ifAbsent); err != nil {
		t.Fatal(err)
	}
}

// Rows: T6. A proxy that resets, stalls, cuts, slices and slows connections: calls
// end in time, and go well once it is gone.
func TestT6_BadNetwork(t *testing.T) {
	logger := zerolog.Nop()
	tp := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), logger), "minio", "127.0.0.1:0", strings.TrimPrefix(server.Endpoint(), "http://"))
	if err := tp.Start(); err != nil {
		t.Fatal(err)
	}
	defer tp.Stop()
	opts := within(testOptions(), 250*time.Millisecond)
	opts.MaxBackoff, opts.RequestTimeout, opts.MinRate = 20*time.Millisecond, 250*time.Millisecond, 16<<20
	b := openAt(t, fmt.Sprintf("s3://%s/toxic?endpoint=%s", testBucket, url.QueryEscape("http://"+tp.Listen)), opts)
	healthy := openAt(t, b.Location(), within(testOptions(), time.Minute))
	want := payload(400_000)
	for i, toxic := range []string{
		`{"name":"t","type":"reset_peer","stream":"downstream","attributes":{"timeout":0}}`,
		`{"name":"t","type":"reset_peer","stream":"upstream","attributes":{"timeout":20}}`,
		`{"name":"t","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`,
		`{"name":"t","type":"limit_data","stream":"downstream","attributes":{"bytes":700}}`,
		`{"name":"t","type":"limit_data","stream":"upstream","attributes":{"bytes":5000}}`,
		`{"name":"t","type":"slicer","stream":"downstream","attributes":{"average_size":1000,"size_variation":900,"delay":0}}`,
		`{"name":"t","type":"bandwidth","stream":"upstream","attributes":{"rate":2000}}`,
	} {
		if _, err := tp.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("t/%d", i)
		_, err := b.Put(t.Context(), key, bucket.Bytes(want), ifAbsent)
		if err != nil && !errors.Is(err, bucket.ErrUnknown) && !errors.Is(err, bucket.ErrUnavailable) {
			t.Errorf("%s: put: %v", toxic, err)
		}
		got, _, loadErr := b.Load(t.Context(), key, 1<<20)
		if loadErr == nil && !bytes.Equal(got, want) || loadErr != nil && got != nil {
			t.Errorf("%s: loaded %d bytes, %v", toxic, len(got), loadErr)
		}
		if err := tp.Toxics.RemoveToxic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		// Known outcomes are true, and the unknown one becomes known by the same put.
		if err == nil {
			mustHold(t, healthy, key, want)
		}
		if _, err := healthy.Put(t.Context(), key, bucket.Bytes(want), bucket.PutOptions{}); err != nil {
			t.Errorf("%s: after it: %v", toxic, err)
		}
		mustHold(t, healthy, key, want)
	}
}

// Rows: T6. A server that is killed, or stands still, and comes back: a call that is
// under way rides through.
func TestT6_ServerGoesAway(t *testing.T) {
	own, err := minio.Start(t.Context(), minio.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Kill()
	if err := own.MakeBucket(t.Context(), "away"); err != nil {
		t.Fatal(err)
	}
	opts := within(testOptions(), time.Minute)
	opts.AccessKey, opts.SecretKey = own.AccessKey(), own.SecretKey()
	opts.MaxBackoff, opts.RequestTimeout = 50*time.Millisecond, time.Second
	retries := make(chan struct{}, 1)
	opts.Events.Retry = func(string, error, time.Duration) {
		select {
		case retries <- struct{}{}:
		default:
		}
	}
	b := openAt(t, own.URL("away", ""), opts)
	for i, outage := range []struct{ begin, end func() }{
		{own.Kill, func() {
			if err := own.Restart(t.Context()); err != nil {
				t.Error(err)
			}
		}},
		{own.Pause, own.Resume},
	} {
		outage.begin()
		select { // a retry of the round before says nothing of this one
		case <-retries:
		default:
		}
		done := make(chan error, 1)
		key := fmt.Sprintf("k/%d", i)
		go func() {
			_, err := b.Put(t.Context(), key, bucket.Bytes([]byte("rode through")), ifAbsent)
			done <- err
		}()
		<-retries
		// A short context ends a call in the middle of it.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := b.Get(ctx, key, 0, 1); !errors.Is(err, bucket.ErrUnavailable) {
			t.Errorf("a read from a server that is away: %v", err)
		}
		cancel()
		outage.end()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustHold(t, b, key, []byte("rode through"))
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{AccessKey: "a"}, {SecretKey: "s"}, {PartSize: 1}, {PutLimit: -1}, {PutLimit: 6 << 30}, {Buffers: -1}, {Reads: Budget{For: -1}}} {
		if _, err := Open(t.Context(), "s3://bucket", o); !errors.Is(err, bucket.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, u := range []string{"dir:///x", "http://x", "", "s3://"} {
		if _, err := Open(t.Context(), u, Options{}); !errors.Is(err, bucket.ErrInvalid) {
			t.Errorf("%q: %v", u, err)
		}
	}
}
