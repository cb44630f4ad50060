package bucket

import (
	"context"
	"hash/crc32"
	"iter"
	"time"
)

// Bucket is an object store, or the part of one below a prefix. See the package
// documentation for what it promises.
type Bucket interface {
	// Put stores body under key. Nil means that the whole object is stored,
	// durable, and matched its checksum on arrival. The returned Info has the
	// size and the checksum of what was stored.
	//
	// Errors: ErrExists (IfAbsent, and the object is someone else's; a retried
	// write that turns out to have been stored the first time is a success),
	// ErrUnknown, ErrDenied, ErrUnavailable, ErrCorrupt (the bytes did not match
	// the announced size or checksum), ErrInvalid (key), and the body reader's
	// own error.
	Put(ctx context.Context, key string, body Body, opts PutOptions) (Info, error)

	// Get returns exactly the length bytes that start at offset, in a buffer
	// that belongs to the caller. They are not checked against a checksum:
	// whoever knows the blocks does that. length 0 returns an empty slice
	// without a request.
	//
	// Errors: ErrNotExist, ErrCorrupt (the object ends before offset+length),
	// ErrDenied, ErrUnavailable, ErrInvalid.
	Get(ctx context.Context, key string, offset, length int64) ([]byte, error)

	// Load returns a whole object of at most limit bytes, checked against the
	// checksum the store keeps with it, where there is one (Info.Checked).
	//
	// Errors: as Get, and ErrTooLarge.
	Load(ctx context.Context, key string, limit int64) ([]byte, Info, error)

	// Head describes an object. Errors: ErrNotExist, ErrDenied, ErrUnavailable,
	// ErrInvalid.
	Head(ctx context.Context, key string) (Info, error)

	// List yields the objects whose keys begin with prefix (any string, not only
	// whole folders) and are greater than after, in byte order, page by page.
	// Only Key and Size of an Info are set. A pair with an error is the last.
	// Objects put or deleted meanwhile may or may not be seen.
	List(ctx context.Context, prefix, after string) iter.Seq2[Info, error]

	// Delete removes keys, any number of them, in batches that the store takes.
	// Nil means that none of them exists any more. Otherwise the error is a
	// *DeleteError that names each key of which that isn't known; the rest is
	// gone. Calling again with those is always right.
	Delete(ctx context.Context, keys []string) error

	// Tidy removes what interrupted uploads of killed processes left behind and
	// which began more than age ago, and says how many there were. It never
	// touches an object. Only uploads below the bucket's own prefix count.
	Tidy(ctx context.Context, age time.Duration) (int, error)

	// Location is the URL of the bucket, without secrets, for messages.
	Location() string

	// Close releases connections and files. Calls that run must have ended.
	Close() error
}

// PutOptions says how an object is put. The zero value overwrites.
type PutOptions struct {
	// IfAbsent makes the put fail with ErrExists when the key is taken.
	IfAbsent bool
	// CRC32C is what the body's checksum must be, or nil if the caller does not
	// know it. The put fails with ErrCorrupt when the bytes do not match. It
	// spares a pass over a body made by [At].
	CRC32C *uint32
}

// Info describes an object.
type Info struct {
	Key  string
	Size int64 // bytes
	// CRC32C is the checksum (Castagnoli) of the whole object as the store keeps
	// it, if Checked. A store or file system that keeps none leaves Checked
	// false.
	CRC32C  uint32
	Checked bool
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of p.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Update adds p to the CRC32C of the bytes before it.
func Update(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }
