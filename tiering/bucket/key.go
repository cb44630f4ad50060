package bucket

import (
	"strings"

	"github.com/varve-io/varve/meta"
)

const (
	// MaxKey is the longest key in bytes. S3 takes 1,024 with the prefix.
	MaxKey = 800
	// MaxPrefix is the longest prefix of a location in bytes.
	MaxPrefix = 200
	// MaxElement is the longest part of a key between slashes, in bytes: what
	// file systems take for a name.
	MaxElement = 255
)

// reserved ends the names that MinIO gives folders on its disk.
const reserved = "__XLDIR__"

// CheckKey says whether key names an object: 1 to MaxKey bytes, elements of 1 to
// MaxElement bytes between single slashes, each of letters, digits and the marks
// - _ . ~ + = @ ! , and none "." or "..". The first element doesn't start with a
// dot: such names at the top are the store's own; none ends in __XLDIR__. So nothing in a key needs an
// escape in a URL or a file name.
func CheckKey(key string) error { return checkPath("key", key, MaxKey, false) }

// CheckPrefix says whether a listing may start with prefix: empty, or the
// beginning of some key.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return checkPath("prefix", prefix, MaxKey, true)
}

// checkPath checks a path, or only the beginning of one.
func checkPath(what, path string, limit int, beginning bool) error {
	if path == "" {
		return invalid("the %s is empty", what)
	}
	if len(path) > limit {
		return invalid("the %s is %d bytes long; the longest is %d", what, len(path), limit)
	}
	if path[0] == '.' {
		return invalid("%s %q starts with a dot", what, path)
	}
	for i := range len(path) {
		if c := path[i]; c != '/' && !keyByte(c) {
			return invalid("%s %q has the byte %q at %d; letters, digits and -_.~+=@!, are taken", what, path, c, i)
		}
	}
	elements := strings.Split(path, "/")
	for i, e := range elements {
		if beginning && i == len(elements)-1 && i > 0 && len(e) <= MaxElement {
			return nil // it may be empty or a dot, and go on
		}
		switch {
		case e == "":
			return invalid("%s %q has an empty element; it must not start, end or double a slash", what, path)
		case e == "." || e == "..":
			return invalid("%s %q has the element %q", what, path, e)
		case strings.HasSuffix(e, reserved):
			return invalid("%s %q has an element that ends in %s, which MinIO keeps for itself", what, path, reserved)
		case len(e) > MaxElement:
			return invalid("%s %q has an element of %d bytes; the longest is %d", what, path, len(e), MaxElement)
		}
	}
	return nil
}

func keyByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	switch c {
	case '-', '_', '.', '~', '+', '=', '@', '!', ',':
		return true
	}
	return false
}

func invalid(format string, args ...any) error { return meta.Errorf(ErrInvalid, format, args...) }
