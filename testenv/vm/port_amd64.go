package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// outb writes a byte to a port of the machine's. The thread must have been given it.
func outb(port uint16, value byte)

// leave ends the machine by writing to QEMU's isa-debug-exit. Not all kernels have /dev/port for that.
func leave(value byte) error {
	runtime.LockOSThread() // what is given is given to the thread
	if _, _, err := unix.Syscall(unix.SYS_IOPERM, exitPort, 1, 1); err != 0 {
		return fmt.Errorf("ask for port %#x: %w", exitPort, err)
	}
	outb(exitPort, value)
	return fmt.Errorf("write to port %#x: the machine goes on", exitPort)
}
