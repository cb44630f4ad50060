package replica

import (
	"encoding/binary"

	"github.com/varve-io/varve/meta"
)

// batchHeader is what the fold needs of a Kafka record batch (magic 2). The rest
// of the batch was checked at the edge and is of no concern here.
//
//	0           8      12           16    17  21    23          27       35       43         51       57   57       61
//	base offset|length|leader epoch|magic|crc|attrs|last delta |base ts |max ts  |producer id|p.epoch |sequence|count
type batchHeader struct {
	count    int32
	crc      uint32
	producer int64 // -1: none
	epoch    int16
	seq      int32
}

const batchHeaderSize = 61

// parseBatch reads the header fields. Errors are [meta.ErrInvalid].
func parseBatch(b []byte) (batchHeader, error) {
	if len(b) < batchHeaderSize {
		return batchHeader{}, meta.Invalidf("record batch has %d bytes: its header alone has %d", len(b), batchHeaderSize)
	}
	be := binary.BigEndian
	h := batchHeader{
		count:    int32(be.Uint32(b[57:])),
		crc:      be.Uint32(b[17:]),
		producer: int64(be.Uint64(b[43:])),
		epoch:    int16(be.Uint16(b[51:])),
		seq:      int32(be.Uint32(b[53:])),
	}
	switch {
	case b[16] != 2:
		return h, meta.Invalidf("record batch has magic %d: want 2", b[16])
	case int(be.Uint32(b[8:]))+12 != len(b):
		return h, meta.Invalidf("record batch says it has %d bytes after its length: it has %d", be.Uint32(b[8:]), len(b)-12)
	case h.count < 1 || int32(be.Uint32(b[23:])) != h.count-1:
		return h, meta.Invalidf("record batch counts %d records with a last delta of %d", h.count, int32(be.Uint32(b[23:])))
	case h.producer >= 0 && (h.epoch < 0 || h.seq < 0):
		return h, meta.Invalidf("producer %d sends epoch %d and sequence %d: want both from 0", h.producer, h.epoch, h.seq)
	}
	return h, nil
}

// stampBatch writes what the leader owns of a batch; both lie outside its checksum.
func stampBatch(b []byte, first meta.Offset, e meta.Epoch) {
	binary.BigEndian.PutUint64(b, uint64(first))
	binary.BigEndian.PutUint32(b[12:], uint32(e)&0x7fffffff)
}

// seqAfter is the sequence after n more records: int32, wrapping to 0 after 2^31-1.
func seqAfter(seq, n int32) int32 { return int32((uint32(seq) + uint32(n)) & 0x7fffffff) }

// seqBack is how far back want-1 is from seq, counted on the ring: 0 when seq is want.
func seqBack(seq, want int32) int32 { return int32((uint32(want) - uint32(seq)) & 0x7fffffff) }
