package broker_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
	"github.com/varve-io/varve/services/internal/broker"
	"github.com/varve-io/varve/services/internal/replica"
)

// sent is one batch of the walk, with what its sender was told of it.
type sent struct {
	values   []string
	append   broker.Append // Batch is cloned for each try
	producer *stage        // nil: not idempotent
	tries    int
	doubt    bool // a try may have been applied
	acked    bool // at level quorum or archive
	archived bool
	lost     bool // acknowledged, and given up in a crash that may do so
	result   broker.Result
	gen      int // of the last try
}

// stage is an idempotent producer of one client on one shard: one batch at a time.
type stage struct {
	p     batch.Producer
	gen   int
	busy  bool
	last  *sent   // without an answer yet
	acked []*sent // oldest first
}

// life says what the walk knows of an incarnation's being there.
type life uint8

const (
	live  life = iota
	maybe      // a delete is under way, or its outcome is not known
	deleted
)

// known is what the walk knows of one incarnation.
type known struct {
	id      meta.ShardID
	life    life
	all     []*sent
	values  map[string]*sent
	stages  map[int]*stage
	floor   meta.Offset // every later append or tail is at least here
	lineage meta.Lineage
	seen    map[meta.Offset]string // committed records that were read, in this lineage
	trimmed meta.Offset            // start that was acknowledged
	asked   meta.Offset            // highest start that anybody asked for
	token   string
	strict  bool
	fence   int  // raised by each fence that begins or ends, and by what may undo one
	fencing bool // one is under way or its outcome unknown: the token is not known
	fences  int  // under way
	gen     int  // raised by what may cut an acknowledged tail
}

func newKnown(id meta.ShardID) *known {
	return &known{id: id, values: map[string]*sent{}, stages: map[int]*stage{}, seen: map[meta.Offset]string{}}
}

// batch makes the next batch of a client.
func (k *known) batch(w *walk, client int) *sent {
	s := &sent{gen: k.gen}
	n := 1 + w.r.IntN(3)
	for range n {
		w.stamp++
		size := w.r.IntN(300)
		if w.r.IntN(w.big) == 0 {
			size = w.r.IntN(60 << 10)
		}
		v := fmt.Sprintf("%x/%d/%d %s", k.id.Incarnation, client, w.stamp, strings.Repeat("v", size))
		s.values = append(s.values, v)
		k.values[v] = s
	}
	k.all = append(k.all, s)
	return s
}

// answered notes a good answer. w.mu is held.
func (k *known) answered(s *sent, floor meta.Offset, r broker.Result) error {
	if int(r.Next-r.First) != len(s.values) && !r.OffsetUnknown {
		return fmt.Errorf("%d records got offsets %d to %d", len(s.values), r.First, r.Next)
	}
	switch {
	case r.Duplicate && s.producer == nil:
		return fmt.Errorf("a batch without a producer is called a duplicate: %+v", r)
	case r.Duplicate && s.tries == 1:
		return fmt.Errorf("a batch that was sent once is called a duplicate: %+v", r)
	case s.acked && !s.lost && !r.Duplicate && s.producer != nil && s.gen == k.gen:
		return fmt.Errorf("acknowledged at %d, and stored again at %d", s.result.First, r.First)
	case s.acked && !s.lost && r.Duplicate && !r.OffsetUnknown && (r.First != s.result.First || r.Next != s.result.Next || r.Time != s.result.Time):
		return fmt.Errorf("the first answer was %+v, the duplicate's %+v", s.result, r)
	case !r.Duplicate && r.First < floor && r.Lineage <= k.lineage:
		return fmt.Errorf("stored at %d, but the tail was at %d before it was sent", r.First, floor)
	case s.append.ExpectedOffset != nil && !r.OffsetUnknown && r.First != *s.append.ExpectedOffset:
		return fmt.Errorf("stored at %d, expected %d", r.First, *s.append.ExpectedOffset)
	}
	if k.lineage == 0 {
		k.lineage = r.Lineage
	}
	if r.OffsetUnknown {
		return nil
	}
	s.acked, s.lost, s.result = true, false, r
	s.archived = s.archived || s.append.Level == replica.Archive
	k.floor = max(k.floor, r.Next)
	return nil
}

// record is what a reader was given.
type record struct {
	value string
	time  meta.Micros
}

// view is a shard as read from its start to its tail.
type view struct {
	start, tail meta.Offset
	lineage     meta.Lineage
	records     map[meta.Offset]record
}

// claim is what must hold of an incarnation when a read begins.
type claim struct {
	acked   []*sent
	results []broker.Result
	trimmed meta.Offset
	floor   meta.Offset
	gen     int
	seen    map[meta.Offset]string
}

func (k *known) claim() claim {
	c := claim{trimmed: k.trimmed, floor: k.floor, gen: k.gen, seen: maps.Clone(k.seen)}
	for _, s := range k.all {
		if s.acked && !s.lost {
			c.acked, c.results = append(c.acked, s), append(c.results, s.result)
		}
	}
	return c
}

// check holds a full read against what was claimed when it began. w.mu is held.
func (k *known) check(c claim, v *view) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	cut := v.lineage > k.lineage && k.lineage != 0
	if v.lineage < k.lineage {
		fault("lineage %d after %d", v.lineage, k.lineage)
	}
	at := map[string]meta.Offset{}
	var last meta.Micros
	for o := v.start; o < v.tail; o++ {
		r, ok := v.records[o]
		if !ok {
			fault("no record at offset %d of [%d, %d)", o, v.start, v.tail)
			continue
		}
		s := k.values[r.value]
		switch {
		case s == nil:
			fault("offset %d holds %.40q, which nobody sent to this incarnation", o, r.value)
			continue
		case !s.acked && !s.doubt:
			fault("offset %d holds %.40q, which was refused", o, r.value)
		case s.lost:
			fault("offset %d holds %.40q, which had gone with an earlier lineage", o, r.value)
		}
		if was, ok := at[r.value]; ok {
			fault("%.40q lies at offset %d and at %d", r.value, was, o)
		}
		at[r.value] = o
		if r.time < last {
			fault("offset %d has time %d, the one before %d", o, r.time, last)
		}
		last = r.time
	}
	lostFrom := meta.Offset(0)
	for i, s := range c.acked {
		for j, value := range s.values {
			o := c.results[i].First + meta.Offset(j)
			if o < v.start {
				continue
			}
			got, ok := v.records[o]
			switch {
			case ok && got.value == value && got.time == c.results[i].Time:
			case ok && got.value == value:
				fault("%.40q was acknowledged at time %d and has %d", value, c.results[i].Time, got.time)
			case cut && !s.archived && c.results[i].Lineage < v.lineage:
				s.lost = true
				if lostFrom == 0 || o+1 < lostFrom {
					lostFrom = o + 1
				}
			default:
				fault("%.40q was acknowledged at offset %d (archived: %v, lineage %d): there is %.40q, in [%d, %d) of lineage %d, before %d",
					value, o, s.archived, c.results[i].Lineage, got.value, v.start, v.tail, v.lineage, k.lineage)
			}
		}
	}
	for i, s := range c.acked { // what is given up is the end
		if lostFrom > 0 && !s.lost && c.results[i].First >= lostFrom {
			fault("offset %d was given up, and %.40q at %d is still there", lostFrom-1, s.values[0], c.results[i].First)
		}
	}
	for o, value := range c.seen {
		if got, ok := v.records[o]; o >= v.start && (!ok || got.value != value) && !cut {
			fault("offset %d was read as %.40q, now as %.40q of [%d, %d)", o, value, got.value, v.start, v.tail)
		}
	}
	if v.start > k.asked {
		fault("it starts at %d, and nobody asked for more than %d", v.start, k.asked)
	}
	if v.start < c.trimmed && !cut {
		fault("it starts at %d, after a trim to %d", v.start, c.trimmed)
	}
	if v.tail < c.floor && !cut {
		fault("its tail is %d, after %d", v.tail, c.floor)
	}
	if cut || k.lineage == 0 {
		clear(k.seen)
		k.lineage = v.lineage
		if cut {
			k.trimmed, k.floor = v.start, v.tail
		}
	}
	for o, r := range v.records {
		if o >= v.start {
			k.seen[o] = r.value
		}
	}
	return faults
}

// mayCut notes that something happened that may cut what was acknowledged, except
// for what is in the bucket.
func (k *known) mayCut() {
	k.gen++
	k.fence++
	k.fencing = true
	clear(k.stages)
	k.floor = 0
}

func (w *walk) sorted() []*known {
	var list []*known
	for _, k := range w.shards {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b *known) int { return a.id.Compare(b.id) })
	return list
}
