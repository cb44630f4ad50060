package wal

import (
	"fmt"
	"hash/crc32"
	"io"
	"path"
	"strings"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/wal/vfs"
)

// The file storage-id is one line of text:
//
//	varve-storage-id 1 <32 hex digits> <CRC32C of all before, 8 hex digits>
//
// It is the truth about which copy of the data the directory holds.
const (
	storageIDFile    = "storage-id"
	storageIDMagic   = "varve-storage-id "
	storageIDVersion = "1"
	maxSmallFile     = 4096 // bound on the small files of a data directory
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeStorageID(id meta.StorageID) []byte {
	return sealText(storageIDMagic + storageIDVersion + " " + id.String() + " ")
}

// sealText appends a text's own checksum and ends the line.
func sealText(s string) []byte {
	return fmt.Appendf(nil, "%s%08x\n", s, crc32.Checksum([]byte(s), castagnoli))
}

// openText checks what [sealText] wrote and returns the text.
func openText(b []byte) (string, error) {
	const tail = 8 + 1
	if len(b) < tail {
		return "", meta.Errorf(meta.ErrCorrupt, "has only %d bytes", len(b))
	}
	s := string(b[:len(b)-tail])
	if want := sealText(s); string(b) != string(want) {
		return "", meta.Errorf(meta.ErrCorrupt, "does not match its checksum")
	}
	return s, nil
}

func decodeStorageID(b []byte) (meta.StorageID, error) {
	s, err := openText(b)
	if err != nil {
		return meta.StorageID{}, err
	}
	rest, ok := strings.CutPrefix(s, storageIDMagic)
	if !ok {
		return meta.StorageID{}, meta.Errorf(meta.ErrCorrupt, "is not a storage id")
	}
	version, hex, _ := strings.Cut(rest, " ")
	if version != storageIDVersion {
		return meta.StorageID{}, meta.Errorf(meta.ErrFormatLevel, "has version %.20q: this build reads %s", version, storageIDVersion)
	}
	hex, ok = strings.CutSuffix(hex, " ")
	id, err := meta.ParseStorageID(hex)
	if !ok || err != nil || id.IsZero() {
		return meta.StorageID{}, meta.Errorf(meta.ErrCorrupt, "holds no storage id")
	}
	return id, nil
}

// readStorageID reads the directory's storage id. The error is fs.ErrNotExist,
// [meta.ErrCorrupt], [meta.ErrFormatLevel], or the disk's.
func readStorageID(fsys vfs.FS, dir string) (meta.StorageID, error) {
	name := path.Join(dir, storageIDFile)
	b, err := vfs.ReadFile(fsys, name, maxSmallFile)
	if err != nil {
		return meta.StorageID{}, err
	}
	id, err := decodeStorageID(b)
	if err != nil {
		return id, fmt.Errorf("file %s %w; restore it, or remove it to come back as a new copy that peers repair", name, err)
	}
	return id, nil
}

func writeStorageID(fsys vfs.FS, dir string, id meta.StorageID) error {
	return vfs.WriteFile(fsys, path.Join(dir, storageIDFile), encodeStorageID(id))
}

// newStorageID draws an id; it is never zero.
func newStorageID(rand io.Reader) (id meta.StorageID, err error) {
	for id.IsZero() {
		if _, err := io.ReadFull(rand, id[:]); err != nil {
			return id, fmt.Errorf("drawing a storage id: %w", err)
		}
	}
	return id, nil
}
