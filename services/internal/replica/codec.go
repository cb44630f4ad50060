package replica

import (
	"encoding/binary"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
)

const (
	stateMagic    = "vST1"
	durableMagic  = "vDU1"
	formatVersion = 1
	maxOverlay    = 1 << 24
	smallestItem  = 1 + 8 + 8
)

// Encode is the state's bytes, as they stand in archive marks and manifests. See
// the drawing in the package's documentation.
func (s *State) Encode() []byte {
	n := 256 + 16*len(s.vector) + 40*len(s.marks) + s.table.bytes
	return s.append(make([]byte, 0, n))
}

func (s *State) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, stateMagic...)
	b = le.AppendUint16(b, formatVersion)
	for _, n := range [...]uint64{
		uint64(s.lsn), uint64(s.epoch), uint64(s.next), uint64(s.start), uint64(s.time), s.age, s.expiry, uint64(s.closed),
		uint64(s.archived), uint64(s.archivedOff), uint64(s.mark), uint64(s.confirmed), uint64(s.droppable), uint64(s.confirmedOff),
	} {
		b = le.AppendUint64(b, n)
	}
	b = append(b, bit(s.strict))
	b = entry.AppendString16(b, s.token)
	b = le.AppendUint32(b, uint32(len(s.vector)))
	for _, p := range s.vector {
		b = le.AppendUint64(le.AppendUint64(b, uint64(p.Epoch)), uint64(p.LSN))
	}
	b = le.AppendUint32(b, uint32(len(s.marks)))
	for _, m := range s.marks {
		for _, n := range [...]uint64{uint64(m.LSN), uint64(m.End), uint64(m.Parent), uint64(m.NextOffset), uint64(m.StartOffset)} {
			b = le.AppendUint64(b, n)
		}
	}
	b = le.AppendUint32(b, uint32(len(s.table.clients)))
	for _, c := range s.table.clients {
		b = c.append(b)
	}
	return b
}

func (c *client) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(c.id))
	b = le.AppendUint16(b, uint16(c.epoch))
	b = le.AppendUint64(b, c.age)
	b = append(b, byte(len(c.batches)))
	for i := range c.batches {
		s := &c.batches[i]
		b = le.AppendUint32(b, uint32(s.seq))
		b = le.AppendUint32(b, uint32(s.count))
		b = le.AppendUint32(b, s.crc)
		b = le.AppendUint64(b, uint64(s.offset))
		b = le.AppendUint64(b, uint64(s.time))
	}
	return b
}

// DecodeState reads what [State.Encode] wrote. It keeps nothing of b. Errors are
// [meta.ErrCorrupt], or [meta.ErrFormatLevel] for a later version.
func DecodeState(b []byte) (*State, error) {
	d := entry.NewDecoder(b)
	s := decodeState(d)
	return s, d.Finish("shard state")
}

func decodeState(d *entry.Decoder) *State {
	s := &State{}
	if m := d.Bytes(4); d.Err() == nil && string(m) != stateMagic {
		d.Fail("begins with %q: want %q", m, stateMagic)
	}
	if v := d.U16(); d.Err() == nil && v != formatVersion {
		d.Fail("has version %d: this build reads %d", v, formatVersion)
	}
	s.lsn, s.epoch = meta.LSN(d.U64()), meta.Epoch(d.U64())
	s.next, s.start = meta.Offset(d.U64()), meta.Offset(d.U64())
	s.time, s.age, s.expiry, s.closed = meta.Micros(d.U64()), d.U64(), d.U64(), meta.Epoch(d.U64())
	s.archived, s.archivedOff, s.mark = meta.LSN(d.U64()), meta.Offset(d.U64()), meta.LSN(d.U64())
	s.confirmed, s.droppable, s.confirmedOff = meta.LSN(d.U64()), meta.LSN(d.U64()), meta.Offset(d.U64())
	s.strict = d.Bool()
	s.token = d.String16(entry.MaxToken)
	if n := count(d, meta.MaxVector, 16); n > 0 {
		s.vector = make(meta.Vector, n)
		for i := range s.vector {
			s.vector[i] = meta.EpochStart{Epoch: meta.Epoch(d.U64()), LSN: meta.LSN(d.U64())}
		}
	}
	if n := count(d, maxMarks, 40); n > 0 {
		s.marks = make([]MarkRef, n)
		for i := range s.marks {
			s.marks[i] = MarkRef{
				LSN: meta.LSN(d.U64()), End: meta.LSN(d.U64()), Parent: meta.LSN(d.U64()),
				NextOffset: meta.Offset(d.U64()), StartOffset: meta.Offset(d.U64()),
			}
		}
	}
	if n := count(d, d.Rest()/(clientSize+storedSize)+1, clientSize+storedSize); n > 0 {
		s.table.clients = make([]*client, 0, n)
		for range n {
			s.table.clients = append(s.table.clients, decodeClient(d))
		}
	}
	if d.Err() == nil {
		s.check(d)
	}
	for _, c := range s.table.clients {
		s.table.bytes += c.size()
	}
	return s
}

// count takes a count of things of at least size bytes each; it is checked
// against most and against what is left before anything is allocated.
func count(d *entry.Decoder, most, size int) int {
	n := d.Length32(most)
	if n > d.Rest()/size {
		d.Fail("counts %d things of at least %d bytes in the %d bytes left", n, size, d.Rest())
		return 0
	}
	return n
}

func decodeClient(d *entry.Decoder) *client {
	c := &client{id: int64(d.U64()), epoch: int16(d.U16()), age: d.U64()}
	n := int(d.U8())
	if d.Err() == nil && (n < 1 || n > window || c.id < 0 || c.epoch < 0) {
		d.Fail("producer %d epoch %d has %d batches: want 1 to %d", c.id, c.epoch, n, window)
	}
	if n > d.Rest()/storedSize {
		d.Fail("producer %d is cut short", c.id)
		n = 0
	}
	c.batches = make([]stored, n)
	for i := range c.batches {
		b := &c.batches[i]
		*b = stored{seq: int32(d.U32()), count: int32(d.U32()), crc: d.U32(), offset: meta.Offset(d.U64()), time: meta.Micros(d.U64())}
		if d.Err() == nil && (b.seq < 0 || b.count < 1 || i > 0 && b.seq != seqAfter(c.batches[i-1].seq, c.batches[i-1].count)) {
			d.Fail("producer %d has sequence %d with %d records out of order", c.id, b.seq, b.count)
		}
	}
	return c
}

// check refuses a state that no log folds to.
func (s *State) check(d *entry.Decoder) {
	if err := s.vector.Validate(); err != nil {
		d.Fail("%w", err)
		return
	}
	var newest meta.EpochStart
	if n := len(s.vector); n > 0 {
		newest = s.vector[n-1]
	}
	if newest.LSN > s.lsn || newest.Epoch != s.epoch {
		d.Fail("vector ends with epoch %d at LSN %d: the log with epoch %d at LSN %d", newest.Epoch, newest.LSN, s.epoch, s.lsn)
		return
	}
	for i, c := range s.table.clients {
		if i > 0 && c.id <= s.table.clients[i-1].id {
			d.Fail("producer %d stands after %d", c.id, s.table.clients[i-1].id)
			return
		}
		if c.age > s.age {
			d.Fail("producer %d is from log age %d: the log's is %d", c.id, c.age, s.age)
			return
		}
	}
	before := s.confirmed
	for _, m := range s.marks {
		if m.LSN <= before || m.LSN > s.lsn || m.End > m.LSN {
			d.Fail("mark LSN %d with end %d is out of order", m.LSN, m.End)
			return
		}
		before = m.LSN
	}
	if s.next > meta.MaxOffset || s.start > s.next || s.archived == 0 || s.droppable == 0 || s.droppable > s.archived {
		d.Fail("offsets [%d, %d), archived end %d, droppable %d do not fit", s.start, s.next, s.archived, s.droppable)
	}
}

// Encode is the shard's section in a WAL checkpoint: the fold of every record so
// far. See the drawing in the package's documentation.
func (d *Durable) Encode() []byte {
	if d.twins != nil && d.twins.FoldOverlay {
		d = d.clone()
		d.advance(d.tail.lsn)
	}
	le := binary.LittleEndian
	l := d.local()
	body := l.encode()
	b := make([]byte, 0, 512+d.state.table.bytes+64*d.over.len())
	b = append(b, durableMagic...)
	b = le.AppendUint16(b, formatVersion)
	b = append(le.AppendUint16(b, uint16(len(body))), body...)
	b = le.AppendUint64(b, uint64(d.start))
	b = d.state.append(b)
	b = le.AppendUint32(b, uint32(d.over.len()))
	for i := range d.over.items() {
		b = d.over.items()[i].append(b)
	}
	return b
}

func (d *Durable) clone() *Durable {
	n := *d
	n.twins = nil
	n.state = d.state.clone()
	n.over = copied(d.over.items())
	return &n
}

// append writes an item. LSN and offset are not stored: they follow.
func (it *item) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(it.kind))
	b = le.AppendUint64(b, uint64(it.epoch))
	b = le.AppendUint64(b, uint64(it.time))
	switch it.kind {
	case entry.Batch:
		b = le.AppendUint32(b, uint32(it.batch.count))
		b = le.AppendUint32(b, it.batch.crc)
		b = le.AppendUint64(b, uint64(it.batch.producer))
		b = le.AppendUint16(b, uint16(it.batch.epoch))
		b = le.AppendUint32(b, uint32(it.batch.seq))
	case entry.Fence:
		b = entry.AppendString16(append(b, bit(it.cmd.strict)), it.cmd.token)
	case entry.Trim:
		b = le.AppendUint64(b, uint64(it.cmd.start))
	case entry.Mark:
		for _, n := range [...]uint64{
			uint64(it.cmd.from), uint64(it.cmd.end), uint64(it.cmd.parent), uint64(it.cmd.start), uint64(it.cmd.next),
		} {
			b = le.AppendUint64(b, n)
		}
	case entry.Confirm:
		b = le.AppendUint64(b, uint64(it.cmd.mark))
	}
	return b
}

func decodeItem(d *entry.Decoder) item {
	it := item{kind: entry.Kind(d.U8()), epoch: meta.Epoch(d.U64()), time: meta.Micros(d.U64())}
	switch it.kind {
	case entry.Batch:
		it.batch = batchHeader{count: int32(d.U32()), crc: d.U32(), producer: int64(d.U64()), epoch: int16(d.U16()), seq: int32(d.U32())}
		if b := &it.batch; d.Err() == nil && (b.count < 1 || b.producer >= 0 && (b.epoch < 0 || b.seq < 0)) {
			d.Fail("pending batch of producer %d has sequence %d with %d records", b.producer, b.seq, b.count)
		}
	case entry.Open, entry.Close:
	case entry.Fence:
		it.cmd = &command{strict: d.Bool(), token: d.String16(entry.MaxToken)}
	case entry.Trim:
		it.cmd = &command{start: meta.Offset(d.U64())}
	case entry.Mark:
		it.cmd = &command{from: meta.LSN(d.U64()), end: meta.LSN(d.U64()), parent: meta.LSN(d.U64()), start: meta.Offset(d.U64()), next: meta.Offset(d.U64())}
	case entry.Confirm:
		it.cmd = &command{mark: meta.LSN(d.U64())}
	default:
		d.Fail("pending entry has unknown kind %d", it.kind)
	}
	return it
}

// DecodeDurable reads what [Durable.Encode] wrote. It keeps nothing of b. Errors
// are [meta.ErrCorrupt].
func DecodeDurable(b []byte) (*Durable, error) {
	d := entry.NewDecoder(b)
	if m := d.Bytes(4); d.Err() == nil && string(m) != durableMagic {
		d.Fail("begins with %q: want %q", m, durableMagic)
	}
	if v := d.U16(); d.Err() == nil && v != formatVersion {
		d.Fail("has version %d: this build reads %d", v, formatVersion)
	}
	l, err := decodeLocal(d.Bytes(int(d.U16())))
	if err != nil {
		d.Fail("%w", err)
	}
	r := &Durable{
		lineage: l.lineage, instance: l.instance, promise: l.promise, stranger: l.stranger, broken: l.broken,
		start: meta.LSN(d.U64()),
	}
	r.state = *decodeState(d)
	r.tail = r.state.point
	if d.Err() == nil && (r.state.expiry != l.expiry || r.state.lsn != l.commit || r.start == 0) {
		d.Fail("mark %d, expiry %d, start %d do not fit the state", l.commit, l.expiry, r.start)
	}
	if d.Err() == nil && r.broken && (!r.stranger || r.tail.lsn > 0) {
		d.Fail("a broken log is a stranger's, and empty")
	}
	for range count(d, maxOverlay, smallestItem) {
		it := decodeItem(d)
		it.lsn, it.offset = r.tail.lsn+1, r.tail.next
		e := entry.Entry{Header: entry.Header{Kind: it.kind, Lineage: r.lineage, Epoch: it.epoch, LSN: it.lsn, Offset: it.offset, Time: it.time}}
		if err := r.fits(&e, &it); d.Err() == nil && err != nil {
			d.Fail("%w", err)
		}
		if d.Err() != nil {
			break
		}
		r.tail.apply(&it)
		r.over.push(it)
	}
	if err := d.Finish("shard section"); err != nil {
		return nil, err
	}
	return r, nil
}
