package vfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// datasync flushes data and what is needed to read it back, without the inode's times.
func datasync(f *os.File) error {
	return retryIntr(func() error { return unix.Fdatasync(int(f.Fd())) })
}

// statxMountUnique asks for a mount id that is never used again on this boot
// (Linux 6.8); statx(2), STATX_MNT_ID_UNIQUE.
const statxMountUnique = 0x4000

// mountID names the mount that holds path, as exactly as the kernel can.
func mountID(path string) (string, error) {
	var st unix.Statx_t
	err := retryIntr(func() error {
		return unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID|statxMountUnique, &st)
	})
	switch {
	case errors.Is(err, syscall.ENOSYS):
		return "any", nil // older than Linux 4.11: the device has to do
	case err != nil:
		return "", err
	case st.Mask&statxMountUnique != 0:
		return fmt.Sprintf("unique-%x", st.Mnt_id), nil
	case st.Mask&unix.STATX_MNT_ID != 0:
		return fmt.Sprintf("%x", st.Mnt_id), nil
	default:
		return "any", nil
	}
}
