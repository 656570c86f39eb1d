package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// namespaceDir is where ip(8) keeps named namespaces.
const namespaceDir = "/run/netns"

// A Namespace is a named network namespace, visible to `ip netns list`. The value holds only the
// name: it keeps nothing open, and it is safe for concurrent use.
type Namespace struct{ name string }

// OpenNamespace returns the namespace of that name. It is an error if there is none.
func OpenNamespace(name string) (*Namespace, error) {
	n := &Namespace{name}
	f, err := n.open()
	if err != nil {
		return nil, err
	}
	return n, f.Close()
}

// Name returns the name as `ip netns list` shows it.
func (n *Namespace) Name() string { return n.name }

// Path returns the file that a process opens to enter the namespace with setns(2).
func (n *Namespace) Path() string { return filepath.Join(namespaceDir, n.name) }

// Do calls fn on an operating system thread of its own that is inside the namespace, and returns
// fn's error. Sockets that fn makes stay in the namespace after Do has returned. Goroutines that fn
// starts run outside of it; so does what the standard library does in goroutines of its own, such as
// the dialling of http.Transport. If fn ends by runtime.Goexit, as after t.Fatal, so does the caller.
//
// The thread goes back to the process's namespace; one that cannot is destroyed and never reused.
func (n *Namespace) Do(fn func() error) error {
	f, err := n.open()
	if err != nil {
		return err
	}
	defer f.Close()
	return elsewhere(func() error {
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.name, err)
		}
		return nil
	}, fn)
}

// elsewhere runs leave, which takes its thread to another namespace, and then fn, on one locked
// thread, and brings the thread back.
func elsewhere(leave, fn func() error) error {
	var err error
	finished := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		home, openErr := os.Open("/proc/thread-self/ns/net")
		if openErr != nil {
			runtime.UnlockOSThread()
			err, finished = fmt.Errorf("open own network namespace: %w", openErr), true
			return
		}
		defer home.Close()
		defer func() {
			// Without the unlock the runtime ends the thread together with this goroutine.
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		if err = leave(); err == nil {
			err = fn()
		}
		finished = true
	}()
	<-done
	if !finished {
		runtime.Goexit()
	}
	return err
}

// Command returns a command that runs inside the namespace, by `ip netns exec`: the process has a
// mount namespace of its own with a /sys of the namespace, so what it pins under /sys/fs/bpf ends
// with it. The process is the program itself, not a child of ip.
func (n *Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.name, name}, args...)...)
}

// Dial connects from inside the namespace. The address is numeric: names are not looked up there.
func (n *Namespace) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens inside the namespace, as net.Listen does.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		var c net.ListenConfig
		return whileHeld(ctx, func() error { l, err = c.Listen(ctx, network, address); return err })
	})
	return l, err
}

// whileHeld tries again for a moment while an address is in use: a child that another test starts has this process's
// sockets open, also one that has just been closed, until it executes its program.
func whileHeld(ctx context.Context, listen func() error) error {
	err := listen()
	for end := time.Now().Add(time.Second); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(end) && ctx.Err() == nil; err = listen() {
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

// ListenPacket opens a packet socket inside the namespace, as net.ListenPacket does.
func (n *Namespace) ListenPacket(ctx context.Context, network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		var lc net.ListenConfig
		return whileHeld(ctx, func() error { c, err = lc.ListenPacket(ctx, network, address); return err })
	})
	return c, err
}

func (n *Namespace) open() (*os.File, error) {
	f, err := os.Open(n.Path())
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("open namespace %s: it does not exist: bring the lab up first: %w", n.name, os.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", n.name, err)
	}
	return f, nil
}

// createNamespace makes a namespace with its loopback still down.
func createNamespace(name string) (*Namespace, error) {
	n := &Namespace{name}
	if err := shareNamespaceDir(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(n.Path(), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", name, err)
	}
	f.Close()
	err = elsewhere(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
		return nil
	}, func() error {
		// The mount keeps the namespace when the thread has left it.
		if err := unix.Mount("/proc/thread-self/ns/net", n.Path(), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount namespace %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, os.Remove(n.Path()))
	}
	return n, nil
}

// remove unmounts and removes the name. The kernel frees the namespace with its last user.
func (n *Namespace) remove() error {
	// A crash between creation and mount leaves a plain file: EINVAL.
	if err := unix.Unmount(n.Path(), unix.MNT_DETACH); err != nil && err != unix.EINVAL {
		return fmt.Errorf("unmount namespace %s: %w", n.name, err)
	}
	if err := os.Remove(n.Path()); err != nil {
		return fmt.Errorf("remove namespace %s: %w", n.name, err)
	}
	return nil
}

// shareNamespaceDir makes the folder a shared mount, as ip(8) does: else the private mounts of
// every `ip netns exec` would keep a removed namespace alive.
func shareNamespaceDir() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", namespaceDir, err)
	}
	err := unix.Mount("", namespaceDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if err == unix.EINVAL { // not a mount yet
		if err = unix.Mount(namespaceDir, namespaceDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", namespaceDir, err)
		}
		err = unix.Mount("", namespaceDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("share mount %s: %w", namespaceDir, err)
	}
	return nil
}
