package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// World is what a verdict depends on beside policy, flows and packet. Zones come from the policy.
type World struct {
	Ports      []Port
	Pairs      [][2]string // names of inline ports that are joined; the first pair has number 1
	Devices    []Device    // that masquerading uses
	Routes     []Route     // of routed ports, in any order: the longest prefix wins
	Ethertypes []uint16    // passed between inline ports beside ARP, IPv4 and IPv6
	FlowsMax   int         // entries of both families; 0: no bound
	Management firewall.Management
	Now        time.Time // of the policy's `expires`
}

// Port is a port of the gateway. It is inline if a pair names it, else routed.
type Port struct {
	Name string
	MAC  [6]byte
	MTU  int // IP packet, without Ethernet header
}

// RouteKind says what the kernel does with a destination.
type RouteKind uint8

const (
	RoutePort      RouteKind = iota + 1 // unicast by one of our ports
	RouteHost                           // local or broadcast
	RouteBlocked                        // blackhole, unreachable, prohibit
	RouteElsewhere                      // unicast by an interface that is no port of ours
)

// Route is a route with its neighbour.
type Route struct {
	Prefix netip.Prefix
	Kind   RouteKind
	// Of RoutePort. The zone of (Port, VLAN) must exist.
	Port string
	VLAN uint16  // 0 = untagged
	MAC  [6]byte // of the next hop; zero: not yet known
}

// check names what a policy and a world do not agree on.
func (w *World) check(p *firewall.Policy) error {
	for i := range p.Zones {
		for _, name := range p.Zones[i].Ports {
			if w.port(name) == nil {
				return fmt.Errorf("zone %q has port %q, which is not in the world", p.Zones[i].Name, name)
			}
		}
	}
	for _, pair := range w.Pairs {
		for _, name := range pair {
			if w.port(name) == nil {
				return fmt.Errorf("inline pair %v has a port that is not in the world", pair)
			}
		}
	}
	for _, r := range w.Routes {
		if r.Kind == RoutePort && (w.port(r.Port) == nil || zoneOf(p, r.Port, r.VLAN) == "") {
			return fmt.Errorf("route %s leaves by port %q VLAN %d, which belongs to no zone", r.Prefix, r.Port, r.VLAN)
		}
	}
	return nil
}

func (w *World) port(name string) *Port {
	for i := range w.Ports {
		if w.Ports[i].Name == name {
			return &w.Ports[i]
		}
	}
	return nil
}

// pair returns the number of an inline port's pair and the port's peer; 0 for a routed port.
func (w *World) pair(name string) (number int, peer *Port) {
	for i, pair := range w.Pairs {
		switch name {
		case pair[0]:
			return i + 1, w.port(pair[1])
		case pair[1]:
			return i + 1, w.port(pair[0])
		}
	}
	return 0, nil
}

// Route returns the route to dst with the longest prefix; nil if there is none.
func (w *World) Route(dst netip.Addr) *Route {
	var best *Route
	for i := range w.Routes {
		r := &w.Routes[i]
		if r.Prefix.Contains(dst) && (best == nil || r.Prefix.Bits() > best.Prefix.Bits()) {
			best = r
		}
	}
	return best
}

// zoneOf returns the zone of frames with an outer VLAN id (0 = untagged) on a port; "" if there is none.
func zoneOf(p *firewall.Policy, port string, vlan uint16) string {
	for i := range p.Zones {
		z := &p.Zones[i]
		if !slices.Contains(z.Ports, port) {
			continue
		}
		if len(z.VLANs) == 0 && vlan == 0 || slices.Contains(z.VLANs, vlan) {
			return z.Name
		}
	}
	return ""
}

// hop is where a packet leaves.
type hop struct {
	zone string
	port *Port // nil: the gateway itself
	vlan uint16
	mac  [6]byte
	peer bool // inline: frames go out as they are
}

func (h hop) host() bool { return h.port == nil }

var groups = []netip.Prefix{
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("ff00::/8"),
}

func within(a netip.Addr, prefixes ...netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// route is section 8: where a packet that arrives on port, with this outer VLAN id, goes.
func (o *Oracle) route(port string, vlan uint16, src, dst netip.Addr) (hop, string) {
	if number, peer := o.world.pair(port); number != 0 {
		zone := zoneOf(o.policy, peer.Name, vlan)
		if zone == "" {
			return hop{}, "vlan-unknown"
		}
		return hop{zone: zone, port: peer, peer: true}, ""
	}
	host := hop{zone: firewall.NameHost}
	if within(dst, groups...) {
		return host, ""
	}
	r := o.world.Route(dst)
	if r == nil {
		return hop{}, "no-route"
	}
	switch r.Kind {
	case RouteHost:
		return host, ""
	case RouteBlocked:
		return hop{}, "route-blocked"
	case RouteElsewhere:
		return hop{}, "egress-not-a-port"
	}
	if src.IsLinkLocalUnicast() && src.Is6() || src == netip.IPv4Unspecified() {
		return hop{}, "martian"
	}
	return hop{zone: zoneOf(o.policy, r.Port, r.VLAN), port: o.world.port(r.Port), vlan: r.VLAN, mac: r.MAC}, ""
}

// Egress says where an opening packet that arrives on port with this outer VLAN id would leave: the
// zone, and the port with its VLAN id ("host", 0 for the gateway itself). Reason is that of a drop
// on the way, else ""; "chosen" says that it depends on which server the packet gets. The zone that it goes to
// is not yet one of op's.
func (o *Oracle) Egress(port string, vlan uint16, op Opening) (zone, out string, outVLAN uint16, reason string) {
	dsts, translated := []netip.Addr{op.Dst}, false
	if number, _ := o.world.pair(port); number == 0 {
		if r := o.destinationRule(op); r != nil {
			dsts, translated = destinations(r, op.Dst), true
		}
	}
	for i, dst := range dsts {
		h, reason := o.route(port, vlan, op.Src, dst)
		switch {
		case reason != "":
			return "", "", 0, reason
		case h.host() && translated:
			return "", "", 0, "nat-to-host"
		case i > 0 && h.zone != zone:
			return "", "", 0, "chosen"
		case h.host():
			return h.zone, firewall.NameHost, 0, ""
		}
		zone, out, outVLAN = h.zone, h.port.Name, h.vlan
		if h.peer {
			outVLAN = vlan
		}
	}
	return zone, out, outVLAN, ""
}

// Back says to which zone the replies of a flow go that arrive on port with this outer VLAN id.
func (o *Oracle) Back(port string, vlan uint16, src, dst netip.Addr) (zone, reason string) {
	h, reason := o.route(port, vlan, src, dst)
	return h.zone, reason
}

// destinations are all that a rule may make of one.
func destinations(r *firewall.NATRule, dst netip.Addr) (all []netip.Addr) {
	if r.Kind == firewall.NATPrefix {
		to, _ := movePrefix(dst, r.Outside, r.Inside)
		return []netip.Addr{to}
	}
	for _, s := range willing(r) {
		all = append(all, s.Address)
	}
	return all
}
