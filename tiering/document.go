package tiering

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/tiering/bucket"
)

const (
	manifestMagic  = "varve manifest"
	indexMagic     = "varve segment list"
	tombstoneMagic = "varve tombstone"
	claimMagic     = "varve claim"

	// documentVersion is the layout of all of them that this build writes and reads.
	documentVersion = 1
	// maxDocument bounds an object before it is read into memory.
	maxDocument = 48 << 20
)

type envelope struct {
	Magic   string          `json:"magic"`
	Version int             `json:"version"`
	CRC     string          `json:"crc32c"`
	Body    json.RawMessage `json:"body"`
}

// encodeDocument spells a body in the one way there is.
func encodeDocument(magic string, body any) ([]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, meta.Invalidf("encode %s: %w", magic, err)
	}
	b := make([]byte, 0, len(raw)+96)
	b = append(b, `{"magic":"`+magic+`","version":`+strconv.Itoa(documentVersion)+`,"crc32c":"`+hex32(bucket.Checksum(raw))+`","body":`...)
	b = append(b, raw...)
	return append(b, "}\n"...), nil
}

// decodeDocument is the strict inverse: magic, version, checksum and spelling are
// all checked. Errors are [meta.ErrCorrupt], or [meta.ErrFormatLevel] for a
// version of a later build.
func decodeDocument(magic string, b []byte, body any) error {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return meta.Errorf(meta.ErrCorrupt, "%s: %w", magic, err)
	}
	if e.Magic != magic {
		return meta.Errorf(meta.ErrCorrupt, "not a %s: its magic is %.40q", magic, e.Magic)
	}
	if e.Version != documentVersion {
		return meta.Errorf(meta.ErrFormatLevel, "%s has version %d: this build reads %d; start a newer build", magic, e.Version, documentVersion)
	}
	if got := hex32(bucket.Checksum(e.Body)); got != e.CRC {
		return meta.Errorf(meta.ErrCorrupt, "%s sums to %s: it says %.16q", magic, got, e.CRC)
	}
	d := json.NewDecoder(bytes.NewReader(e.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(body); err != nil {
		return meta.Errorf(meta.ErrCorrupt, "%s: %w", magic, err)
	}
	again, err := encodeDocument(magic, body)
	if err != nil || !bytes.Equal(again, b) {
		return meta.Errorf(meta.ErrCorrupt, "%s is not spelled as this format spells it", magic)
	}
	return nil
}
