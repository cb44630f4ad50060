package batch

import (
	"iter"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Codec encodes batches and reads their records. The zero value is ready. It keeps
// compressors and buffers between calls: have one for each client or server. Safe
// for concurrent use.
type Codec struct {
	zstdWriter func() (*zstd.Encoder, error)
	zstdReader func() (*zstd.Decoder, error)
	once       sync.Once
	buffers    sync.Pool // of *[]byte, for Validate
}

// Encode packs records into one batch. See [Codec.Seal].
func (c *Codec) Encode(records []Record, compression Compression, p Producer) ([]byte, error) {
	var b Builder
	size := 0
	for i := range records {
		size += len(records[i].Key) + len(records[i].Value) + 16
	}
	b.Grow(min(size, MaxRaw))
	for i := range records {
		if err := b.Add(&records[i]); err != nil {
			return nil, err
		}
	}
	return c.Seal(&b, compression, p)
}

// Records yields the records of a batch in order; after an error it ends. Keys,
// values and header values alias b, or, when the batch is compressed, memory of
// their own. The checksum is not verified: see [Check].
func (c *Codec) Records(b []byte) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		info, err := Parse(b)
		if err == nil {
			var raw []byte
			if raw, err = c.unpack(nil, b[HeaderSize:], info.Compression); err == nil {
				err = scan(raw, &info, true, func(r *Record) bool { return yield(*r, nil) })
			}
		}
		if err != nil {
			yield(Record{}, err)
		}
	}
}

// Validate is [Check] that also goes through the records, decompressing them, so
// that what passes can be read by everyone. maxValue bounds a record's value in
// bytes; 0 means [MaxRecord].
func (c *Codec) Validate(b []byte, maxValue int) (Info, error) {
	info, err := Check(b)
	if err != nil {
		return Info{}, err
	}
	if maxValue == 0 {
		maxValue = MaxRecord
	}
	raw := b[HeaderSize:]
	if info.Compression != None {
		buffer, ok := c.buffers.Get().(*[]byte)
		if !ok {
			buffer = new([]byte)
		}
		defer c.buffers.Put(buffer)
		if raw, err = c.unpack((*buffer)[:0], raw, info.Compression); err != nil {
			return Info{}, err
		}
		*buffer = raw
	}
	var large error
	err = scan(raw, &info, false, func(r *Record) bool {
		if len(r.Value) > maxValue {
			large = invalidf(ErrTooLarge, "record %d has a value of %d bytes: at most %d", r.Offset-info.BaseOffset, len(r.Value), maxValue)
		}
		return large == nil
	})
	if err == nil {
		err = large
	}
	if err != nil {
		return Info{}, err
	}
	return info, nil
}

// scan calls each with every record until it says false. The record is reused.
func scan(raw []byte, info *Info, keep bool, each func(*Record) bool) error {
	var r Record
	s := scanner{buf: raw}
	latest := info.FirstTime
	for i := range info.Count {
		if s.record(&r, info, i, keep); s.bad != "" {
			return invalidf(nil, "record %d of %d: %s", i, info.Count, s.bad)
		}
		latest = max(latest, r.Time)
		if i == info.Count-1 {
			if len(s.buf) > 0 {
				return invalidf(nil, "%d bytes after its last record", len(s.buf))
			}
			if latest != info.MaxTime {
				return invalidf(nil, "latest time is %d, but its header says %d", latest, info.MaxTime)
			}
		}
		if !each(&r) {
			return nil
		}
	}
	return nil
}
