package meta

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestIDs(t *testing.T) {
	const hex = "000102030405060708090a0b0c0d0e0f"
	id, err := ParseStorageID(hex)
	if err != nil || id.String() != hex || id.IsZero() {
		t.Errorf("storage id %s, %v", id, err)
	}
	c, err := ParseClusterID(hex)
	if err != nil || c.String() != hex || c.IsZero() {
		t.Errorf("cluster id %s, %v", c, err)
	}
	if !(StorageID{}).IsZero() || !(ClusterID{}).IsZero() {
		t.Error("the zero ids are not zero")
	}
	for _, s := range []string{"", hex[1:], hex + "0", strings.ToUpper(hex), "0x" + hex[2:], strings.Repeat("g", 32), " " + hex[1:], strings.Repeat("é", 16)} {
		if _, err := ParseStorageID(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("storage id %q: %v", s, err)
		}
		if id, err := ParseClusterID(s); !errors.Is(err, ErrInvalid) || !id.IsZero() {
			t.Errorf("cluster id %q: %s, %v", s, id, err)
		}
	}
}

func TestMemberOrder(t *testing.T) {
	want := []Member{{"a", StorageID{1}}, {"a", StorageID{2}}, {"b", StorageID{0}}}
	got := []Member{want[2], want[1], want[0]}
	slices.SortFunc(got, Member.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("sorted to %v", got)
	}
	if s := want[0].String(); s != "a/01000000" {
		t.Errorf("String = %q", s)
	}
}

// Rows: N7
func TestTombstoneCovers(t *testing.T) {
	tomb := Tombstone{Stream: StreamName{"ns", "a"}, Through: 5}
	for i, want := range map[Incarnation]bool{0: true, 4: true, 5: true, 6: false} {
		if tomb.Covers(i) != want {
			t.Errorf("through 5 covers %d: %v", i, !want)
		}
	}
}
