package edge

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/varve-io/varve/meta"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// call is what is kept of a request while it is served.
type call struct {
	s    *Server
	body *body
	cut  *time.Timer // ends a client that does not take the answer; nil before there is one

	mu      sync.Mutex
	control *http.ResponseController // nil once the request is over: it must not be touched then
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// answer gives the client some time to take what is sent from now on.
func (c *call) answer() {
	if c.cut == nil {
		c.cut = time.AfterFunc(c.s.opts.Write, c.endWrites)
		return
	}
	c.cut.Reset(c.s.opts.Write)
}

// endReads makes reading the request fail from now on.
func (c *call) endReads() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control != nil {
		_ = c.control.SetReadDeadline(past)
	}
}

// endWrites makes writing the answer fail from now on.
func (c *call) endWrites() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.control != nil {
		_ = c.control.SetWriteDeadline(past)
	}
}

// end lets go of the request. A timer that fires at this moment finds it gone.
func (c *call) end() {
	c.body.late.Stop()
	c.body.release()
	if c.cut != nil {
		c.cut.Stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control = nil
}

// past is a deadline that has expired. Deadlines are set only once it is too late:
// HTTP/2 ends a stream at its deadline even while nothing is being written.
var past = time.Unix(1, 0)

// shape is how a call's messages go.
type shape struct {
	single bool // one request message
	types  []string
}

var (
	grpcTypes   = []string{"application/grpc", "application/grpc+proto", "application/grpc+json", "application/grpc-web", "application/grpc-web+proto", "application/grpc-web+json"}
	unaryTypes  = append([]string{"application/json", "application/proto"}, grpcTypes...)
	streamTypes = append([]string{"application/connect+json", "application/connect+proto"}, grpcTypes...)
)

// procedures are our calls by their paths.
func procedures() map[string]shape {
	out := map[string]shape{}
	for _, f := range []protoreflect.FileDescriptor{
		varvev1.File_varve_v1_stream_proto, varvev1.File_varve_v1_catalog_proto, varvev1.File_varve_v1_cluster_proto,
	} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				sh := shape{!m.IsStreamingClient(), unaryTypes}
				if m.IsStreamingClient() || m.IsStreamingServer() {
					sh.types = streamTypes
				}
				out[fmt.Sprintf("/%s/%s", s.FullName(), m.Name())] = sh
			}
		}
	}
	return out
}

// guard stands before everything: it bounds what a request may cost, and answers
// what connect would refuse without saying why.
func (s *Server) guard(next http.Handler) http.Handler {
	calls := procedures()
	answer := connect.NewErrorWriter(codecs()...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sh, ours := calls[r.URL.Path]
		if ours {
			if status, why := misdirected(r, sh); status != 0 {
				http.Error(w, why, status)
				return
			}
			if err := headers(r.Header); err != nil {
				_ = answer.Write(w, r, wire(err))
				return
			}
		}
		c := &call{s: s, control: http.NewResponseController(w)}
		c.body = &body{src: r.Body, s: s, enveloped: enveloped(r.Header), single: ours && sh.single}
		c.body.late = time.AfterFunc(s.opts.Upload, c.endReads)
		defer c.end()
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		r.Body = c.body
		next.ServeHTTP(w, r)
	})
}

// enveloped reports whether each message has its length in front.
func enveloped(h http.Header) bool {
	t := h.Get("Content-Type")
	return strings.HasPrefix(t, "application/grpc") || strings.HasPrefix(t, "application/connect+")
}

// misdirected says what is wrong with a request that speaks no protocol of ours.
func misdirected(r *http.Request, sh shape) (int, string) {
	given := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(given)
	switch {
	case r.Method != http.MethodPost:
		return http.StatusMethodNotAllowed, "calls are sent with POST"
	case !sh.single && r.ProtoMajor < 2:
		return http.StatusHTTPVersionNotSupported, "this call sends and receives at once: it needs HTTP/2"
	case err != nil || !slices.Contains(sh.types, kind):
		return http.StatusUnsupportedMediaType, fmt.Sprintf("content type %.100q: this call takes %s", given, strings.Join(sh.types, ", "))
	}
	return 0, ""
}

// headers checks those that connect refuses by itself.
func headers(h http.Header) error {
	for _, name := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if v := h.Get(name); v != "" && v != "identity" {
			return meta.Invalidf("%s is %.100q: compressed requests are not taken, batches may be compressed inside", name, v)
		}
	}
	if v := h.Get("Connect-Timeout-Ms"); v != "" {
		if _, err := strconv.ParseUint(v, 10, 64); err != nil || len(v) > 10 {
			return meta.Invalidf("Connect-Timeout-Ms is %.100q: want up to ten digits", v)
		}
	}
	if v := h.Get("Grpc-Timeout"); v != "" {
		digits := strings.TrimRight(v, "HMSmun")
		if _, err := strconv.ParseUint(digits, 10, 64); err != nil || len(digits) > 8 || len(v) != len(digits)+1 {
			return meta.Invalidf("Grpc-Timeout is %.100q: want up to eight digits and one of H M S m u n", v)
		}
	}
	return nil
}
