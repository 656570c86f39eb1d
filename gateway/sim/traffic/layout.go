package traffic

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// layout is a random gateway: its ports, what lies behind them and the zones that hold them.
type layout struct {
	world    oracle.World
	segments []segment
	zones    []string // in the policy's order
	zoneText []string // one a zone: the policy's text of it
	spoofing bool     // some zone says its addresses
}

// segment is a network behind a port and VLAN.
type segment struct {
	port string
	vlan uint16
	zone string
	nets []netip.Prefix // IPv4 and IPv6; the first of each family is the segment's own
	peer int            // segment at the other end of an inline pair; -1: routed
	macs []firewall.MAC // of its stations
}

// Networks of every routed world beside those of the segments.
var (
	blocked   = prefixes("192.0.2.0/24", "2001:db8:dead::/48")
	elsewhere = prefixes("198.18.0.0/15", "2001:db8:e1::/48")
	outer     = prefixes("198.51.100.0/24", "203.0.113.0/24", "2001:db8:ff::/48")
	nowhere   = prefixes("172.16.0.0/16", "2001:db8:99::/48")
)

// clock is the time of all worlds, for the policy's `expires`.
var clock = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// ethertypes are passed between inline ports: LLDP and a local experimental one.
var ethertypes = []uint16{0x88cc, 0x88b5}

func prefixes(text ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range text {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// newLayout draws two to four ports: of kind 0 routed, of kind 1 inline, of kind 2 two of each.
func newLayout(r *rand.Rand, kind int) *layout {
	l := &layout{world: oracle.World{Ethertypes: ethertypes, Now: clock}}
	routed, pairs := 2+r.IntN(3), 0
	switch kind {
	case 1:
		routed, pairs = 0, 1+r.IntN(2)
	case 2:
		routed, pairs = 2, 1
	}
	for i := range routed {
		l.addPort(r, fmt.Sprintf("eth%d", i))
	}
	for i := range routed {
		l.routedSegments(r, fmt.Sprintf("eth%d", i), i < 2)
	}
	for i := range pairs {
		pair := [2]string{fmt.Sprintf("in%d", i), fmt.Sprintf("out%d", i)}
		l.addPort(r, pair[0])
		l.addPort(r, pair[1])
		l.world.Pairs = append(l.world.Pairs, pair)
		l.inlineSegments(r, pair)
	}
	if routed > 0 {
		l.routes(r)
		l.devices(r)
	}
	l.describeZones(r)
	l.world.Management = firewall.Management{
		From:     []firewall.Ref{{Name: l.zones[0]}},
		Services: []firewall.Ref{{Name: "manage"}, {Name: "udp/161"}},
		Override: r.IntN(4) == 0,
	}
	return l
}

func (l *layout) addPort(r *rand.Rand, name string) {
	n := len(l.world.Ports)
	l.world.Ports = append(l.world.Ports, oracle.Port{
		Name: name, MAC: [6]byte{2, 0xaa, 0, 0, 0, byte(n + 1)}, MTU: []int{1500, 1500, 1400, 1280}[r.IntN(4)],
	})
}

func (l *layout) addSegment(port string, vlan uint16, zone string, peer int) {
	n := len(l.segments) + 1
	s := segment{port: port, vlan: vlan, zone: zone, peer: peer,
		nets: prefixes(fmt.Sprintf("10.%d.0.0/16", n), fmt.Sprintf("fd00:%x::/32", n))}
	for i := range 6 {
		s.macs = append(s.macs, firewall.MAC{2, 0xbb, 0, 0, byte(n), byte(i + 1)})
	}
	l.segments = append(l.segments, s)
	if !slices.Contains(l.zones, zone) {
		l.zones = append(l.zones, zone)
	}
}

func (l *layout) routedSegments(r *rand.Rand, port string, first bool) {
	untagged := first || r.IntN(3) > 0
	if untagged {
		zone := "z-" + port
		if !first && r.IntN(4) == 0 {
			zone = "z-eth0" // shared with another port
		}
		l.addSegment(port, 0, zone, -1)
	}
	if !untagged || r.IntN(3) == 0 {
		l.addSegment(port, 10, "v-"+port, -1)
		if r.IntN(2) == 0 {
			l.addSegment(port, 11, "v-"+port, -1)
		}
	}
}

func (l *layout) inlineSegments(r *rand.Rand, pair [2]string) {
	vlans := []uint16{0}
	if r.IntN(2) == 0 {
		vlans = append(vlans, 10, 11)
	}
	for _, vlan := range vlans {
		prefix := "z-"
		if vlan != 0 {
			prefix = fmt.Sprintf("v%d-", vlan)
		}
		n := len(l.segments)
		l.addSegment(pair[0], vlan, prefix+pair[0], n+1)
		l.addSegment(pair[1], vlan, prefix+pair[1], n)
	}
	if len(vlans) > 1 {
		l.addSegment(pair[0], 12, "one-sided-"+pair[0], -2)
	}
}

func (l *layout) routes(r *rand.Rand) {
	add := func(kind oracle.RouteKind, nets ...netip.Prefix) {
		for _, n := range nets {
			l.world.Routes = append(l.world.Routes, oracle.Route{Prefix: n, Kind: kind})
		}
	}
	add(oracle.RouteBlocked, blocked...)
	add(oracle.RouteElsewhere, elsewhere...)
	last := -1
	for i := range l.segments {
		if l.segments[i].peer == -1 {
			last = i
		}
	}
	for i := range l.segments {
		s := &l.segments[i]
		if s.peer != -1 {
			continue
		}
		if i == last {
			s.nets = append(s.nets, outer...)
		}
		for _, n := range s.nets {
			l.world.Routes = append(l.world.Routes, oracle.Route{
				Prefix: n, Kind: oracle.RoutePort, Port: s.port, VLAN: s.vlan, MAC: s.macs[r.IntN(len(s.macs))],
			})
		}
		for _, n := range s.silent() {
			l.world.Routes = append(l.world.Routes, oracle.Route{Prefix: n, Kind: oracle.RoutePort, Port: s.port, VLAN: s.vlan})
		}
		add(oracle.RouteHost, s.gateway()...)
		add(oracle.RouteHost, netip.MustParsePrefix(fmt.Sprintf("10.%d.255.255/32", s.number())))
	}
}

func (s *segment) number() byte { return s.nets[0].Addr().As4()[1] }

// gateway is where the gateway itself answers in a routed segment.
func (s *segment) gateway() []netip.Prefix {
	return prefixes(fmt.Sprintf("10.%d.0.1/32", s.number()), fmt.Sprintf("fd00:%x::1/128", s.number()))
}

// silent is where stations are whose MAC is not known.
func (s *segment) silent() []netip.Prefix {
	return prefixes(fmt.Sprintf("10.%d.9.0/24", s.number()), fmt.Sprintf("fd00:%x:9::/48", s.number()))
}

// describeZones writes the zones as the policy has them. All policies of a stream have the same.
func (l *layout) describeZones(r *rand.Rand) {
	for _, zone := range l.zones {
		var ports, vlans, nets []string
		for i := range l.segments {
			s := &l.segments[i]
			if s.zone != zone {
				continue
			}
			if !slices.Contains(ports, s.port) {
				ports = append(ports, s.port)
			}
			if s.vlan != 0 {
				vlans = append(vlans, fmt.Sprint(s.vlan))
			}
			for _, n := range s.nets {
				nets = append(nets, `"`+n.String()+`"`)
			}
		}
		text := fmt.Sprintf("  %s: {ports: [%s]", zone, strings.Join(ports, ", "))
		if len(vlans) > 0 {
			text += fmt.Sprintf(", vlans: [%s]", strings.Join(vlans, ", "))
		}
		if r.IntN(2) == 0 || zone == l.zones[0] {
			text += fmt.Sprintf(", addresses: [%s]", strings.Join(nets, ", "))
			l.spoofing = true
		}
		l.zoneText = append(l.zoneText, text+"}")
	}
}

// host draws a station of the segment's own networks.
func (s *segment) host(r *rand.Rand, family uint8) netip.Addr {
	net, station := byte(1+r.IntN(4)), byte(2+r.IntN(120))
	if family == 4 {
		if len(s.nets) > 2 && r.IntN(3) == 0 {
			return inRange(r, outer[r.IntN(2)])
		}
		return netip.AddrFrom4([4]byte{10, s.number(), net, station})
	}
	if len(s.nets) > 2 && r.IntN(3) == 0 {
		return inRange(r, outer[2])
	}
	a := s.nets[1].Addr().As16()
	a[5], a[15] = net, station
	return netip.AddrFrom16(a)
}

// inRange draws one of the first 254 addresses behind a prefix's own.
func inRange(r *rand.Rand, p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] += byte(1 + r.IntN(254))
	a, _ := netip.AddrFromSlice(b)
	return a
}

// segmentOf returns the routed segment whose networks hold a; nil if none does.
func (l *layout) segmentOf(a netip.Addr) *segment {
	for i := range l.segments {
		s := &l.segments[i]
		if s.peer == -1 && slices.ContainsFunc(s.nets, func(n netip.Prefix) bool { return n.Contains(a) }) {
			return s
		}
	}
	return nil
}
