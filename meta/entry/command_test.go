package entry

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
	"pgregory.net/rapid"
)

// encoder is what every command payload can do.
type encoder interface{ Encode() []byte }

// decoders has the decoder of every kind that has a payload of its own.
var decoders = map[Kind]func([]byte) (encoder, error){
	Open:    func(b []byte) (encoder, error) { return as(DecodeOpen(b)) },
	Fence:   func(b []byte) (encoder, error) { return as(DecodeFence(b)) },
	Trim:    func(b []byte) (encoder, error) { return as(DecodeTrim(b)) },
	Mark:    func(b []byte) (encoder, error) { return as(DecodeMark(b)) },
	Confirm: func(b []byte) (encoder, error) { return as(DecodeConfirm(b)) },
}

func as[T encoder](p T, err error) (encoder, error) { return p, err }

// Rows: W10
func TestW10_CommandsRoundTrip(t *testing.T) {
	seen := map[Kind]bool{}
	for name, p := range samplePayloads() {
		decode := decoders[p.kind]
		if decode == nil {
			continue
		}
		seen[p.kind] = true
		got, err := decode(p.b)
		if err != nil || !bytes.Equal(got.Encode(), p.b) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for n := range len(p.b) {
			if _, err := decode(p.b[:n]); !errors.Is(err, meta.ErrCorrupt) {
				t.Errorf("%s cut to %d: %v", name, n, err)
			}
		}
		if _, err := decode(append(bytes.Clone(p.b), 0)); !errors.Is(err, meta.ErrCorrupt) || !strings.Contains(err.Error(), "left over") {
			t.Errorf("%s with a byte behind it: %v", name, err)
		}
	}
	if len(seen) != len(decoders) {
		t.Errorf("only %v have samples", seen)
	}
}

// Rows: W10
func TestW10_MarkRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := func(what string) uint64 { return rapid.Uint64Max(1<<62).Draw(t, what) }
		p := MarkPayload{Start: meta.LSN(u("start")), Parent: meta.LSN(u("parent")), StartOffset: meta.Offset(u("start offset")),
			Level: rapid.Uint16().Draw(t, "level"), Row: append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "row")...),
			State: append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "state")...)}
		p.End = p.Start + meta.LSN(rapid.Uint64Range(1, 1<<40).Draw(t, "span"))
		if rapid.Bool().Draw(t, "has a segment") {
			s := &meta.SegmentRef{Key: rapid.StringN(0, 100, 1024).Draw(t, "key"), CRC: rapid.Uint32().Draw(t, "crc"), FirstLSN: p.Start, NextLSN: p.End}
			s.IndexAt, s.IndexLen = rapid.Int64Range(0, 1<<40).Draw(t, "index at"), rapid.Int64Range(0, 1<<40).Draw(t, "index length")
			s.Size = s.IndexAt + s.IndexLen + rapid.Int64Range(0, 99).Draw(t, "footer")
			s.FirstOffset = meta.Offset(u("first offset"))
			s.NextOffset = s.FirstOffset + meta.Offset(rapid.Uint64Max(1<<40).Draw(t, "records"))
			s.FirstTime = meta.Micros(rapid.Int64().Draw(t, "first time"))
			s.LastTime = meta.Micros(rapid.Int64Min(int64(s.FirstTime)).Draw(t, "last time"))
			s.FirstEpoch = meta.Epoch(rapid.Uint64().Draw(t, "first epoch"))
			s.LastEpoch = meta.Epoch(rapid.Uint64Min(uint64(s.FirstEpoch)).Draw(t, "last epoch"))
			p.Segment = s
		}
		got, err := DecodeMark(p.Encode())
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("%+v came back as %+v, %v", p, got, err)
		}
	})
}

// Rows: E9
func TestE9_CommandsRefuseWhatNobodyWrites(t *testing.T) {
	mark := MarkPayload{Start: 5, End: 90, Segment: sampleSegment()}
	change := func(f func(p *MarkPayload)) []byte {
		p := mark
		s := *mark.Segment
		p.Segment = &s
		f(&p)
		return p.Encode()
	}
	for name, c := range map[string]struct {
		kind Kind
		b    []byte
	}{
		"a token above the bound":      {Fence, FencePayload{Token: strings.Repeat("x", MaxToken+1)}.Encode()},
		"a yes that is 2":              {Fence, append([]byte{2}, FencePayload{}.Encode()[1:]...)},
		"a broker id above the bound":  {Open, OpenPayload{Leader: meta.Member{Broker: meta.BrokerID(strings.Repeat("b", meta.MaxNameLen+1))}}.Encode()},
		"a mark that ends before":      {Mark, MarkPayload{Start: 5, End: 4}.Encode()},
		"another first LSN":            {Mark, change(func(p *MarkPayload) { p.Segment.FirstLSN++ })},
		"another next LSN":             {Mark, change(func(p *MarkPayload) { p.Segment.NextLSN++ })},
		"LSNs that go back":            {Mark, change(func(p *MarkPayload) { p.End = 5; p.Segment.NextLSN = 5 })},
		"offsets that go back":         {Mark, change(func(p *MarkPayload) { p.Segment.NextOffset = 99 })},
		"an offset above the largest":  {Mark, change(func(p *MarkPayload) { p.Segment.NextOffset = meta.MaxOffset + 1 })},
		"times that go back":           {Mark, change(func(p *MarkPayload) { p.Segment.LastTime = 1 })},
		"epochs that go back":          {Mark, change(func(p *MarkPayload) { p.Segment.LastEpoch = 1 })},
		"a negative size":              {Mark, change(func(p *MarkPayload) { p.Segment.Size = -1 })},
		"an index behind the end":      {Mark, change(func(p *MarkPayload) { p.Segment.IndexAt = p.Segment.Size + 1 })},
		"an index over the end":        {Mark, change(func(p *MarkPayload) { p.Segment.IndexLen = 4097 })},
		"an index length that wraps":   {Mark, change(func(p *MarkPayload) { p.Segment.IndexLen = 1<<63 - 1 })},
		"a negative index":             {Mark, change(func(p *MarkPayload) { p.Segment.IndexAt = -1 })},
		"a key above the bound":        {Mark, change(func(p *MarkPayload) { p.Segment.Key = strings.Repeat("k", 1025) })},
		"a segment flag that is 3":     {Mark, append(MarkPayload{}.Encode()[:markFlag], 3)},
		"nothing":                      {Trim, nil},
		"a confirmation with too much": {Confirm, make([]byte, 9)},
	} {
		if got, err := decoders[c.kind](c.b); !errors.Is(err, meta.ErrCorrupt) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := DecodeMark(change(func(*MarkPayload) {})); err != nil {
		t.Errorf("the unchanged mark: %v", err)
	}
}

// markFlag is where the segment flag of a mark without row and state stands.
const markFlag = 4*8 + 2 + 4 + 4

func TestDecoderSticks(t *testing.T) {
	d := NewDecoder([]byte{1, 2, 3})
	if d.U16() != 0x0201 || d.Rest() != 1 || d.Err() != nil {
		t.Fatal("reading two bytes")
	}
	if d.U64() != 0 || d.U8() != 0 || d.U16() != 0 || d.U32() != 0 || d.String16(9) != "" || d.Bytes(1) != nil || d.Length32(9) != 0 || d.Bool() {
		t.Error("reads after a failure give something")
	}
	first := d.Err()
	d.Fail("another")
	if first == nil || d.Err() != first || d.Rest() != 0 {
		t.Errorf("the first failure did not stick: %v", d.Err())
	}
	if err := d.Finish("thing"); !errors.Is(err, meta.ErrCorrupt) || !strings.HasPrefix(err.Error(), "thing: ") {
		t.Errorf("Finish = %v", err)
	}
	if NewDecoder([]byte{1}).Bytes(-1) != nil {
		t.Error("took -1 bytes")
	}
	b := []byte{1, 2, 3, 4}
	if got := NewDecoder(b).Bytes(2); cap(got) != 2 {
		t.Error("appending to a field would overwrite the next one")
	}
	defer func() {
		if recover() == nil {
			t.Error("a string of 65536 bytes was encoded")
		}
	}()
	AppendString16(nil, strings.Repeat("x", 65536))
}

func FuzzCommands(f *testing.F) {
	for _, p := range samplePayloads() {
		f.Add(byte(p.kind), p.b)
	}
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		decode := decoders[Kind(kind)]
		if decode == nil {
			return
		}
		got, err := decode(b)
		if err != nil {
			if !errors.Is(err, meta.ErrCorrupt) {
				t.Errorf("%v is not corruption", err)
			}
			return
		}
		if again := got.Encode(); !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes as %x", b, got, again)
		}
	})
}
