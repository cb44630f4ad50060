package batch

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

func (c *Codec) init() {
	c.once.Do(func() {
		c.zstdWriter = sync.OnceValues(func() (*zstd.Encoder, error) {
			return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
				zstd.WithWindowSize(1<<20), zstd.WithZeroFrames(true))
		})
		c.zstdReader = sync.OnceValues(func() (*zstd.Decoder, error) {
			return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxRaw), zstd.WithDecoderMaxWindow(8<<20))
		})
	})
}

// pack returns head followed by raw, compressed with zstd, in new memory.
func (c *Codec) pack(head, raw []byte) ([]byte, error) {
	c.init()
	w, err := c.zstdWriter()
	if err != nil {
		return nil, err
	}
	out := make([]byte, len(head), len(head)+len(raw)/2+64)
	copy(out, head)
	return w.EncodeAll(raw, out), nil
}

// unpack decompresses src to the end of dst, at most [MaxRaw] bytes of it. Without
// compression it returns src itself.
func (c *Codec) unpack(dst, src []byte, compression Compression) (out []byte, err error) {
	switch compression {
	case None:
		return src, nil
	case Gzip:
		out, err = gunzip(dst, src)
	case Snappy:
		out, err = unsnappy(dst, src)
	case LZ4:
		out, err = unlz4(dst, src, MaxRaw)
	case Zstd:
		c.init()
		var r *zstd.Decoder
		if r, err = c.zstdReader(); err == nil {
			out, err = r.DecodeAll(src, dst)
		}
	default:
		return nil, invalidf(ErrCompression, "unknown compression %d", uint8(compression))
	}
	if err != nil {
		return nil, invalidf(nil, "%s: %v", compression, err)
	}
	if len(out) > MaxRaw {
		return nil, invalidf(ErrTooLarge, "records have more than %d bytes once decompressed", MaxRaw)
	}
	return out, nil
}

func gunzip(dst, src []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(src))
	if err != nil {
		return nil, err
	}
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, max(len(dst), 64<<10))
		}
		n, err := r.Read(dst[len(dst):min(cap(dst), MaxRaw+1)])
		dst = dst[:len(dst)+n]
		switch {
		case err == io.EOF:
			return dst, nil
		case err != nil || len(dst) > MaxRaw:
			return dst, err // the caller refuses what is too long
		}
	}
}

// xerial is how Kafka's Java clients frame snappy blocks: this magic, two version
// numbers, then blocks with their lengths.
const xerial = "\x82SNAPPY\x00"

func unsnappy(dst, src []byte) ([]byte, error) {
	if !bytes.HasPrefix(src, []byte(xerial)) {
		return unsnappyBlock(dst, src)
	}
	if len(src) < len(xerial)+8 {
		return nil, io.ErrUnexpectedEOF
	}
	src = src[len(xerial)+8:]
	for len(src) > 0 {
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := binary.BigEndian.Uint32(src)
		if src = src[4:]; uint64(n) > uint64(len(src)) {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if dst, err = unsnappyBlock(dst, src[:n]); err != nil {
			return nil, err
		}
		src = src[n:]
	}
	return dst, nil
}

func unsnappyBlock(dst, src []byte) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err != nil {
		return nil, err
	}
	if n > MaxRaw-len(dst) {
		return nil, invalidf(ErrTooLarge, "more than %d bytes", MaxRaw)
	}
	at := len(dst)
	dst = append(dst, make([]byte, n)...)
	got, err := s2.Decode(dst[at:], src)
	if err != nil {
		return nil, err
	}
	return append(dst[:at], got...), nil
}
