package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socketPathMax is what struct sockaddr_un holds, in bytes.
const socketPathMax = 107

// umask is held while the process has another umask: of two gateways in a process, the second would take that of
// the first for the one to restore.
var umask sync.Mutex

// listenControl listens on the control socket: readable for the group, or, where there is none of that
// name, for root alone. It makes the directory, takes the place of a socket that a crash left, and
// refuses that of a running daemon.
func listenControl(c *Control, log *slog.Logger) (*net.UnixListener, error) {
	if len(c.Socket) > socketPathMax {
		return nil, fmt.Errorf("listen on control socket %s: the path is longer than %d bytes: choose a shorter one in control.socket", c.Socket, socketPathMax)
	}
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the control socket: %w", err)
	}
	if err := removeStale(c.Socket); err != nil {
		return nil, err
	}
	// Never open to more people than it will be: nothing else of the daemon runs yet.
	umask.Lock()
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket, Net: "unix"})
	unix.Umask(old)
	umask.Unlock()
	if err != nil {
		return nil, fmt.Errorf("listen on control socket: %w", err)
	}
	if err := allowGroup(c, log); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// removeStale removes a socket at which nobody listens.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at control socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on control socket %s: there is a file of that name that is no socket: remove it, or choose another control.socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("listen on control socket %s: a running softdpu answers there: stop it, or choose another control.socket", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("listen on control socket: look who has it: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale control socket: %w", err)
	}
	return nil
}

func allowGroup(c *Control, log *slog.Logger) error {
	group, err := user.LookupGroup(c.Group)
	if err != nil {
		log.Info("only root may use the control socket", "socket", c.Socket,
			"why", fmt.Sprintf("there is no group %q: `groupadd --system %s` and a restart let its members read", c.Group, c.Group))
		return nil
	}
	id, err := strconv.Atoi(group.Gid)
	if err != nil {
		return fmt.Errorf("read number of group %s: %w", c.Group, err)
	}
	if err := os.Chown(c.Socket, -1, id); err != nil {
		return fmt.Errorf("give control socket to group %s: %w", c.Group, err)
	}
	if err := os.Chmod(c.Socket, 0o660); err != nil {
		return fmt.Errorf("open control socket to group %s: %w", c.Group, err)
	}
	return nil
}
