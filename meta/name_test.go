package meta

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestStreamNameTable(t *testing.T) {
	for _, c := range []struct {
		in   string
		rule string // what the refusal says; "" when the name is fine
	}{
		{"ns/a", ""},
		{"ns/a/b/c", ""},
		{"n.s-1_x/a.b-c_d/0", ""},
		{"ns/...", ""},
		{"ns/..a/b..", ""},
		{"0/0", ""},
		{"ns/" + strings.Repeat("x", 200), ""},
		{strings.Repeat("n", 200) + "/x", ""},
		{"ns/a/0000000000000001", ""},

		{"", "NAMESPACE/NAME"},
		{"ns", "NAMESPACE/NAME"},
		{"/a", "namespace name is empty"},
		{"ns/", "stream name is empty"},
		{"/", "namespace name is empty"},
		{"ns//a", "empty part"},
		{"ns/a/", "empty part"},
		{"ns/a//b", "empty part"},
		{"ns/.", "may not be a part"},
		{"ns/..", "may not be a part"},
		{"ns/a/../b", "may not be a part"},
		{"ns/a/./b", "may not be a part"},
		{"ns/a/..", "may not be a part"},
		{"../a", "may not be a part"},
		{"./a", "may not be a part"},
		{"ns/a~b", `'~'`},
		{"n~s/a", `'~'`},
		{"ns/a%2fb", `'%'`},
		{"ns/%2e%2e", `'%'`},
		{"ns/A", `'A'`},
		{"ns/a b", `' '`},
		{"ns/a\\b", `'\\'`},
		{"ns/a:b", `':'`},
		{"ns/a@b", `'@'`},
		{"ns/a*", `'*'`},
		{"ns/a\x00", `'\x00'`},
		{"ns/a\nb", `'\n'`},
		{"ns/ä", "is not allowed"},
		{"ns/a\u202eb", "is not allowed"},
		{"ns/\u2024\u2024", "is not allowed"}, // looks like dots
		{"ns/a\u2215b", "is not allowed"},     // looks like a slash
		{"ns/\xff\xfe", "is not allowed"},
		{"ns/" + strings.Repeat("x", 201), "201 bytes"},
		{strings.Repeat("n", 201) + "/x", "201 bytes"},
		{"ns/" + strings.Repeat("é", 101), "202 bytes"},
		{"ns/" + strings.Repeat("x", 1<<20), "1048576 bytes"},
	} {
		n, err := ParseStreamName(c.in)
		if c.rule == "" {
			if err != nil || n.String() != c.in {
				t.Errorf("%q: %v", c.in, err)
			}
			continue
		}
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.rule) {
			t.Errorf("%.80q: want a refusal with %q, got %v", c.in, c.rule, err)
		} else if len(err.Error()) > 500 {
			t.Errorf("%.80q: the refusal has %d bytes", c.in, len(err.Error()))
		}
	}
}

func TestNamespaceAndBrokerTable(t *testing.T) {
	for in, ok := range map[string]bool{
		"a": true, "a-b_c.d": true, "...": true, strings.Repeat("x", 200): true,
		"": false, ".": false, "..": false, "a/b": false, "/": false, "a~b": false, "A": false, "ä": false, strings.Repeat("x", 201): false,
	} {
		for _, err := range []error{ValidateNamespace(in), BrokerID(in).Validate()} {
			if (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%.80q: %v", in, err)
			}
		}
	}
}

// validName draws names that hug each other: few letters, many slashes and dots.
func validName() *rapid.Generator[string] {
	part := rapid.StringMatching(`[a0_.-]{1,4}`).Filter(func(s string) bool { return s != "." && s != ".." })
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), "/")
	})
}

func validStream() *rapid.Generator[StreamName] {
	return rapid.Custom(func(t *rapid.T) StreamName {
		return StreamName{Namespace: strings.ReplaceAll(validName().Draw(t, "namespace"), "/", "-"), Name: validName().Draw(t, "name")}
	})
}

// Rows: N13
func TestN13_EscapeIsABijection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := validStream().Draw(t, "a"), validStream().Draw(t, "b")
		for _, n := range []StreamName{a, b} {
			if err := n.Validate(); err != nil {
				t.Fatal(err)
			}
			if back, err := UnescapeStreamName(n.Escaped()); err != nil || back != n {
				t.Fatalf("%q came back from %q as %q, %v", n, n.Escaped(), back, err)
			}
			if strings.Count(n.Escaped(), "/") != 1 {
				t.Fatalf("%q has not exactly one slash", n.Escaped())
			}
			if back, err := ParseStreamName(n.String()); err != nil || back != n {
				t.Fatalf("%q was read as %q, %v", n.String(), back, err)
			}
		}
		if (a.Escaped() == b.Escaped()) != (a == b) {
			t.Fatalf("%q and %q are both %q", a, b, a.Escaped())
		}
	})
}

func TestUnescapeRefuses(t *testing.T) {
	for _, s := range []string{"", "ns", "ns/", "/a", "ns/a/b", "ns/a~", "ns/~a", "ns/a~~b", "ns/a~..~b", "ns/~", "n~s/a", "ns/A", "ns/a%"} {
		if n, err := UnescapeStreamName(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q was read as %q, %v", s, n, err)
		}
	}
}

// No shard's key lies inside another's folder, and no key is ever a folder of one:
// of two different keys neither is the other's prefix, at a slash or anywhere.
//
// Rows: N4, N13
func TestN13_NoKeyIsAPrefixOfAnother(t *testing.T) {
	id := rapid.Custom(func(t *rapid.T) ShardID {
		return ShardID{Stream: validStream().Draw(t, "stream"),
			Incarnation: Incarnation(rapid.SampledFrom([]uint64{0, 1, 16, 1 << 40, 1<<64 - 1}).Draw(t, "incarnation")),
			Shard:       uint32(rapid.IntRange(0, MaxShards).Draw(t, "shard"))}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := id.Draw(t, "a"), id.Draw(t, "b")
		if a != b && strings.HasPrefix(a.Key(), b.Key()) {
			t.Fatalf("the key of %s is a prefix of the key of %s", b, a)
		}
		if a.Stream != b.Stream && strings.HasPrefix(a.Key(), b.Stream.Escaped()+"/") {
			t.Fatalf("%s lies in the folder of %s", a, b.Stream)
		}
	})
	a, deep := StreamName{"ns", "a"}, StreamName{"ns", "a/0000000000000001"}
	mine := ShardID{Stream: a, Incarnation: 1}
	if other := (ShardID{Stream: deep, Incarnation: 1}); strings.HasPrefix(other.Key(), mine.Stream.Escaped()+"/") {
		t.Errorf("%q lies in the folder of %q", other.Key(), mine.Stream.Escaped())
	}
}

func TestShardIDCompareIsATotalOrder(t *testing.T) {
	s := func(ns, name string, i Incarnation, n uint32) ShardID {
		return ShardID{Stream: StreamName{ns, name}, Incarnation: i, Shard: n}
	}
	want := []ShardID{s("a", "a", 9, 9), s("a", "b", 1, 0), s("a", "b", 1, 1), s("a", "b", 2, 0), s("b", "a", 0, 0)}
	got := slices.Clone(want)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	slices.SortFunc(got, ShardID.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("sorted to %v", got)
	}
	if got := want[1].String(); got != "a/b@0000000000000001/0" {
		t.Errorf("String = %q", got)
	}
	if got := s("ns", "a/b", 10, 3).Key(); got != "ns/a~b/000000000000000a/0000000000000003" {
		t.Errorf("Key = %q", got)
	}
}

func TestValidNamesCostNothing(t *testing.T) {
	n := StreamName{"logs", "app/web/1"}
	if got := testing.AllocsPerRun(100, func() { _ = n.Validate() }); got > 0 {
		t.Errorf("Validate allocates %v times", got)
	}
}

func FuzzStreamName(f *testing.F) {
	f.Add("ns/a/b")
	f.Add("ns/a~b")
	f.Add("ns/../x")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseStreamName(s); err == nil {
			if n.String() != s {
				t.Errorf("%q became %q", s, n.String())
			}
			if back, err := UnescapeStreamName(n.Escaped()); err != nil || back != n {
				t.Errorf("%q came back as %q, %v", n, back, err)
			}
		}
		if n, err := UnescapeStreamName(s); err == nil && n.Escaped() != s {
			t.Errorf("%q unescapes to what escapes as %q", s, n.Escaped())
		}
	})
}
