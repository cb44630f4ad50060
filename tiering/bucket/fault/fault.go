package fault

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/varve-io/varve/tiering/bucket"
)

// Op is a kind of call.
type Op string

// The kinds of calls. Any matches all of them.
const (
	Any    Op = ""
	Put    Op = "put"
	Get    Op = "get"
	Load   Op = "load"
	Head   Op = "head"
	List   Op = "list"
	Delete Op = "delete"
	Tidy   Op = "tidy"
)

// Call is one call that was made.
type Call struct {
	Op             Op
	Key            string // or the prefix of a List, or the first key of a Delete
	Offset, Length int64  // Get only
	Keys           []string
}

// Fault says which calls go wrong, and how. A zero Fault makes one call of any
// kind fail with ErrUnavailable.
type Fault struct {
	Op    Op
	Key   string          // calls whose key has this in it; "" for all
	Match func(Call) bool // if set, must be true as well
	Skip  int             // so many matching calls go well first
	Times int             // so many calls go wrong; 0 means one, negative all from then on

	Delay   time.Duration // waits first, or until the call's context ends
	Before  error         // the call fails so, without effect
	After   error         // the call has its effect, and then fails so
	Short   int64         // Get, Load: so many bytes are missing from the answer, without an error: a store below the contract
	Corrupt bool          // Get, Load: one bit of the answer is flipped
	Refuse  []string      // Delete: these keys are not deleted, and Before (or ErrDenied) stands for each
	// Late makes a held Put or Delete whose context ends go on waiting, as a
	// request that is under way in the network does, and take effect when it is
	// released. The caller is told ErrUnknown at once. Only with Hold.
	Late bool
}

func (f Fault) plain() bool {
	return f.Delay == 0 && f.Before == nil && f.After == nil && f.Short == 0 && !f.Corrupt && f.Refuse == nil
}

type rule struct {
	Fault
	hold *Hold
	seen int
	left int // negative: no end
}

// Bucket is a [bucket.Bucket] with faults. Make it with [New].
type Bucket struct {
	inner bucket.Bucket
	late  sync.WaitGroup

	mu     sync.Mutex
	rules  []*rule
	outage error
	counts map[Op]int64
	watch  func(Call)
}

var _ bucket.Bucket = (*Bucket)(nil)

// New wraps inner. Closing the result closes inner.
func New(inner bucket.Bucket) *Bucket {
	return &Bucket{inner: inner, counts: make(map[Op]int64)}
}

// Inject adds a fault; the returned function takes it out again.
func (b *Bucket) Inject(f Fault) (remove func()) {
	if f.plain() {
		f.Before = bucket.ErrUnavailable
	}
	return b.add(&rule{Fault: f})
}

func (b *Bucket) add(r *rule) (remove func()) {
	r.left = r.Times
	if r.Times == 0 {
		r.left = 1
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rules = append(b.rules, r)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		r.left = 0
	}
}

// Outage makes every call fail with err, without effect, until Outage(nil). A call
// that is held is not concerned.
func (b *Bucket) Outage(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outage = err
}

// Clear takes all faults out and ends an outage. Calls that are held stay so.
func (b *Bucket) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rules, b.outage = nil, nil
}

// Count is how many calls of a kind were made since the last ResetCounts, failed
// ones too; Any counts all.
func (b *Bucket) Count(op Op) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if op != Any {
		return b.counts[op]
	}
	var n int64
	for _, c := range b.counts {
		n += c
	}
	return n
}

// ResetCounts sets all counters to 0.
func (b *Bucket) ResetCounts() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.counts)
}

// Watch has f called with every call before anything else happens; nil ends that.
func (b *Bucket) Watch(f func(Call)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watch = f
}

// begin counts a call and finds its fault; nil if it has none.
func (b *Bucket) begin(c Call) *rule {
	b.mu.Lock()
	b.counts[c.Op]++
	r, watch := b.find(c), b.watch
	b.mu.Unlock()
	if watch != nil {
		watch(c)
	}
	return r
}

func (b *Bucket) find(c Call) *rule {
	for _, r := range b.rules {
		if r.left == 0 || r.Op != Any && r.Op != c.Op || !contains(c, r.Key) || r.Match != nil && !r.Match(c) {
			continue
		}
		if r.seen++; r.seen <= r.Skip {
			continue
		}
		r.left--
		return r
	}
	if b.outage != nil {
		return &rule{Fault: Fault{Before: b.outage}}
	}
	return nil
}

func contains(c Call, part string) bool {
	if strings.Contains(c.Key, part) {
		return true
	}
	for _, k := range c.Keys {
		if strings.Contains(k, part) {
			return true
		}
	}
	return false
}

// before does what comes ahead of a call's effect.
func (b *Bucket) before(ctx context.Context, r *rule, c Call) error {
	if r == nil {
		return nil
	}
	if r.Delay > 0 {
		timer := time.NewTimer(r.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return b.fail(c, bucket.ErrUnavailable, context.Cause(ctx))
		}
	}
	if r.hold != nil {
		if err := r.hold.wait(ctx); err != nil {
			return b.fail(c, outcome(c.Op), err)
		}
	}
	if r.Before != nil && r.Refuse == nil {
		return b.fail(c, r.Before, nil)
	}
	return nil
}

// outcome is what a caller knows of a call that was cut off on its way.
func outcome(op Op) error {
	if op == Put || op == Delete {
		return bucket.ErrUnknown
	}
	return bucket.ErrUnavailable
}

// after does what comes behind a call's effect; err is the call's own.
func (b *Bucket) after(r *rule, c Call, err error) error {
	if err != nil || r == nil || r.After == nil {
		return err
	}
	return b.fail(c, r.After, nil)
}

func (b *Bucket) fail(c Call, kind, cause error) error {
	return &bucket.Error{Op: string(c.Op), Bucket: b.inner.Location(), Key: c.Key, Kind: kind, Err: cause, Advice: "a scripted fault"}
}
