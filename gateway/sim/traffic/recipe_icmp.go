package traffic

import (
	"encoding/binary"
	"net/netip"
)

// router draws the address of some router behind a station's segment.
func (s *Stream) router(at station) netip.Addr {
	seg := s.segmentAt(at.port, at.vlan)
	family := uint8(6)
	if at.addr.Is4() {
		family = 4
	}
	return seg.host(s.r, family)
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ends returns a tuple whose both ends are behind ports, of any protocol but of one family if it is
// not 0.
func (s *Stream) ends(family uint8) tuple {
	for {
		if t := s.tuple(family); t.b.port != "" && t.a.addr != t.b.addr {
			return t
		}
	}
}

var icmpRecipes = []recipe{
	{name: "icmp-family", weight: 1, reasons: []string{"icmp-type"}, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		proto := uint8(protoICMPv6)
		if !t.is4() {
			proto = protoICMP
		}
		p.add(t.a.port, s.make(t.a, t.b, proto, nil, s.blank[:8+s.r.IntN(20)]))
	}},
	{name: "icmp-type", weight: 1, reasons: []string{"icmp-type"}, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		f := s.makeICMP(t.a, t.b, uint8(s.r.IntN(256)), 0, s.r.Uint32(), s.blank[:40])
		p.add(t.a.port, f)
		if t.is4() {
			p.add(t.a.port, s.makeICMP(t.a, t.b, 5, 1, s.r.Uint32(), s.blank[:28]))
		}
	}},
	{name: "discovery", weight: 1, allowed: 1, reasons: []string{"icmp-type"}, plan: func(s *Stream, p *plan) {
		t := s.ends(6)
		switch s.r.IntN(4) {
		case 3:
			t.b.addr = netip.MustParseAddr("fe80::5")
		case 0:
			t.a.addr, t.b.addr = netip.MustParseAddr("fe80::3"), netip.MustParseAddr("ff02::1")
		case 1:
			t.a.addr, t.b.addr = netip.IPv6Unspecified(), netip.MustParseAddr("ff02::2")
		}
		f := s.makeICMP(t.a, t.b, uint8(133+s.r.IntN(4)), 0, 0, s.blank[:24])
		if !chance(s.r, 4) {
			f = f.ttl(255)
		}
		p.add(t.a.port, f)
	}},
	{name: "discovery-of-the-gateway", weight: 1, fits: routed, plan: func(s *Stream, p *plan) {
		seg := s.routedSegment()
		to := station{port: seg.port, vlan: seg.vlan, addr: seg.gateway()[1].Addr()}
		p.add(seg.port, s.makeICMP(s.stationOf(seg, 6), to, 135, 0, 0, s.blank[:24]).ttl(255))
	}},
	{name: "listeners", weight: 1, allowed: 1, reasons: []string{"icmp-type"}, plan: func(s *Stream, p *plan) {
		t := s.ends(6)
		if !chance(s.r, 6) {
			t.a.addr = []netip.Addr{netip.MustParseAddr("fe80::3"), netip.MustParseAddr("febf::3"), netip.MustParseAddr("fec0::3"), netip.IPv6Unspecified()}[s.r.IntN(4)]
		}
		if t.a.addr.IsUnspecified() || !chance(s.r, 6) {
			t.b.addr = []netip.Addr{netip.MustParseAddr("ff02::16"), netip.MustParseAddr("ff05::1:3")}[s.r.IntN(2)]
		}
		f := s.makeICMP(t.a, t.b, []uint8{130, 131, 132, 143}[s.r.IntN(4)], 0, s.r.Uint32(), s.blank[:16])
		switch {
		case chance(s.r, 6):
			first, b := s.extensions(protoICMPv6)
			f = f.insert(first, b...)
		case !chance(s.r, 6):
			f = f.insert(0, protoICMPv6, 0, 5, 2, 0, 0, 1, 0) // hop-by-hop, with a router alert
		}
		if !chance(s.r, 4) {
			f = f.ttl(1)
		}
		p.add(t.a.port, f)
	}},
	{name: "reply-without-request", weight: 1, reasons: []string{"icmp-no-request"}, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		kind := uint8(129)
		if t.is4() {
			kind = []uint8{0, 14}[s.r.IntN(2)]
		}
		p.add(t.a.port, s.makeICMP(t.a, t.b, kind, 0, s.r.Uint32(), nil))
	}},
	// The same identifier in requests from both ends, zero among them; echo and timestamp in one flow.
	{name: "queries-of-both", weight: 1, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		id := uint32(s.r.IntN(3)) << 16
		kinds := []uint8{128, 129}
		if t.is4() {
			kinds = []uint8{8, 0, 13, 14}
		}
		for range 2 + s.r.IntN(6) {
			from, to := t.a, t.b
			if chance(s.r, 2) {
				from, to = to, from
			}
			p.add(from.port, s.makeICMP(from, to, kinds[s.r.IntN(len(kinds))], uint8(s.r.IntN(2)), id|uint32(s.r.IntN(9)), nil))
		}
	}},
	{name: "error-about-unknown", weight: 1, reasons: []string{"icmp-no-flow"}, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		t.sport++
		p.add(t.b.port, s.icmpError(t.b, t.a, s.opening(&t, 40)))
	}},
	// Errors about a flow that exists, each with something wrong or unusual.
	{name: "errors", weight: 3, allowed: 2, reasons: []string{"icmp-no-flow", "malformed-icmp", "malformed-icmpv6"}, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		f := s.opening(&t, 60)
		p.add(t.a.port, f)
		p.add(t.b.port, s.icmpError(t.b, t.a, f))
		about := f
		near := t.a
		switch s.r.IntN(9) {
		case 0:
			near.addr = s.router(near) // not the sender of what is quoted
			if near.addr == t.b.addr {
				return
			}
		case 1:
			if f.is4() {
				about = f.edit(func(ip, _ []byte) { ip[7] = 3 }) // a later fragment
			} else {
				about = piece(f, 1, 64, f.payload()[:16], false)
			}
		case 2:
			if f.is4() {
				about = f.edit(func(ip, _ []byte) { ip[0] = []byte{0x44, 0x4f, 0x65, 0x46}[s.r.IntN(4)] })
			} else {
				first, b := s.extensions(f.b[f.ip+6])
				about = f.insert(first, b...)
			}
		case 3:
			about = f.edit(func(ip, _ []byte) { // addresses equal
				if f.is4() {
					copy(ip[16:20], ip[12:16])
				} else {
					copy(ip[24:40], ip[8:24])
				}
			})
		case 4:
			about = f.ttl(0).edit(func(ip, _ []byte) { ip[1] ^= 0xff }) // no matter
		case 5: // cut short
			quote := f.b[f.ip : f.l4+s.r.IntN(8)]
			if chance(s.r, 2) {
				quote = f.b[f.ip : f.ip+s.r.IntN(20)]
			}
			kind := uint8(3)
			p.add(t.b.port, s.makeICMP(t.b, t.a, kind, 1, 0, quote))
			return
		case 6: // about the reply
			f = s.message(&t, false, 30)
			p.add(t.b.port, f)
			p.add(t.a.port, s.icmpError(t.a, t.b, f))
			return
		case 7: // in pieces
			whole := s.icmpError(t.b, t.a, f.edit(func(ip, _ []byte) {}))
			if cut := len(whole.payload()) / 2 &^ 7; cut > 8 {
				for _, part := range pieces(whole, s.datagramID(), cut) {
					p.add(t.b.port, part)
				}
			}
			return
		default:
			p.add(t.b.port, s.icmpError(t.b, t.a, f).ttl(uint8(s.r.IntN(3))))
			return
		}
		p.add(t.b.port, s.icmpError(t.b, near, about))
	}},
	{name: "error-to-the-gateway", weight: 1, fits: routed, plan: func(s *Stream, p *plan) {
		seg := s.routedSegment()
		family := s.family()
		t := tuple{a: s.stationOf(seg, family), b: station{port: seg.port, vlan: seg.vlan, addr: seg.gateway()[family/6].Addr()}, proto: protoUDP, sport: uint16(s.r.IntN(60000)), dport: 161}
		p.add(seg.port, s.message(&t, true, 8))
		p.add(seg.port, s.icmpError(t.a, t.b, s.message(&t, false, 8)))
	}},
	{name: "big-error", weight: 1, plan: func(s *Stream, p *plan) {
		t := s.ends(0)
		f := s.opening(&t, 1300)
		p.add(t.a.port, f)
		kind := uint8(3)
		if !f.is4() {
			kind = 1
		}
		e := s.makeICMP(t.b, t.a, kind, 1, 0, f.b[f.ip:])
		if e.is4() && chance(s.r, 2) {
			e = e.edit4(func(ip, _ []byte) { binary.BigEndian.PutUint16(ip[6:], 0x4000) })
		}
		p.add(t.b.port, e)
	}},
}
