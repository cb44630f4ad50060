// Package s3 is a bucket on S3 and on what speaks its protocol (MinIO, Ceph, R2,
// ...), and the only importer of the S3 client.
//
// # One call, several requests
//
//	call -> class (read | write | list | delete): own rate of retries, own backoff
//	         |
//	         +-> attempt: one request with a deadline of its own
//	                |
//	                +-> verdict: what happened, may it have been applied, is another try of use
//
// The client's own retries are off: they share one quota, so that failing uploads
// would starve reads, and they take the 412 that answers a repeated conditional
// put for a lost race. While a class fails, all its requests, first tries too, pass
// at a low rate; the first success lets everyone through. A call retries for as
// long as its class allows or its context lasts, and then says why.
//
// # Outcomes
//
// Each put carries a nonce of its own in the object's metadata. A conditional put
// that is answered 412 after an attempt of unknown outcome reads it back: its own
// nonce means success. A 409 decides nothing and is tried again. If the last word is
// an error and any attempt may have been applied, the call's error is ErrUnknown.
// Only a complete answer counts: an empty body where one must be is no success.
//
// # Checksums
//
// Requests carry the CRC32C that this package computed, as a header, over an
// unsigned payload: old stores accept that, new ones check and keep it. It is also put into
// the metadata, for stores that drop checksums. Answers are checked for length
// always, and against the checksum for whole objects.
//
// # Size and memory
//
// Up to Options.PutLimit (64 MiB) an object is one request, above it an upload in
// parts. Random-access bodies are sent from where they are. Streams are buffered
// in parts of Options.PartSize (8 MiB); all puts of a bucket share Options.Buffers of them
// (8), so that memory is bounded whatever is uploaded. An upload in parts that fails is aborted
// on a deadline of its own, also when the call's context has ended.
//
// # Credentials
//
// From Options, else from where AWS programs take them: environment, profile,
// container, instance. After the store refuses them they are looked up again, so
// that changed files and expired sessions need no restart.
//
// A Bucket is safe for concurrent use. Its goroutines end with the calls that start
// them.
package s3
