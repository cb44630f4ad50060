package etcdkv_test

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/varve-io/varve/meta"
	"github.com/varve-io/varve/meta/etcdkv"
)

// A start that a full or failing disk prevents never tells anybody to put away the
// catalog.
func TestFullDiskIsNoDamage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why    error
		kind   error
		damage bool
	}{
		{syscall.ENOSPC, meta.ErrExhausted, false},
		{&fs.PathError{Op: "write", Path: "0.tmp", Err: syscall.EDQUOT}, meta.ErrExhausted, false},
		{&fs.PathError{Op: "write", Path: "db", Err: syscall.EIO}, meta.ErrUnavailable, false},
		{syscall.EROFS, meta.ErrUnavailable, false},
		{&fs.PathError{Op: "open", Path: "db", Err: syscall.EACCES}, meta.ErrUnavailable, false},
		{errors.New("walpb: crc mismatch"), meta.ErrCorrupt, true},
		{nil, meta.ErrCorrupt, true},
	} {
		err := etcdkv.Refusal("/data/catalog", "failed to read WAL, cannot be repaired", c.why)
		if !errors.Is(err, c.kind) || !errors.Is(err, meta.ErrPoisoned) {
			t.Errorf("%v: %v, want %v that is a failed storage, too", c.why, err, c.kind)
		}
		if strings.Contains(err.Error(), "a backup") != c.damage || !strings.Contains(err.Error(), "/data/catalog") {
			t.Errorf("%v: %v", c.why, err)
		}
	}
}
