package entry

import (
	"encoding/binary"

	"github.com/varve-io/varve/meta"
)

// OpenPayload is the payload of an opening entry: who leads the epoch.
//
//	u16 length, broker id | 16 storage id | u64 boot nonce
type OpenPayload struct {
	Leader meta.Member
	Boot   meta.BootNonce
}

// FencePayload sets the stream's fence token. With Strict, appends that name no
// token are refused too. An empty token takes the fence away.
//
//	u8 strict | u16 length, token
type FencePayload struct {
	Strict bool
	Token  string
}

// MaxToken is the longest fence token, in bytes.
const MaxToken = 128

// TrimPayload moves the start offset up to Start; lower is a no-op.
//
//	u64 start
type TrimPayload struct{ Start meta.Offset }

// MarkPayload is an archive mark: "what lies in [Start, End) is in Segment". It
// applies only if Start is the archived end when it commits; else it is a no-op
// and its object is garbage. Together with the parent manifest it determines the
// next manifest, byte for byte.
//
//	u64 start | u64 end | u64 parent | u64 start offset | u16 level |
//	u32 length, row | u32 length, state | u8 has segment | segment
type MarkPayload struct {
	Start, End  meta.LSN         // archived end before and after; equal in a mark that only moves the start offset
	Parent      meta.LSN         // LSN of the mark whose manifest this one continues; 0 for the first
	StartOffset meta.Offset      // the shard's start offset as of End
	Level       uint16           // format level of the manifest
	Row         []byte           // the stream's catalog row, as its encoding stood when the leader sealed
	State       []byte           // shard state folded up to exactly End-1; opaque here
	Segment     *meta.SegmentRef // nil when there is none
}

// ConfirmPayload says that the manifest of the mark at that LSN is in the bucket.
//
//	u64 mark
type ConfirmPayload struct{ Mark meta.LSN }

// Encode returns the payload's bytes.
func (p OpenPayload) Encode() []byte {
	b := AppendString16(nil, string(p.Leader.Broker))
	b = append(b, p.Leader.Storage[:]...)
	return binary.LittleEndian.AppendUint64(b, uint64(p.Boot))
}

// Encode returns the payload's bytes.
func (p FencePayload) Encode() []byte {
	b := []byte{0}
	if p.Strict {
		b[0] = 1
	}
	return AppendString16(b, p.Token)
}

// Encode returns the payload's bytes.
func (p TrimPayload) Encode() []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(p.Start))
}

// Encode returns the payload's bytes.
func (p ConfirmPayload) Encode() []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(p.Mark))
}

// Encode returns the payload's bytes.
func (p MarkPayload) Encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, 256+len(p.Row)+len(p.State))
	b = le.AppendUint64(b, uint64(p.Start))
	b = le.AppendUint64(b, uint64(p.End))
	b = le.AppendUint64(b, uint64(p.Parent))
	b = le.AppendUint64(b, uint64(p.StartOffset))
	b = le.AppendUint16(b, p.Level)
	b = append(le.AppendUint32(b, uint32(len(p.Row))), p.Row...)
	b = append(le.AppendUint32(b, uint32(len(p.State))), p.State...)
	if p.Segment == nil {
		return append(b, 0)
	}
	return AppendSegmentRef(append(b, 1), p.Segment)
}

// AppendSegmentRef encodes a segment reference at the end of b.
//
//	u16 length, key | u64 size | u32 crc | u64 index at | u64 index length |
//	u64 x 2 LSN | u64 x 2 offset | u64 x 2 time | u64 x 2 epoch
func AppendSegmentRef(b []byte, s *meta.SegmentRef) []byte {
	le := binary.LittleEndian
	b = AppendString16(b, s.Key)
	b = le.AppendUint64(b, uint64(s.Size))
	b = le.AppendUint32(b, s.CRC)
	for _, n := range [...]uint64{
		uint64(s.IndexAt), uint64(s.IndexLen),
		uint64(s.FirstLSN), uint64(s.NextLSN),
		uint64(s.FirstOffset), uint64(s.NextOffset),
		uint64(s.FirstTime), uint64(s.LastTime),
		uint64(s.FirstEpoch), uint64(s.LastEpoch),
	} {
		b = le.AppendUint64(b, n)
	}
	return b
}

// DecodeOpen reads an opening entry's payload. Errors are [meta.ErrCorrupt], here
// and in the other decoders; bytes left over are an error.
func DecodeOpen(b []byte) (OpenPayload, error) {
	d := Decoder{buf: b}
	p := OpenPayload{Leader: meta.Member{Broker: meta.BrokerID(d.String16(meta.MaxNameLen))}}
	copy(p.Leader.Storage[:], d.Bytes(len(p.Leader.Storage)))
	p.Boot = meta.BootNonce(d.U64())
	return p, d.Finish("opening entry")
}

// DecodeFence reads a fence command's payload.
func DecodeFence(b []byte) (FencePayload, error) {
	d := Decoder{buf: b}
	p := FencePayload{Strict: d.Bool(), Token: d.String16(MaxToken)}
	return p, d.Finish("fence command")
}

// DecodeTrim reads a trim command's payload.
func DecodeTrim(b []byte) (TrimPayload, error) {
	d := Decoder{buf: b}
	p := TrimPayload{Start: meta.Offset(d.U64())}
	return p, d.Finish("trim command")
}

// DecodeConfirm reads a confirmation's payload.
func DecodeConfirm(b []byte) (ConfirmPayload, error) {
	d := Decoder{buf: b}
	p := ConfirmPayload{Mark: meta.LSN(d.U64())}
	return p, d.Finish("manifest confirmation")
}

// DecodeMark reads an archive mark's payload. Row and State alias b.
func DecodeMark(b []byte) (MarkPayload, error) {
	d := Decoder{buf: b}
	p := MarkPayload{
		Start: meta.LSN(d.U64()), End: meta.LSN(d.U64()), Parent: meta.LSN(d.U64()),
		StartOffset: meta.Offset(d.U64()), Level: d.U16(),
	}
	p.Row = d.Bytes(d.Length32(MaxPayload))
	p.State = d.Bytes(d.Length32(MaxPayload))
	if d.Bool() {
		s := d.SegmentRef()
		p.Segment = &s
	}
	if d.Err() == nil && (p.End < p.Start || p.Segment != nil && (p.Segment.FirstLSN != p.Start || p.Segment.NextLSN != p.End)) {
		d.Fail("range [%d, %d) does not fit its segment", p.Start, p.End)
	}
	return p, d.Finish("archive mark")
}
