package sim

import (
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// Device is a port, or a VLAN on it, with the addresses that masquerading writes where packets leave by it.
type Device struct {
	Port string
	VLAN uint16     // 0 = untagged
	IP4  netip.Addr // zero = none
	IP6  netip.Addr // zero = none
}

// Translation is what one packet leaves with, as it was translated. Ports are 0 where the protocol has none; an
// ICMP query's identifier is the requester's port.
type Translation struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Ports            bool // of TCP and UDP: SrcPort and DstPort are such
	// Names of the nat rules that its flow was opened under; "" = none, or of a policy that is gone.
	SourceRule, DestinationRule string
}

// pipes are a policy's rules and what it translates, ready to be published.
type pipes struct {
	acl *flowtable.ACL
	nat *flowtable.NAT
}

func pipesOf(policy *firewall.Compiled) (p pipes, err error) {
	if p.acl, err = flowtable.CompileACL(policy.Entries); err == nil {
		p.nat, err = policy.NATBehind(p.acl)
	}
	return p, err
}

// natAddresses are what masquerading writes: the ports' own addresses, and those of Config.Devices.
func (s *Sim) natAddresses() (map[bpf.XDPNatDevice]bpf.XDPNatAddress, error) {
	out := make(map[bpf.XDPNatDevice]bpf.XDPNatAddress)
	add := func(at *placed, vlan uint16, ip4, ip6 netip.Addr) {
		device := bpf.XDPNatDevice{Port: uint16(at.entry.Id), Vlan: vlan<<8 | vlan>>8}
		a := out[device]
		if ip4.Is4() {
			a.Ip4 = words(ip4)[0]
		}
		if ip6.Is6() {
			a.Ip6 = words(ip6)
		}
		out[device] = a
	}
	for _, at := range s.byID {
		add(at, 0, at.IP4, at.IP6)
	}
	for _, d := range s.cfg.Devices {
		at := s.ports[d.Port]
		if at == nil {
			return nil, fmt.Errorf("address of port %q: there is no such port", d.Port)
		}
		add(at, d.VLAN, d.IP4, d.IP6)
	}
	return out, nil
}

// routeOf answers for a frame that arrives at a routed port. Where flows are translated the engine says what
// destination it will want a route for.
func (s *Sim) routeOf(at *placed, frame []byte) flowtable.Route {
	dst, ok := destination(frame)
	if !ok {
		return flowtable.Route{Reason: bpf.XDPReasonREASON_NO_ROUTE}
	}
	local := s.routes.local(dst)
	if s.translates {
		if to, ok := s.engine.routed(s.now, at.entry.Ifindex, frame, local); ok {
			dst = to
		}
	}
	route := s.routes.of(dst)
	route.Local = local
	s.routed = dst
	return route
}

// translation says what a packet leaves with, nil if that is what it came with.
func (s *Sim) translation(at *placed, frame []byte, out *outcome) *Translation {
	if out.xlat&(flowtable.XlatSource|flowtable.XlatDestination) == 0 || out.reason != bpf.XDPReasonREASON_NONE {
		return nil
	}
	h := ReadHeaders(out.frame)
	t := &Translation{Src: h.Src, Dst: h.Dst, SrcPort: h.SrcPort, DstPort: h.DstPort, Ports: h.Ports}
	f, ok := s.flowOf(at, frame)
	if !ok || f.NAT == nil {
		return t // a later fragment or an ICMP error: the packet alone does not tell its flow
	}
	if out.verdict == Pass && out.xlat&flowtable.XlatReply == 0 {
		// The kernel gets it with its source as it was, and what it then sends is translated.
		t.Src, t.SrcPort = f.NAT.Outer.Source(), f.NAT.Outer.SrcPort
	}
	t.SourceRule, t.DestinationRule = s.natRule(f.NAT.SourceRule), s.natRule(f.NAT.DestinationRule)
	return t
}

func (s *Sim) natRule(id uint32) string {
	if int(id) < len(s.policy.NATRules) {
		return s.policy.NATRules[id].Name
	}
	return ""
}

// flowOf returns the flow that a whole packet belongs to.
func (s *Sim) flowOf(at *placed, frame []byte) (flowtable.Flow, bool) {
	var p packet.Parsed
	if p.Decode(frame) != packet.OK {
		return flowtable.Flow{}, false
	}
	t, ok := s.tupleOf(at.Name, &p)
	if !ok {
		return flowtable.Flow{}, false
	}
	return s.Table().Lookup(t)
}

// tupleOf returns the tuple of a packet's flow; false of an ICMP error, whose flow is another's.
func (s *Sim) tupleOf(port string, p *packet.Parsed) (flowtable.Tuple, bool) {
	t := flowtable.Tuple{Family: p.Family, Proto: p.Proto, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort}
	if at := s.ports[port]; at.peer != nil {
		t.Domain = uint16(at.entry.Pair)<<12 | p.VLAN
	}
	if p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6 {
		switch p.ICMP.Kind {
		case packet.Query:
			t.SrcPort = p.ICMP.ID
		case packet.Reply:
			t.DstPort = p.ICMP.ID
		default:
			return t, false
		}
	}
	return t, true
}

// datagramRoutes remembers where first fragments went: the kernel's table of fragments cannot be read, and later
// ones go the same way.
type datagramRoutes struct {
	recent, older map[datagramRoute]netip.Addr
}

type datagramRoute struct {
	datagram datagramKey
	ifindex  uint32
}

// datagramRoutesMost is how many are remembered at least, of twice as many at most.
const datagramRoutesMost = 4096

// routed takes a first fragment's destination down, and answers for later ones.
func (d *datagramRoutes) routed(ifindex uint32, frame []byte, dst netip.Addr, ok bool) (netip.Addr, bool) {
	h := ReadHeaders(frame)
	if !h.Fragment {
		return dst, ok
	}
	key := datagramRoute{datagramKey{h.Src, h.Dst, h.FragmentID, h.Proto, h.VLAN}, ifindex}
	if h.Family == 6 {
		key.datagram.proto = 0 // a first fragment may have more headers in front of it
	}
	if h.Later {
		if first, found := d.recent[key]; found {
			return first, true
		}
		if first, found := d.older[key]; found {
			return first, true
		}
		return dst, ok
	}
	if !ok {
		return dst, ok
	}
	if len(d.recent) >= datagramRoutesMost || d.recent == nil {
		d.older, d.recent = d.recent, make(map[datagramRoute]netip.Addr)
	}
	d.recent[key] = dst
	return dst, ok
}

func natNames(policy *firewall.Compiled) []string {
	names := make([]string, len(policy.NATRules))
	for id := range policy.NATRules {
		names[id] = policy.NATRules[id].Name
	}
	return names
}
