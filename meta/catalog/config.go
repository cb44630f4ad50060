package catalog

import (
	"time"

	"github.com/varve-io/varve/meta"
)

// StreamConfig is a stream's settings. A zero field means "as the namespace
// says", there "as the server says". Changing it never touches stored data.
type StreamConfig struct {
	SegmentBytes   int64         `json:"segment_bytes,omitempty"`    // seal at this size: 1 MiB to 4 GiB
	SegmentAge     time.Duration `json:"segment_age,omitempty"`      // seal at this age, in nanoseconds: 1 s to 30 days
	MaxRecordBytes int64         `json:"max_record_bytes,omitempty"` // largest value: 1 KiB to 4 MiB
	ProducersMax   int64         `json:"producers_max,omitempty"`    // entries of the client table: 1 to 1,000,000
}

// NamespaceConfig is a namespace's settings.
type NamespaceConfig struct {
	CreateOnAppend bool         `json:"create_on_append,omitempty"` // an append to an unknown name creates it
	CreateOnRead   bool         `json:"create_on_read,omitempty"`   // so does a read
	Shards         uint32       `json:"shards,omitempty"`           // of streams created without a number; 0 means 1
	Defaults       StreamConfig `json:"defaults"`
}

// Over fills c's zero fields from the layer below.
func (c StreamConfig) Over(below StreamConfig) StreamConfig {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = below.SegmentBytes
	}
	if c.SegmentAge == 0 {
		c.SegmentAge = below.SegmentAge
	}
	if c.MaxRecordBytes == 0 {
		c.MaxRecordBytes = below.MaxRecordBytes
	}
	if c.ProducersMax == 0 {
		c.ProducersMax = below.ProducersMax
	}
	return c
}

// Validate checks every field that is set. The error is a [meta.ErrInvalid].
func (c StreamConfig) Validate() error {
	for _, f := range [...]struct {
		name           string
		v, least, most int64
	}{
		{"segment_bytes", c.SegmentBytes, 1 << 20, 4 << 30},
		{"segment_age", int64(c.SegmentAge), int64(time.Second), int64(30 * 24 * time.Hour)},
		{"max_record_bytes", c.MaxRecordBytes, 1 << 10, 4 << 20},
		{"producers_max", c.ProducersMax, 1, 1_000_000},
	} {
		if f.v != 0 && (f.v < f.least || f.v > f.most) {
			return meta.Invalidf("%s is %d: want %d to %d, or 0 for the default", f.name, f.v, f.least, f.most)
		}
	}
	return nil
}

// Validate checks every field that is set. The error is a [meta.ErrInvalid].
func (c NamespaceConfig) Validate() error {
	if c.Shards > meta.MaxShards {
		return meta.Invalidf("shards is %d: want 1 to %d, or 0 for 1", c.Shards, meta.MaxShards)
	}
	return c.Defaults.Validate()
}
