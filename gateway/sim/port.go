package sim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Port is a port of the simulated gateway. Its zones come from the policy.
type Port struct {
	Name string
	MAC  [6]byte // zero: one of our own making
	MTU  int     // of an IP packet; 0 = 65,535, so that nothing is too big
	IP4  netip.Addr
	IP6  netip.Addr // sources of what the gateway itself sends from here; zero = none
	// FixChecksums completes checksums that are still the bare pseudo-header sum.
	FixChecksums bool
	MSSClamp     uint16 // most that SYNs that come or leave by it may ask for, as dataplane.PortConfig has it; 0 = whatever they do
}

// placed is a port with its place in the tables.
type placed struct {
	Port
	entry bpf.XDPPort
	vlans map[uint16]uint8 // zones of tagged frames
	peer  *placed          // inline
}

// firstIndex is the interface index of the first port; those of the others follow.
const firstIndex = 1

// place numbers the ports, joins the pairs and gives every port its zones and its next hop. Ids and
// pairs count as dataplane.Plane.Place counts them.
func (s *Sim) place() error {
	s.ports = make(map[string]*placed, len(s.cfg.Ports))
	s.hops = make([]bpf.XDPNexthop, firstHop)
	s.hops[flowtable.NexthopHost] = bpf.XDPNexthop{State: flowtable.NexthopReady, Zone: flowtable.ZoneHost}
	for i, p := range s.cfg.Ports {
		if s.ports[p.Name] != nil {
			return fmt.Errorf("port %q is there twice", p.Name)
		}
		if len(s.byID) == maxPorts {
			return fmt.Errorf("%d ports, at most %d are possible", len(s.cfg.Ports), maxPorts)
		}
		if p.MTU == 0 {
			p.MTU = 65_535
		}
		if p.MAC == [6]byte{} {
			p.MAC = [6]byte{0x02, 0x5d, 0, 0, 0, byte(i + 1)}
		}
		at := &placed{Port: p, vlans: make(map[uint16]uint8)}
		at.entry = bpf.XDPPort{Ifindex: uint32(firstIndex + i), Id: uint8(i + 1), Mac: p.MAC, Mtu: uint16(min(p.MTU, 65_535))}
		for _, z := range s.policy.Ports {
			switch {
			case z.Port != p.Name:
			case z.VLAN == 0:
				at.entry.Zone = z.Zone
			default:
				at.vlans[z.VLAN] = z.Zone
				at.entry.Flags |= flowtable.PortVLANs
			}
		}
		if p.FixChecksums {
			at.entry.Flags |= flowtable.PortFixChecksum
		}
		if p.IP4.Is4() {
			at.entry.Ip4 = words(p.IP4)[0]
		}
		if p.IP6.Is6() {
			at.entry.Ip6 = words(p.IP6)
		}
		s.ports[p.Name] = at
		s.byID = append(s.byID, at)
	}
	if err := s.join(); err != nil {
		return err
	}
	for _, at := range s.byID {
		s.hops[flowtable.NexthopPort+int(at.entry.Id)] = bpf.XDPNexthop{
			Src: macWord(at.MAC) | uint64(at.entry.Mtu)<<48, State: flowtable.NexthopReady, Port: at.entry.Id, Zone: at.entry.Zone,
		}
	}
	return nil
}

const (
	maxPorts = 64
	maxPairs = 15
)

// join makes the inline pairs. A pair has the number of its first port's place among those joined.
func (s *Sim) join() error {
	if len(s.cfg.Inline) > maxPairs {
		return fmt.Errorf("%d inline pairs, at most %d are possible", len(s.cfg.Inline), maxPairs)
	}
	for _, pair := range s.cfg.Inline {
		a, b := s.ports[pair[0]], s.ports[pair[1]]
		if a == nil || b == nil || a == b || a.peer != nil || b.peer != nil {
			return fmt.Errorf("inline pair %q, %q: not two ports that are still free", pair[0], pair[1])
		}
		a.peer, b.peer = b, a
	}
	number := uint8(0)
	for _, at := range s.byID {
		if at.peer == nil {
			if s.cfg.Tolerant {
				return fmt.Errorf("port %q is routed: only inline ports can be tolerant", at.Name)
			}
			continue
		}
		at.entry.Flags |= flowtable.PortInline
		at.entry.Peer = flowtable.NexthopPort + uint16(at.peer.entry.Id)
		at.entry.PeerZone, at.entry.PeerPort = at.peer.entry.Zone, at.peer.entry.Id
		if at.peer.entry.Pair == 0 {
			number++
			at.entry.Pair = number
		} else {
			at.entry.Pair = at.peer.entry.Pair
		}
	}
	return nil
}

// PortNames returns the names of the ports, in order.
func (s *Sim) PortNames() []string {
	names := make([]string, len(s.byID))
	for i, at := range s.byID {
		names[i] = at.Name
	}
	return names
}

// sameWorld reports whether two policies differ in their rules only.
func sameWorld(a, b *firewall.Compiled) bool {
	return slices.Equal(a.Zones, b.Zones) && slices.Equal(a.Ports, b.Ports) && maps.Equal(a.MACs, b.MACs)
}

// macWord is a MAC address as it stands in a frame, in the low 48 bits.
func macWord(mac [6]byte) uint64 {
	var b [8]byte
	copy(b[:], mac[:])
	return binary.LittleEndian.Uint64(b[:])
}

// words is an address as it stands in a packet; an IPv4 address fills the first.
func words(a netip.Addr) (w [4]uint32) {
	if a.Is4() {
		b := a.As4()
		w[0] = binary.LittleEndian.Uint32(b[:])
		return w
	}
	b := a.As16()
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}
