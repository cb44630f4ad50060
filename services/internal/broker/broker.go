package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/catalog"
	"github.com/varve-io/varve/services/internal/replica"
	"github.com/varve-io/varve/wal"
)

// Broker is one broker. Make it with [Open].
type Broker struct {
	opts     Options
	log      *wal.Log
	self     meta.Member
	descends func(meta.StorageID) bool // whether this directory bore a storage id before its own
	boot     meta.BootNonce
	events   *events
	routes   routes
	cores    *replica.Prepared // what the cores of all shards have in common
	busy     busy

	closing   atomic.Bool
	drained   context.Context // ends when closing is set, for readers that wait
	drain     context.CancelFunc
	drops     atomic.Uint64 // calls of wal.Drop, to know when a checkpoint pays
	wakeUp    chan struct{} // of upkeep
	sealUp    chan struct{} // of the archive scheduler
	purgeUp   chan struct{} // of the purger
	jobs      chan *shard   // for the archivers
	pressure  atomic.Bool   // the log asked for room
	claimSeen atomic.Int64  // wall time, in ns, of the last good check of the claim; 0: none
	broken    chan error    // a shard's write that the log refused; holds one

	mu     sync.RWMutex // guards what follows; never held over a blocking call, nor while a shard's lock is taken
	shards map[meta.ShardID]*shard
	held   map[meta.StreamName]*holding
	sweeps map[meta.ShardID]struct{} // shards whose objects are to be looked at
	active map[*shard]struct{}       // an archiver works on them, buried ones too
}

// holding is what this broker holds of a name.
type holding struct {
	dead   meta.Incarnation // deleted through, as far as applied here
	shards []*shard         // of any incarnation
}

// holding returns what is held of a name, making room for it. b.mu is held, or
// nobody else knows b yet.
func (b *Broker) holding(n meta.StreamName) *holding {
	h := b.held[n]
	if h == nil {
		h = &holding{}
		b.held[n] = h
	}
	return h
}

// holds reports whether data of a name is held; heldNames lists them.
func (b *Broker) holds(n meta.StreamName) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	_, ok := b.held[n]
	return ok
}

func (b *Broker) heldNames() []meta.StreamName {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Keys(b.held))
}

// Open recovers the log, applies the tombstones of what it holds, and starts the
// broker's goroutines in opts.Group. Ctx bounds only the opening.
func Open(ctx context.Context, opts Options) (*Broker, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	b := &Broker{
		opts: opts, wakeUp: make(chan struct{}, 1), sealUp: make(chan struct{}, 1), purgeUp: make(chan struct{}, 1),
		jobs: make(chan *shard), shards: map[meta.ShardID]*shard{}, held: map[meta.StreamName]*holding{},
		sweeps: map[meta.ShardID]struct{}{}, active: map[*shard]struct{}{}, broken: make(chan error, 1),
	}
	b.drained, b.drain = context.WithCancel(context.Background())
	b.events = newEvents(opts.Logger, opts.Metrics)

	found := &replay{shards: map[wal.ShardNumber]*recovered{}}
	lo := opts.Log
	lo.Replay, lo.Events = found, b.events.log(b.onPressure)
	log, err := wal.Open(ctx, lo)
	if err != nil {
		return nil, err
	}
	b.log = log
	id := log.Identity()
	b.self = meta.Member{Broker: opts.Log.Broker, Storage: id.Storage}
	b.descends, b.boot = id.DescendsFrom, id.Boot
	b.cores = replica.Config{Self: b.self, Boot: b.boot}.Prepare()
	if !id.Kept && !id.Predecessor.IsZero() {
		opts.Logger.Warn("this data directory has a new storage id: it may have lost its tail", "storage", id.Storage.String(), "before", id.Predecessor.String(), "why", id.Why)
	}
	if err := b.start(ctx, found); err != nil {
		log.Kill() // nothing was offered to anybody; the directory is as the last stop left it
		return nil, err
	}
	return b, nil
}

func (b *Broker) start(ctx context.Context, found *replay) error {
	if err := b.register(ctx); err != nil {
		return err
	}
	if b.opts.Twins.OpenFirst {
		b.adopt(found)
	}
	view, assigned, err := b.applyTombstones(ctx, found)
	if err != nil {
		return err
	}
	b.adopt(found)
	found.shards = nil // the log keeps its options, and they name the replay
	b.reportUnknown(ctx, assigned, false)
	b.events.collect(b)
	b.opts.Group.Go("upkeep", b.upkeep)
	b.opts.Group.Go("archive", b.schedule)
	for range archivers {
		b.opts.Group.Go("archiver", b.archiver)
	}
	b.opts.Group.Go("purge", b.purge)
	b.opts.Group.Go("watch", func(ctx context.Context) error { return b.watch(ctx, view) })
	b.opts.Group.Go("storage", b.guard)
	return nil
}

// register reports this start to the catalog, before anything of the directory is
// offered to anybody.
func (b *Broker) register(ctx context.Context) error {
	id := b.log.Identity()
	verdict, why, err := b.opts.Catalog.RegisterCopy(ctx, b.copyRow())
	if err != nil {
		return fmt.Errorf("registering the data directory: %w", err)
	}
	if verdict == catalog.Stranger {
		return meta.Errorf(meta.ErrStranger, "data directory %s (storage %s): %s; put back the newest state of that directory, or move it away to go on with an empty one and what the bucket holds",
			b.opts.Log.Dir, id.Storage, why)
	}
	return nil
}

func (b *Broker) copyRow() catalog.CopyRow {
	id := b.log.Identity()
	return catalog.CopyRow{Storage: id.Storage, Broker: b.self.Broker, Start: id.StartCount, Boot: id.Boot, Synced: uint64(b.log.Synced())}
}

// adopt makes a shard of everything the log gave back that is still wanted.
func (b *Broker) adopt(found *replay) {
	kept := b.log.Identity().Kept
	b.mu.Lock()
	defer b.mu.Unlock()
	numbers := make([]wal.ShardNumber, 0, len(found.shards))
	for n := range found.shards {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		r := found.shards[n]
		if _, ok := b.shards[r.id]; ok {
			continue
		}
		if d := r.state; !kept && (d.Lineage() != 0 || d.Promise() != 0 || d.Last() != 0) {
			// One that held nothing is no stranger: it is what a directory has that
			// never saw the shard, and the row says whether that counts.
			d.Estrange()
		}
		s := newShard(b, r.id, n, r.state)
		if r.broken != nil {
			s.alarm = r.broken
			b.events.alarm(r.id, r.broken)
		}
		b.insert(s)
		if v := r.state.View(); v.Droppable > 0 {
			b.log.Drop(n, v.Droppable) // the log forgets what it was told before a stop
		}
	}
	for name, h := range b.held {
		if len(h.shards) == 0 {
			delete(b.held, name)
		}
	}
}

// insert adds a shard. b.mu is held.
func (b *Broker) insert(s *shard) {
	b.shards[s.id] = s
	h := b.holding(s.id.Stream)
	h.shards = append(h.shards, s)
}

// shard finds a shard of a stream that the catalog knows, or begins to hold it.
func (b *Broker) shard(ctx context.Context, id meta.ShardID) (*shard, error) {
	if b.closing.Load() {
		return nil, meta.Errorf(meta.ErrUnavailable, "broker %s is stopping: try again, it or another one will answer", b.self.Broker)
	}
	b.mu.RLock()
	s := b.shards[id]
	b.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	// Begin to hold it, on the catalog's word: the row says that it was created,
	// and no tombstone covers it.
	if _, err := b.opts.Catalog.Shard(ctx, id); err != nil {
		return nil, err
	}
	s, later, err := b.hold(id)
	if later == 0 {
		return s, err
	}
	// A later incarnation is held: this one was deleted since the catalog was read,
	// or the catalog is an older one.
	if _, err := b.opts.Catalog.Shard(ctx, id); err != nil {
		return nil, err
	}
	return nil, meta.Errorf(meta.ErrConflict, "stream %s: the catalog offers incarnation %d, but this broker holds the later %d: is it an older catalog?", id.Stream, id.Incarnation, later)
}

// hold finds or makes a shard; later is an incarnation above its own that is held
// of the name.
func (b *Broker) hold(id meta.ShardID) (s *shard, later meta.Incarnation, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.shards[id]; s != nil {
		return s, 0, nil
	}
	if h := b.held[id.Stream]; h != nil {
		if id.Incarnation <= h.dead {
			return nil, 0, meta.Errorf(meta.ErrDeleted, "stream %s: incarnation %d is deleted", id.Stream, id.Incarnation)
		}
		for _, o := range h.shards {
			if o.id.Incarnation > id.Incarnation {
				return nil, o.id.Incarnation, nil
			}
		}
	}
	s = newShard(b, id, 0, replica.NewDurable())
	b.insert(s)
	return s, 0, nil
}

// all lists the shards, in order.
func (b *Broker) all() []*shard {
	b.mu.RLock()
	defer b.mu.RUnlock()
	list := make([]*shard, 0, len(b.shards))
	for _, s := range b.shards {
		list = append(list, s)
	}
	slices.SortFunc(list, func(x, y *shard) int { return x.id.Compare(y.id) })
	return list
}

// droppable is up to where the log may drop a shard's entries.
func (b *Broker) droppable(s *shard, c replica.Committed) meta.LSN {
	b.drops.Add(1)
	if b.opts.Twins.DropAtMark {
		return s.durable.View().ArchivedEnd
	}
	return c.Droppable
}

// Identity is this broker's place, and what its directory is.
func (b *Broker) Identity() (meta.Member, meta.BootNonce) { return b.self, b.boot }

// Err says why the log failed, or nil.
func (b *Broker) Err() error { return b.log.Err() }

// guard ends the group when the log is poisoned: a broker whose storage failed
// acknowledges nothing more and stops.
func (b *Broker) guard(ctx context.Context) error {
	select {
	case <-b.log.Failed():
		return meta.Errorf(meta.ErrPoisoned, "the log failed, nothing more is acknowledged: %w", b.log.Err())
	case err := <-b.broken:
		return meta.Errorf(meta.ErrPoisoned, "the log refused a write: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// storageFailed ends the broker when the log refuses a write: the shard's state
// has run ahead of its log, and only a start puts that right.
func (b *Broker) storageFailed(err error) {
	if errors.Is(err, wal.ErrClosed) {
		return // the broker is stopping
	}
	select {
	case b.broken <- err:
	default:
	}
}

// Drain stops taking requests. What is under way is still answered.
func (b *Broker) Drain() {
	b.closing.Store(true)
	b.drain()
}

// Close stops a broker whose group has been stopped and has ended: it writes a
// checkpoint, so that the next start replays little, and records the clean stop.
func (b *Broker) Close(ctx context.Context) error {
	b.Drain()
	if b.log.Err() == nil {
		if err := b.log.Checkpoint(ctx, b.capture); err != nil && !errors.Is(err, meta.ErrPoisoned) {
			b.opts.Logger.Warn("no checkpoint at the stop; the next start replays more", "error", err)
		}
	}
	err := b.log.Close(ctx)
	if err == nil {
		// With the last position known, no older state of the directory can pass for it.
		if err := b.opts.Catalog.NoteSynced(ctx, b.copyRow()); err != nil {
			b.opts.Logger.Warn("the catalog did not take the log's last position", "error", err)
		}
	}
	for _, s := range b.all() {
		s.end(meta.Errorf(meta.ErrUnavailable, "broker %s has stopped", b.self.Broker))
	}
	return err
}

// Kill stops a broker as a crash would. For tests.
func (b *Broker) Kill() {
	b.Drain()
	b.log.Kill()
	for _, s := range b.all() {
		s.end(meta.Errorf(meta.ErrUnavailable, "broker %s was killed", b.self.Broker))
	}
}
