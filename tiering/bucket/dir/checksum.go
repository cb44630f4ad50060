package dir

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// attribute holds an object's CRC32C as 8 hex digits.
const attribute = "user.varve.crc32c"

// setChecksum notes the checksum with the file, and says whether the file system
// keeps it.
func setChecksum(f *os.File, crc uint32) bool {
	return control(f, func(fd int) error {
		return unix.Fsetxattr(fd, attribute, fmt.Appendf(nil, "%08x", crc), 0)
	}) == nil
}

func checksum(f *os.File) (uint32, bool) {
	var buf [16]byte
	n := 0
	err := control(f, func(fd int) (err error) {
		n, err = unix.Fgetxattr(fd, attribute, buf[:])
		return err
	})
	if err != nil || n != 8 {
		return 0, false
	}
	crc, err := strconv.ParseUint(string(buf[:n]), 16, 32)
	return uint32(crc), err == nil
}

func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	if err := raw.Control(func(fd uintptr) { doErr = do(int(fd)) }); err != nil {
		return err
	}
	return doErr
}
