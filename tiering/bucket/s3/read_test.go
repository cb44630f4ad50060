package s3

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	miniogo "github.com/minio/minio-go/v7"

	"github.com/varve-io/varve/tiering/bucket"
)

// B101: a body that ends early is asked for again, and never passes for the end.
func TestT6_ShortBodies(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	want := payload(300_000)
	if _, err := b.Put(t.Context(), "s/x", bucket.Bytes(want), ifAbsent); err != nil {
		t.Fatal(err)
	}
	soon := hasty(t, b)
	for _, n := range []int{0, 1, 4096, 65_536, 199_999} {
		p.script(on(method("GET"), 2, cut(n)))
		got, err := b.Get(t.Context(), "s/x", 50_000, 200_000)
		if err != nil || !bytes.Equal(got, want[50_000:250_000]) {
			t.Fatalf("cut at %d twice: %d bytes, %v", n, len(got), err)
		}
		p.script(on(method("GET"), 2, cut(n)))
		mustHold(t, b, "s/x", want)
		p.script(on(method("GET"), -1, cut(n)))
		if got, err := soon.Get(t.Context(), "s/x", 50_000, 200_000); !errors.Is(err, bucket.ErrUnavailable) || got != nil || errors.Is(err, bucket.ErrCorrupt) {
			t.Fatalf("always cut at %d: %d bytes, %v", n, len(got), err)
		}
		if got, _, err := soon.Load(t.Context(), "s/x", 1<<20); !errors.Is(err, bucket.ErrUnavailable) || got != nil {
			t.Fatalf("always cut at %d: %d bytes, %v", n, len(got), err)
		}
	}
	// A store that ignores the range is found out.
	p.script(func(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
		r.Header.Del("Range")
		return false
	})
	if got, err := b.Get(t.Context(), "s/x", 5, 10); err == nil && !bytes.Equal(got, want[5:15]) {
		t.Fatal("bytes from another place")
	}
}

// T5: a flipped bit on the way is healed by one more request; in the store it is an
// error that names the object.
func TestT6_CorruptBodies(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	want := payload(100_000)
	if _, err := b.Put(t.Context(), "c/x", bucket.Bytes(want), ifAbsent); err != nil {
		t.Fatal(err)
	}
	p.script(on(method("GET"), 1, flip))
	mustHold(t, b, "c/x", want)
	p.script(on(method("GET"), -1, flip))
	_, _, err := b.Load(t.Context(), "c/x", 1<<20)
	if !errors.Is(err, bucket.ErrCorrupt) || !strings.Contains(err.Error(), "c/x") {
		t.Fatalf("got %v", err)
	}
	if n := p.count("GET"); n != 2 {
		t.Fatalf("asked %d times", n)
	}
}

// B100: a listing that repeats itself ends with an error in bounded time.
func TestT6_BrokenListing(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	page := func(token, keys string) step {
		return func(w http.ResponseWriter, r *http.Request, f http.Handler) bool {
			var contents strings.Builder
			for k := range strings.FieldsSeq(keys) {
				fmt.Fprintf(&contents, "<Contents><Key>%s%s</Key><Size>1</Size></Contents>", b.prefix, k)
			}
			return reply("<ListBucketResult><Name>x</Name><IsTruncated>true</IsTruncated><NextContinuationToken>"+token+
				"</NextContinuationToken>"+contents.String()+"</ListBucketResult>")(w, r, f)
		}
	}
	n := 0
	for name, steps := range map[string][]step{
		"same page":   {on(method("GET"), -1, page("t", "a b c"))},
		"empty token": {on(method("GET"), -1, page("", "a b c"))},
		"same token":  {on(method("GET"), 1, page("t", "a b")), on(method("GET"), -1, page("t", "c d"))},
		"backwards":   {on(method("GET"), 1, page("t", "c d")), on(method("GET"), -1, page("u", "a b"))},
		"twice":       {on(method("GET"), -1, page("t", "a a"))},
		"without an end": {on(method("GET"), -1, func(w http.ResponseWriter, r *http.Request, f http.Handler) bool {
			n++
			return page(fmt.Sprint("t", n), "")(w, r, f)
		})},
	} {
		p.script(steps...)
		keys := 0
		var last error
		for _, err := range b.List(t.Context(), "", "") {
			if last = err; err == nil {
				keys++
			}
		}
		if !errors.Is(last, bucket.ErrUnavailable) || keys > 4 {
			t.Errorf("%s: %d keys, %v", name, keys, last)
		}
		if got := p.count("GET"); got > empties+2 {
			t.Errorf("%s: %d requests", name, got)
		}
	}
}

// Strangers' keys of every kind, below the prefix: each is listed as it is, and none
// hides the others. An encoding that the store doesn't take up is no encoding.
func TestStrangeKeysAreListed(t *testing.T) {
	b := open(t, testOptions())
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{" lead", "a b", "a+b%20c", "t\tab", "trail ", "x\x01y", "x\ny", "z", "ü&<>\"'"}
	for _, key := range keys {
		if _, err := client.PutObject(t.Context(), testBucket, b.prefix+"f/"+key, strings.NewReader("x"), 1, miniogo.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for info, err := range b.List(t.Context(), "f/", "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimPrefix(info.Key, "f/"))
	}
	if !slices.Equal(got, keys) {
		t.Fatalf("%q", got)
	}
	l := &listing{b: b, prefix: b.prefix + "f/"}
	page, err := l.take(&s3.ListObjectsV2Output{Contents: []types.Object{{Key: aws.String(l.prefix + "a+b%zz"), Size: aws.Int64(1)}}})
	if err != nil || len(page) != 1 || page[0].Key != "f/a+b%zz" {
		t.Fatalf("%+v %v", page, err)
	}
}

// B102: keys that are refused inside a 200 are retried or named; a store without
// batches gets single deletes.
func TestT6_DeleteRefusals(t *testing.T) {
	p := newProxy(t)
	b := p.open(t)
	keys := []string{"d/a", "d/b", "d/c"}
	refuse := func(code string) step {
		return func(w http.ResponseWriter, r *http.Request, f http.Handler) bool {
			return reply(fmt.Sprintf("<DeleteResult><Deleted><Key>%[1]sd/a</Key></Deleted><Error><Key>%[1]sd/b</Key><Code>%[2]s</Code></Error><Deleted><Key>%[1]sd/c</Key></Deleted></DeleteResult>", b.prefix, code))(w, r, f)
		}
	}
	p.script(on(method("POST"), -1, refuse("AccessDenied")))
	err := b.Delete(t.Context(), keys)
	if left := bucket.Remaining(err); len(left) != 1 || left[0] != "d/b" || !errors.Is(err, bucket.ErrDenied) {
		t.Fatalf("named %q: %v", left, err)
	}
	p.script(on(method("POST"), 2, refuse("InternalError")))
	if err := b.Delete(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	if n := p.count("POST"); n != 3 {
		t.Fatalf("%d requests", n)
	}
	for _, k := range keys {
		if _, err := b.Put(t.Context(), k, bucket.Bytes(nil), ifAbsent); err != nil {
			t.Fatal(err)
		}
	}
	p.script(on(method("POST"), -1, answer(501, "NotImplemented")))
	if err := b.Delete(t.Context(), append(keys, "d/none")); err != nil {
		t.Fatal(err)
	}
	if p.count("POST") != 1 || p.count("DELETE") != 4 {
		t.Fatalf("%d batches, %d single", p.count("POST"), p.count("DELETE"))
	}
	for info := range b.List(t.Context(), "", "") {
		t.Errorf("%s is still there", info.Key)
	}
}

// What this package writes reads the same through another client, with its CRC32C;
// and the other way round.
func TestSecondClient(t *testing.T) {
	b := open(t, testOptions())
	client, err := server.Client()
	if err != nil {
		t.Fatal(err)
	}
	large := payload(17<<20 + 3)
	for name, body := range map[string]bucket.Body{
		"small": bucket.Bytes(large[:1234]), "empty": bucket.Bytes(nil), "stream": bucket.Stream(bytes.NewReader(large)), "at": bucket.At(bytes.NewReader(large), int64(len(large)))} {
		info, err := b.Put(t.Context(), name, body, ifAbsent)
		if err != nil {
			t.Fatal(err)
		}
		o, err := client.GetObject(t.Context(), testBucket, b.prefix+name, miniogo.GetObjectOptions{Checksum: true})
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(o); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), large[:info.Size]) {
			t.Errorf("%s: other bytes", name)
		}
		stat, err := client.StatObject(t.Context(), testBucket, b.prefix+name, miniogo.StatObjectOptions{Checksum: true})
		if err != nil {
			t.Fatal(err)
		}
		if stat.ChecksumCRC32C != *encodeCRC(bucket.Checksum(large[:info.Size])) || stat.Size != info.Size {
			t.Errorf("%s: checksum %q (%s), size %d", name, stat.ChecksumCRC32C, stat.ChecksumMode, stat.Size)
		}
	}
	if _, err := client.PutObject(t.Context(), testBucket, b.prefix+"theirs", bytes.NewReader(large), int64(len(large)), miniogo.PutObjectOptions{PartSize: 5 << 20}); err != nil {
		t.Fatal(err)
	}
	mustHold(t, b, "theirs", large)
}
