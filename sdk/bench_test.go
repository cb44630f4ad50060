package sdk

import (
	"context"
	"testing"
)

// BenchmarkProducer appends 100-byte records without waiting for each; a loop is one
// record, over a real connection to a server that stores in memory.
func BenchmarkProducer(b *testing.B) {
	for name, o := range map[string]ProducerOptions{"plain": {}, "zstd": {Compression: Zstd}} {
		b.Run(name, func(b *testing.B) {
			f := newFake(b)
			f.make("ns/s", 1)
			c := dial(b, f, Options{})
			p := c.Producer("ns/s", o)
			r := Record{Value: []byte(`{"level":"info","path":"/api/v1/items/17","status":200,"took":"12ms","agent":"bench","tenant":"a1"}`)}
			b.SetBytes(int64(len(r.Value)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.AppendAsync(context.Background(), r, nil); err != nil {
					b.Fatal(err)
				}
			}
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkAppendOne waits for each record's answer.
func BenchmarkAppendOne(b *testing.B) {
	f := newFake(b)
	f.make("ns/s", 1)
	p := dial(b, f, Options{}).Producer("ns/s")
	r := Record{Value: make([]byte, 1024)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Append(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads 100-byte records; a loop is one record.
func BenchmarkRead(b *testing.B) {
	f := newFake(b)
	f.make("ns/s", 1)
	c := dial(b, f, Options{})
	p := c.Producer("ns/s")
	r := Record{Value: make([]byte, 100)}
	const n = 200_000
	for range n {
		if err := p.AppendAsync(context.Background(), r, nil); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100)
	b.ReportAllocs()
	for left := b.N; left > 0; {
		for _, err := range c.Read(context.Background(), "ns/s", FromStart(), Limit(uint64(min(left, n)))) {
			if err != nil {
				b.Fatal(err)
			}
			left--
		}
	}
}
