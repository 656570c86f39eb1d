package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// natAddresses is what masquerading writes, by the device by which a flow leaves. p.mu is held by whoever
// uses it.
type natAddresses struct {
	table map[bpf.XDPNatDevice]bpf.XDPNatAddress // as in the map of that name
	own   map[netip.Addr]bool                    // all global addresses of these devices
	gone  map[netip.Addr]bool                    // that were among them, and nobody has asked about
}

// NATAddress is an address of masquerading.
type NATAddress struct {
	Port string
	VLAN uint16     // 0 = untagged
	Zone uint8      // of what leaves there, 0 = none
	IP4  netip.Addr // zero = none
	IP6  netip.Addr
}

// NATAddresses returns what masquerading writes at each port and VLAN by which routes leave, in the order of
// ports. Those that have no address are among them.
func (p *Plane) NATAddresses() []NATAddress {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []NATAddress
	for _, port := range p.ports {
		if port.Inline() || !port.present() {
			continue
		}
		for _, vid := range append([]uint16{0}, slices.Sorted(maps.Keys(port.vlanDevices))...) {
			a := p.addresses.table[natDevice(port, vid)]
			out := NATAddress{Port: port.Name, VLAN: vid, Zone: port.Zone}
			if vid != 0 {
				out.Zone = port.VLANs[vid]
			}
			if a.Ip4 != 0 {
				out.IP4 = netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, a.Ip4)))
			}
			if a.Ip6 != [4]uint32{} {
				out.IP6 = netip.AddrFrom16(gatewayBytes(&a.Ip6))
			}
			all = append(all, out)
		}
	}
	return all
}

// NATAddressesGone returns the addresses of the ports' devices that are there no more since it was called
// last, in this run or the one before, and nil if there are none.
func (p *Plane) NATAddressesGone() map[netip.Addr]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.addresses.gone
	p.addresses.gone = nil
	maps.DeleteFunc(gone, func(a netip.Addr, _ bool) bool { return p.addresses.own[a] })
	if len(gone) == 0 {
		return nil
	}
	return gone
}

// SetNATAddresses sets what masquerading writes, on a plane that only simulates.
func (p *Plane) SetNATAddresses(table map[bpf.XDPNatDevice]bpf.XDPNatAddress) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.putNATAddresses(table)
}

// copyNATAddresses takes over the addresses of the devices by which routes leave. p.mu is held.
func (p *Plane) copyNATAddresses(ports []*Port) error {
	if p.options.Simulate {
		return nil
	}
	devices := make(map[int]bpf.XDPNatDevice)
	for _, port := range ports {
		if port.Inline() || !port.present() {
			continue
		}
		devices[int(port.Index)] = natDevice(port, 0)
		for vid, dev := range port.vlanDevices {
			devices[int(dev.index)] = natDevice(port, vid)
		}
	}
	addrs, err := p.nl.AddrList(nil, netlink.FAMILY_ALL)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil // what changed meanwhile is told, too
	}
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	table, own := natAddressesOf(devices, addrs)
	p.addresses.leave(own)
	return p.putNATAddresses(table)
}

// natAddressesOf chooses what masquerading writes among the addresses of devices, the first of each family,
// and returns all global addresses that they have.
func natAddressesOf(devices map[int]bpf.XDPNatDevice, addrs []netlink.Addr) (table map[bpf.XDPNatDevice]bpf.XDPNatAddress, own map[netip.Addr]bool) {
	table, own = make(map[bpf.XDPNatDevice]bpf.XDPNatAddress), make(map[netip.Addr]bool)
	for i := range addrs {
		a := &addrs[i]
		device, ok := devices[a.LinkIndex]
		ip, valid := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || !valid || a.Scope != int(netlink.SCOPE_UNIVERSE) {
			continue
		}
		own[ip] = true
		if a.Flags&natUnfit != 0 {
			continue
		}
		at := table[device]
		switch {
		case ip.Is4() && at.Ip4 == 0:
			at.Ip4 = words(ip)[0]
		case ip.Is6() && at.Ip6 == [4]uint32{}:
			at.Ip6 = words(ip)
		}
		table[device] = at
	}
	return table, own
}

// natUnfit are the flags of addresses that stand for nobody else: temporary ones (of IPv4: secondary ones,
// which have the same flag), those that may not be ours, and those that nothing new shall use.
const natUnfit = unix.IFA_F_SECONDARY | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

// leave notes which of the addresses that there were are not among those that there are.
func (n *natAddresses) leave(own map[netip.Addr]bool) {
	for a := range n.own {
		if !own[a] {
			if n.gone == nil {
				n.gone = make(map[netip.Addr]bool)
			}
			n.gone[a] = true
		}
	}
	n.own = own
}

// putNATAddresses brings the map up to date.
func (p *Plane) putNATAddresses(table map[bpf.XDPNatDevice]bpf.XDPNatAddress) error {
	m := p.maps[bpf.XDPMapNatAddresses]
	for device, a := range table {
		if had, ok := p.addresses.table[device]; ok && had == a {
			continue
		}
		if err := m.Put(&device, &a); err != nil {
			return fmt.Errorf("set address of masquerading at port %d: %w", device.Port, err)
		}
	}
	for device := range p.addresses.table {
		if _, ok := table[device]; ok {
			continue
		}
		if err := deleted(m.Delete(&device)); err != nil {
			return fmt.Errorf("remove address of masquerading at port %d: %w", device.Port, err)
		}
	}
	p.addresses.table = table
	return nil
}

// resumeNATAddresses reads what the run before wrote.
func (p *Plane) resumeNATAddresses() error {
	n := &p.addresses
	n.table, n.own = make(map[bpf.XDPNatDevice]bpf.XDPNatAddress), make(map[netip.Addr]bool)
	var (
		device bpf.XDPNatDevice
		a      bpf.XDPNatAddress
	)
	it := p.maps[bpf.XDPMapNatAddresses].Iterate()
	for it.Next(&device, &a) {
		n.table[device] = a
		if a.Ip4 != 0 {
			n.own[netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, a.Ip4)))] = true
		}
		if a.Ip6 != [4]uint32{} {
			n.own[netip.AddrFrom16(gatewayBytes(&a.Ip6))] = true
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read addresses of masquerading: %w", err)
	}
	return nil
}

func natDevice(port *Port, vid uint16) bpf.XDPNatDevice {
	return bpf.XDPNatDevice{Port: uint16(port.ID), Vlan: networkOrder16(vid)}
}
