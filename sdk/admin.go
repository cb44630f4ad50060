package sdk

import (
	"context"
	"errors"
	"iter"

	"github.com/google/uuid"

	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
)

// The catalog's nouns, as they are on the wire.
type (
	// Stream is a stream: name, incarnation, number of shards, settings.
	Stream = varvev1.Stream
	// StreamSettings are a stream's settings; nil fields come from its namespace.
	StreamSettings = varvev1.StreamSettings
	// Namespace is a namespace and its settings.
	Namespace = varvev1.Namespace
	// NamespaceSettings are a namespace's settings.
	NamespaceSettings = varvev1.NamespaceSettings
)

// CreateOptions say what to create.
type CreateOptions struct {
	// Shards of a stream, 1 to 64; 0: as its namespace says.
	Shards uint32
	// Settings of a stream; nil: none of its own.
	Settings *StreamSettings
	// RequestID makes repeating the call safe, also later and by another process.
	// Empty: a random one, which makes this call's own retries safe.
	RequestID string
}

func (o CreateOptions) id() string {
	if o.RequestID == "" {
		return uuid.NewString()
	}
	return o.RequestID
}

// CreateStream makes a stream, "namespace/name". The error is [ErrExists] when the
// name is taken. At most one CreateOptions is looked at.
func (c *Client) CreateStream(ctx context.Context, stream string, options ...CreateOptions) (*Stream, error) {
	var o CreateOptions
	if len(options) > 0 {
		o = options[0]
	}
	r, err := call(ctx, c, "create "+stream, always,
		&varvev1.CreateStreamRequest{Stream: stream, RequestId: o.id(), Shards: o.Shards, Settings: o.Settings},
		func(e *endpoint, ctx context.Context, r *varvev1.CreateStreamRequest) (*varvev1.CreateStreamResponse, error) {
			return e.catalog.CreateStream(ctx, r)
		})
	return r.GetStream(), err
}

// GetStream returns a stream.
func (c *Client) GetStream(ctx context.Context, stream string) (*Stream, error) {
	r, err := call(ctx, c, "get "+stream, always, &varvev1.GetStreamRequest{Stream: stream},
		func(e *endpoint, ctx context.Context, r *varvev1.GetStreamRequest) (*varvev1.GetStreamResponse, error) {
			return e.catalog.GetStream(ctx, r)
		})
	return r.GetStream(), err
}

// Streams yields a namespace's streams whose names, without the namespace, begin
// with prefix, by name. After an error it ends.
func (c *Client) Streams(ctx context.Context, namespace, prefix string) iter.Seq2[*Stream, error] {
	return pages(func(token string) ([]*Stream, string, error) {
		r, err := call(ctx, c, "list streams of "+namespace, always,
			&varvev1.ListStreamsRequest{Namespace: namespace, Prefix: prefix, PageSize: listPage, PageToken: token},
			func(e *endpoint, ctx context.Context, r *varvev1.ListStreamsRequest) (*varvev1.ListStreamsResponse, error) {
				return e.catalog.ListStreams(ctx, r)
			})
		return r.GetStreams(), r.GetNextPageToken(), err
	})
}

// UpdateStream changes the settings that are not nil, 0 taking one away.
// incarnation and revision, unless 0, must be the stream's.
func (c *Client) UpdateStream(ctx context.Context, stream string, settings *StreamSettings, incarnation, revision uint64) (*Stream, error) {
	r, err := call(ctx, c, "update "+stream, certain,
		&varvev1.UpdateStreamRequest{Stream: stream, Settings: settings, Incarnation: optional(incarnation), Revision: optional(revision)},
		func(e *endpoint, ctx context.Context, r *varvev1.UpdateStreamRequest) (*varvev1.UpdateStreamResponse, error) {
			return e.catalog.UpdateStream(ctx, r)
		})
	return r.GetStream(), err
}

// Deleted says what a delete removed.
type Deleted struct {
	Incarnation uint64
	// Safe is false when the stream is deleted, but not yet safe against a restore:
	// the bucket was out of reach, and the server goes on trying.
	Safe bool
}

// DeleteStream deletes a stream with all its records. It is repeated after an
// unknown outcome only when an incarnation is named, as the name may belong to
// another stream by then.
func (c *Client) DeleteStream(ctx context.Context, stream string, incarnation uint64) (Deleted, error) {
	safe := certain
	if incarnation != 0 {
		safe = always
	}
	r, err := call(ctx, c, "delete "+stream, safe,
		&varvev1.DeleteStreamRequest{Stream: stream, Incarnation: optional(incarnation)},
		func(e *endpoint, ctx context.Context, r *varvev1.DeleteStreamRequest) (*varvev1.DeleteStreamResponse, error) {
			return e.catalog.DeleteStream(ctx, r)
		})
	var failed *Error
	if incarnation != 0 && errors.As(err, &failed) && failed.Applied == AppliedUnknown && (failed.Is(ErrStreamDeleted) || failed.Is(ErrNotFound)) {
		return Deleted{Incarnation: incarnation}, nil // an earlier try of this call did it
	}
	return Deleted{Incarnation: r.GetIncarnation(), Safe: r.GetSafe()}, err
}

// CreateNamespace makes a namespace. requestID is as in [CreateOptions].
func (c *Client) CreateNamespace(ctx context.Context, name string, settings *NamespaceSettings, requestID string) (*Namespace, error) {
	r, err := call(ctx, c, "create namespace "+name, always,
		&varvev1.CreateNamespaceRequest{Namespace: name, RequestId: CreateOptions{RequestID: requestID}.id(), Settings: settings},
		func(e *endpoint, ctx context.Context, r *varvev1.CreateNamespaceRequest) (*varvev1.CreateNamespaceResponse, error) {
			return e.catalog.CreateNamespace(ctx, r)
		})
	return r.GetNamespace(), err
}

// GetNamespace returns a namespace.
func (c *Client) GetNamespace(ctx context.Context, name string) (*Namespace, error) {
	r, err := call(ctx, c, "get namespace "+name, always, &varvev1.GetNamespaceRequest{Namespace: name},
		func(e *endpoint, ctx context.Context, r *varvev1.GetNamespaceRequest) (*varvev1.GetNamespaceResponse, error) {
			return e.catalog.GetNamespace(ctx, r)
		})
	return r.GetNamespace(), err
}

// Namespaces yields the namespaces whose names begin with prefix, by name. After an
// error it ends.
func (c *Client) Namespaces(ctx context.Context, prefix string) iter.Seq2[*Namespace, error] {
	return pages(func(token string) ([]*Namespace, string, error) {
		r, err := call(ctx, c, "list namespaces", always,
			&varvev1.ListNamespacesRequest{Prefix: prefix, PageSize: listPage, PageToken: token},
			func(e *endpoint, ctx context.Context, r *varvev1.ListNamespacesRequest) (*varvev1.ListNamespacesResponse, error) {
				return e.catalog.ListNamespaces(ctx, r)
			})
		return r.GetNamespaces(), r.GetNextPageToken(), err
	})
}

// UpdateNamespace changes the settings that are not nil. revision, unless 0, must be
// the namespace's.
func (c *Client) UpdateNamespace(ctx context.Context, name string, settings *NamespaceSettings, revision uint64) (*Namespace, error) {
	r, err := call(ctx, c, "update namespace "+name, certain,
		&varvev1.UpdateNamespaceRequest{Namespace: name, Settings: settings, Revision: optional(revision)},
		func(e *endpoint, ctx context.Context, r *varvev1.UpdateNamespaceRequest) (*varvev1.UpdateNamespaceResponse, error) {
			return e.catalog.UpdateNamespace(ctx, r)
		})
	return r.GetNamespace(), err
}

// DeleteNamespace removes a namespace that holds no stream.
func (c *Client) DeleteNamespace(ctx context.Context, name string) error {
	_, err := call(ctx, c, "delete namespace "+name, certain, &varvev1.DeleteNamespaceRequest{Namespace: name},
		func(e *endpoint, ctx context.Context, r *varvev1.DeleteNamespaceRequest) (*varvev1.DeleteNamespaceResponse, error) {
			return e.catalog.DeleteNamespace(ctx, r)
		})
	return err
}

const listPage = 500

func pages[T any](page func(token string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for token := ""; ; {
			items, next, err := page(token)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
	}
}
