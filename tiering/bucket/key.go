package bucket

import "github.com/varve-io/varve/meta"

const (
	// MaxKey is the longest key in bytes. S3 takes 1,024 with the prefix.
	MaxKey = 800
	// MaxPrefix is the longest prefix of a location in bytes.
	MaxPrefix = 200
	// MaxElement is the longest part of a key between slashes, in bytes: what
	// file systems take for a name.
	MaxElement = 255
)

// CheckKey says whether key names an object: 1 to MaxKey bytes, elements of 1 to
// MaxElement bytes between single slashes, each of letters, digits and the marks
// - _ . ~ + = @ ! , and none starting with a dot. So nothing in a key needs an escape
// in a URL or a file name, no element is "." or "..", and names of the store's own (which
// start with a dot) stay apart.
func CheckKey(key string) error { return checkPath("key", key, MaxKey) }

// CheckPrefix says whether a listing may start with prefix: empty, or the
// beginning of some key.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	p := prefix
	if p[len(p)-1] == '/' {
		p = p[:len(p)-1]
	}
	return checkPath("prefix", p, MaxKey)
}

func checkPath(what, path string, limit int) error {
	if path == "" {
		return invalid("the %s is empty", what)
	}
	if len(path) > limit {
		return invalid("the %s is %d bytes long; the longest is %d", what, len(path), limit)
	}
	start := 0
	for i := 0; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			c := path[i]
			if c == '.' && i == start {
				return invalid("%s %q has an element that starts with a dot", what, path)
			}
			if !keyByte(c) {
				return invalid("%s %q has the byte %q at %d; letters, digits and -_.~+=@!, are taken", what, path, c, i)
			}
			continue
		}
		if i == start {
			return invalid("%s %q has an empty element; it must not start, end or double a slash", what, path)
		}
		if i-start > MaxElement {
			return invalid("%s %q has an element of %d bytes; the longest is %d", what, path, i-start, MaxElement)
		}
		start = i + 1
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
