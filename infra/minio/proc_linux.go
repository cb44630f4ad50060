package minio

import "syscall"

// procAttr gives the server a process group of its own, so that Ctrl-C in a
// terminal reaches only the caller, which then stops the server in order. Unless
// it is to outlive the caller, the kernel kills it when the thread that started
// it ends: that thread is locked to the goroutine that waits for the server.
func procAttr(detached bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if !detached {
		attr.Pdeathsig = syscall.SIGKILL
	}
	return attr
}
