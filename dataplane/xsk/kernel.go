package xsk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setOption sets an option of an AF_XDP socket. It returns an errno or nil.
func setOption(fd, name int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name), uintptr(value), size, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// getOption reads an option of an AF_XDP socket and returns how many bytes the kernel wrote.
func getOption(fd, name int, value unsafe.Pointer, size uintptr) (int, error) {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name), uintptr(value),
		uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(length), nil
}

// kernelAtLeast compares the running kernel's version. Only what the kernel cannot be asked for otherwise
// goes by it.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	return versionAtLeast(unix.ByteSliceToString(u.Release[:]), major, minor)
}

// versionAtLeast reads the first two numbers of a release such as 6.18.0-amd64.
func versionAtLeast(release string, major, minor int) bool {
	var have [2]int
	part := 0
	for i := range len(release) {
		c := release[i]
		if c >= '0' && c <= '9' {
			have[part] = have[part]*10 + int(c-'0')
		} else if c == '.' && part == 0 {
			part++
		} else {
			break
		}
	}
	return have[0] > major || have[0] == major && have[1] >= minor
}
