package replica

import "github.com/varve-io/varve/meta"

// Seal is a committed range that may be archived, and the shard's state at its
// end. It has what an archive mark needs but for the segment and the stream's row.
type Seal struct {
	Start, End  meta.LSN    // [Start, End); Start is the archived end
	Parent      meta.LSN    // the mark whose manifest the next one continues; 0: the first
	FirstOffset meta.Offset // of the first record at or after Start
	NextOffset  meta.Offset // after the last record below End
	StartOffset meta.Offset // as of End
	Level       uint16
	State       []byte // the fold up to exactly End-1, encoded at that very moment
}

// MarkRef is an applied archive mark whose manifest is not confirmed yet. Its
// entry stands in the local log.
type MarkRef struct {
	LSN         meta.LSN // of the mark
	End         meta.LSN // the archived end it made
	Parent      meta.LSN
	NextOffset  meta.Offset // everything below is covered
	StartOffset meta.Offset
}
