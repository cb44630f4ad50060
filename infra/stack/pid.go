package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A pid file holds the process's id and the moment it started, so that a later
// process with the same id is not taken for it.

// note writes the pid file of a process that was just started.
func note(path string, pid int) error {
	return os.WriteFile(path, fmt.Appendf(nil, "%d %s\n", pid, birth(pid)), 0o600)
}

// alive returns the id in a pid file if its process still runs, or 0.
func alive(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	var pid int
	var born string
	if n, _ := fmt.Sscan(string(data), &pid, &born); n == 0 || pid <= 1 {
		return 0
	}
	if syscall.Kill(pid, 0) != nil || birth(pid) != born {
		return 0
	}
	return pid
}

// birth names the moment a process started, in the kernel's ticks since boot;
// "-" where /proc does not tell, and for a process that has ended.
func birth(pid int) string {
	data, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	if err != nil {
		return "-"
	}
	// The name in parentheses may hold anything; what follows it is fixed:
	// state is field 3, the start is field 22.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" {
		return "-"
	}
	return fields[19]
}

// end asks a pid file's process to end, waits, kills it after patience, and
// removes the file. One that does not run is no error.
func end(path string, patience time.Duration) error {
	pid := alive(path)
	if pid == 0 {
		_ = os.Remove(path)
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d of %s: %w", pid, path, err)
	}
	for start := time.Now(); alive(path) != 0; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > patience {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended just now
			fmt.Printf("process %d of %s did not end within %v and was killed\n", pid, path, patience)
			break
		}
	}
	fmt.Printf("%s ended\n", strings.TrimSuffix(filepath.Base(path), ".pid"))
	return os.Remove(path)
}
