package gateway

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// yieldingNice is the niceness of what comes behind the packets: it gets what they and the rest of the machine
// leave of the processors.
const yieldingNice = 19

// yielding runs fn on a thread of its own, which yields to all others and ends with it: a thread that has become
// nicer may not become less so. The error is fn's; a panic becomes one.
func yielding(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer func() {
			if why := recover(); why != nil {
				done <- fmt.Errorf("panic: %v\n%s", why, debug.Stack())
			}
		}()
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), yieldingNice) // not allowed: as all others then
		done <- fn()
	}()
	return <-done
}
