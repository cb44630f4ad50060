package batch

import (
	"fmt"
	"testing"
)

// lines are about a MiB of log lines.
func lines() []Record {
	var out []Record
	for i := range 8000 {
		out = append(out, Record{
			Value: fmt.Appendf(nil, `{"level":"info","time":%d,"path":"/api/v1/items/%d","status":200,"took":"%dms","agent":"bench"}`, 1_700_000_000+i, i*7919%1000, i%97),
			Time:  1_700_000_000_000 + int64(i),
		})
	}
	return out
}

func BenchmarkEncode(b *testing.B) {
	for _, compression := range []Compression{None, Zstd} {
		b.Run(compression.String(), func(b *testing.B) {
			c, records := new(Codec), lines()
			plain := encode(b, records, None, NoProducer())
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Encode(records, compression, NoProducer()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkValidate(b *testing.B) {
	for _, compression := range []Compression{None, Zstd} {
		b.Run(compression.String(), func(b *testing.B) {
			c, records := new(Codec), lines()
			b.SetBytes(int64(len(encode(b, records, None, NoProducer()))))
			batch := encode(b, records, compression, NoProducer())
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Validate(batch, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRecords(b *testing.B) {
	for _, compression := range []Compression{None, Zstd} {
		b.Run(compression.String(), func(b *testing.B) {
			c, records := new(Codec), lines()
			b.SetBytes(int64(len(encode(b, records, None, NoProducer()))))
			batch := encode(b, records, compression, NoProducer())
			b.ReportAllocs()
			for b.Loop() {
				for _, err := range c.Records(batch) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func TestAllocationCeilings(t *testing.T) {
	c, records := new(Codec), lines()
	plain, packed := encode(t, records, None, NoProducer()), encode(t, records, Zstd, NoProducer())
	sink := 0
	for name, x := range map[string]struct {
		most float64
		run  func()
	}{
		"check":           {0, func() { _, _ = Check(plain) }},
		"set base":        {0, func() { SetBase(plain, 1, 1) }},
		"validate, plain": {4, func() { _, _ = c.Validate(plain, 0) }},
		"validate, zstd":  {8, func() { _, _ = c.Validate(packed, 0) }},
		"records, plain":  {6, func() { readAll(c, plain, &sink) }},
		"records, zstd":   {16, func() { readAll(c, packed, &sink) }},
		"encode, plain":   {4, func() { _, _ = c.Encode(records, None, NoProducer()) }},
		"encode, zstd":    {8, func() { _, _ = c.Encode(records, Zstd, NoProducer()) }},
	} {
		if got := testing.AllocsPerRun(20, x.run); got > x.most {
			t.Errorf("%s: %v allocations, at most %v", name, got, x.most)
		}
	}
}

func readAll(c *Codec, b []byte, sink *int) {
	for r, err := range c.Records(b) {
		if err != nil {
			panic(err)
		}
		*sink += len(r.Value)
	}
}
