package catalog

import "testing"

func BenchmarkDecodeShard(b *testing.B) {
	kv := KeyValue{Key: shardKey(shardA), Value: encodeShard(sampleExport().Shards[1])}
	b.SetBytes(int64(len(kv.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeShard(kv); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeShard(b *testing.B) {
	s := sampleExport().Shards[1]
	b.ReportAllocs()
	for b.Loop() {
		encodeShard(s)
	}
}
