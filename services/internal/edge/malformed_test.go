package edge_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/servicetest"
)

// detailJSON reads the detail of an error that came as Connect's JSON.
func detailJSON(t *testing.T, body string) *varvev1.ErrorDetail {
	t.Helper()
	var e struct {
		Code, Message string
		Details       []struct {
			Type  string
			Debug json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Details) != 1 || e.Message == "" {
		t.Fatalf("no error with a detail: %s", body)
	}
	d := &varvev1.ErrorDetail{}
	if err := protojson.Unmarshal(e.Details[0].Debug, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// Rows: C6
func TestC6_MalformedRequestsSayWhatIsWrong(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	const path = "/varve.v1.StreamService/Append"
	for _, c := range []struct{ name, contentType, body, says string }{
		{"no JSON", "application/json", "{", "unexpected EOF"},
		{"nothing", "application/json", "", "nothing"},
		{"unknown field", "application/json", `{"stream":"a/b","valeu":1}`, "valeu"},
		{"wrong type", "application/json", `{"stream":7}`, "string"},
		{"not UTF-8", "application/json", "{\"stream\":\"\xff\"}", "UTF-8"},
		{"bad base64", "application/json", `{"stream":"a/b","batch":"!"}`, "batch"},
		{"a time out of range", "application/json", `{"stream":"a/b","records":[{"createTime":"99999-01-01T00:00:00Z"}]}`, "Timestamp"},
		{"no protobuf", "application/proto", "\xff\xff\xff", "AppendRequest"},
		{"a name not UTF-8", "application/proto", "\x0a\x01\xff", "UTF-8"},
		{"too large", "application/json", `{"stream":"` + strings.Repeat("x", 7<<20), "more than"},
		{"nothing to append", "application/json", `{"stream":"a/b"}`, "at least one record"},
		{"hostile name", "application/json", `{"stream":"../../etc","records":[{}]}`, "part"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := w.post(w.http1, path, c.contentType, strings.NewReader(c.body))
			d := detailJSON(t, body)
			if status != http.StatusBadRequest || d.GetReason() != varvev1.Reason_REASON_INVALID_ARGUMENT || d.GetApplied() != varvev1.Applied_APPLIED_NO || d.GetRetryable() {
				t.Errorf("%d %v", status, d)
			}
			if !strings.Contains(d.GetMessage(), c.says) {
				t.Errorf("it says %q, without %q", d.GetMessage(), c.says)
			}
		})
	}
	for _, c := range []struct {
		contentType string
		status      int
	}{{"text/plain", http.StatusUnsupportedMediaType}, {"", http.StatusUnsupportedMediaType}, {"application/xml", http.StatusUnsupportedMediaType}} {
		if status, body := w.post(w.http1, path, c.contentType, strings.NewReader("{}")); status != c.status || !strings.Contains(body, "application/json") {
			t.Errorf("content type %q: %d %q", c.contentType, status, body)
		}
	}
	if status, body := get(t, w, path); status != http.StatusMethodNotAllowed || !strings.Contains(body, "POST") {
		t.Errorf("GET: %d %q", status, body)
	}
	if status, body := w.post(w.http1, "/varve.v1.StreamService/AppendSession", "application/connect+proto", strings.NewReader("")); status != http.StatusHTTPVersionNotSupported || !strings.Contains(body, "HTTP/2") {
		t.Errorf("a session on HTTP/1: %d %q", status, body)
	}
	if got := w.values("a/b"); len(got) != 0 {
		t.Errorf("something was appended: %q", got)
	}
}

// Headers that connect would refuse without a detail.
func TestC6_MalformedHeaders(t *testing.T) {
	w := start(t, settings{})
	for name, value := range map[string]string{
		"Content-Encoding": "gzip", "Connect-Timeout-Ms": "soon", "connect-timeout-ms": "99999999999",
	} {
		r, err := http.NewRequest(http.MethodPost, w.url+"/varve.v1.StreamService/Read", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(name, value)
		out, err := w.http1.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(out.Body)
		_ = out.Body.Close()
		if d := detailJSON(t, string(body)); !strings.Contains(d.GetMessage(), value) {
			t.Errorf("%s: %v", name, d)
		}
	}
}

// Bodies that end early, in every protocol: an answer with a detail, nothing applied.
func TestC6_TruncatedBodies(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	message, err := proto.Marshal(&varvev1.AppendRequest{Stream: "a/b", Batch: encode(t, batch.None, batch.Record{Value: []byte("value")})})
	if err != nil {
		t.Fatal(err)
	}
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	framed = append(framed, message...)
	for _, contentType := range []string{"application/grpc+proto", "application/grpc-web+proto"} {
		for n := range len(framed) {
			code, said := grpcStatus(t, w, contentType, framed[:n])
			if code != "3" || said == "" {
				t.Fatalf("%s, %d of %d bytes: status %q, %q", contentType, n, len(framed), code, said)
			}
		}
	}
	for n := range len(message) {
		status, body := w.post(w.http2, "/varve.v1.StreamService/Append", "application/proto", bytes.NewReader(message[:n]))
		if status == http.StatusOK {
			t.Fatalf("%d of %d bytes were taken", n, len(message))
		}
		detailJSON(t, body)
	}
	for _, bad := range []struct {
		name string
		body []byte
	}{
		{"compressed", append([]byte{1}, framed[1:]...)},
		{"claims 4 GiB", []byte{0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}},
		{"two messages", append(bytes.Clone(framed), framed...)},
	} {
		if code, said := grpcStatus(t, w, "application/grpc+proto", bad.body); code != "3" || said == "" {
			t.Errorf("%s: %q %q", bad.name, code, said)
		}
	}
	if got := w.values("a/b"); len(got) != 0 {
		t.Errorf("something was appended: %q", got)
	}
}

// grpcStatus sends bytes to Append and returns the status and the message, which
// must come with a detail.
func grpcStatus(t *testing.T, w *world, contentType string, body []byte) (code, message string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, w.url+"/varve.v1.StreamService/Append", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	out, err := w.http2.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	rest, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	h := out.Trailer
	if h.Get("Grpc-Status") == "" {
		h = out.Header
	}
	if h.Get("Grpc-Status") == "" && len(rest) > 5 { // gRPC-Web has its trailers in the body
		h = http.Header{}
		for line := range strings.SplitSeq(string(rest[5:]), "\r\n") {
			if k, v, ok := strings.Cut(line, ":"); ok {
				h.Set(k, strings.TrimSpace(v))
			}
		}
	}
	if h.Get("Grpc-Status-Details-Bin") == "" {
		t.Fatalf("no detail: %v %q", h, rest)
	}
	return h.Get("Grpc-Status"), h.Get("Grpc-Message")
}

// Well-formed messages that break a rule.
func TestC6_ArgumentsOutOfRange(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 2)
	ctx := w.Context()
	big := ^uint64(0)
	one := []*varvev1.Record{{Value: []byte("x")}}
	b := encode(t, batch.None, batch.Record{Value: []byte("x")})
	broken := bytes.Clone(b)
	broken[len(broken)-1] ^= 1
	appends := map[string]*varvev1.AppendRequest{
		"no slash":            {Stream: "a", Records: one},
		"incarnation 0":       {Stream: "a/b", Incarnation: proto.Uint64(0), Records: one},
		"shard 2 of 2":        {Stream: "a/b", Shard: proto.Uint32(2), Records: one},
		"batch and records":   {Stream: "a/b", Shard: proto.Uint32(0), Batch: b, Records: one},
		"batch without shard": {Stream: "a/b", Batch: b},
		"empty batch":         {Stream: "a/b", Shard: proto.Uint32(0), Batch: []byte{}},
		"wrong checksum":      {Stream: "a/b", Shard: proto.Uint32(0), Batch: broken},
		"acknowledgement 9":   {Stream: "a/b", Shard: proto.Uint32(0), Records: one, Ack: 9},
		"none with condition": {Stream: "a/b", Shard: proto.Uint32(0), Records: one, Ack: varvev1.Ack_ACK_NONE, ExpectedOffset: proto.Uint64(0)},
		"record with offset":  {Stream: "a/b", Shard: proto.Uint32(0), Records: []*varvev1.Record{{Offset: proto.Uint64(1)}}},
		"bad create time":     {Stream: "a/b", Shard: proto.Uint32(0), Records: []*varvev1.Record{{CreateTime: &timestamppb.Timestamp{Nanos: -1}}}},
	}
	for name, r := range appends {
		_, err := w.streams.Append(ctx, r)
		if err == nil || connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("append, %s: %v", name, err)
			continue
		}
		refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	}
	// Keys that belong to different shards.
	mixed := &varvev1.AppendRequest{Stream: "a/b"}
	for i := range 20 {
		mixed.Records = append(mixed.Records, &varvev1.Record{Key: []byte{byte('a' + i)}})
	}
	_, err := w.streams.Append(ctx, mixed)
	refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	reads := map[string]*varvev1.ReadRequest{
		"format 9":        {Stream: "a/b", Format: 9},
		"follow":          {Stream: "a/b", Follow: true},
		"negative wait":   {Stream: "a/b", Wait: durationpb.New(-1)},
		"wait is no time": {Stream: "a/b", Wait: &durationpb.Duration{Seconds: 1, Nanos: -5}},
		"until":           {Stream: "a/b", Until: &timestamppb.Timestamp{Seconds: 1 << 60}},
		"time":            {Stream: "a/b", Start: &varvev1.ReadRequest_Time{Time: &timestamppb.Timestamp{Nanos: 2e9}}},
		"shard":           {Stream: "a/b", Shard: 1 << 31},
		"offset":          {Stream: "a/b", Start: &varvev1.ReadRequest_Offset{Offset: big}},
	}
	for name, r := range reads {
		_, err := w.streams.Read(ctx, r)
		if err == nil {
			t.Errorf("read, %s: went well", name)
			continue
		}
		refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	}
	calls := map[string]func() error{
		"trim beyond all": func() error {
			_, err := w.streams.Trim(ctx, &varvev1.TrimRequest{Stream: "a/b", Before: big})
			return err
		},
		"long token": func() error {
			_, err := w.streams.Fence(ctx, &varvev1.FenceRequest{Stream: "a/b", Token: strings.Repeat("x", 129)})
			return err
		},
		"strict, no token": func() error {
			_, err := w.streams.Fence(ctx, &varvev1.FenceRequest{Stream: "a/b", Strict: true})
			return err
		},
		"65 shards": func() error {
			_, err := w.catalog.CreateStream(ctx, &varvev1.CreateStreamRequest{Stream: "a/c", Shards: 65})
			return err
		},
		"long request id": func() error {
			_, err := w.catalog.CreateStream(ctx, &varvev1.CreateStreamRequest{Stream: "a/c", RequestId: strings.Repeat("x", 129)})
			return err
		},
		"negative age": func() error {
			_, err := w.catalog.CreateStream(ctx, &varvev1.CreateStreamRequest{Stream: "a/c", Settings: &varvev1.StreamSettings{SegmentAge: durationpb.New(-1)}})
			return err
		},
		"huge setting": func() error {
			_, err := w.catalog.UpdateStream(ctx, &varvev1.UpdateStreamRequest{Stream: "a/b", Settings: &varvev1.StreamSettings{SegmentBytes: &big}})
			return err
		},
		"delete incarnation 0": func() error {
			_, err := w.catalog.DeleteStream(ctx, &varvev1.DeleteStreamRequest{Stream: "a/b", Incarnation: proto.Uint64(0)})
			return err
		},
		"page of 1001": func() error {
			_, err := w.catalog.ListStreams(ctx, &varvev1.ListStreamsRequest{Namespace: "a", PageSize: 1001})
			return err
		},
		"page token": func() error {
			_, err := w.catalog.ListStreams(ctx, &varvev1.ListStreamsRequest{Namespace: "a", PageToken: "\x00~"})
			return err
		},
		"long page token": func() error {
			_, err := w.catalog.ListStreams(ctx, &varvev1.ListStreamsRequest{Namespace: "a", PageToken: strings.Repeat("a", 1000)})
			return err
		},
		"prefix with tilde": func() error {
			_, err := w.catalog.ListStreams(ctx, &varvev1.ListStreamsRequest{Namespace: "a", Prefix: "x~"})
			return err
		},
		"storage id": func() error {
			_, err := w.clusters.AbandonShard(ctx, &varvev1.AbandonShardRequest{Stream: "a/b", Lost: []string{"zz"}})
			return err
		},
	}
	for name, f := range calls {
		err := f()
		if err == nil {
			t.Errorf("%s: went well", name)
			continue
		}
		refused(t, err, varvev1.Reason_REASON_INVALID_ARGUMENT)
	}
	_, err = w.catalog.ListStreams(ctx, &varvev1.ListStreamsRequest{Namespace: "unknown"})
	refused(t, err, varvev1.Reason_REASON_NOT_FOUND)
	if p, err := w.catalog.ListStreams(ctx, &varvev1.ListStreamsRequest{Namespace: "a", Prefix: "b", PageToken: "zzz"}); err != nil || len(p.GetStreams()) != 0 {
		t.Errorf("a token beyond the prefix: %v %v", p, err)
	}
	for _, s := range []uint32{0, 1} {
		if e, err := w.streams.CheckTail(ctx, &varvev1.CheckTailRequest{Stream: "a/b", Shard: s}); err != nil || e.GetTail() != 0 || e.GetShards() != 2 || e.GetShard() != s {
			t.Errorf("%v %v", e, err)
		}
	}
}

// methods are all calls, by path.
func methods() map[string]protoreflect.MethodDescriptor {
	out := map[string]protoreflect.MethodDescriptor{}
	for _, f := range []protoreflect.FileDescriptor{varvev1.File_varve_v1_stream_proto, varvev1.File_varve_v1_catalog_proto, varvev1.File_varve_v1_cluster_proto} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				out["/"+string(s.FullName())+"/"+string(s.Methods().Get(j).Name())] = s.Methods().Get(j)
			}
		}
	}
	return out
}

// throw sends bytes to a call and fails unless there is an answer.
func throw(t *testing.T, w *world, path, contentType string, body []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servicetest.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("Connect-Timeout-Ms", "500") // a wait, or a session that follows, ends
	r.Header.Set("Grpc-Timeout", "500m")
	out, err := w.http2.Do(r)
	if err != nil {
		t.Fatalf("%s, %s, %x: %v", path, contentType, body, err)
	}
	if _, err := io.Copy(io.Discard, out.Body); err != nil {
		t.Fatalf("%s, %s, %x: %v", path, contentType, body, err)
	}
	_ = out.Body.Close()
	if out.StatusCode == http.StatusInternalServerError {
		t.Fatalf("%s, %s, %x: status 500", path, contentType, body)
	}
}

// Rows: C6
func FuzzC6_EveryCallTakesAnyBytes(f *testing.F) {
	w := start(f, settings{})
	w.make("a/b", 1)
	w.put("a/b", "one", "two")
	types := []string{"application/proto", "application/json", "application/grpc+proto", "application/grpc-web+json", "application/connect+proto", "application/connect+json"}
	var paths []string
	for path := range methods() {
		paths = append(paths, path)
	}
	for i := range paths {
		for k := range types {
			f.Add(uint8(i), uint8(k), []byte(nil))
			f.Add(uint8(i), uint8(k), []byte("\x0a\x03a/b\x32\x02\x12\x00"))
			f.Add(uint8(i), uint8(k), []byte(`{"stream":"a/b","shard":0,"fromStart":true}`))
			f.Add(uint8(i), uint8(k), []byte("\x00\x00\x00\x00\x05\x0a\x03a/b"))
			f.Add(uint8(i), uint8(k), []byte("\x00\xff\xff\xff\xff\x0a\x03a/b"))
		}
	}
	f.Fuzz(func(t *testing.T, path, kind uint8, body []byte) {
		p := paths[int(path)%len(paths)]
		if strings.HasSuffix(p, "/DeleteStream") || strings.HasSuffix(p, "/DeleteNamespace") {
			body = bytes.ReplaceAll(body, []byte("a/b"), []byte("a/x"))
		}
		throw(t, w, p, types[int(kind)%len(types)], body)
	})
}

// Every request message with random fields: an answer each time, within its time,
// and the server serves on.
// Rows: C6
func TestC6_RandomMessages(t *testing.T) {
	w := start(t, settings{})
	w.make("a/b", 1)
	w.put("a/b", "one", "two")
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 1))
	for path, m := range methods() {
		for i := range 40 {
			name := m.Input().FullName()
			mt, err := protoregistry.GlobalTypes.FindMessageByName(name)
			if err != nil {
				t.Fatal(err)
			}
			msg := mt.New()
			fill(rng, msg, 3)
			contentType, enveloped := "application/proto", m.IsStreamingClient() || m.IsStreamingServer()
			b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(msg.Interface())
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if i%2 == 1 && !enveloped {
				if j, err := protojson.Marshal(msg.Interface()); err == nil {
					contentType, b = "application/json", j
				}
			}
			if enveloped {
				contentType = "application/connect+proto"
				b = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
			}
			throw(t, w, path, contentType, b)
		}
	}
	w.make("after/all", 1)
	w.put("after/all", "alive")
	if got := w.values("after/all"); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// fill sets fields to hostile values.
func fill(rng *rand.Rand, m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if rng.IntN(3) == 0 {
			continue
		}
		if fd.IsList() {
			if depth > 0 {
				l := m.Mutable(fd).List()
				for range rng.IntN(3) {
					if fd.Message() != nil {
						fill(rng, l.AppendMutable().Message(), depth-1)
					} else {
						l.Append(value(rng, fd))
					}
				}
			}
			continue
		}
		if fd.Message() != nil {
			if depth > 0 {
				fill(rng, m.Mutable(fd).Message(), depth-1)
			}
			continue
		}
		m.Set(fd, value(rng, fd))
	}
}

func value(rng *rand.Rand, fd protoreflect.FieldDescriptor) protoreflect.Value {
	numbers := []int64{0, 1, -1, 1 << 31, 1<<31 - 1, -1 << 31, 1<<63 - 1, -1 << 63, 2, 100}
	n := numbers[rng.IntN(len(numbers))]
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 1)
	case protoreflect.StringKind:
		names := []string{"", "a/b", "a/b", "a/b", "a", "../x", "a/\x00", "ключ/ключ", strings.Repeat("x", 3000), "a//b"}
		return protoreflect.ValueOfString(names[rng.IntN(len(names))])
	case protoreflect.BytesKind:
		b := make([]byte, rng.IntN(100))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return protoreflect.ValueOfBytes(b)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	default:
		return protoreflect.ValueOfUint64(uint64(n))
	}
}
