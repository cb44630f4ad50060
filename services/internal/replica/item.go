package replica

import (
	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

// item is what the fold needs of an entry: what lies above the commit mark is
// kept as items, so that a commit can fold it and a truncation drop it.
type item struct {
	kind   entry.Kind
	epoch  meta.Epoch
	lsn    meta.LSN
	offset meta.Offset
	time   meta.Micros
	batch  batchHeader
	prev   meta.LSN // the pending batch before of the same producer; 0: none
	cmd    *command // nil for batches, opening entries and close
}

// command is what a command's payload says.
type command struct {
	token  string      // Fence
	strict bool        // Fence
	start  meta.Offset // Trim; Mark: start offset as of its end

	from, end, parent meta.LSN    // Mark
	next              meta.Offset // Mark: end of its segment's offsets; 0 without a segment
	mark              meta.LSN    // Confirm
}

func itemOf(e *entry.Entry) (item, error) {
	it := item{kind: e.Kind, epoch: e.Epoch, lsn: e.LSN, offset: e.Offset, time: e.Time}
	if err := e.Understood(); err != nil {
		return it, err
	}
	var err error
	switch e.Kind {
	case entry.Batch:
		it.batch, err = parseBatch(e.Payload)
	case entry.Open:
		_, err = entry.DecodeOpen(e.Payload)
	case entry.Fence:
		var p entry.FencePayload
		p, err = entry.DecodeFence(e.Payload)
		it.cmd = &command{token: p.Token, strict: p.Strict}
	case entry.Trim:
		var p entry.TrimPayload
		p, err = entry.DecodeTrim(e.Payload)
		it.cmd = &command{start: p.Start}
	case entry.Mark:
		var p entry.MarkPayload
		p, err = entry.DecodeMark(e.Payload)
		it.cmd = &command{start: p.StartOffset, from: p.Start, end: p.End, parent: p.Parent}
		if p.Segment != nil {
			it.cmd.next = p.Segment.NextOffset
		}
	case entry.Confirm:
		var p entry.ConfirmPayload
		p, err = entry.DecodeConfirm(e.Payload)
		it.cmd = &command{mark: p.Mark}
	case entry.Close:
		if len(e.Payload) > 0 {
			err = meta.Errorf(meta.ErrCorrupt, "close entry has a payload of %d bytes", len(e.Payload))
		}
	}
	if err != nil {
		return it, meta.Errorf(meta.ErrCorrupt, "entry LSN %d: %w", e.LSN, err)
	}
	return it, nil
}

// records is how many offsets the entry takes.
func (it *item) records() meta.Offset {
	if it.kind == entry.Batch {
		return meta.Offset(it.batch.count)
	}
	return 0
}

// overlay holds the items above the commit mark, in order.
type overlay struct {
	queue fifo[item]
	last  map[int64]meta.LSN // each producer's last pending batch
}

func (o *overlay) items() []item { return o.queue.all() }
func (o *overlay) len() int      { return o.queue.len() }

// at is the item with that LSN, or nil.
func (o *overlay) at(lsn meta.LSN) *item {
	s := o.items()
	if len(s) == 0 || lsn < s[0].lsn || lsn > s[len(s)-1].lsn {
		return nil
	}
	return &s[lsn-s[0].lsn]
}

func (o *overlay) push(it item) {
	if it.kind == entry.Batch && it.batch.producer >= 0 {
		if o.last == nil {
			o.last = map[int64]meta.LSN{}
		}
		it.prev = o.last[it.batch.producer]
		o.last[it.batch.producer] = it.lsn
	}
	o.queue.push(it)
}

// pop takes the first item, which was committed.
func (o *overlay) pop() item {
	it := o.queue.pop()
	if it.kind == entry.Batch && it.batch.producer >= 0 && o.last[it.batch.producer] == it.lsn {
		delete(o.last, it.batch.producer)
	}
	return it
}

// rest gives back what an empty overlay keeps.
func (o *overlay) rest() {
	if o.len() == 0 {
		*o = overlay{}
	}
}

// cut drops every item above lsn.
func (o *overlay) cut(lsn meta.LSN) {
	kept := o.items()
	for len(kept) > 0 && kept[len(kept)-1].lsn > lsn {
		kept = kept[:len(kept)-1]
	}
	*o = copied(kept)
}

func copied(items []item) (o overlay) {
	for _, it := range items {
		o.push(it)
	}
	return o
}
