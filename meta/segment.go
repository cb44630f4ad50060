package meta

// SegmentRef names one sealed segment in the bucket and what it covers. LSN and
// offset ranges are inclusive at First and exclusive at Next; the LSN range
// covers the commands between the batches as well, so ranges of neighbouring
// segments touch.
type SegmentRef struct {
	Key  string // below the cluster's prefix
	Size int64  // bytes of the whole object
	CRC  uint32 // CRC32C of the whole object

	IndexAt  int64 // where the sparse index starts
	IndexLen int64

	FirstLSN, NextLSN       LSN
	FirstOffset, NextOffset Offset
	FirstTime, LastTime     Micros // append times of first and last batch; 0 with no batch
	FirstEpoch, LastEpoch   Epoch
}
