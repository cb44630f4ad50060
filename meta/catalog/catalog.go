package catalog

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/varve-io/varve/meta"
)

// Level is the highest format level this code writes; it reads every level up
// to it.
const Level uint16 = 1

// Options configure a catalog. The zero value is useful.
type Options struct {
	// Now is the wall clock behind incarnations and creation times; nil means time.Now.
	Now func() time.Time
	// MaxLevel is the highest format level this process can write; 0 means [Level].
	MaxLevel uint16
	// Retry bounds how long a call repeats a lost compare-and-swap or settles an
	// unknown outcome, on top of its context; 0 means 10 s.
	Retry time.Duration
	// Twins switch single rules off, for tests that must notice.
	Twins Twins
}

// Twins are violations of single rules. Tests set them to show that the check
// behind the rule catches its absence; nothing else may.
type Twins struct {
	NoLevelGuard             bool // transactions do not compare the format level
	RevisionNotClock         bool // incarnations come from the store's revision
	DropSilently             bool // a delete leaves the by-broker copies behind
	GrantUnguarded           bool // a grant does not compare the row's revision
	GrantFromRegistrations   bool // a grant takes members' storage ids from registrations
	AbortOnRead              bool // "not there yet" is taken for "failed"
	ResumeAfterGap           bool // a view goes on from the present after a gap, without a full read
	NamespaceDeleteUnguarded bool // a namespace delete does not compare that it is empty
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxLevel == 0 {
		o.MaxLevel = Level
	}
	if o.Retry == 0 {
		o.Retry = 10 * time.Second
	}
	return o
}

// Catalog reads and changes the control plane's rows. Safe for concurrent use.
type Catalog struct {
	kv    KV
	opt   Options
	level *atomic.Uint32 // format level transactions are written for; shared with Fenced copies
	fence []Compare      // added to every transaction
}

// Open returns the catalog of a store that [Initialize] has prepared. Errors:
// meta.ErrNotFound when it was not, meta.ErrFormatLevel when it is written by a
// higher level than this process knows.
func Open(ctx context.Context, kv KV, opt Options) (*Catalog, error) {
	c := &Catalog{kv: kv, opt: opt.withDefaults(), level: new(atomic.Uint32)}
	if err := c.ReloadLevel(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Fenced returns a view of the catalog whose every transaction also requires
// that the election is still held. A transaction that fails for that reason
// returns [ErrDeposed].
func (c *Catalog) Fenced(e Election) *Catalog {
	d := *c
	d.fence = append(d.fence[:len(d.fence):len(d.fence)], unchanged(keyController, e.Revision, []byte(e.Broker))...)
	return &d
}

// Level is the format level that transactions are written for.
func (c *Catalog) Level() uint16 { return uint16(c.level.Load()) }

// ReloadLevel reads the cluster's format level again, as one does after
// meta.ErrFormatLevel. It fails with that error when this process cannot write
// by the level found.
func (c *Catalog) ReloadLevel(ctx context.Context) error {
	kv, found, _, err := c.kv.Get(ctx, keyLevel)
	if err != nil {
		return err
	}
	if !found {
		return meta.Errorf(meta.ErrNotFound, "the catalog is empty: no cluster was ever set up in it")
	}
	n, err := decodeNumber(kv)
	if err != nil {
		return err
	}
	if n > uint64(c.opt.MaxLevel) {
		return meta.Errorf(meta.ErrFormatLevel, "the catalog is written by format level %d, this program knows levels up to %d: upgrade it", n, c.opt.MaxLevel)
	}
	c.level.Store(uint32(n))
	return nil
}

// commit is the one way to write: it adds the format level and the fence, and
// tells a level that moved or a lost election from an ordinary conflict.
// applied is false only for an ordinary conflict.
func (c *Catalog) commit(ctx context.Context, t Transaction) (Result, error) {
	level := encodeNumber(uint64(c.Level()))
	guards := make([]Compare, 0, len(t.If)+len(c.fence)+1)
	if !c.opt.Twins.NoLevelGuard {
		guards = append(guards, Compare{Kind: CompareValue, Key: keyLevel, Value: level})
	}
	guards = append(append(guards, c.fence...), t.If...)
	r, err := c.kv.Commit(ctx, Transaction{If: guards, Then: t.Then})
	if err != nil || r.Applied {
		return r, err
	}
	if found := r.Found[keyLevel]; !c.opt.Twins.NoLevelGuard && !bytes.Equal(found.Value, level) {
		return r, meta.Errorf(meta.ErrFormatLevel, "the cluster's format level is %s now, this was written for %s: nothing was changed", clip(string(found.Value)), level)
	}
	for _, f := range c.fence {
		if found := r.Found[f.Key]; f.Kind == CompareMod && found.Mod != f.Revision || f.Kind == CompareValue && !bytes.Equal(found.Value, f.Value) {
			return r, ErrDeposed
		}
	}
	return r, nil
}

// unchanged is the comparison behind every "as it was read": the key's revision and
// its bytes (none when it was absent, revision 0). The bytes are for a store that
// was rewound: it counts the same revisions again, for other writes, and a
// transaction computed before must not take one of those for the row it had read.
func unchanged(key string, at Revision, value []byte) []Compare {
	guards := []Compare{{Kind: CompareMod, Key: key, Revision: at}}
	if at != 0 {
		guards = append(guards, Compare{Kind: CompareValue, Key: key, Value: value})
	}
	return guards
}

// change runs attempt until it is done, lost for good, or the time is up. An
// attempt returns retry when it lost to another writer or does not know its
// outcome: it then must be able to recognize its own success.
func change[T any](ctx context.Context, c *Catalog, what string, attempt func() (T, error)) (T, error) {
	unknown := false
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 2 * time.Millisecond
	b.MaxInterval = 250 * time.Millisecond
	v, err := backoff.Retry(ctx, func() (T, error) {
		v, err := attempt()
		switch {
		case err == nil:
			return v, nil
		case errors.Is(err, meta.ErrUnknown):
			unknown = true
			return v, err
		case errors.Is(err, errRaced), unknown && errors.Is(err, meta.ErrUnavailable):
			return v, err
		}
		return v, backoff.Permanent(err)
	}, backoff.WithBackOff(b), backoff.WithMaxElapsedTime(c.opt.Retry))
	switch {
	case err == nil:
		return v, nil
	case unknown && !decisive(err):
		return v, meta.Errorf(meta.ErrUnknown, "%s: the outcome is not known: %w", what, err)
	case errors.Is(err, errRaced):
		return v, meta.Errorf(meta.ErrConflict, "%s: other writers kept changing it; try again", what)
	case ctx.Err() != nil && !errors.Is(err, meta.ErrUnavailable):
		return v, meta.Errorf(meta.ErrUnavailable, "%s: given up before anything was changed: %w", what, err)
	}
	return v, err
}

// decisive errors answer the question whatever an earlier attempt did: they come
// from reading the state after it, or from a guard that stops it too.
func decisive(err error) bool {
	for _, kind := range []error{meta.ErrExists, meta.ErrNotFound, meta.ErrDeleted, meta.ErrConflict, meta.ErrStranger} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// errRaced says that another writer came first and the attempt should be made anew.
var errRaced = errors.New("lost a compare-and-swap")

func encodeNumber(n uint64) []byte { return strconv.AppendUint(nil, n, 10) }

func decodeNumber(kv KeyValue) (uint64, error) {
	n, err := strconv.ParseUint(string(kv.Value), 10, 64)
	if err != nil || !bytes.Equal(encodeNumber(n), kv.Value) {
		return 0, meta.Errorf(meta.ErrCorrupt, "catalog key %q holds %q: want a decimal number", kv.Key, clip(string(kv.Value)))
	}
	return n, nil
}

// token is a random id by which an attempt recognizes its own row.
func token() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
