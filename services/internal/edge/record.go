package edge

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/entry"
	"github.com/varve-io/varve/sdk/batch"
	varvev1 "github.com/varve-io/varve/sdk/proto/varve/v1"
	"github.com/varve-io/varve/services/internal/broker"
)

// record takes a record off the wire. Absent fields are null. now is in
// milliseconds and stands for an absent create time.
func record(r *varvev1.Record, now int64) (batch.Record, error) {
	if r.Offset != nil || r.AppendTime != nil {
		return batch.Record{}, meta.Invalidf("a record's offset and append time are the server's to give: leave them out")
	}
	out := batch.Record{Key: r.Key, Value: r.Value, Time: now}
	if t := r.GetCreateTime(); t != nil {
		if err := t.CheckValid(); err != nil {
			return out, meta.Invalidf("create time: %w", err)
		}
		out.Time = t.AsTime().UnixMilli()
	}
	for _, h := range r.GetHeaders() {
		if !utf8.ValidString(h.GetKey()) {
			return out, meta.Invalidf("header name %q is not UTF-8", h.GetKey())
		}
		out.Headers = append(out.Headers, batch.Header{Key: h.GetKey(), Value: h.Value})
	}
	return out, nil
}

// selection is what of the stored batches a reader asked for.
type selection struct {
	from    meta.Offset
	records int64       // how many more; -1: all
	bytes   int64       // stored bytes, how many more; -1: all
	until   meta.Micros // stop before the first record appended at or after; 0: never
	format  varvev1.Format
}

// full reports whether nothing more is wanted.
func (sel *selection) full() bool { return sel.records == 0 || sel.bytes == 0 }

// take puts the wanted part of a page into a response and moves the selection on.
// done says that a limit was reached.
func (s *Server) take(sel *selection, p broker.Page, out *varvev1.ReadResponse) (done bool, err error) {
	room := decodedBytes
	for i := range p.Entries {
		e := &p.Entries[i]
		if sel.until != 0 && e.Time >= sel.until || sel.full() {
			return true, nil
		}
		info, err := batch.Parse(e.Payload)
		if err != nil {
			return false, meta.Errorf(meta.ErrCorrupt, "the batch at offset %d: %w", e.Offset, err)
		}
		end := e.Offset + meta.Offset(info.Count)
		next := end
		if sel.format == varvev1.Format_FORMAT_BATCHES {
			out.Batches = append(out.Batches, &varvev1.StoredBatch{
				BaseOffset: uint64(e.Offset), Count: uint32(info.Count), AppendTime: stamp(e.Time), Data: e.Payload,
			})
		} else if next, err = s.unpack(sel, e, end, &room, out); err != nil {
			return false, err
		}
		if sel.records >= 0 {
			sel.records = max(0, sel.records-int64(next-max(sel.from, e.Offset)))
		}
		sel.from = next
		out.NextOffset = uint64(next)
		if next < end {
			return sel.full(), nil // the rest of the batch is for the next page
		}
		if sel.bytes >= 0 {
			sel.bytes = max(0, sel.bytes-int64(len(e.Payload)))
		}
		if room <= 0 {
			break
		}
	}
	return sel.full(), nil
}

// recordCost is about what a decoded record costs beside its bytes.
const recordCost = 64

// unpack decodes a batch's records from the selection's offset on, as many as it
// asks for and there is room for, but at least one, and says where to go on.
func (s *Server) unpack(sel *selection, e *entry.Entry, end meta.Offset, room *int, out *varvev1.ReadResponse) (meta.Offset, error) {
	at, left := e.Offset, sel.records
	appended := stamp(e.Time)
	for r, err := range s.codec.Records(e.Payload) {
		if err != nil {
			return 0, meta.Errorf(meta.ErrCorrupt, "the batch at offset %d: %w", e.Offset, err)
		}
		if at >= sel.from {
			cost := recordCost + len(r.Key) + len(r.Value)
			for _, h := range r.Headers {
				cost += recordCost/2 + len(h.Key) + len(h.Value)
			}
			if left == 0 || cost > *room && len(out.Records) > 0 {
				*room = 0
				return at, nil
			}
			*room -= cost
			left--
			out.Records = append(out.Records, wireRecord(&r, at, appended))
		}
		at++
	}
	return end, nil
}

func wireRecord(r *batch.Record, at meta.Offset, appended *timestamppb.Timestamp) *varvev1.Record {
	w := &varvev1.Record{
		Key: r.Key, Value: r.Value, Offset: proto.Uint64(uint64(at)), AppendTime: appended,
		CreateTime: &timestamppb.Timestamp{Seconds: floorDiv(r.Time, 1000), Nanos: int32(r.Time-floorDiv(r.Time, 1000)*1000) * 1e6},
	}
	for _, h := range r.Headers {
		w.Headers = append(w.Headers, &varvev1.Header{Key: h.Key, Value: h.Value})
	}
	return w
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
