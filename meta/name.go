package meta

import (
	"fmt"
	"strings"
)

// MaxNameLen is the longest namespace or stream name, in bytes.
const MaxNameLen = 200

// StreamName is a stream's name within its namespace. The zero value is not valid.
type StreamName struct {
	Namespace string
	Name      string
}

// ParseStreamName splits "namespace/name" at the first slash and validates both
// parts. The error is an [ErrInvalid] that names the rule that was broken.
func ParseStreamName(s string) (StreamName, error) {
	ns, name, ok := strings.Cut(s, "/")
	if !ok {
		return StreamName{}, Invalidf("stream %q: a stream is written NAMESPACE/NAME", clip(s))
	}
	n := StreamName{Namespace: ns, Name: name}
	return n, n.Validate()
}

// String returns "namespace/name".
func (n StreamName) String() string { return n.Namespace + "/" + n.Name }

// Validate checks both parts against the rule for names.
func (n StreamName) Validate() error {
	if err := ValidateNamespace(n.Namespace); err != nil {
		return err
	}
	return validateName("stream", n.Name, true)
}

// Escaped returns the form used in catalog and bucket keys, "namespace/na~me":
// exactly one slash, whatever the name.
func (n StreamName) Escaped() string {
	return n.Namespace + "/" + strings.ReplaceAll(n.Name, "/", "~")
}

// UnescapeStreamName is the inverse of [StreamName.Escaped].
func UnescapeStreamName(s string) (StreamName, error) {
	ns, name, ok := strings.Cut(s, "/")
	if !ok || strings.Contains(name, "/") {
		return StreamName{}, Invalidf("escaped stream name %q: want exactly one slash", clip(s))
	}
	n := StreamName{Namespace: ns, Name: strings.ReplaceAll(name, "~", "/")}
	return n, n.Validate()
}

// Compare orders names by namespace, then name.
func (n StreamName) Compare(o StreamName) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// ValidateNamespace checks a namespace name. The error is an [ErrInvalid].
func ValidateNamespace(ns string) error { return validateName("namespace", ns, false) }

const (
	nameRule  = "1 to 200 characters of a-z 0-9 . _ -"
	partsRule = nameRule + ` with parts split by "/"`
)

func validateName(what, s string, slashes bool) error {
	rule := nameRule
	if slashes {
		rule = partsRule
	}
	switch {
	case s == "":
		return Invalidf("%s name is empty: want %s", what, rule)
	case len(s) > MaxNameLen:
		return Invalidf("%s name %q has %d bytes: want %s", what, clip(s), len(s), rule)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' || slashes && c == '/'
		if !ok {
			return Invalidf("%s name %q: character %q at byte %d is not allowed: want %s", what, clip(s), rune(c), i, rule)
		}
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" {
			return Invalidf("%s name %q has an empty part: want %s", what, clip(s), rule)
		}
		if part == "." || part == ".." {
			return Invalidf("%s name %q: %q may not be a part of a name", what, clip(s), part)
		}
	}
	return nil
}

// clip bounds what an error repeats of hostile input.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:most], "?"), len(s))
}
