package replica

import (
	"cmp"
	"slices"

	"github.com/varve-io/varve/meta"
)

// window is how many batches are remembered of each producer: as many as a
// session may have in flight.
const window = 32

// stored is one remembered batch.
type stored struct {
	seq, count int32
	crc        uint32
	offset     meta.Offset
	time       meta.Micros
}

// client is what the table keeps of one producer in its newest epoch.
type client struct {
	id      int64
	epoch   int16
	age     uint64   // log age at its last batch, microseconds
	batches []stored // 1 to window, oldest first, each following the one before
}

func (c *client) next() int32 {
	last := &c.batches[len(c.batches)-1]
	return seqAfter(last.seq, last.count)
}

// Encoded sizes, see codec.go.
const (
	clientSize = 8 + 2 + 8 + 1
	storedSize = 4 + 4 + 4 + 8 + 8
)

func (c *client) size() int { return clientSize + storedSize*len(c.batches) }

// table holds the producers, sorted by id. It never judges: what is in the log
// was judged before it was appended.
type table struct {
	clients []*client
	bytes   int // encoded size of all
}

func (t *table) search(id int64) (int, bool) {
	return slices.BinarySearchFunc(t.clients, id, func(c *client, id int64) int { return cmp.Compare(c.id, id) })
}

func (t *table) find(id int64) *client {
	if i, ok := t.search(id); ok {
		return t.clients[i]
	}
	return nil
}

// store takes a committed batch. A new epoch, or a batch that does not follow
// (its producer had been forgotten in between), starts the window anew.
func (t *table) store(id int64, epoch int16, age uint64, b stored) {
	i, ok := t.search(id)
	if !ok {
		c := &client{id: id, epoch: epoch, age: age, batches: []stored{b}}
		t.clients = slices.Insert(t.clients, i, c)
		t.bytes += c.size()
		return
	}
	c := t.clients[i]
	t.bytes -= c.size()
	switch {
	case c.epoch != epoch || c.next() != b.seq:
		c.batches = append(c.batches[:0], b)
	case len(c.batches) == window:
		copy(c.batches, c.batches[1:])
		c.batches[window-1] = b
	default:
		c.batches = append(c.batches, b)
	}
	c.epoch, c.age = epoch, age
	t.bytes += c.size()
}

// expire forgets producers that were silent for more than expiry of log age.
func (t *table) expire(age, expiry uint64) {
	t.clients = slices.DeleteFunc(t.clients, func(c *client) bool {
		if age-c.age <= expiry {
			return false
		}
		t.bytes -= c.size()
		return true
	})
}

func (t *table) clone() table {
	n := table{bytes: t.bytes, clients: make([]*client, len(t.clients))}
	for i, c := range t.clients {
		k := *c
		k.batches = slices.Clone(c.batches)
		n.clients[i] = &k
	}
	return n
}
