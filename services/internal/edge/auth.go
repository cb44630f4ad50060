package edge

import (
	"context"
	"net/http"

	"github.com/varve-io/varve/meta"
)

// Verb is what a request wants to do.
type Verb string

// The verbs.
const (
	VerbRead   Verb = "read"   // read records, check tails
	VerbAppend Verb = "append" // append records
	VerbWrite  Verb = "write"  // trim, fence
	VerbAdmin  Verb = "admin"  // namespaces, streams, shards
)

// Access is one thing that a request wants.
type Access struct {
	Verb      Verb
	Namespace string
	Stream    string // within the namespace; empty for all of it
}

// Authorizer decides who may do what. It is asked once for each call, before
// anything else is looked at; header is the request's. A refusal is a
// meta.ErrDenied or meta.ErrUnauthenticated.
type Authorizer interface {
	Authorize(ctx context.Context, header http.Header, want Access) error
}

// Loopback lets everybody in. It is right where only this machine can connect,
// or where an operator said --insecure.
type Loopback struct{}

// Authorize allows everything.
func (Loopback) Authorize(context.Context, http.Header, Access) error { return nil }

// allow asks the authorizer about a stream.
func (s *Server) allow(ctx context.Context, header http.Header, verb Verb, n meta.StreamName) error {
	return s.opts.Authorizer.Authorize(ctx, header, Access{Verb: verb, Namespace: n.Namespace, Stream: n.Name})
}
