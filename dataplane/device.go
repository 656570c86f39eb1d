package dataplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// mtuMax is the largest packet that a port entry can name.
const mtuMax = 65535

// resolve finds the port's device by name or alternative name and refuses one that cannot be a port.
func (p *Plane) resolve(port *Port) error {
	l, err := p.suitable(port)
	if err != nil {
		return err
	}
	if a := l.Attrs(); a.Xdp != nil && a.Xdp.Attached && !p.follows(port, a) {
		owner, remedy := p.xdpOwner(a)
		return port.errorf("device %s runs %s already: %s", a.Name, owner, remedy)
	}
	return p.describe(port, l)
}

// suitable finds the port's device, and refuses one that cannot be a port whoever uses it.
func (p *Plane) suitable(port *Port) (netlink.Link, error) {
	if port.Device == "" {
		return nil, port.errorf("no device is named")
	}
	l, err := p.nl.LinkByName(port.Device)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, &noDevice{port.Name, port.Device, missing}
	}
	if err != nil {
		return nil, port.errorf("look up device %s: %w", port.Device, err)
	}
	a := l.Attrs()
	port.Kind = l.Type()
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return nil, port.errorf("device %s is the loopback", a.Name)
	case a.EncapType != "ether" || len(a.HardwareAddr) != 6:
		return nil, port.errorf("device %s carries no Ethernet frames (%s)", a.Name, a.EncapType)
	case a.Flags&net.FlagUp == 0 && !port.lost:
		return nil, port.errorf("device %s is down: `ip link set %s up` first", a.Name, a.Name)
	case a.MTU > mtuMax:
		return nil, port.errorf("the MTU of device %s is %d: at most %d is possible", a.Name, a.MTU, mtuMax)
	}
	if a.MasterIndex != 0 {
		if err := p.checkMaster(port, a); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// noDevice is the error of a port whose device is not there.
type noDevice struct {
	port, device string
	missing      netlink.LinkNotFoundError
}

func (e *noDevice) Error() string {
	return fmt.Sprintf("port %s: no device %s in this network namespace: `ip link` lists them", e.port, e.device)
}

func (e *noDevice) Unwrap() error { return e.missing }

// describe fills in what else a port says of its device.
func (p *Plane) describe(port *Port, l netlink.Link) error {
	a := l.Attrs()
	p.follow(port, l)
	port.setFixChecksum()
	if e, err := ethtool.NewEthtool(); err == nil {
		port.Driver, _ = e.DriverName(a.Name) // some virtual devices have none
		e.Close()
	}
	if err := p.readAddresses(port); err != nil {
		return port.errorf("%w", err)
	}
	if err := p.readVLANDevices(port); err != nil {
		return port.errorf("%w", err)
	}
	return nil
}

func (p *Port) setFixChecksum() {
	p.fixChecksum = p.FixChecksum == SwitchOn ||
		p.FixChecksum == SwitchAuto && (p.Kind == "veth" || p.Kind == "tuntap")
}

// follow takes over what a link says of itself and may change later.
func (p *Plane) follow(port *Port, l netlink.Link) {
	a := l.Attrs()
	port.Index, port.Device, port.MTU = uint32(a.Index), a.Name, a.MTU
	port.MAC = [6]byte(a.HardwareAddr)
	port.setUp(upFlags(a))
}

func (p *Plane) checkMaster(port *Port, a *netlink.LinkAttrs) error {
	m, err := p.nl.LinkByIndex(a.MasterIndex)
	if err != nil {
		return port.errorf("look up the master of device %s: %w", a.Name, err)
	}
	master := m.Attrs().Name
	switch kind := m.Type(); kind {
	case "vrf":
		return nil
	case "bond", "team":
		return port.errorf("device %s is a member of %s %s: name %s as the port's device", a.Name, kind, master, master)
	default:
		return port.errorf("device %s is a member of %s %s, which XDP would take its frames from: `ip link set %s nomaster` first", a.Name, kind, master, a.Name)
	}
}

// readAddresses finds what the gateway itself sends from: the first global address of each family,
// for IPv6 else the link-local one.
func (p *Plane) readAddresses(port *Port) error {
	l := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(port.Index)}}
	port.IP4, port.IP6 = netip.Addr{}, netip.Addr{}
	addrs, err := p.nl.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", port.Device, err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			continue
		}
		switch {
		case ip.Is4():
			if !port.IP4.IsValid() {
				port.IP4 = ip
			}
		case !port.IP6.IsValid() || port.IP6.IsLinkLocalUnicast() && !ip.IsLinkLocalUnicast():
			port.IP6 = ip
		}
	}
	return nil
}

// readVLANDevices finds the kernel's VLAN devices on top of a routed port, for the VLANs that have a
// zone.
func (p *Plane) readVLANDevices(port *Port) error {
	port.vlanDevices = make(map[uint16]device)
	if port.Inline() || len(port.VLANs) == 0 {
		return nil
	}
	links, err := p.nl.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if vid, dev, ok := vlanOn(l, port); ok {
			port.vlanDevices[vid] = dev
		}
	}
	return nil
}

// vlanOn reports whether l is the VLAN device of one of the port's VLANs.
func vlanOn(l netlink.Link, port *Port) (vid uint16, dev device, ok bool) {
	v, ok := l.(*netlink.Vlan)
	if !ok || v.ParentIndex != int(port.Index) || v.NetNsID >= 0 {
		return 0, device{}, false
	}
	if v.VlanProtocol != netlink.VLAN_PROTOCOL_8021Q && v.VlanProtocol != netlink.VLAN_PROTOCOL_UNKNOWN {
		return 0, device{}, false
	}
	vid = uint16(v.VlanId)
	if port.VLANs[vid] == zoneNone {
		return 0, device{}, false
	}
	return vid, device{uint32(v.Index), v.Name}, true
}

// setPromiscuous lets every frame of the device come in, for as long as the plane holds the socket:
// the membership ends with the process, however it ends. Where the packet path does not, neither may
// this: there the device's own switch is set.
func (p *Plane) setPromiscuous(port *Port) error {
	if p.life != nil {
		return p.switchPromiscuous(port)
	}
	// Protocol 0: the socket itself receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return port.errorf("open packet socket: %w", err)
	}
	m := unix.PacketMreq{Ifindex: int32(port.Index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
		unix.Close(fd)
		return port.errorf("make device %s promiscuous: %w", port.Device, err)
	}
	p.undo = append(p.undo, func() error { return unix.Close(fd) })
	return nil
}

func (p *Plane) switchPromiscuous(port *Port) error {
	l, err := p.nl.LinkByIndex(int(port.Index))
	if err != nil {
		return port.errorf("look up device %s: %w", port.Device, err)
	}
	if isPromiscuous(l) {
		return nil
	}
	if err := p.record(change{Kind: changePromiscuous, Owner: port.Device, Index: int(port.Index)}); err != nil {
		return err
	}
	if err := p.nl.SetPromiscOn(l); err != nil {
		return port.errorf("make device %s promiscuous: %w", port.Device, err)
	}
	p.undo = append(p.undo, func() error { return ignoreMissing(p.nl.SetPromiscOff(l)) })
	return nil
}

// follows reports whether the XDP program on a port's device is that of the gateway before this one, and
// then notes in which mode it runs.
func (p *Plane) follows(port *Port, a *netlink.LinkAttrs) bool {
	if p.life == nil {
		return false
	}
	held := p.life.held[linkName("xdp", uint32(a.Index))]
	if held == nil || held.program != a.Xdp.ProgId {
		return false
	}
	port.attached = ModeNative
	if a.Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		port.attached = ModeGeneric
	}
	return true
}
