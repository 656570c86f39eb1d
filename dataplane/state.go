package dataplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/flowtable"
)

// state is what a gateway needs of the one before it, beside the pins. It is written before what it
// tells of is done.
type state struct {
	Boot   string `json:"boot"`   // id of the kernel's run
	Cookie uint64 `json:"cookie"` // of the network namespace: inode numbers are used again
	Layout string `json:"layout"` // version of the maps' layout
	Plane  int    `json:"plane"`  // directory of the maps, 0 = none yet
	Next   int    `json:"next"`   // directory of the maps that links are being moved to, 0 = none
	// Convert is the directory of maps of which those with flows are of another size than Plane's, and
	// in use as soon as a policy is; 0 = none.
	Convert int    `json:"convert,omitempty"`
	Seed    uint64 `json:"seed"`  // of the flow hash
	Epoch   uint32 `json:"epoch"` // the highest that was published
	// Ports and Numbers say what numbers in the maps mean. Numbers are as the latest policy gave them.
	Ports     []string          `json:"ports"`
	Numbers   numbers           `json:"numbers"`
	Numbering numbering         `json:"numbering"`         // of ports
	Indices   map[string]uint32 `json:"indices,omitempty"` // of the interfaces that ports have, by port
	// NAT says that flows in the maps may be translated: programs without translation could not read them.
	NAT bool `json:"nat,omitempty"`
	// SourceLimits says that flows in the maps may count for their sources: programs must take them off.
	SourceLimits bool `json:"source_limits,omitempty"`
	// Mappings says that some of them may be endpoint-independent mappings, or have come in by one.
	Mappings bool `json:"mappings,omitempty"`
	// PickUp is until when TCP is picked up without its SYN: a grace outlives the run that began it.
	PickUp time.Time `json:"pick_up,omitzero"`
	// WhyGeneric keeps the driver's reason, by link: it cannot be asked again while XDP is attached.
	WhyGeneric map[string]string `json:"why_generic,omitempty"`
	// Changes of the host, in order; what each replaced is what was there before the first run.
	Changes []change `json:"changes"`

	file  string
	stale string     // whose the file was instead, if it is not this network namespace's; this state is empty then
	mu    sync.Mutex // of Epoch, Numbers, Changes and the file: policies and devices come at the same time
}

// Kinds of change.
const (
	changeSysctl      = "sysctl"
	changeFeatures    = "features"
	changePromiscuous = "promiscuous"
	changeMTU         = "mtu"
	changeQdisc       = "qdisc"
	changeFilters     = "filters"
)

// A change is a setting of the host and what it was.
type change struct {
	Kind     string   `json:"kind"`
	Owner    string   `json:"owner"`              // device that it was made for; "all" for all
	Device   string   `json:"device,omitempty"`   // whose features were turned off
	Index    int      `json:"index,omitempty"`    // of the device
	NetNS    *int     `json:"netns,omitempty"`    // where the device is, if elsewhere: nsid
	Name     string   `json:"name,omitempty"`     // of the sysctl
	Old      string   `json:"old,omitempty"`      // of the sysctl
	MTU      int      `json:"mtu,omitempty"`      // before
	Features []string `json:"features,omitempty"` // that were on
}

// same reports whether both are of one setting.
func (c *change) same(o *change) bool {
	here := c.NetNS == nil && o.NetNS == nil || c.NetNS != nil && o.NetNS != nil && *c.NetNS == *o.NetNS
	return c.Kind == o.Kind && c.Name == o.Name && c.Device == o.Device && c.Index == o.Index && here &&
		strings.Join(c.Features, " ") == strings.Join(o.Features, " ")
}

// readState returns what the last run left, or an empty state if there was none in this network
// namespace since the machine started.
func readState(file string) (*state, error) {
	now := &state{file: file}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	now.Boot = strings.TrimSpace(string(boot))
	if now.Cookie, err = namespaceCookie(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return now, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	s := &state{file: file}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read state %s: %w: without it nobody knows what was set before: set it back by hand and remove the file", file, err)
	}
	switch {
	case s.Boot != now.Boot && !pinned(file):
		now.stale = "an earlier boot"
	case s.Cookie != now.Cookie:
		now.stale = fmt.Sprintf("another network namespace, which has gone and had the same inode number (cookie %d, and this one has %d)", s.Cookie, now.Cookie)
	default:
		if s.Numbers.read(file) != nil {
			s.Plane = 0 // nobody knows what its maps say
		}
		return s, nil
	}
	return now, nil
}

// pinned reports whether there are pins beside a state: then it is of this run of the kernel, although
// another id may stand in its place. systemd-nspawn gives a container one of its own, and units that have
// a /proc of their own see the kernel's.
func pinned(file string) bool {
	dirs, _ := filepath.Glob(filepath.Join(pinRoot, "v*-"+strings.TrimSuffix(filepath.Base(file), ".json")))
	return len(dirs) > 0 && isBPF(pinRoot)
}

// save replaces the file as a whole.
func (s *state) save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write()
}

// publish remembers an epoch that is about to be in force, what its numbers mean, unless that is nothing, and
// whether it translates, limits sources and maps; nat may be nil.
func (s *state) publish(epoch uint32, numbers NumbersText, nat *flowtable.NAT) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Epoch, s.NAT = epoch, s.NAT || nat != nil
	s.SourceLimits, s.Mappings = s.SourceLimits || nat.LimitsSources(), s.Mappings || nat.Maps()
	if numbers.Whole != nil {
		s.Numbers.text = numbers
	}
	return s.write()
}

// setNumbers remembers what the numbers in the maps mean.
func (s *state) setNumbers(numbers NumbersText) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Numbers.text = numbers
	return s.write()
}

// setPickUp remembers until when TCP is picked up.
func (s *state) setPickUp(until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.PickUp = until
	return s.write()
}

// converted makes the maps of a directory those that are in use.
func (s *state) converted(plane int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Plane, s.Convert = plane, 0
	return s.write()
}

func (s *state) write() error {
	if err := s.Numbers.write(s.file); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	next := s.file + ".new"
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(next, s.file); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// record remembers a change that is about to be made. The first one of a setting stands.
func (s *state) record(c change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.Changes {
		if s.Changes[i].same(&c) {
			return nil
		}
	}
	s.Changes = append(s.Changes, c)
	return s.write()
}

// records is the number of changes.
func (s *state) records() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Changes)
}

// forget drops the changes behind the first n, which have been undone.
func (s *state) forget(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n >= len(s.Changes) {
		return nil
	}
	s.Changes = s.Changes[:n]
	return s.write()
}

// drop forgets the changes that were made for a device which is no longer here: they went with it. Those of
// a device elsewhere, a veth's other end, did not.
func (s *state) drop(owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Changes = slices.DeleteFunc(s.Changes, func(c change) bool {
		return c.Owner == owner && c.NetNS == nil && (c.Device == "" || c.Device == owner)
	})
	return s.write()
}

// rename follows a device that has another name now.
func (s *state) rename(from, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.Changes {
		c := &s.Changes[i]
		if c.Owner == from {
			c.Owner = to
		}
		if c.Device == from && c.NetNS == nil {
			c.Device = to
		}
		if path := strings.Split(c.Name, "/"); c.Kind == changeSysctl && path[2] == from {
			path[2] = to
			c.Name = strings.Join(path, "/")
		}
	}
	return s.write()
}

// namespaceCookie returns a number that no other network namespace has until the next boot.
func namespaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read cookie of the network namespace: %w", err)
	}
	return cookie, nil
}
