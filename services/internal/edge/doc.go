// Package edge is the only room that sees both the wire and the domain: the
// Connect handlers of varve.v1, served as Connect, gRPC, gRPC-Web and JSON on one
// port, with reflection, health and metrics.
//
// It checks who asks (auth.go, the one place), the shape of what is asked, and
// the limits; finds the stream and shard; and turns domain errors into Connect
// errors with a typed detail by one table (error.go).
//
// # A request's way
//
//	bytes -> guard: protocol, encoding, timeout header (guard.go)
//	      -> body: sizes, envelopes, a budget for all, time to arrive (body.go)
//	      -> codec: what does not decode is marked, not lost (codec.go)
//	      -> watcher: measures, and gives every error its detail (watch.go)
//	      -> a handler, which asks the authorizer once
//
// # What a client may cost
//
// A request body is bounded while it is read, alone and together with all others
// that are arriving, and must arrive in time. An appending session has at most
// [MaxInFlight] batches under way and reads no further while they wait; a reading
// session holds one page, and a client that does not take an answer within the
// write timeout is cut. What is decoded for a page is bounded by its decoded size.
// Nothing here is kept per stream.
//
// All handlers are safe for concurrent use.
package edge
