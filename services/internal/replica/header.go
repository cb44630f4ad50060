package replica

import (
	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/sdk/batch"
)

// batchHeader is what the fold needs of a record batch.
type batchHeader struct {
	count    int32
	crc      uint32
	producer int64 // -1: none
	epoch    int16
	seq      int32
}

// parseBatch reads the header of a batch that was checked at the edge. Errors are
// [meta.ErrInvalid].
func parseBatch(b []byte) (batchHeader, error) {
	i, err := batch.Parse(b)
	if err != nil {
		return batchHeader{}, meta.Errorf(meta.ErrInvalid, "%w", err)
	}
	return batchHeader{count: int32(i.Count), crc: i.CRC, producer: i.Producer.ID, epoch: i.Producer.Epoch, seq: i.Producer.Sequence}, nil
}

// stampBatch writes what the leader owns of a batch; both lie outside its checksum.
func stampBatch(b []byte, first meta.Offset, e meta.Epoch) {
	batch.SetBase(b, int64(first), int32(e&0x7fffffff))
}

// seqAfter is the sequence after n more records: int32, wrapping to 0 after 2^31-1.
func seqAfter(seq, n int32) int32 { return batch.NextSequence(seq, int(n)) }

// seqBack is how far seq lies behind next on the ring of sequences; 0 when it is next.
func seqBack(seq, next int32) int32 { return int32((uint32(next) - uint32(seq)) & 0x7fffffff) }
