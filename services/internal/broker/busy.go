package broker

import (
	"slices"
	"sync"
)

// busy names the shards that have something to do, so that what is done every
// second costs what is active, not what is held. A shard stands in each list at
// most once: its mention says so, under the shard's lock. mu is taken under a
// shard's lock, and no other under it.
type busy struct {
	mu    sync.Mutex
	used  []*shard // stepped, and not at rest since
	fresh []*shard // stepped or dirtied since the schedule looked, of the dirty ones
	dirty []*shard // have something that may have to be archived; looked at in turn
	turn  int      // where in dirty the schedule goes on; only it removes from dirty

	buried []*shard // their local data could not be dropped yet
}

// mention says in which lists a shard stands.
type mention struct {
	used, fresh, dirty bool
	again              bool // stepped since the last look at it
}

// used notes that the shard was stepped. s.mu is held.
func (s *shard) used() {
	s.mention.again = true
	if !s.mention.used {
		s.mention.used = true
		s.b.busy.add(&s.b.busy.used, s)
	}
	s.freshen()
}

// freshen has the schedule look at a dirty shard in its next round. s.mu is held.
func (s *shard) freshen() {
	if s.mention.dirty && !s.mention.fresh {
		s.mention.fresh = true
		s.b.busy.add(&s.b.busy.fresh, s)
	}
}

// soil notes that the shard has something to be archived. s.mu is held, or nobody
// else knows the shard yet.
func (s *shard) soil() {
	s.tier.dirty = s.b.opts.Now()
	if !s.mention.dirty {
		s.mention.dirty = true
		s.b.busy.add(&s.b.busy.dirty, s)
	}
	s.freshen()
}

func (l *busy) add(list *[]*shard, s *shard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*list = append(*list, s)
}

// take empties a list.
func (l *busy) take(list *[]*shard) []*shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := *list
	*list = nil
	return taken
}

// rest makes the shards that nobody used since the last call give their buffers
// back.
func (b *Broker) rest() {
	for _, s := range b.busy.take(&b.busy.used) {
		s.rest()
	}
}

func (s *shard) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil && s.mention.again {
		s.mention.again = false
		s.b.busy.add(&s.b.busy.used, s)
		return
	}
	s.mention.used = false
	s.awake.Rest()
	s.wait.rest()
}

// mostLooked is how many shards that only grow older are looked at in a round.
const mostLooked = 2048

// candidates are the shards that may be due for archiving: those that changed since
// the last call, and in turn some of those that only grow older. While the log is
// short of room they are all shards with a tail, the biggest first.
func (b *Broker) candidates(pressed bool) []*shard {
	var list []*shard
	if pressed {
		tails := b.log.Tails()
		b.mu.RLock()
		defer b.mu.RUnlock()
		for _, t := range tails {
			if s := b.shards[t.ID]; s != nil {
				list = append(list, s)
			}
		}
		return list
	}
	l := &b.busy
	fresh := l.take(&l.fresh)
	for _, s := range fresh {
		s.mu.Lock()
		s.mention.fresh = false
		s.mu.Unlock()
	}
	l.mu.Lock()
	if l.turn >= len(l.dirty) {
		l.turn = 0
	}
	older := slices.Clone(l.dirty[l.turn:min(l.turn+mostLooked, len(l.dirty))])
	l.mu.Unlock()
	list = append(fresh, older...)
	clean := make([]bool, len(older))
	for i, s := range older {
		clean[i] = s.clean()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// One that is soiled again by now stands at the end a second time.
	for i := len(older) - 1; i >= 0; i-- {
		if last := len(l.dirty) - 1; clean[i] {
			l.dirty[l.turn+i], l.dirty[last] = l.dirty[last], nil
			l.dirty = l.dirty[:last]
		}
	}
	l.turn += len(older) // some may have moved into its part: they are met in the next turn
	return list
}

// clean takes a shard that has nothing to be archived off the list.
func (s *shard) clean() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil && (s.tier.busy || !s.tier.dirty.IsZero() || s.durable.View().Marks > 0) {
		return false
	}
	s.mention.dirty = false
	return true
}
