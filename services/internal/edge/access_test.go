package edge_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/varve-io/varve/meta"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/edge"
)

// doorman counts who asks, and answers as it is told.
type doorman struct {
	mu    sync.Mutex
	asked []edge.Access
	say   func() error
}

func (d *doorman) Authorize(_ context.Context, h http.Header, want edge.Access) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, want)
	if h.Get("Authorization") != "Bearer token" {
		return meta.Errorf(meta.ErrUnauthenticated, "no token")
	}
	return d.say()
}

// The authorizer is asked exactly once for each call, and its word holds.
func TestAccessIsAskedOncePerCall(t *testing.T) {
	d := &doorman{say: func() error { return meta.Errorf(meta.ErrDenied, "not you") }}
	w := start(t, settings{edge: edge.Options{Authorizer: d}})
	for path, m := range methods() {
		if path == "/varve.v1.StreamService/AppendSession" {
			continue // below
		}
		for header, want := range map[string]string{"": "unauthenticated", "Bearer token": "permission_denied"} {
			d.asked = nil
			body, contentType := `{"stream":"a/b","namespace":"a"}`, "application/json"
			switch {
			case path == "/varve.v1.CatalogService/ListNamespaces":
				body = `{}`
			case strings.HasPrefix(path, "/varve.v1.CatalogService/") && !strings.HasSuffix(path, "Stream"):
				body = `{"namespace":"a"}`
			case path == "/varve.v1.StreamService/ReadSession":
				contentType, body = "application/connect+json", "\x00\x00\x00\x00\x19"+`{"read":{"stream":"a/b"}}`
			default:
				body = `{"stream":"a/b"}`
			}
			r, err := http.NewRequest(http.MethodPost, w.url+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", contentType)
			r.Header.Set("Authorization", header)
			out, err := w.http2.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 4096)
			n, _ := out.Body.Read(b)
			_ = out.Body.Close()
			if !strings.Contains(string(b[:n]), want) {
				t.Errorf("%s: %s, want %s", m.FullName(), b[:n], want)
			}
			if len(d.asked) != 1 {
				t.Errorf("%s: asked %d times: %v", m.FullName(), len(d.asked), d.asked)
			}
		}
	}
	d.asked = nil
	s, err := w.streams.AppendSession(w.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Send(&varvev1.AppendSessionRequest{Open: &varvev1.AppendSessionOpen{Stream: "a/b"}})
	if _, err := s.Receive(); connect.CodeOf(err) != connect.CodeUnauthenticated || len(d.asked) != 1 || d.asked[0].Verb != edge.VerbAppend || d.asked[0].Stream != "b" {
		t.Errorf("%v, asked %v", err, d.asked)
	}
	_ = s.CloseRequest()
}

// A handler that panics is an internal error with a detail, and the server goes on.
func TestPanicIsInternal(t *testing.T) {
	d := &doorman{say: func() error { panic("a defect") }}
	w := start(t, settings{edge: edge.Options{Authorizer: d}})
	in := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer token")
			return next(ctx, r)
		}
	}))
	c := newStreams(w, in)
	for range 2 {
		_, err := c.Read(w.Context(), &varvev1.ReadRequest{Stream: "a/b"})
		if connect.CodeOf(err) != connect.CodeInternal {
			t.Fatalf("%v", err)
		}
		if got := detailOf(t, err); got.GetReason() != varvev1.Reason_REASON_INTERNAL || got.GetApplied() != varvev1.Applied_APPLIED_UNKNOWN || strings.Contains(got.GetMessage(), "a defect in the server") == false {
			t.Errorf("%v", got)
		}
		d.mu.TryLock() // the panic left it locked
		d.mu.Unlock()
	}
}
