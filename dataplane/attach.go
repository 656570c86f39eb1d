package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softdpu/softdpu/bpf"
)

// Attach takes all ports, or none: after an error everything is as it was. The order is that of a
// machine that is never a way around its policy: look-ups first, which change nothing; then the egress
// guard on every port, so that nothing leaves unjudged; then XDP on every port; and only when both
// stand on all of them the kernel's forwarding, without which it answers no route look-up.
//
// What is wrong with ports is reported of all of them at once. Generations may be published before and
// after; without one, everything is dropped.
func (p *Plane) Attach(configs []PortConfig) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.placed {
		return errors.New("attach ports: the plane has ports already")
	}
	if p.options.Simulate {
		return errors.New("attach ports: a plane that simulates takes none")
	}
	ports := make([]*Port, len(configs))
	for i, c := range configs {
		ports[i] = &Port{PortConfig: c}
	}
	var before numbering
	if p.life != nil && p.life.taken {
		before = p.life.state.Numbering
	}
	if err := arrange(ports, before); err != nil {
		return fmt.Errorf("attach ports: %w", err)
	}
	p.ports, p.placed = ports, true
	err = p.ns.do(p.takePorts)
	if err == nil && p.life != nil {
		err = p.ns.do(p.commit)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("attach ports: %w", err), p.detach())
	}
	p.settle(0, 0)
	p.watchLosses()
	return nil
}

// settle forgets how to undo what is done, from a point on, where the state says that better: that holds
// for the next run too.
func (p *Plane) settle(undo, files int) {
	if p.life == nil {
		return
	}
	for _, closeFile := range p.files[files:] {
		_ = closeFile() // of what was only looked at
	}
	p.undo, p.files = p.undo[:undo], p.files[:files]
}

// attempt calls fn in the plane's namespace. What it did before an error is undone. p.mu is held.
func (p *Plane) attempt(fn func() error) error {
	undo, files := len(p.undo), len(p.files)
	var records int
	if p.life != nil {
		records = p.life.state.records()
	}
	return p.ns.do(func() error {
		err := fn()
		if err == nil {
			p.settle(undo, files)
			return nil
		}
		for _, step := range slices.Backward(p.undo[undo:]) {
			err = errors.Join(err, step())
		}
		for _, closeFile := range p.files[files:] {
			err = errors.Join(err, closeFile())
		}
		p.undo, p.files = p.undo[:undo], p.files[:files]
		if p.life != nil {
			err = errors.Join(err, p.life.state.forget(records))
		}
		return err
	})
}

func (p *Plane) takePorts() error {
	var errs []error
	each := func(step func(*Port) error) {
		for _, port := range p.ports {
			if port.present() {
				errs = append(errs, step(port))
			}
		}
	}
	for _, port := range p.ports {
		errs = append(errs, p.find(port))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := distinct(p.ports); err != nil {
		return err
	}
	for _, step := range []func(*Port) error{p.setMTU, p.checkTags} {
		each(step)
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}

	// On the list before it is done: what a failure leaves half filled is cleared too.
	if p.life == nil || !p.life.taken {
		p.undo = append(p.undo, func() error { return p.clearTables(p.ports) })
	}
	if err := p.fillTables(p.ports); err != nil {
		return err
	}
	if err := errors.Join(p.copyLocals(), p.copyNATAddresses(p.ports)); err != nil {
		return err
	}
	if err := p.begin(); err != nil {
		return err
	}
	for _, step := range []func(*Port) error{p.attachGuard, p.addDevice, p.attachXDP, p.openInline} {
		each(step)
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	if err := p.setNeighbourTimes(p.routedDevices()); err != nil {
		return err
	}
	if err := p.setForwarding(); err != nil {
		return err
	}
	p.setEthertypes()
	return nil
}

// find resolves the port's device. One that a run before had may have gone since, or be called otherwise:
// where that run is taken over, what ran goes on.
func (p *Plane) find(port *Port) error {
	if p.life != nil && p.life.taken {
		port.lost = true
		p.findRenamed(port)
	}
	err := p.resolve(port)
	var missing netlink.LinkNotFoundError
	if port.lost && errors.As(err, &missing) {
		port.Missing, port.Since = fmt.Sprintf("device %s is not there", port.wanted), time.Now()
		return nil
	}
	port.lost = false
	return err
}

// distinct refuses a device that two ports name differently.
func distinct(ports []*Port) error {
	byIndex := make(map[uint32]*Port)
	for _, port := range ports {
		if !port.present() {
			continue
		}
		if other := byIndex[port.Index]; other != nil {
			return port.errorf("device %s is port %s already", port.Device, other.Name)
		}
		byIndex[port.Index] = port
	}
	return nil
}

// addDevice lets XDP redirect to the port.
func (p *Plane) addDevice(port *Port) error {
	key := uint32(port.ID)
	if err := p.setDevice(key, port.Index); err != nil {
		return port.errorf("make device %s a redirect target: %w", port.Device, err)
	}
	if p.life != nil && p.life.taken && !port.lost {
		return nil // it was there before
	}
	// The kernel empties the slot itself when the device goes.
	p.undo = append(p.undo, func() error { return ignoreMissing(p.dropDevice(key)) })
	return nil
}

func (p *Plane) openInline(port *Port) error {
	if !port.Inline() {
		return nil
	}
	return p.setPromiscuous(port)
}

// detach undoes Attach in reverse order, as far as it came. p.mu is held.
func (p *Plane) detach() error {
	if len(p.undo) == 0 {
		p.ports, p.placed = nil, false
		return nil
	}
	err := p.ns.do(func() error {
		var errs []error
		for _, undo := range slices.Backward(p.undo) {
			errs = append(errs, undo())
		}
		return errors.Join(errs...)
	})
	p.undo, p.ports, p.placed = nil, nil, false
	for _, closeFile := range p.files {
		err = errors.Join(err, closeFile())
	}
	p.files = nil
	if p.life != nil {
		for name, l := range p.life.links {
			err = errors.Join(err, l.Close())
			delete(p.life.links, name)
		}
		clear(p.life.linked)
		s := p.life.state
		s.Next = 0
		s.Changes = s.Changes[:min(len(s.Changes), p.life.records)]
		err = errors.Join(err, s.save())
	}
	if err != nil {
		return fmt.Errorf("detach ports: %w", err)
	}
	return nil
}

// Place puts ports without devices into the tables of a plane that simulates. Of each, beside the
// configuration, Index (any number, unique), MAC and MTU must be given, IP4 and IP6 may be.
func (p *Plane) Place(ports []Port) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.options.Simulate {
		return errors.New("place ports: the plane does not simulate")
	}
	if p.placed {
		return errors.New("place ports: the plane has ports already")
	}
	placed := make([]*Port, len(ports))
	for i := range ports {
		port := ports[i].clone()
		port.Device, port.Up = port.Name, true
		port.fixChecksum = port.FixChecksum == SwitchOn
		placed[i] = &port
	}
	if err := arrange(placed, numbering{}); err != nil {
		return fmt.Errorf("place ports: %w", err)
	}
	if err := distinct(placed); err != nil {
		return fmt.Errorf("place ports: %w", err)
	}
	if err := p.fillTables(placed); err != nil {
		return errors.Join(fmt.Errorf("place ports: %w", err), p.clearTables(placed))
	}
	p.ports, p.placed = placed, true
	return nil
}

// SetNexthop writes slot i of the next-hop table of a plane that simulates, where sim_control's route
// points. Slots from 128 up are free for it; the ports have theirs below (PortNexthop).
func (p *Plane) SetNexthop(i int, hop bpf.XDPNexthop) error {
	if !p.options.Simulate {
		return errors.New("set next hop: the plane does not simulate")
	}
	if i < nexthopFirst || i >= len(p.mem.nexthops) {
		return fmt.Errorf("set next hop %d: slots go from %d to %d", i, nexthopFirst, len(p.mem.nexthops)-1)
	}
	storeWords(&p.mem.nexthops[i], &hop)
	return nil
}

// PortNexthop returns the next-hop id by which frames leave unchanged by the port with that id.
func PortNexthop(port uint8) uint16 { return nexthopPort + uint16(port) }
