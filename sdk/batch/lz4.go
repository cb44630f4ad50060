package batch

import (
	"encoding/binary"
	"errors"
	"math"
)

var errLZ4 = errors.New("not a valid LZ4 frame")

// unlz4 decodes LZ4 frames (lz4_Frame_format.md) to the end of dst, at most most
// bytes in all. Frame, block and content checksums are skipped: the batch's own
// covers the compressed bytes.
//
//	magic | FLG | BD | content size? 8 | dictionary id? 4 | header checksum 1 |
//	(block size 4, top bit: stored | block | checksum? 4) ... | 0 x 4 | content checksum? 4
func unlz4(dst, src []byte, most int) ([]byte, error) {
	start := len(dst)
	for len(src) > 0 {
		if len(src) < 7 || binary.LittleEndian.Uint32(src) != 0x184d2204 {
			return nil, errLZ4
		}
		flags := src[4]
		if flags>>6 != 1 || flags&0x01 != 0 { // version 1; dictionaries are not for batches
			return nil, errLZ4
		}
		head := 7
		if flags&0x08 != 0 {
			head += 8
		}
		if len(src) < head {
			return nil, errLZ4
		}
		src = src[head:]
		frame := len(dst)
		for {
			if len(src) < 4 {
				return nil, errLZ4
			}
			word := binary.LittleEndian.Uint32(src)
			src = src[4:]
			if word == 0 {
				break
			}
			n, stored := uint64(word&math.MaxInt32), word>>31 == 1
			if n > uint64(len(src)) {
				return nil, errLZ4
			}
			block := src[:n]
			src = src[n:]
			if flags&0x10 != 0 {
				if len(src) < 4 {
					return nil, errLZ4
				}
				src = src[4:]
			}
			if stored {
				if len(block) > most-(len(dst)-start) {
					return nil, errLZ4
				}
				dst = append(dst, block...)
				continue
			}
			window := frame
			if flags&0x20 != 0 { // blocks are independent of one another
				window = len(dst)
			}
			var err error
			if dst, err = unlz4Block(dst, block, window, start+most); err != nil {
				return nil, err
			}
		}
		if flags&0x04 != 0 {
			if len(src) < 4 {
				return nil, errLZ4
			}
			src = src[4:]
		}
	}
	return dst, nil
}

// unlz4Block decodes one block (lz4_Block_format.md) to the end of dst, which may
// grow up to a length of end. Matches reach back to window and no further.
func unlz4Block(dst, src []byte, window, end int) ([]byte, error) {
	for len(src) > 0 {
		token := src[0]
		src = src[1:]
		literals, rest, ok := lz4Length(src, int(token>>4))
		if !ok || literals > len(rest) || literals > end-len(dst) {
			return nil, errLZ4
		}
		dst = append(dst, rest[:literals]...)
		if src = rest[literals:]; len(src) == 0 {
			return dst, nil // the last sequence has literals only
		}
		if len(src) < 2 {
			return nil, errLZ4
		}
		back := int(binary.LittleEndian.Uint16(src))
		n, rest, ok := lz4Length(src[2:], int(token&15))
		n += 4
		if !ok || back == 0 || back > len(dst)-window || n > end-len(dst) {
			return nil, errLZ4
		}
		src = rest
		for n > 0 { // the match may overlap what it makes
			from := len(dst) - back
			step := min(n, back)
			dst = append(dst, dst[from:from+step]...)
			n -= step
		}
	}
	return nil, errLZ4 // a block ends with literals
}

// lz4Length adds the bytes that follow a nibble of 15, to at most [MaxRaw].
func lz4Length(src []byte, n int) (int, []byte, bool) {
	if n < 15 {
		return n, src, true
	}
	for i, b := range src {
		if n += int(b); n > MaxRaw {
			return 0, nil, false
		}
		if b < 255 {
			return n, src[i+1:], true
		}
	}
	return 0, nil, false
}
