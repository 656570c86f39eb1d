package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// watchLimit is how long the route watcher, which says every second that it lives, may be silent.
const watchLimit = 5 * time.Second

// Problems returns what keeps packets from passing, or from passing as judged: a generation that is not
// in force, a port that is down or without its programs, the kernel's forwarding turned off, a route
// watcher that has stopped. It asks the kernel, and returns nil if all is well.
func (p *Plane) Problems() (problems []error) {
	problems = p.generationProblems()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ports) == 0 {
		problems = append(problems, errors.New("no port is attached"))
	}
	err := p.ns.do(func() error {
		for _, port := range p.ports {
			problems = append(problems, p.portProblems(port)...)
		}
		return nil
	})
	if err != nil {
		problems = append(problems, err)
	}
	switch last := p.watched.Load(); {
	case last == nil:
		problems = append(problems, errors.New("routes are not followed"))
	case time.Since(*last) > watchLimit:
		problems = append(problems, fmt.Errorf("routes have not been followed for %s", time.Since(*last).Round(time.Second)))
	}
	return problems
}

// generationProblems compares the slots that the dispatchers jump to with what was published.
func (p *Plane) generationProblems() (problems []error) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	g := p.running.Load()
	if g == nil {
		return []error{errors.New("no policy is in force")}
	}
	for _, slot := range []struct {
		name    string
		program *ebpf.Program
	}{{p.slot(), g.inSlots().xdp}, {bpf.XDPMapGuards, g.inSlots().guard}} {
		info, err := slot.program.Info()
		if err != nil {
			problems = append(problems, fmt.Errorf("read running program: %w", err))
			continue
		}
		want, _ := info.ID()
		var id uint32
		if err := p.maps[slot.name].Lookup(uint32(0), &id); err != nil || ebpf.ProgramID(id) != want {
			problems = append(problems, fmt.Errorf("policy %d is not in force: %s holds another program, or none", g.epoch, slot.name))
		}
	}
	return problems
}

// portProblems looks at one port. The thread is in the plane's namespace, and p.mu is held.
func (p *Plane) portProblems(port *Port) (problems []error) {
	if !port.present() {
		return []error{port.errorf("%s, since %s", port.Missing, port.Since.Format(time.RFC3339))}
	}
	l, err := p.nl.LinkByIndex(int(port.Index))
	if err != nil {
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return []error{port.errorf("device %s is gone", port.Device)}
		}
		return []error{port.errorf("look up device %s: %w", port.Device, err)}
	}
	a := l.Attrs()
	switch {
	case a.Flags&net.FlagUp == 0:
		problems = append(problems, port.errorf("device %s is down", a.Name))
	case a.RawFlags&unix.IFF_LOWER_UP == 0:
		problems = append(problems, port.errorf("device %s has no carrier", a.Name))
	}
	if err := attached(port.xdp, port.Index); err != nil {
		problems = append(problems, port.errorf("XDP is not attached to device %s: %w", a.Name, err))
	}
	if port.Guard == "tcx" && len(port.guards) == 0 {
		problems = append(problems, port.errorf("the egress guard is not attached to device %s: there is no link", a.Name))
	}
	for _, guard := range port.guards {
		if err := attached(guard, port.Index); err != nil {
			problems = append(problems, port.errorf("the egress guard is not attached to device %s: %w", a.Name, err))
			break
		}
	}
	if port.Guard == "clsact" && !p.filtersStand(l) {
		problems = append(problems, port.errorf("the egress guard is not attached to device %s: its clsact filter is gone", a.Name))
	}
	if port.Inline() {
		return problems
	}
	devices := []string{a.Name}
	for _, dev := range port.vlanDevices {
		devices = append(devices, dev.name)
	}
	for _, dev := range devices {
		if err := p.forwards(dev); err != nil {
			problems = append(problems, port.errorf("%w", err))
		}
	}
	return problems
}

// attached reports whether a bpf_link still stands on the interface: it outlives its device, and can be
// detached by others.
func attached(l link.Link, index uint32) error {
	if l == nil {
		return errors.New("there is no link")
	}
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("read link: %w", err)
	}
	at := uint32(0)
	if xdp := info.XDP(); xdp != nil {
		at = xdp.Ifindex
	} else if tcx := info.TCX(); tcx != nil {
		at = tcx.Ifindex
	}
	if at != index {
		return errors.New("its link was detached")
	}
	return nil
}

func (p *Plane) filtersStand(l netlink.Link) bool {
	for _, parent := range []uint32{netlink.HANDLE_MIN_EGRESS, netlink.HANDLE_MIN_INGRESS} {
		filters, err := p.nl.FilterList(l, parent)
		found := false
		for _, f := range filters {
			found = found || f.Type() == "bpf" && f.Attrs().Handle == filterHandle && f.Attrs().Priority == filterPriority
		}
		if err != nil || !found {
			return false
		}
	}
	return true
}

// forwards looks at the switches that forwardDevice has turned on.
func (p *Plane) forwards(dev string) error {
	names := []string{filepath.Join("ipv4/conf", dev, "forwarding")}
	force := filepath.Join("ipv6/conf", dev, "force_forwarding")
	if _, err := readSysctl(force); err == nil && p.kernel.force6 {
		names = append(names, force, filepath.Join("ipv6/conf", dev, "forwarding"))
	} else {
		names = append(names, "ipv6/conf/all/forwarding")
	}
	for _, name := range names {
		value, err := readSysctl(name)
		if errors.Is(err, fs.ErrNotExist) && name == "ipv6/conf/all/forwarding" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		if value != "1" {
			return fmt.Errorf("the kernel does not forward: net/%s is %s: set it to 1", name, value)
		}
	}
	return nil
}
