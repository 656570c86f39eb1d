package testenv

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// How long processes of a lab may take to end by themselves before they are killed.
const endGrace = 2 * time.Second

// mounted reports whether the name stands for a network namespace rather than, after a crash, for a
// plain file.
func (n *Namespace) mounted() (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(n.Path(), &fs); err != nil {
		return false, fmt.Errorf("look at namespace %s: %w", n.name, err)
	}
	return fs.Type == unix.NSFS_MAGIC, nil
}

// endProcesses ends the processes whose main thread is in the namespace, other than the calling one.
// A process of which only some threads are inside, such as a running test, is none of them.
func (n *Namespace) endProcesses() error {
	mounted, err := n.mounted()
	if err != nil || !mounted {
		return err
	}
	same, err := sameNamespace(n.Path(), "/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("compare namespace %s: %w", n.name, err)
	}
	if same {
		return fmt.Errorf("end processes of %s: it is the namespace of this process and no lab's", n.name)
	}
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, endGrace}, {unix.SIGKILL, endGrace}} {
		for end := time.Now().Add(step.wait); ; time.Sleep(10 * time.Millisecond) {
			left, err := n.signal(step.signal)
			if err != nil || left == 0 {
				return err
			}
			if time.Now().After(end) {
				break
			}
			step.signal = 0 // once is enough: now only wait
		}
	}
	return fmt.Errorf("end processes of %s: some live on after SIGKILL", n.name)
}

// signal sends a signal, 0 for none, to the processes in the namespace, and returns their number.
func (n *Namespace) signal(s unix.Signal) (int, error) {
	proc, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	found := 0
	for _, e := range proc {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		inside, err := n.signalProcess(pid, s)
		if err != nil {
			return 0, err
		}
		if inside {
			found++
		}
	}
	return found, nil
}

// signalProcess signals the process if it is in the namespace. The descriptor is opened before the
// namespace is compared, so a number that is given to another process meanwhile is not signalled.
func (n *Namespace) signalProcess(pid int, s unix.Signal) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, nil // gone
	}
	defer unix.Close(fd)
	inside, err := sameNamespace(n.Path(), "/proc/"+strconv.Itoa(pid)+"/ns/net")
	if err != nil || !inside {
		return false, nil // gone, or a zombie, which is in no namespace
	}
	err = unix.PidfdSendSignal(fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("signal process %d of %s: %w", pid, n.name, err)
	}
	return true, nil
}

func sameNamespace(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(x, y), nil
}
