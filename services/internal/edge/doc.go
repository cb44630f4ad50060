// Package edge is the only room that sees both the wire and the domain: the
// Connect handlers of varve.v1, served as Connect, gRPC, gRPC-Web and JSON on one
// port, with reflection, health and metrics.
//
// It checks who asks (auth.go, the one place), the shape of what is asked, and
// the limits; finds the stream and shard; and turns domain errors into Connect
// errors with a typed detail by one table (error.go).
//
// # What a client may cost
//
// A request body is bounded before it is read. An appending session has at most
// [MaxInFlight] batches under way and reads no further while they wait; a reading
// session holds one page, and one whose client does not take it within the write
// timeout is cut. Nothing here is kept per stream.
//
// All handlers are safe for concurrent use.
package edge
