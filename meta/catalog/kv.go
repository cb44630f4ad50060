package catalog

import (
	"context"
	"errors"
	"time"

	"github.com/varve-io/varve/meta"
)

// Revision is the store's global version: it goes up by one with every
// transaction that changes something. Zero means "none".
type Revision int64

// LeaseID names a lease; zero means "none".
type LeaseID int64

// Errors of the port, next to meta.ErrUnavailable (nothing was applied),
// meta.ErrUnknown (may have been applied), meta.ErrExhausted (quota; nothing was
// applied) and meta.ErrInvalid (too many operations, too big).
var (
	// ErrCompacted says that a revision asked for is no longer kept.
	ErrCompacted = errors.New("revision compacted")
	// ErrFuture says that a revision asked for is not reached yet: the store was rewound.
	ErrFuture = errors.New("revision not reached")
	// ErrLease says that the lease does not exist (any more).
	ErrLease = errors.New("lease not found")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("store closed")
)

// Limits of the port that both implementations enforce.
const (
	MaxOps          = 1024    // operations, and comparisons, of one transaction
	MaxRequestBytes = 4 << 20 // keys and values of one transaction
	MaxPage         = 10_000  // items of one page
)

// KV is the store beneath the catalog: linearizable reads and transactions over
// a flat, ordered key space with one global revision. Implementations are safe
// for concurrent use. Returned byte slices belong to the caller.
type KV interface {
	// Get reads one key, linearizably. found is false when it is absent. The
	// revision is the store's at the time of the read.
	Get(ctx context.Context, key string) (kv KeyValue, found bool, at Revision, err error)
	// Range reads keys with a prefix in byte order, linearizably, or as of
	// r.Revision. Errors: ErrCompacted, ErrFuture.
	Range(ctx context.Context, r RangeRequest) (Page, error)
	// Commit applies all operations if all comparisons hold, atomically, at one
	// new revision. No key may be written twice. An error that is not
	// meta.ErrUnknown means that nothing was applied and nothing will be.
	Commit(ctx context.Context, t Transaction) (Result, error)
	// Watch streams the changes of a prefix from a revision on (inclusive).
	Watch(ctx context.Context, prefix string, from Revision) Watch
	// Lease makes a lease that ends when it is not kept alive for ttl (at least
	// one second); its keys are deleted then.
	Lease(ctx context.Context, ttl time.Duration) (LeaseID, error)
	// KeepAlive starts the lease's time anew; ErrLease when it is gone.
	KeepAlive(ctx context.Context, id LeaseID) error
	// Revoke ends a lease and deletes its keys; ErrLease when it is gone.
	Revoke(ctx context.Context, id LeaseID) error
	// Close releases everything; calls under way fail.
	Close() error
}

// KeyValue is one key as stored.
type KeyValue struct {
	Key     string
	Value   []byte
	Created Revision // of this life of the key
	Mod     Revision // of its last write
	Lease   LeaseID
}

// RangeRequest asks for keys with Prefix that lie strictly after After.
type RangeRequest struct {
	Prefix   string
	After    string   // empty: from the first; otherwise a full key with that prefix
	Limit    int      // 1 to MaxPage; 0 means MaxPage
	Revision Revision // 0 means now; pages of one listing name the first page's
}

// Page is one part of a listing.
type Page struct {
	Items    []KeyValue
	Revision Revision // the state that was read
	More     bool     // ask again with After = the last key and this Revision
}

// CompareKind says what a comparison looks at.
type CompareKind uint8

// The comparisons.
const (
	CompareMod     CompareKind = iota + 1 // Key's last write is at Revision; 0 means absent
	CompareValue                          // Key is present with exactly Value
	ComparePresent                        // Key is present
	CompareEmpty                          // no key has the prefix Key
)

// Compare is one condition of a transaction.
type Compare struct {
	Kind     CompareKind
	Key      string
	Revision Revision
	Value    []byte
}

// Op writes or deletes one key. Deleting an absent key is no error and, alone,
// does not move the revision.
type Op struct {
	Key    string
	Value  []byte
	Lease  LeaseID
	Delete bool
}

// Transaction is a conditional write.
type Transaction struct {
	If   []Compare
	Then []Op
}

// Result is a transaction's outcome.
type Result struct {
	Applied  bool
	Revision Revision            // of the write, or of the state that refused it
	Found    map[string]KeyValue // when refused: the compared keys that are present (not for CompareEmpty)
}

// Watch delivers changes in order. Every revision arrives whole. A watch that
// ends closes C; Err then says why: ErrCompacted (read everything and start
// anew), ErrFuture (the store was rewound), meta.ErrUnavailable, ErrClosed, or
// the context's error.
type Watch interface {
	C() <-chan Changes
	Err() error
	Close()
}

// Changes is what happened up to a revision. No events means: nothing happened
// to this prefix up to Revision.
type Changes struct {
	Revision Revision
	Events   []Event
}

// Event is one key's change.
type Event struct {
	KV      KeyValue // when deleted: only Key and Mod
	Deleted bool
}

// CheckTransaction holds a transaction against the limits of the port and
// refuses (meta.ErrInvalid) one that writes a key twice.
func CheckTransaction(t Transaction) error {
	if len(t.Then) > MaxOps || len(t.If) > MaxOps {
		return meta.Invalidf("transaction of %d operations and %d comparisons: at most %d each", len(t.Then), len(t.If), MaxOps)
	}
	size := 0
	seen := make(map[string]struct{}, len(t.Then))
	for _, c := range t.If {
		size += len(c.Key) + len(c.Value)
	}
	for _, op := range t.Then {
		if op.Key == "" {
			return meta.Invalidf("transaction with an empty key")
		}
		if _, twice := seen[op.Key]; twice {
			return meta.Invalidf("transaction writes key %q twice", op.Key)
		}
		seen[op.Key] = struct{}{}
		size += len(op.Key) + len(op.Value)
	}
	if size > MaxRequestBytes {
		return meta.Invalidf("transaction of %d bytes: at most %d", size, MaxRequestBytes)
	}
	return nil
}
