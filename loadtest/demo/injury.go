package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// An Injury is one damage to one file.
type Injury struct {
	File string // relative to the data directory
	At   int64
	Bit  int // flipped; -1: the file was cut at At
}

func (i Injury) String() string {
	if i.Bit < 0 {
		return fmt.Sprintf("%s cut at byte %d", i.File, i.At)
	}
	return fmt.Sprintf("%s with bit %d of byte %d flipped", i.File, i.Bit, i.At)
}

// Noun is what people call the damaged thing.
func (i Injury) Noun() string {
	noun, _, _ := strings.Cut(i.File, "/")
	noun, _, _ = strings.Cut(noun, ".")
	return strings.TrimSuffix(noun, "s") // checkpoints/x is a checkpoint
}

// Hurt cuts or flips one random file under data: one of etcd's own, or one of
// all the others but the cache, whose loss costs nothing. A log file is chosen
// as often as all the small ones together. The place is random within what was
// written, since the zeroes that a file was made with hold nothing; every second
// time it is near the end, where the last records are.
func Hurt(data string, etcd bool, random *rand.Rand) (Injury, error) {
	var log, other []string
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(data, path)
		top, _, _ := strings.Cut(filepath.ToSlash(relative), "/")
		switch {
		case top == "cache" || (top == "catalog") != etcd:
		case top == "wal" || strings.HasSuffix(relative, ".wal"):
			log = append(log, relative)
		default:
			other = append(other, relative)
		}
		return err
	})
	if err != nil {
		return Injury{}, err
	}
	// A file that holds nothing can't be hurt: choose again, a bounded number of times.
	for range 1000 {
		files := log
		if len(log) == 0 || len(other) > 0 && random.IntN(2) == 0 {
			files = other
		}
		if len(files) == 0 {
			break
		}
		file := files[random.IntN(len(files))]
		content, err := os.ReadFile(filepath.Join(data, file))
		if err != nil {
			return Injury{}, err
		}
		written := len(bytes.TrimRight(content, "\x00"))
		if written == 0 {
			continue
		}
		near := written
		if random.IntN(2) == 0 {
			near = min(written, 16<<10)
		}
		injury := Injury{File: file, At: int64(written - 1 - random.IntN(near)), Bit: random.IntN(16) - 8}
		if injury.Bit < 0 {
			injury.Bit = -1
			content = content[:injury.At]
		} else {
			content[injury.At] ^= 1 << injury.Bit
		}
		return injury, os.WriteFile(filepath.Join(data, file), content, 0o600)
	}
	return Injury{}, errors.New("there is no file to damage in " + data)
}
