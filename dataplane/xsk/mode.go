package xsk

import "fmt"

// A Mode is how packets come from a device into frames, and back.
type Mode uint8

const (
	// Any is the best that the device has: zero-copy, else copy. No socket or program runs in it.
	Any Mode = iota
	// ZeroCopy: the device reads and writes frames itself.
	ZeroCopy
	// Copy: the driver runs the XDP program, the kernel copies each packet into or out of a frame.
	Copy
	// Generic: as Copy, but the program runs behind the driver, on packets that the kernel has taken apart
	// already (XDP's generic mode, skb mode). Every device has it.
	Generic
)

var modeNames = [...]string{Any: "any", ZeroCopy: "zero-copy", Copy: "copy", Generic: "generic"}

func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// An Attempt is one mode that was tried, and what came of it.
type Attempt struct {
	Mode Mode
	Err  error // nil: it is the one in use
}

func (a Attempt) String() string {
	if a.Err == nil {
		return a.Mode.String() + ": granted"
	}
	return fmt.Sprintf("%s: %v", a.Mode, a.Err)
}
