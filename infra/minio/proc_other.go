//go:build !linux

package minio

import "syscall"

// procAttr gives the server a process group of its own. Elsewhere than on Linux
// it outlives a caller that is killed.
func procAttr(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
