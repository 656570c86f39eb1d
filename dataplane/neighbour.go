package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

const (
	// Next hops that were looked up within so many ticks, half of NEXTHOP_KEEP, are in use: XDP gives
	// their slots to no other, so what is written belongs to the neighbour that was compared.
	inUse = nexthopKeep / 2

	// A neighbour's MAC is known in these states.
	valid = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
		netlink.NUD_PERMANENT | netlink.NUD_NOARP
)

// neighbour is what identifies an entry of the kernel's table.
type neighbour struct {
	index int
	ip    netip.Addr
}

// followNeighbour takes over a neighbour's MAC into the next hops that lead to it, one 64-bit write
// each, which moves all their flows. One that has failed or gone is no longer ready: XDP then asks the
// kernel for every packet, and hands over those that it must resolve or answer.
func (p *Plane) followNeighbour(n *netlink.Neigh, gone bool) {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	port, vlan := p.egress(n.LinkIndex)
	if port == 0 {
		return
	}
	known := !gone && n.State&valid != 0 && len(n.HardwareAddr) == 6
	failed := gone || n.State&netlink.NUD_FAILED != 0
	gateway, now := words(ip.Unmap()), NowTick()
	for i := nexthopFirst; i < len(p.mem.nexthops); i++ {
		hop := &p.mem.nexthops[i]
		if !used(hop, now) || hop.Port != port || hop.Gateway != gateway || (hop.Family == 4) != ip.Unmap().Is4() {
			continue
		}
		dst := atomic.LoadUint64(&hop.Dst)
		if uint16(dst>>48) != vlan {
			continue
		}
		switch {
		case known:
			// XDP may correct it at the same time: then it has asked the kernel later than we have.
			atomic.CompareAndSwapUint64(&hop.Dst, dst, macWord(n.HardwareAddr)|uint64(vlan)<<48)
		case failed:
			atomic.CompareAndSwapUint32(&hop.State, nexthopReady, nexthopPending)
		}
		// Else the kernel is resolving anew, and the MAC that XDP has is the best guess.
	}
}

// used reports whether a slot is ready and was looked up lately. While one is not ready its dst may be
// that of the next hop before, and XDP asks the kernel itself.
func used(hop *bpf.XDPNexthop, now uint32) bool {
	return atomic.LoadUint32(&hop.State) == nexthopReady && int32(now-atomic.LoadUint32(&hop.Used)) < inUse
}

// egress returns the port by which an interface sends, and the tag that it pushes, network order as in
// a next hop; port 0 if it is none of ours. p.mu is held.
func (p *Plane) egress(index int) (port uint8, vlan uint16) {
	for _, port := range p.ports {
		if port.Inline() || !port.present() {
			continue
		}
		if int(port.Index) == index {
			return port.ID, 0
		}
		for vid, dev := range port.vlanDevices {
			if int(dev.index) == index {
				return port.ID, networkOrder16(vid)
			}
		}
	}
	return 0, 0
}

// interfaceOf is the inverse of egress: 0 if there is none.
func (p *Plane) interfaceOf(port uint8, vlan uint16) int {
	of := p.portByID(port)
	if of == nil || !of.present() {
		return 0
	}
	if vlan == 0 {
		return int(of.Index)
	}
	return int(of.vlanDevices[networkOrder16(vlan)].index)
}

// keepAlive compares next hops with the kernel's neighbours, since messages may be lost, and has the
// kernel keep those in use resolved: NTF_MANAGED does that by itself since 5.16; where it is not there,
// or did not hold, NTF_USE every second does.
func (r *Routes) keepAlive() error {
	p := r.plane
	known, err := p.neighbours()
	if err != nil {
		return err
	}
	active := p.neighboursInUse()
	for n := range active {
		k := known[n]
		if k != nil {
			p.followNeighbour(k, false)
		}
		if err := r.use(n, k); err != nil {
			return err
		}
	}
	for n := range r.managed {
		if active[n] {
			continue
		}
		delete(r.managed, n)
		if err := r.unmanage(n, known[n]); err != nil {
			return err
		}
	}
	return nil
}

// neighbours reads the kernel's table.
func (p *Plane) neighbours() (map[neighbour]*netlink.Neigh, error) {
	known := make(map[neighbour]*netlink.Neigh)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := p.nl.NeighList(0, family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		for i := range list {
			if ip, ok := netip.AddrFromSlice(list[i].IP); ok {
				known[neighbour{list[i].LinkIndex, ip.Unmap()}] = &list[i]
			}
		}
	}
	return known, nil
}

// neighboursInUse lists the neighbours that traffic goes to.
func (p *Plane) neighboursInUse() map[neighbour]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	inUse := make(map[neighbour]bool)
	now := NowTick()
	for i := nexthopFirst; i < len(p.mem.nexthops); i++ {
		hop := &p.mem.nexthops[i]
		if !used(hop, now) {
			continue
		}
		hop.Fed = uint8(now >> nexthopFedShift) // XDP writes it too, with the same meaning
		if index := p.interfaceOf(hop.Port, uint16(atomic.LoadUint64(&hop.Dst)>>48)); index != 0 {
			inUse[neighbour{index, gatewayOf(hop)}] = true
		}
	}
	return inUse
}

// use asks the kernel to keep an entry resolved. Entries that somebody else holds stay as they are:
// permanent ones, and those of a routing daemon, whose flags our request would take off.
func (r *Routes) use(n neighbour, known *netlink.Neigh) error {
	if known != nil {
		if known.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 || known.Flags&netlink.NTF_EXT_LEARNED != 0 {
			return nil
		}
		if known.FlagsExt&netlink.NTF_EXT_MANAGED != 0 && known.State&netlink.NUD_FAILED == 0 {
			if r.plane.Inherited() {
				r.managed[n] = true // the run before asked for it
			}
			return nil
		}
	}
	r.managed[n] = true
	return r.request(n, netlink.NTF_EXT_MANAGED)
}

// unmanage takes the flag off an entry that has it.
func (r *Routes) unmanage(n neighbour, known *netlink.Neigh) error {
	if known == nil || known.FlagsExt&netlink.NTF_EXT_MANAGED == 0 {
		return nil
	}
	return r.request(n, 0)
}

func (r *Routes) request(n neighbour, ext int) error {
	err := r.plane.nl.NeighSet(&netlink.Neigh{
		LinkIndex: n.index, IP: n.ip.AsSlice(), Flags: netlink.NTF_USE, FlagsExt: ext,
	})
	// Without its device or its address family there, a neighbour needs nothing.
	if err == nil || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) {
		return nil
	}
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		return nil // the table is full: the next second tries again
	}
	return fmt.Errorf("keep neighbour %s alive: %w", n.ip, err)
}

// release takes back what keepAlive asked for.
func (r *Routes) release() error {
	if len(r.managed) == 0 {
		return nil
	}
	known, err := r.plane.neighbours()
	if err != nil {
		return err
	}
	var errs []error
	for n := range r.managed {
		errs = append(errs, r.unmanage(n, known[n]))
	}
	clear(r.managed)
	return errors.Join(errs...)
}

// gatewayOf is the address of a next hop's neighbour.
func gatewayOf(hop *bpf.XDPNexthop) netip.Addr {
	b := gatewayBytes(&hop.Gateway)
	if hop.Family == 4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}
