package edge_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/sdk/proto/varve/v1/varvev1connect"
	"github.com/varve-io/varve/services/servicetest"
)

func newStreams(w *world, o ...connect.ClientOption) varvev1connect.StreamServiceClient {
	return varvev1connect.NewStreamServiceClient(w.http2, w.url, o...)
}

// Rows: B161
func TestB161_Names(t *testing.T) {
	w := start(t, settings{})
	ctx := w.Context()
	if _, err := w.catalog.CreateNamespace(ctx, &varvev1.CreateNamespaceRequest{Namespace: "n"}); err != nil {
		t.Fatal(err)
	}
	good := []string{"a", "a/b", "ab", "a-b", "a.b", "a_b", "a/b/c", "a..b", "...", "0", strings.Repeat("x", 200), "a/" + strings.Repeat("y", 198)}
	for _, bad := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/.", "A", "a b", "a:b", "a%2fb", "a\nb", "a\x00", "ä", "a\u0308", "~", "a~b", strings.Repeat("x", 201)} {
		_, err := w.catalog.CreateStream(ctx, &varvev1.CreateStreamRequest{Stream: "n/" + bad})
		if err == nil {
			t.Errorf("%q is taken", bad)
			continue
		}
		refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	}
	for _, bad := range []string{"", "a/b", "..", "A", strings.Repeat("x", 201)} {
		if _, err := w.catalog.CreateNamespace(ctx, &varvev1.CreateNamespaceRequest{Namespace: bad}); err == nil {
			t.Errorf("namespace %q is taken", bad)
		}
	}
	for _, name := range good {
		if _, err := w.catalog.CreateStream(ctx, &varvev1.CreateStreamRequest{Stream: "n/" + name}); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		w.put("n/"+name, name)
	}
	list := func(prefix string) []string {
		var out []string
		r := &varvev1.ListStreamsRequest{Namespace: "n", Prefix: prefix, PageSize: 3}
		for {
			p, err := w.catalog.ListStreams(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range p.GetStreams() {
				out = append(out, strings.TrimPrefix(s.GetName(), "n/"))
			}
			if r.PageToken = p.GetNextPageToken(); r.PageToken == "" {
				return out
			}
		}
	}
	same := func(got, want []string) bool {
		slices.Sort(got)
		want = slices.Clone(want)
		slices.Sort(want)
		return slices.Equal(got, want)
	}
	if got := list(""); !same(got, good) {
		t.Errorf("%q", got)
	}
	if got := list("a/b"); !same(got, []string{"a/b", "a/b/c"}) {
		t.Errorf("%q", got)
	}
	for i, name := range good {
		if got := w.values("n/" + name); len(got) != 1 || got[0] != name {
			t.Errorf("%q holds %q", name, got)
		}
		if _, err := w.catalog.DeleteStream(ctx, &varvev1.DeleteStreamRequest{Stream: "n/" + name}); err != nil {
			t.Fatal(err)
		}
		if got := list(""); !same(got, good[i+1:]) {
			t.Errorf("after %q was deleted: %q", name, got)
		}
	}
}

// Where namespaces come into being by use, creating a stream is such a use; where
// they don't, the refusal says what is missing.
func TestCreateStreamMakesNamespace(t *testing.T) {
	for _, strict := range []bool{false, true} {
		w := start(t, settings{node: servicetest.Options{Strict: strict}})
		_, err := w.catalog.CreateStream(w.Context(), &varvev1.CreateStreamRequest{Stream: "fresh/s", RequestId: "r"})
		_, nsErr := w.catalog.GetNamespace(w.Context(), &varvev1.GetNamespaceRequest{Namespace: "fresh"})
		if strict {
			refused(t, err, varvev1.Reason_REASON_NOT_FOUND)
			refused(t, nsErr, varvev1.Reason_REASON_NOT_FOUND)
			if !strings.Contains(err.Error(), "namespace fresh") {
				t.Errorf("%v does not say what is missing", err)
			}
			continue
		}
		if err != nil || nsErr != nil {
			t.Fatalf("stream: %v, its namespace: %v", err, nsErr)
		}
		// Repeating it is safe, and the next stream may come into being by an append.
		if _, err := w.catalog.CreateStream(w.Context(), &varvev1.CreateStreamRequest{Stream: "fresh/s", RequestId: "r"}); err != nil {
			t.Fatal(err)
		}
		w.put("fresh/other", "x")
	}
}

// Two hundred first appends at once make one stream, and each is stored once.
func TestFirstAppendsRace(t *testing.T) {
	w := start(t, settings{})
	var wg sync.WaitGroup
	const n = 200
	for i := range n {
		wg.Go(func() {
			out, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "fresh/stream", Records: []*varvev1.Record{{Value: []byte(fmt.Sprint(i))}}})
			if err != nil || out.GetIncarnation() == 0 {
				t.Errorf("%v %v", out, err)
			}
		})
	}
	wg.Wait()
	got := w.values("fresh/stream")
	slices.Sort(got)
	if len(slices.Compact(got)) != n {
		t.Errorf("%d records, want %d", len(got), n)
	}
	// A read makes nothing unless the namespace says so.
	_, err := w.streams.Read(w.Context(), &varvev1.ReadRequest{Stream: "fresh/other"})
	refused(t, err, varvev1.Reason_REASON_NOT_FOUND)
	if _, err := w.catalog.UpdateNamespace(w.Context(), &varvev1.UpdateNamespaceRequest{Namespace: "fresh", Settings: &varvev1.NamespaceSettings{CreateOnRead: proto.Bool(true)}}); err != nil {
		t.Fatal(err)
	}
	if p := w.read(&varvev1.ReadRequest{Stream: "fresh/other"}); p.GetTail() != 0 {
		t.Errorf("%v", p)
	}
}

// Create with a request id gives the same stream again; settings come in layers.
func TestCatalogCalls(t *testing.T) {
	w := start(t, settings{})
	ctx := w.Context()
	ns := &varvev1.CreateNamespaceRequest{Namespace: "n", RequestId: "r1", Settings: &varvev1.NamespaceSettings{
		DefaultShards: proto.Uint32(3), Streams: &varvev1.StreamSettings{MaxRecordBytes: proto.Uint64(2048)}}}
	first, err := w.catalog.CreateNamespace(ctx, ns)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := w.catalog.CreateNamespace(ctx, ns); err != nil || !proto.Equal(first, again) {
		t.Errorf("%v %v", again, err)
	}
	ns.RequestId = "r2"
	_, err = w.catalog.CreateNamespace(ctx, ns)
	refused(t, err, varvev1.Reason_REASON_ALREADY_EXISTS)
	create := &varvev1.CreateStreamRequest{Stream: "n/s", RequestId: "r1", Settings: &varvev1.StreamSettings{ProducersMax: proto.Uint64(5)}}
	s1, err := w.catalog.CreateStream(ctx, create)
	if err != nil {
		t.Fatal(err)
	}
	s2, err := w.catalog.CreateStream(ctx, create)
	if err != nil || !proto.Equal(s1, s2) {
		t.Errorf("%v, then %v (%v)", s1, s2, err)
	}
	st := s1.GetStream()
	if st.GetShards() != 3 || st.GetEffective().GetMaxRecordBytes() != 2048 || st.GetEffective().GetProducersMax() != 5 || st.GetEffective().GetSegmentBytes() == 0 || st.GetSettings().MaxRecordBytes != nil {
		t.Errorf("%v", st)
	}
	u, err := w.catalog.UpdateStream(ctx, &varvev1.UpdateStreamRequest{Stream: "n/s", Revision: &st.Revision, Settings: &varvev1.StreamSettings{ProducersMax: proto.Uint64(0)}})
	if err != nil || u.GetStream().GetEffective().GetProducersMax() == 5 || u.GetStream().GetRevision() == st.GetRevision() {
		t.Errorf("%v %v", u, err)
	}
	_, err = w.catalog.UpdateStream(ctx, &varvev1.UpdateStreamRequest{Stream: "n/s", Revision: &st.Revision, Settings: &varvev1.StreamSettings{ProducersMax: proto.Uint64(7)}})
	refused(t, err, varvev1.Reason_REASON_CONFLICT)
	_, err = w.catalog.DeleteNamespace(ctx, &varvev1.DeleteNamespaceRequest{Namespace: "n"})
	refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	d, err := w.catalog.DeleteStream(ctx, &varvev1.DeleteStreamRequest{Stream: "n/s", Incarnation: &st.Incarnation})
	if err != nil || d.GetIncarnation() != st.GetIncarnation() || !d.GetSafe() {
		t.Errorf("%v %v", d, err)
	}
	if _, err := w.catalog.DeleteNamespace(ctx, &varvev1.DeleteNamespaceRequest{Namespace: "n"}); err != nil {
		t.Error(err)
	}
}

// Records go where their keys say; a mixture is refused, records without keys go along.
func TestAppendChoosesTheShard(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 8)
	shards := map[uint32]bool{}
	for i := range 30 {
		key := []byte(fmt.Sprint("key", i))
		r := &varvev1.AppendRequest{Stream: "a/b", Records: []*varvev1.Record{{Value: []byte("no key")}, {Key: key}, {}, {Key: key}}}
		out, err := w.streams.Append(w.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Records: []*varvev1.Record{{Key: key}}})
		if err != nil || again.GetShard() != out.GetShard() {
			t.Errorf("%v, then %v (%v)", out, again, err)
		}
		shards[out.GetShard()] = true
	}
	if len(shards) < 4 {
		t.Errorf("only shards %v", shards)
	}
	if _, err := w.streams.Append(w.Context(), &varvev1.AppendRequest{Stream: "a/b", Records: []*varvev1.Record{{}, {}}}); err != nil {
		t.Error(err)
	}
}
