package batch

import "encoding/binary"

// ShardOf is the shard that a key belongs to, of so many (at least 1): Kafka's
// default partitioner, murmur2 made positive, modulo the number. Every client
// must agree on it.
func ShardOf(key []byte, shards int) uint32 {
	return (murmur2(key) & 0x7fffffff) % uint32(shards)
}

// murmur2 is Austin Appleby's MurmurHash2 with Kafka's seed
// (org.apache.kafka.common.utils.Utils.murmur2).
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := binary.LittleEndian.Uint32(data) * m
		k ^= k >> r
		h = h*m ^ k*m
	}
	for i := len(data) - 1; i >= 0; i-- {
		h ^= uint32(data[i]) << (8 * i)
	}
	if len(data) > 0 {
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
