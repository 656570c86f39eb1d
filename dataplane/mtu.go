package dataplane

// setMTU gives a port's device the MTU that is configured, until the end.
func (p *Plane) setMTU(port *Port) error {
	if port.SetMTU == 0 || port.MTU == port.SetMTU {
		return nil
	}
	l, err := p.nl.LinkByIndex(int(port.Index))
	if err != nil {
		return port.errorf("look up device %s: %w", port.Device, err)
	}
	was := l.Attrs().MTU
	if err := p.record(change{Kind: changeMTU, Owner: port.Device, Index: int(port.Index), MTU: was}); err != nil {
		return err
	}
	if err := p.nl.LinkSetMTU(l, port.SetMTU); err != nil {
		if port.xdp != nil && port.Running == ModeNative {
			return port.errorf("set MTU of device %s to %d: %w: in native mode its driver may carry less: choose a smaller mtu, or apply without the port and then with xdp_mode: generic", port.Device, port.SetMTU, err)
		}
		return port.errorf("set MTU of device %s to %d: %w", port.Device, port.SetMTU, err)
	}
	p.undo = append(p.undo, func() error { return ignoreMissing(p.nl.LinkSetMTU(l, was)) })
	port.MTU = port.SetMTU
	return nil
}

// unsetMTU gives a device the MTU back that it had before the first run, if one has changed it.
func (p *Plane) unsetMTU(port *Port) error {
	return p.putBack(func(c *change) bool { return c.Kind == changeMTU && c.Owner == port.Device }, func(string) bool { return false })
}
