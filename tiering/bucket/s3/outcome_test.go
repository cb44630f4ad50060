package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/varve-io/varve/tiering/bucket"
)

var ifAbsent = bucket.PutOptions{IfAbsent: true}

func payload(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}

func mustHold(t *testing.T, b *Bucket, key string, want []byte) {
	t.Helper()
	got, _, err := b.Load(t.Context(), key, int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s holds other bytes", key)
	}
}

// B72: a conditional put of which the answer is lost is the writer's own when the
// retry is refused; another's object is not.
func TestT6_LostAcknowledgement(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	large := payload(11 << 20)
	for name, body := range map[string]bucket.Body{"one": bucket.Bytes(large[:1000]), "parts": bucket.Bytes(large)} {
		puts := method("PUT")
		if name == "parts" {
			puts = query("POST", "uploadId")
		}
		t.Run(name, func(t *testing.T) {
			p.script(on(puts, 1, lose))
			if _, err := b.Put(t.Context(), name+"/own", body, ifAbsent); err != nil {
				t.Fatal("the own write counts as lost:", err)
			}
			mustHold(t, b, name+"/own", large[:body.Size()])

			p.script()
			if _, err := b.Put(t.Context(), name+"/other", bucket.Bytes([]byte("theirs")), ifAbsent); err != nil {
				t.Fatal(err)
			}
			p.script(on(puts, 1, answer(500, "InternalError")))
			if _, err := b.Put(t.Context(), name+"/other", body, ifAbsent); !errors.Is(err, bucket.ErrExists) {
				t.Fatalf("another's object: %v", err)
			}
			mustHold(t, b, name+"/other", []byte("theirs"))

			// No answer ever: unknown, and it says what to do.
			p.script(on(puts, -1, lose))
			_, err := hasty(t, b).Put(t.Context(), name+"/never", body, bucket.PutOptions{})
			if !errors.Is(err, bucket.ErrUnknown) || !strings.Contains(err.Error(), "give this key up") {
				t.Fatalf("no answer: %v", err)
			}
		})
	}
}

// B73: 409 and 500 decide nothing and are tried again; 412 is lost.
func TestT6_ConflictIsNotLost(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	p.script(on(method("PUT"), 2, answer(409, "ConditionalRequestConflict")))
	if _, err := b.Put(t.Context(), "c/1", bucket.Bytes([]byte("x")), ifAbsent); err != nil {
		t.Fatal("a healthy writer lost to a 409:", err)
	}
	p.script(on(method("PUT"), -1, answer(409, "ConditionalRequestConflict")))
	if _, err := hasty(t, b).Put(t.Context(), "c/2", bucket.Bytes([]byte("x")), ifAbsent); !errors.Is(err, bucket.ErrUnknown) {
		t.Fatalf("only conflicts: %v", err)
	}
	p.script(on(method("PUT"), -1, answer(412, "PreconditionFailed")))
	if _, err := b.Put(t.Context(), "c/3", bucket.Bytes([]byte("x")), ifAbsent); !errors.Is(err, bucket.ErrExists) {
		t.Fatalf("412: %v", err)
	}
	if n := p.count("PUT"); n != 1 {
		t.Fatalf("a lost race was tried %d times", n)
	}
}

// B69: only a complete answer is a success.
func TestT6_EmptyAnswers(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	large := payload(11 << 20)
	// The store completed the upload and its answer is empty: read back.
	p.script(on(query("POST", "uploadId"), 1, swallow))
	if _, err := b.Put(t.Context(), "e/done", bucket.Bytes(large), bucket.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	mustHold(t, b, "e/done", large)
	b = hasty(t, b)
	// It did not, and says 200 all the same.
	for _, body := range []string{"", "<?xml version=\"1.0\"?><Error><Code>InternalError</Code></Error>", "<CompleteMultipartUploadResult><Loc"} {
		p.script(on(query("POST", "uploadId"), -1, reply(body)))
		if _, err := b.Put(t.Context(), "e/not", bucket.Bytes(large), bucket.PutOptions{}); !errors.Is(err, bucket.ErrUnknown) {
			t.Fatalf("answer %q to a completion: %v", body, err)
		}
	}
	p.script(on(method("GET"), -1, reply("")))
	for _, err := range b.List(t.Context(), "", "") {
		if !errors.Is(err, bucket.ErrUnavailable) {
			t.Fatalf("an empty answer is taken for an empty bucket: %v", err)
		}
	}
	p.script(on(method("POST"), -1, reply("")))
	if err := b.Delete(t.Context(), []string{"e/done"}); len(bucket.Remaining(err)) != 1 {
		t.Fatalf("an empty answer is taken for a delete: %v", err)
	}
}

// Rows: T6. 500, 503 and resets a few times: each call goes well in the end.
func TestT6_PassingTrouble(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	any := func(*http.Request) bool { return true }
	reset := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool { hangUp(w); return true }
	for name, trouble := range map[string]step{
		"500": answer(500, "InternalError"), "503": answer(503, "SlowDown"), "502": answer(502, ""), "429": answer(429, "TooManyRequests"),
		"reset": reset, "skew": answer(403, "RequestTimeTooSkewed"),
	} {
		t.Run(name, func(t *testing.T) {
			key := strings.ReplaceAll(name, " ", "-") + "/x"
			large := payload(11 << 20)
			for _, call := range []func() error{
				func() error { _, err := b.Put(t.Context(), key, bucket.Bytes(large[:99]), ifAbsent); return err },
				func() error {
					_, err := b.Put(t.Context(), key, bucket.Stream(bytes.NewReader(large)), bucket.PutOptions{})
					return err
				},
				func() error { _, err := b.Get(t.Context(), key, 1, 2); return err },
				func() error { _, err := b.Head(t.Context(), key); return err },
				func() error { mustHold(t, b, key, large); return nil },
				func() error {
					for _, err := range b.List(t.Context(), "", "") {
						if err != nil {
							return err
						}
					}
					return nil
				},
				func() error { return b.Delete(t.Context(), []string{key}) },
			} {
				p.script(on(any, 2, trouble))
				if err := call(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Rows: T6. Lasting trouble ends in an error of the right kind that names the cause,
// and nothing is stored where the error says so.
func TestT6_LastingTrouble(t *testing.T) {
	p := newProxy(t)
	b := hasty(t, p.open(t))
	for _, c := range []struct {
		status int
		code   string
		put    error
		get    error
		tries  bool // more than one
	}{
		{500, "InternalError", bucket.ErrUnknown, bucket.ErrUnavailable, true},
		{503, "SlowDown", bucket.ErrUnavailable, bucket.ErrUnavailable, true},
		{403, "AccessDenied", bucket.ErrDenied, bucket.ErrDenied, false},
		{403, "SignatureDoesNotMatch", bucket.ErrDenied, bucket.ErrDenied, false},
		{403, "RequestTimeTooSkewed", bucket.ErrClock, bucket.ErrClock, true},
		{400, "ExpiredToken", bucket.ErrDenied, bucket.ErrDenied, true},
		{404, "NoSuchBucket", bucket.ErrUnavailable, bucket.ErrUnavailable, false},
		{507, "XMinioStorageFull", bucket.ErrFull, bucket.ErrFull, true},
		{400, "BadDigest", bucket.ErrCorrupt, bucket.ErrCorrupt, true},
		{501, "NotImplemented", bucket.ErrUnavailable, bucket.ErrUnavailable, false},
	} {
		p.script(on(func(*http.Request) bool { return true }, -1, answer(c.status, c.code)))
		_, err := b.Put(t.Context(), "l/x", bucket.Bytes([]byte("x")), ifAbsent)
		if !errors.Is(err, c.put) || !strings.Contains(err.Error(), c.code) || !strings.Contains(err.Error(), "l/x") {
			t.Errorf("put, %d %s: %v", c.status, c.code, err)
		}
		if c.put != bucket.ErrUnknown && errors.Is(err, bucket.ErrUnknown) {
			t.Errorf("put, %d %s is unknown", c.status, c.code)
		}
		if n := p.count("PUT"); (n > 1) != c.tries {
			t.Errorf("put, %d %s: %d tries", c.status, c.code, n)
		}
		if _, err = b.Get(t.Context(), "l/x", 0, 1); !errors.Is(err, c.get) || errors.Is(err, bucket.ErrNotExist) {
			t.Errorf("get, %d %s: %v", c.status, c.code, err)
		}
		err = b.Delete(t.Context(), []string{"l/x"})
		if len(bucket.Remaining(err)) != 1 {
			t.Errorf("delete, %d %s: %v", c.status, c.code, err)
		}
	}
	p.script()
	if _, err := b.Head(t.Context(), "l/x"); !errors.Is(err, bucket.ErrNotExist) {
		t.Fatalf("something was stored: %v", err)
	}
}

// A missing bucket is no missing object, not even for HEAD, whose 404 has no code.
func TestT6_MissingBucket(t *testing.T) {
	b := openAt(t, server.URL("no-such-bucket", ""), testOptions())
	_, headErr := b.Head(t.Context(), "x")
	_, getErr := b.Get(t.Context(), "x", 0, 1)
	_, putErr := b.Put(t.Context(), "x", bucket.Bytes(nil), ifAbsent)
	for _, err := range []error{headErr, getErr, putErr} {
		if !errors.Is(err, bucket.ErrUnavailable) || errors.Is(err, bucket.ErrNotExist) || !strings.Contains(err.Error(), "make the bucket") {
			t.Errorf("got %v", err)
		}
	}
	for _, err := range b.List(t.Context(), "", "") {
		if !errors.Is(err, bucket.ErrUnavailable) {
			t.Errorf("list: %v", err)
		}
	}
}

// B98: a put that is cancelled or fails leaves no parts behind.
func TestT6_AbortOnOwnDeadline(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	for name, fail := range map[string]error{"cancelled": nil, "body": io.ErrClosedPipe} {
		ctx, cancel := context.WithCancel(t.Context())
		begun := 0
		body := bucket.Stream(io.MultiReader(bytes.NewReader(payload(11<<20)), readerFunc(func([]byte) (int, error) {
			for range client.ListIncompleteUploads(t.Context(), testBucket, b.prefix+"abort/"+name, true) {
				begun++
			}
			if fail != nil {
				return 0, fail
			}
			cancel()
			return 0, context.Canceled
		})))
		_, err := b.Put(ctx, "abort/"+name, body, bucket.PutOptions{})
		cancel()
		if err == nil || fail != nil && !errors.Is(err, fail) {
			t.Fatalf("%s: %v", name, err)
		}
		if begun == 0 {
			t.Fatalf("%s: there never was an upload in parts", name)
		}
		for u := range client.ListIncompleteUploads(t.Context(), testBucket, b.prefix+"abort/"+name, true) {
			t.Errorf("%s: left behind %s, %v", name, u.Key, u.Err)
		}
		if _, err := b.Head(t.Context(), "abort/"+name); !errors.Is(err, bucket.ErrNotExist) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// What could not be aborted is found later.
	p.script(on(query("DELETE", "uploadId"), -1, answer(403, "AccessDenied")))
	if _, err := b.Put(t.Context(), "abort/left", bucket.Stream(io.MultiReader(bytes.NewReader(payload(11<<20)),
		readerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe }))), bucket.PutOptions{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	p.script()
	if n, err := b.Tidy(t.Context(), 3600e9); n != 0 || err != nil {
		t.Fatalf("tidied %d that may be under way, %v", n, err)
	}
	if n, err := b.Tidy(t.Context(), 0); n != 1 || err != nil {
		t.Fatalf("tidied %d, %v", n, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
