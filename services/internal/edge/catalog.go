package edge

import (
	"context"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/broker"
)

// catalogs answers CatalogService.
type catalogs struct{ *Server }

const (
	pageDefault  = 100
	pageMost     = 1000
	requestIDMax = 128
)

// admin checks a namespace's name and access to it.
func (s *catalogs) admin(ctx context.Context, namespace string) error {
	if err := meta.ValidateNamespace(namespace); err != nil {
		return err
	}
	return s.admit(ctx, Access{Verb: VerbAdmin, Namespace: namespace})
}

func (s *Server) admit(ctx context.Context, want Access) error {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	return s.opts.Authorizer.Authorize(ctx, info.RequestHeader(), want)
}

// adminStream checks a stream's name and access to it.
func (s *catalogs) adminStream(ctx context.Context, name string) (meta.StreamName, error) {
	n, err := meta.ParseStreamName(name)
	if err != nil {
		return n, err
	}
	return n, s.admit(ctx, Access{Verb: VerbAdmin, Namespace: n.Namespace, Stream: n.Name})
}

// listing checks a page's prefix and token, which end up in keys.
func listing(prefix, token string) error {
	for what, s := range map[string]string{"prefix": prefix, "page token": token} {
		if len(s) > meta.MaxNameLen {
			return meta.Invalidf("%s has %d bytes: names have at most %d", what, len(s), meta.MaxNameLen)
		}
		for i := range len(s) {
			if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._-/", rune(c)) {
				return meta.Invalidf("%s has a byte %#x at %d, which no name has", what, c, i)
			}
		}
	}
	return nil
}

func requestID(id string) error {
	if len(id) > requestIDMax {
		return meta.Invalidf("request id has %d bytes: at most %d", len(id), requestIDMax)
	}
	return nil
}

func pageSize(n uint32) (int, error) {
	if n > pageMost {
		return 0, meta.Invalidf("page size is %d: at most %d", n, pageMost)
	}
	if n == 0 {
		return pageDefault, nil
	}
	return int(n), nil
}

func (s *catalogs) CreateNamespace(ctx context.Context, r *varvev1.CreateNamespaceRequest) (*varvev1.CreateNamespaceResponse, error) {
	if err := s.admin(ctx, r.GetNamespace()); err != nil {
		return nil, err
	}
	if err := requestID(r.GetRequestId()); err != nil {
		return nil, err
	}
	cfg, err := namespaceConfig(catalog.NamespaceConfig{}, r.GetSettings())
	if err != nil {
		return nil, err
	}
	row, err := s.opts.Catalog.CreateNamespace(ctx, r.GetNamespace(), cfg, r.GetRequestId())
	if err != nil {
		return nil, err
	}
	return &varvev1.CreateNamespaceResponse{Namespace: namespaceOut(row)}, nil
}

func (s *catalogs) GetNamespace(ctx context.Context, r *varvev1.GetNamespaceRequest) (*varvev1.GetNamespaceResponse, error) {
	if err := s.admin(ctx, r.GetNamespace()); err != nil {
		return nil, err
	}
	row, err := s.opts.Catalog.Namespace(ctx, r.GetNamespace())
	if err != nil {
		return nil, err
	}
	return &varvev1.GetNamespaceResponse{Namespace: namespaceOut(row)}, nil
}

func (s *catalogs) ListNamespaces(ctx context.Context, r *varvev1.ListNamespacesRequest) (*varvev1.ListNamespacesResponse, error) {
	if err := s.admit(ctx, Access{Verb: VerbAdmin}); err != nil {
		return nil, err
	}
	size, err := pageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	if err := listing(r.GetPrefix(), r.GetPageToken()); err != nil {
		return nil, err
	}
	rows, next, err := s.opts.Catalog.Namespaces(ctx, r.GetPrefix(), r.GetPageToken(), size)
	if err != nil {
		return nil, err
	}
	out := &varvev1.ListNamespacesResponse{NextPageToken: next}
	for _, row := range rows {
		out.Namespaces = append(out.Namespaces, namespaceOut(row))
	}
	return out, nil
}

func (s *catalogs) UpdateNamespace(ctx context.Context, r *varvev1.UpdateNamespaceRequest) (*varvev1.UpdateNamespaceResponse, error) {
	if err := s.admin(ctx, r.GetNamespace()); err != nil {
		return nil, err
	}
	row, err := s.opts.Catalog.Namespace(ctx, r.GetNamespace())
	if err != nil {
		return nil, err
	}
	if r.Revision != nil && catalog.Revision(r.GetRevision()) != row.Revision {
		return nil, meta.Errorf(meta.ErrConflict, "namespace %s is at revision %d, not %d: read it again", row.Name, row.Revision, r.GetRevision())
	}
	cfg, err := namespaceConfig(row.Config, r.GetSettings())
	if err != nil {
		return nil, err
	}
	if row, err = s.opts.Catalog.UpdateNamespace(ctx, row.Name, cfg, row.Revision); err != nil {
		return nil, err
	}
	return &varvev1.UpdateNamespaceResponse{Namespace: namespaceOut(row)}, nil
}

func (s *catalogs) DeleteNamespace(ctx context.Context, r *varvev1.DeleteNamespaceRequest) (*varvev1.DeleteNamespaceResponse, error) {
	if err := s.admin(ctx, r.GetNamespace()); err != nil {
		return nil, err
	}
	if err := s.opts.Catalog.DeleteNamespace(ctx, r.GetNamespace()); err != nil {
		return nil, err
	}
	return &varvev1.DeleteNamespaceResponse{}, nil
}

func (s *catalogs) CreateStream(ctx context.Context, r *varvev1.CreateStreamRequest) (*varvev1.CreateStreamResponse, error) {
	n, err := s.adminStream(ctx, r.GetStream())
	if err != nil {
		return nil, err
	}
	if err := requestID(r.GetRequestId()); err != nil {
		return nil, err
	}
	if r.GetShards() > meta.MaxShards {
		return nil, meta.Invalidf("stream %s with %d shards: 1 to %d", n, r.GetShards(), meta.MaxShards)
	}
	cfg, err := streamConfig(catalog.StreamConfig{}, r.GetSettings())
	if err != nil {
		return nil, err
	}
	row, err := s.broker.CreateStream(ctx, catalog.CreateStream{Name: n, Shards: r.GetShards(), Config: cfg, Request: r.GetRequestId()})
	if err != nil {
		return nil, err
	}
	st, err := s.whole(ctx, row)
	if err != nil {
		return nil, err
	}
	return &varvev1.CreateStreamResponse{Stream: streamOut(st)}, nil
}

// whole fills in the settings that hold for a stream whose row was just read or
// written. What the broker has cached of it is older.
func (s *catalogs) whole(ctx context.Context, row catalog.StreamRow) (broker.Stream, error) {
	s.broker.Forget(row.Name)
	ns, err := s.opts.Catalog.Namespace(ctx, row.Name.Namespace)
	if err != nil {
		return broker.Stream{}, err
	}
	return s.broker.Effective(row, ns.Config), nil
}

func (s *catalogs) GetStream(ctx context.Context, r *varvev1.GetStreamRequest) (*varvev1.GetStreamResponse, error) {
	n, err := s.adminStream(ctx, r.GetStream())
	if err != nil {
		return nil, err
	}
	row, err := s.opts.Catalog.Stream(ctx, n)
	if err != nil {
		return nil, err
	}
	st, err := s.whole(ctx, row)
	if err != nil {
		return nil, err
	}
	return &varvev1.GetStreamResponse{Stream: streamOut(st)}, nil
}

func (s *catalogs) ListStreams(ctx context.Context, r *varvev1.ListStreamsRequest) (*varvev1.ListStreamsResponse, error) {
	if err := s.admin(ctx, r.GetNamespace()); err != nil {
		return nil, err
	}
	size, err := pageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	if err := listing(r.GetPrefix(), r.GetPageToken()); err != nil {
		return nil, err
	}
	ns, err := s.opts.Catalog.Namespace(ctx, r.GetNamespace())
	if err != nil {
		return nil, err
	}
	rows, next, err := s.opts.Catalog.Streams(ctx, r.GetNamespace(), r.GetPrefix(), r.GetPageToken(), size)
	if err != nil {
		return nil, err
	}
	out := &varvev1.ListStreamsResponse{NextPageToken: next}
	for _, row := range rows {
		out.Streams = append(out.Streams, streamOut(s.broker.Effective(row, ns.Config)))
	}
	return out, nil
}

func (s *catalogs) UpdateStream(ctx context.Context, r *varvev1.UpdateStreamRequest) (*varvev1.UpdateStreamResponse, error) {
	n, err := s.adminStream(ctx, r.GetStream())
	if err != nil {
		return nil, err
	}
	want, err := addressed(r.Incarnation)
	if err != nil {
		return nil, err
	}
	row, err := s.opts.Catalog.Stream(ctx, n)
	if err != nil {
		return nil, err
	}
	if want != 0 && want != row.Incarnation {
		return nil, &deletedError{stream: n, asked: want, current: row.Incarnation,
			err: meta.Errorf(meta.ErrDeleted, "stream %s: incarnation %d is gone, %d has its name", n, want, row.Incarnation)}
	}
	if r.Revision != nil && catalog.Revision(r.GetRevision()) != row.Revision {
		return nil, meta.Errorf(meta.ErrConflict, "stream %s is at revision %d, not %d: read it again", n, row.Revision, r.GetRevision())
	}
	cfg, err := streamConfig(row.Config, r.GetSettings())
	if err != nil {
		return nil, err
	}
	if row, err = s.opts.Catalog.UpdateStream(ctx, n, cfg, row.Revision); err != nil {
		return nil, err
	}
	st, err := s.whole(ctx, row)
	if err != nil {
		return nil, err
	}
	return &varvev1.UpdateStreamResponse{Stream: streamOut(st)}, nil
}

func (s *catalogs) DeleteStream(ctx context.Context, r *varvev1.DeleteStreamRequest) (*varvev1.DeleteStreamResponse, error) {
	n, err := s.adminStream(ctx, r.GetStream())
	if err != nil {
		return nil, err
	}
	want, err := addressed(r.Incarnation)
	if err != nil {
		return nil, err
	}
	gone, safe, err := s.broker.Delete(ctx, n, want)
	if err != nil {
		return nil, target{Stream: broker.Stream{StreamRow: catalog.StreamRow{Name: n, Incarnation: want}}}.explain(err)
	}
	return &varvev1.DeleteStreamResponse{Incarnation: uint64(gone.Stream.Incarnation), Safe: safe}, nil
}

// namespaceConfig lays what a request sets over what is there.
func namespaceConfig(c catalog.NamespaceConfig, set *varvev1.NamespaceSettings) (catalog.NamespaceConfig, error) {
	if set == nil {
		return c, nil
	}
	if set.CreateOnAppend != nil {
		c.CreateOnAppend = set.GetCreateOnAppend()
	}
	if set.CreateOnRead != nil {
		c.CreateOnRead = set.GetCreateOnRead()
	}
	if set.DefaultShards != nil {
		c.Shards = set.GetDefaultShards()
	}
	var err error
	if c.Defaults, err = streamConfig(c.Defaults, set.GetStreams()); err != nil {
		return c, err
	}
	return c, c.Validate()
}

func streamConfig(c catalog.StreamConfig, set *varvev1.StreamSettings) (catalog.StreamConfig, error) {
	if set == nil {
		return c, nil
	}
	for _, f := range []struct {
		name string
		set  *uint64
		to   *int64
	}{
		{"max_record_bytes", set.MaxRecordBytes, &c.MaxRecordBytes},
		{"segment_bytes", set.SegmentBytes, &c.SegmentBytes},
		{"producers_max", set.ProducersMax, &c.ProducersMax},
	} {
		if f.set == nil {
			continue
		}
		v, err := signed(f.name, *f.set)
		if err != nil {
			return c, err
		}
		*f.to = v
	}
	if d := set.GetSegmentAge(); d != nil {
		if err := d.CheckValid(); err != nil {
			return c, meta.Invalidf("segment_age: %w", err)
		}
		c.SegmentAge = d.AsDuration()
	}
	return c, c.Validate()
}

func signed(name string, v uint64) (int64, error) {
	if v > uint64(meta.MaxOffset) {
		return 0, meta.Invalidf("%s is %d: too large", name, v)
	}
	return int64(v), nil
}

func namespaceOut(r catalog.NamespaceRow) *varvev1.Namespace {
	return &varvev1.Namespace{
		Name: r.Name, CreateTime: stamp(r.Created), Revision: uint64(r.Revision),
		Settings: &varvev1.NamespaceSettings{
			CreateOnAppend: proto.Bool(r.Config.CreateOnAppend), CreateOnRead: proto.Bool(r.Config.CreateOnRead),
			DefaultShards: proto.Uint32(r.Config.Shards), Streams: settingsOut(r.Config.Defaults),
		},
	}
}

func streamOut(s broker.Stream) *varvev1.Stream {
	return &varvev1.Stream{
		Name: s.Name.String(), Incarnation: uint64(s.Incarnation), Shards: s.Shards,
		Settings: settingsOut(s.Config), Effective: settingsOut(s.Effective),
		CreateTime: stamp(s.Created), Revision: uint64(s.Revision),
	}
}

// settingsOut leaves out what is not set.
func settingsOut(c catalog.StreamConfig) *varvev1.StreamSettings {
	out := &varvev1.StreamSettings{}
	if c.MaxRecordBytes != 0 {
		out.MaxRecordBytes = proto.Uint64(uint64(c.MaxRecordBytes))
	}
	if c.SegmentBytes != 0 {
		out.SegmentBytes = proto.Uint64(uint64(c.SegmentBytes))
	}
	if c.SegmentAge != 0 {
		out.SegmentAge = durationpb.New(c.SegmentAge)
	}
	if c.ProducersMax != 0 {
		out.ProducersMax = proto.Uint64(uint64(c.ProducersMax))
	}
	return out
}
