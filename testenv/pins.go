package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removePins removes what a gateway that ran in the namespace has left beside it, by the namespace's
// inode: its pinned XDP programs and maps, and the files that tell how the host was before.
func (n *Namespace) removePins() error {
	mounted, err := n.mounted()
	if err != nil || !mounted {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(n.Path(), &st); err != nil {
		return fmt.Errorf("look at namespace %s: %w", n.name, err)
	}
	var errs []error
	for _, pattern := range []string{"bpf/v*-netns-%d", "netns-%d.*"} {
		left, err := filepath.Glob(filepath.Join("/run/softdpu", fmt.Sprintf(pattern, st.Ino)))
		if err != nil {
			return err
		}
		for _, path := range left {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what the gateway of %s has pinned: %w", n.name, err)
	}
	return nil
}
