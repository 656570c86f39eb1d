package dataplane

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
)

// followLocals copies the kernel's local table, the gateway's own and its broadcast addresses, to
// where XDP tells them from addresses without a route.
func (p *Plane) followLocals() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.copyLocals()
}

// copyLocals is followLocals with p.mu held.
func (p *Plane) copyLocals() error {
	want, err := p.localPrefixes()
	if err != nil {
		return err
	}
	m := p.maps[bpf.XDPMapLocals]
	for prefix := range want {
		if p.locals[prefix] {
			continue
		}
		key := localKey(prefix)
		if err := m.Put(&key, uint32(1)); err != nil {
			return fmt.Errorf("add own address %s: %w", prefix, err)
		}
	}
	for prefix := range p.locals {
		if want[prefix] {
			continue
		}
		key := localKey(prefix)
		if err := m.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove own address %s: %w", prefix, err)
		}
	}
	p.locals = want
	return nil
}

// localPrefixes reads the kernel's local table. Multicast is XDP's own to tell.
func (p *Plane) localPrefixes() (map[netip.Prefix]bool, error) {
	prefixes := make(map[netip.Prefix]bool)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := p.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list own addresses: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil || r.Type != unix.RTN_LOCAL && r.Type != unix.RTN_BROADCAST && r.Type != unix.RTN_ANYCAST {
				continue
			}
			ip, ok := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			if ok {
				prefixes[netip.PrefixFrom(ip.Unmap(), bits)] = true
			}
		}
	}
	return prefixes, nil
}

func localKey(prefix netip.Prefix) bpf.XDPLocalKey {
	family := uint32(6)
	if prefix.Addr().Is4() {
		family = 4
	}
	return bpf.XDPLocalKey{Prefixlen: 32 + uint32(prefix.Bits()), Family: family, Addr: words(prefix.Addr())}
}
