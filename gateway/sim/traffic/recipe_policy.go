package traffic

import (
	"net/netip"

	"github.com/softdpu/softdpu/firewall"
)

var policyRecipes = []recipe{
	{name: "rule", weight: 20, allowed: 4, reasons: []string{"deny", "reject", "no-rule-matched"}, plan: func(s *Stream, p *plan) {
		t := s.pick(false)
		s.planConversation(p, &t)
	}},
	{name: "rule-allowed", weight: 4, allowed: 12, plan: func(s *Stream, p *plan) {
		t := s.pick(true)
		s.planConversation(p, &t)
	}},
	{name: "free", weight: 4, reasons: []string{"no-rule-matched"}, plan: func(s *Stream, p *plan) {
		t := s.free()
		s.planConversation(p, &t)
	}},
	{name: "spoofed", weight: 1, reasons: []string{"spoofed"}, fits: func(l *layout) bool { return l.spoofing }, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		zone := s.zones[0] // says its addresses
		for t.a.port == "" || s.zoneAt(t.a.port, t.a.vlan) != zone {
			t = s.free()
		}
		from := nowhere[0]
		if !t.is4() {
			from = nowhere[1]
		}
		t.a.addr = inRange(s.r, from)
		p.add(t.a.port, s.opening(&t, s.size()))
	}},
	{name: "unspoofable", weight: 1, plan: func(s *Stream, p *plan) {
		t := s.tuple(6, protoUDP, protoTCP)
		t.a.addr = netip.MustParseAddr("fe80::7")
		if chance(s.r, 2) {
			t.b.addr = netip.MustParseAddr("ff02::fb")
		}
		p.add(t.a.port, s.opening(&t, s.size()))
	}},
	{name: "dhcp", weight: 1, allowed: 1, fits: routed, plan: func(s *Stream, p *plan) {
		seg := s.routedSegment()
		t := tuple{a: s.stationOf(seg, s.family()), proto: protoUDP, sport: 67, dport: 68}
		t.b.addr = netip.MustParseAddr("255.255.255.255")
		if !t.is4() {
			t.sport, t.dport, t.b.addr = 547, 546, netip.MustParseAddr("ff02::1:2")
		} else if chance(s.r, 3) {
			t.sport, t.dport, t.a.addr = 68, 67, netip.IPv4Unspecified()
		}
		p.add(seg.port, s.message(&t, true, 200))
	}},
	{name: "management", weight: 1, allowed: 1, fits: routed, plan: func(s *Stream, p *plan) {
		seg := s.routedSegment()
		f := s.family()
		t := tuple{a: s.stationOf(seg, f), b: station{addr: seg.gateway()[f/6].Addr()}, proto: protoTCP, sport: uint16(1024 + s.r.IntN(60000)), dport: 22}
		if chance(s.r, 2) {
			t.proto, t.dport = protoUDP, 161
		}
		if s.spoofing && chance(s.r, 2) {
			t.a.addr = inRange(s.r, nowhere[f/6])
		}
		s.planConversation(p, &t)
	}},
	{name: "wrong-zone", weight: 1, reasons: []string{"wrong-zone"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		f := s.opening(&t, 20)
		p.add(t.a.port, f)
		if t.b.port == "" {
			return
		}
		from, to := t.a, t.b
		from.port, from.vlan = t.b.port, t.b.vlan
		moved := tuple{a: from, b: to, proto: t.proto, sport: t.sport, dport: t.dport}
		p.add(from.port, s.opening(&moved, 20))
		p.add(t.a.port, s.icmpError(station{port: t.a.port, vlan: t.a.vlan, mac: t.a.mac, addr: t.b.addr}, t.a, f))
	}},
	{name: "replies-of-the-gateway", weight: 1, reasons: []string{"wrong-zone"}, fits: routed, plan: func(s *Stream, p *plan) {
		seg := s.routedSegment()
		f := s.family()
		t := tuple{a: s.stationOf(seg, f), b: station{port: seg.port, vlan: seg.vlan, mac: firewall.MAC{2, 0xee}, addr: seg.gateway()[f/6].Addr()}, proto: protoUDP, sport: 999, dport: 161}
		p.add(seg.port, s.message(&t, true, 8))
		p.add(seg.port, s.message(&t, false, 8))
	}},
	// A source that a zone without addresses lets in and that lives elsewhere: replies leave by
	// another zone than the opener's.
	{name: "asymmetric", weight: 1, fits: routed, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		if s.peerOf(t.a.port) != "" {
			return
		}
		seg := s.routedSegment()
		family := uint8(6)
		if t.is4() {
			family = 4
		}
		t.a.addr = seg.host(s.r, family)
		if t.a.addr != t.b.addr {
			s.planConversation(p, &t)
		}
	}},
}
