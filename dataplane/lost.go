package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A PortEvent is something that has become of a port's device.
type PortEvent struct {
	Port, Device string
	What         PortChange
	Detail       string // for people; "" where What says it all
}

// PortChange names what has happened to a port, in kebab-case.
type PortChange string

const (
	PortLost     PortChange = "port-lost"     // its device is gone
	PortReturned PortChange = "port-returned" // its device is back, and judged
	PortRefused  PortChange = "port-refused"  // its device is back and cannot be taken, which is tried again
	PortUp       PortChange = "port-up"
	PortDown     PortChange = "port-down" // the device, or its carrier
	PortRenamed  PortChange = "port-renamed"
	PortMTU      PortChange = "port-mtu"
	PortMAC      PortChange = "port-mac"
)

// tell hands an event on, to the workers too. p.mu is held.
func (p *Plane) tell(port *Port, what PortChange, format string, args ...any) {
	p.portsChanged()
	if p.options.OnPort != nil {
		p.options.OnPort(PortEvent{port.Name, port.Device, what, fmt.Sprintf(format, args...)})
	}
}

// lose goes on without a port's device: nothing is sent there any more, what came from it is refused, and
// routes lead elsewhere or nowhere. A device that has gone to another network namespace has our programs
// still: they are taken off. p.mu is held.
func (p *Plane) lose(port *Port) error {
	index := port.Index
	errs := []error{p.clearDevice(port)}
	p.unready(port)
	// The kernel has done so, but for a device in the hands of another namespace since.
	errs = append(errs, p.dropDevice(uint32(port.ID)), p.unlink(port))
	if p.life != nil {
		errs = append(errs, p.life.state.drop(port.Device))
		for _, dev := range port.vlanDevices {
			errs = append(errs, p.life.state.drop(dev.name))
		}
	}
	port.Missing, port.Since = fmt.Sprintf("device %s is gone", port.Device), time.Now()
	port.Up, port.lost, port.Index, port.vlanDevices, port.Notes = false, true, 0, nil, nil
	p.tell(port, PortLost, "interface %d", index)
	port.Device = port.wanted
	if p.life != nil {
		errs = append(errs, p.savePorts())
	}
	if err := errors.Join(errs...); err != nil {
		return port.errorf("go on without its device: %w", err)
	}
	return nil
}

// unlink takes a port's bpf_links off whatever they are on, XDP first, and forgets them.
func (p *Plane) unlink(port *Port) error {
	var errs []error
	for _, l := range append([]link.Link{port.xdp}, port.guards...) {
		if l == nil {
			continue
		}
		if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
			errs = append(errs, fmt.Errorf("detach link: %w", err))
		}
		errs = append(errs, l.Close())
	}
	port.xdp, port.guards = nil, nil
	if p.life == nil {
		return errors.Join(errs...)
	}
	for _, kind := range []string{"xdp", "guard", "mark"} {
		name := linkName(kind, port.Index)
		delete(p.life.linked, name)
		delete(p.life.links, name)
		delete(p.life.held, name)
		if err := os.Remove(p.life.pins.home("links", name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove pin of link %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// regain takes a port's device that has come back, in the order of Attach: nothing of it is forwarded
// before its programs stand, because the kernel forwards for a new device only once it is told to. If it
// cannot be taken the port stays without one, and says why. p.mu is held.
func (p *Plane) regain(port *Port) {
	before, had := port.Missing, *port
	port.Missing, port.Notes, port.WhyNotNative, port.attached = "", nil, "", ModeAuto
	err := p.attempt(func() error { return p.takeBack(port) })
	if err == nil && p.life != nil {
		err = p.savePorts()
	}
	if err == nil {
		port.Since, port.lost = time.Now(), false
		p.routesChanged()
		p.tell(port, PortReturned, "interface %d, %s", port.Index, port.Running)
		return
	}
	*port = had
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return // gone again
	}
	port.Missing = fmt.Sprintf("device %s is back and cannot be taken: %v", port.wanted, err)
	if port.Missing != before {
		p.tell(port, PortRefused, "%v", err)
	}
}

func (p *Plane) takeBack(port *Port) error {
	port.Device = port.wanted
	if err := p.resolve(port); err != nil {
		return err
	}
	if err := distinct(p.ports); err != nil {
		return err
	}
	return p.takeDevice(port)
}

// takeDevice does for the device of one port that is resolved what Attach does for those of all.
func (p *Plane) takeDevice(port *Port) error {
	if err := errors.Join(p.setMTU(port), p.checkTags(port)); err != nil {
		return err
	}
	p.undo = append(p.undo, func() error { return p.clearDevice(port) })
	hop := port.nexthop()
	storeWords(&p.mem.nexthops[nexthopPort+int(port.ID)], &hop)
	if err := p.seat(port, p.ports); err != nil {
		return port.errorf("%w", err)
	}
	for _, step := range []func(*Port) error{p.attachGuard, p.attachXDP, p.addDevice, p.openInline} {
		if err := step(port); err != nil {
			return err
		}
	}
	if port.Inline() {
		return nil
	}
	devices := []string{port.Device}
	for _, dev := range port.vlanDevices {
		devices = append(devices, dev.name)
	}
	if err := p.setNeighbourTimes(devices); err != nil {
		return port.errorf("%w", err)
	}
	for _, dev := range devices {
		if err := p.forwardDevice(dev); err != nil {
			return port.errorf("%w", err)
		}
	}
	if err := p.fillZones(port); err != nil {
		return port.errorf("%w", err)
	}
	return p.copyNATAddresses(p.ports)
}

// returns takes back the device of a port that waits for one of that name.
func (p *Plane) returns(a *netlink.LinkAttrs) {
	for _, port := range p.ports {
		if !port.present() && (a.Name == port.wanted || slices.Contains(a.AltNames, port.wanted)) {
			p.regain(port)
		}
	}
}

// regainAll tries again for ports whose devices could not be taken when they came.
func (p *Plane) regainAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, port := range p.ports {
		if port.present() {
			continue
		}
		if _, err := p.nl.LinkByName(port.wanted); err == nil {
			p.regain(port)
		}
	}
}

// missing loses the ports whose devices are not among all there are: that they went was not heard. So does
// a device that was replaced by another of its number.
func (p *Plane) missing(links []netlink.Link) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, port := range p.ports {
		if !port.present() {
			continue
		}
		here := slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == int(port.Index) })
		if !here {
			// A list may be incomplete, if devices come and go while it is made.
			_, err := p.nl.LinkByIndex(int(port.Index))
			var none netlink.LinkNotFoundError
			here = !errors.As(err, &none)
		}
		if here && port.xdp != nil && attached(port.xdp, port.Index) == nil {
			continue
		}
		if !here || port.xdp != nil {
			errs = append(errs, p.lose(port))
		}
	}
	return errors.Join(errs...)
}

// renamed follows a device that is called otherwise now. Its settings have gone with it.
func (p *Plane) renamed(port *Port, name string) error {
	from := port.Device
	port.Device = name
	if p.life != nil {
		if err := p.life.state.rename(from, name); err != nil {
			return port.errorf("%w", err)
		}
	}
	port.Notes = slices.DeleteFunc(port.Notes, func(n string) bool { return n == renamedNote(from, port.wanted) })
	if name != port.wanted {
		port.Notes = append(port.Notes, renamedNote(name, port.wanted))
	}
	p.tell(port, PortRenamed, "it was called %s", from)
	return nil
}

func renamedNote(name, wanted string) string {
	return fmt.Sprintf("device %s is the one that the configuration calls %s: it was renamed, and a start that is no take-over would not find it: name %s in the configuration, or rename it back", name, wanted, name)
}

// findRenamed looks for a port's device by its number, if it is called otherwise than the run before knew
// it and still has that run's program.
func (p *Plane) findRenamed(port *Port) {
	if _, err := p.nl.LinkByName(port.Device); err == nil {
		return
	}
	index := p.life.state.Indices[port.Name]
	if index == 0 || p.life.held[linkName("xdp", index)] == nil {
		return
	}
	l, err := p.nl.LinkByIndex(int(index))
	if err != nil {
		return
	}
	name := l.Attrs().Name
	port.note("%s", renamedNote(name, port.wanted))
	// The names of changes follow now: the run before did not see this.
	for i := range p.life.state.Changes {
		if c := &p.life.state.Changes[i]; c.Index == int(index) && c.Owner != name {
			_ = p.life.state.rename(c.Owner, name)
			break
		}
	}
	_ = p.life.state.rename(port.Device, name)
	port.Device = name
}

// upFlags says whether frames can pass a device.
func upFlags(a *netlink.LinkAttrs) bool {
	return a.Flags&net.FlagUp != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0
}
