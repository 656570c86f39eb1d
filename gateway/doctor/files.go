package doctor

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/gateway"
)

// Bytes of disk under which events are soon lost.
const diskMin = 100 << 20

// files looks at what the daemon writes and who may reach it.
func (e *examination) files(c *gateway.Config) {
	events := filepath.Dir(c.Events.File)
	if err := writable(events); err != nil {
		e.find(Error, "events", "give the daemon's user the right to write there, or name another events.file", "events cannot be written to %s: %v", events, err)
	} else if info, err := os.Stat(c.Events.File); err == nil && !info.Mode().IsRegular() {
		e.find(Error, "events", "name another events.file", "%s is no regular file", c.Events.File)
	}
	var fs unix.Statfs_t
	if unix.Statfs(events, &fs) == nil && int64(fs.Bavail)*fs.Bsize < diskMin {
		e.find(Warning, "events", "make room, or rotate the events file", "%d MiB are free in %s, where events are written", int64(fs.Bavail)*fs.Bsize>>20, events)
	}
	socket := filepath.Dir(c.Control.Socket)
	if err := writable(socket); err != nil {
		e.find(Error, "control-socket", "give the daemon's user the right to write there, or name another control.socket", "the control socket cannot be made in %s: %v", socket, err)
	}
	if err := writable(c.State); err != nil {
		e.find(Warning, "history", "give the daemon's user the right to write there, or name another directory by state", "the history of the policy cannot be kept in %s: %v", c.State, err)
	}
	var unknown user.UnknownGroupError
	if _, err := user.LookupGroup(c.Control.Group); errors.As(err, &unknown) {
		e.find(Info, "control-socket", "`groupadd --system "+c.Control.Group+"` lets its members read", "there is no group %s: only root may ask the gateway", c.Control.Group)
	}
}
