package dataplane

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace that stays reachable whatever thread a goroutine runs on.
// Interface indices, /proc/sys/net, netlink and ioctl sockets and the attach calls of bpf(2) all mean
// the namespace of the calling thread, so everything that names a device goes through do.
type namespace struct {
	file *os.File
	id   unix.Stat_t
}

// currentNamespace opens the namespace of the calling thread.
func currentNamespace() (*namespace, error) { return openNamespace("/proc/thread-self/ns/net") }

func openNamespace(path string) (*namespace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	n := &namespace{file: f}
	if err := unix.Fstat(int(f.Fd()), &n.id); err != nil {
		f.Close()
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return n, nil
}

func (n *namespace) close() error { return n.file.Close() }

// current reports whether the calling thread is inside.
func (n *namespace) current() bool {
	var st unix.Stat_t
	return unix.Stat("/proc/thread-self/ns/net", &st) == nil && st.Dev == n.id.Dev && st.Ino == n.id.Ino
}

// do calls fn on a thread inside the namespace and returns its error. A thread that is inside already
// is used as it is, so that a daemon in its own namespace needs no CAP_SYS_ADMIN.
func (n *namespace) do(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if n.current() {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := currentNamespace()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.close()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = fn()
		// A thread that cannot go back stays locked and ends with this goroutine.
		if unix.Setns(int(home.file.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
