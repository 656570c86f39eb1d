package traffic

import (
	"encoding/binary"
	"net/netip"
)

// anyFrame makes the opening packet of an allowed tuple.
func (s *Stream) anyFrame(family uint8, protos ...uint8) (tuple, frame) {
	t := s.tuple(family, protos...)
	return t, s.opening(&t, s.size())
}

var frameRecipes = []recipe{
	{name: "short-frame", weight: 1, reasons: []string{"malformed-ethernet"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		f.b = f.b[:1+s.r.IntN(13)]
		p.add(t.a.port, f)
	}},
	{name: "bad-tags", weight: 1, reasons: []string{"malformed-vlan"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		if chance(s.r, 2) {
			f = f.tag(10, 2, 3)
		} else {
			f = f.tag(10)
			f.b = f.b[:14+s.r.IntN(4)]
		}
		p.add(t.a.port, f)
	}},
	{name: "tags", weight: 2, reasons: []string{"vlan-unknown"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		switch s.r.IntN(4) {
		case 0:
			f = f.tag(uint16(100 + s.r.IntN(3000)))
		case 1:
			f = f.tag(uint16(s.r.IntN(8)) << 13) // a priority alone
		case 2:
			f = f.tag(10)
		default:
			if t.a.vlan != 0 {
				binary.BigEndian.PutUint16(f.b[14:], t.a.vlan|uint16(s.r.IntN(8))<<13)
				binary.BigEndian.PutUint16(f.b[12:], 0x88a8)
			}
		}
		p.add(t.a.port, f)
	}},
	{name: "peer-without-vlan", weight: 1, reasons: []string{"vlan-unknown"}, fits: func(l *layout) bool { return l.segmentAt("in0", 12) != nil },
		plan: func(s *Stream, p *plan) {
			t := s.free()
			seg := s.segmentAt("in0", 12)
			t.a.port, t.a.vlan = seg.port, seg.vlan
			p.add(seg.port, s.opening(&t, 8))
		}},
	{name: "not-for-us", weight: 1, reasons: []string{"not-for-us"}, fits: routed, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		f.b[5] ^= byte(1 + s.r.IntN(255))
		p.add(t.a.port, f)
	}},
	{name: "group-mac", weight: 1, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		f.b[0] |= 1
		p.add(t.a.port, f)
	}},
	{name: "arp", weight: 1, allowed: 1, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		binary.BigEndian.PutUint16(f.b[f.ip-2:], 0x0806)
		p.add(t.a.port, f)
	}},
	{name: "ethertype", weight: 1, reasons: []string{"ethertype"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		types := append([]uint16{0x8035, 0x0100, 0x05dc, 0x8847, 0x86de}, ethertypes...)
		binary.BigEndian.PutUint16(f.b[f.ip-2:], types[s.r.IntN(len(types))])
		p.add(t.a.port, f)
	}},
	{name: "wrong-ethertype", weight: 1, reasons: []string{"malformed-ipv4", "malformed-ipv6"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		if f.is4() {
			binary.BigEndian.PutUint16(f.b[f.ip-2:], 0x86dd)
		} else {
			binary.BigEndian.PutUint16(f.b[f.ip-2:], 0x0800)
		}
		p.add(t.a.port, f)
	}},
	// Some bits of the headers turned over, the checksum made right again in half of the cases.
	{name: "bit-flips", weight: 3, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		for range 1 + s.r.IntN(3) {
			i := 12 + s.r.IntN(len(f.b)-12)
			f.b[i] ^= 1 << s.r.IntN(8)
		}
		if f.is4() && chance(s.r, 2) {
			f.sum()
		}
		p.add(t.a.port, f)
	}},
	{name: "truncated", weight: 1, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		f.b = f.b[:1+s.r.IntN(len(f.b))]
		p.add(t.a.port, f)
	}},
}

var headerRecipes = []recipe{
	{name: "ipv4-malformed", weight: 1, reasons: []string{"malformed-ipv4"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(4)
		kind := s.r.IntN(5)
		f = f.edit4(func(ip, _ []byte) {
			switch kind {
			case 0:
				ip[0] = byte(s.r.IntN(16))<<4 | 5
			case 1:
				ip[0] = 0x40 | byte(s.r.IntN(16))
			case 2:
				binary.BigEndian.PutUint16(ip[2:], uint16(s.r.IntN(24)))
			case 3:
				binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+s.r.IntN(3)))
			}
		})
		if kind == 4 {
			f.b = f.b[:f.ip+s.r.IntN(20)]
		}
		p.add(t.a.port, f)
	}},
	{name: "ipv4-checksum", weight: 1, reasons: []string{"malformed-ipv4-checksum"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(4)
		f.b[f.ip+10] ^= byte(1 + s.r.IntN(255))
		p.add(t.a.port, f)
	}},
	{name: "ipv4-options", weight: 2, allowed: 1, reasons: []string{"malformed-ipv4-options", "ipv4-source-route"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(4)
		lists := [][]byte{
			{148, 4, 0, 0}, {1, 1, 1, 0}, {0, 7, 7, 7}, {7, 7, 4, 0, 0, 0, 0, 0}, {1, 148, 4, 0, 0, 0, 0, 0},
			{7, 1, 0, 0}, {7, 0, 0, 0}, {7, 5, 0, 0}, {1, 1, 1, 7}, {148, 4, 0, 0, 68, 9, 0, 0},
			{131, 3, 4, 0}, {137, 3, 4, 0}, {1, 131, 3, 4}, {148, 4, 0, 0, 137, 4, 0, 0}, {0, 131, 3, 4},
		}
		p.add(t.a.port, f.insert(0, lists[s.r.IntN(len(lists))]...))
	}},
	{name: "martian-ipv4", weight: 1, reasons: []string{"martian"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(4)
		switch s.r.IntN(4) {
		case 0:
			t.a.addr = netip.MustParseAddr([]string{"127.0.0.1", "224.0.0.9", "240.1.2.3", "255.255.255.255", "0.0.0.0", "0.1.2.3"}[s.r.IntN(6)])
		case 1:
			t.b.addr = netip.MustParseAddr([]string{"127.9.9.9", "0.0.0.0", "0.255.0.1", "240.0.0.1"}[s.r.IntN(4)])
		case 2:
			t.b.addr = t.a.addr
		default:
			t.a.addr, t.b.addr = netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255")
		}
		p.add(t.a.port, s.opening(&t, 8))
	}},
	{name: "ipv6-malformed", weight: 1, reasons: []string{"malformed-ipv6"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(6)
		switch s.r.IntN(3) {
		case 0:
			f.b[f.ip] ^= byte(1+s.r.IntN(15)) << 4
		case 1:
			binary.BigEndian.PutUint16(f.b[f.ip+4:], uint16(len(f.b)-f.ip-39+s.r.IntN(3)))
		default:
			f.b = f.b[:f.ip+s.r.IntN(40)]
		}
		p.add(t.a.port, f)
	}},
	{name: "ipv6-empty", weight: 1, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(6)
		p.add(t.a.port, f.cut(s.r.IntN(12)))
	}},
	{name: "ipv6-extensions", weight: 3, allowed: 1, reasons: []string{"malformed-ipv6-extension", "ipv6-routing-header"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(6)
		first, b := s.extensions(f.b[f.ip+6])
		p.add(t.a.port, f.insert(first, b...))
	}},
	{name: "martian-ipv6", weight: 1, reasons: []string{"martian"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(6)
		switch s.r.IntN(4) {
		case 0:
			t.a.addr = netip.MustParseAddr([]string{"::1", "ff02::1", "::", "fe80::1", "::ffff:10.1.1.1"}[s.r.IntN(5)])
		case 1:
			t.b.addr = netip.MustParseAddr([]string{"::1", "::"}[s.r.IntN(2)])
		case 2:
			t.b.addr = t.a.addr
		default:
			t.a.addr, t.b.addr = netip.IPv6Unspecified(), netip.MustParseAddr("ff02::16")
		}
		p.add(t.a.port, s.opening(&t, 8))
	}},
	{name: "tcp-malformed", weight: 1, reasons: []string{"malformed-tcp"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0, protoTCP)
		if chance(s.r, 2) {
			f = f.cut(s.r.IntN(20))
		} else {
			f.b[f.l4+12] = byte(s.r.IntN(16)) << 4
		}
		p.add(t.a.port, f)
	}},
	{name: "tcp-flags", weight: 1, reasons: []string{"malformed-tcp-flags"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0, protoTCP)
		f.b[f.l4+13] = byte(s.r.IntN(256))
		p.add(t.a.port, f)
	}},
	// Options that gopacket would not write: of no length, cut short, the window scale twice.
	{name: "tcp-options", weight: 1, allowed: 1, plan: func(s *Stream, p *plan) {
		t := s.tuple(0, protoTCP)
		f := s.opening(&t, 24)
		lists := [][]byte{{3, 3, 7, 0}, {1, 3, 3, 14}, {3, 3, 15, 1}, {3, 2, 7, 0}, {2, 1, 3, 3}, {0, 3, 3, 7}, {8, 10, 3, 3}, {3, 4, 7, 7}, {1, 1, 1, 3},
			{2, 4, 5, 0xb4}, {2, 4, 1, 0}, {2, 3, 5, 0}, {2, 4, 0xff, 0xff}, {1, 2, 4, 5}, {5, 3, 2, 4}}
		copy(f.b[f.l4+20:], lists[s.r.IntN(len(lists))])
		f.b[f.l4+12] = 6 << 4
		p.add(t.a.port, f)
		if t.b.port != "" {
			p.add(t.b.port, s.makeTCP(t.b, t.a, t.dport, t.sport, segmentTCP{flags: syn | ack, ack: 1001, win: 100}))
			p.add(t.b.port, s.makeTCP(t.b, t.a, t.dport, t.sport, segmentTCP{flags: rst, seq: uint32(s.r.IntN(20000))}))
		}
	}},
	{name: "udp-malformed", weight: 1, reasons: []string{"malformed-udp"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0, protoUDP)
		switch s.r.IntN(3) {
		case 0:
			f = f.cut(s.r.IntN(8))
		case 1:
			binary.BigEndian.PutUint16(f.b[f.l4+4:], uint16(s.r.IntN(9)))
		default:
			binary.BigEndian.PutUint16(f.b[f.l4+4:], uint16(len(f.payload())+s.r.IntN(3)-1))
		}
		p.add(t.a.port, f)
	}},
	{name: "icmp-malformed", weight: 1, reasons: []string{"malformed-icmp", "malformed-icmpv6"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0, protoICMP, protoICMPv6)
		p.add(t.a.port, f.cut(s.r.IntN(8)))
	}},
	{name: "transport-malformed", weight: 1, reasons: []string{"malformed-transport"}, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0, protoESP, protoGRE, protoSCTP, protoAH)
		p.add(t.a.port, f.cut(s.r.IntN(14)))
	}},
}

// extensions draws a chain of extension headers in front of a protocol, often with one mistake.
func (s *Stream) extensions(last uint8) (first uint8, b []byte) {
	kinds := []uint8{60, 43, 51, 60, 60}
	var chain []uint8
	if chance(s.r, 3) {
		chain = append(chain, 0)
	}
	for range s.r.IntN(4) {
		chain = append(chain, kinds[s.r.IntN(len(kinds))])
	}
	switch s.r.IntN(8) {
	case 0:
		chain = append(chain, 60, 60, 60, 60, 60)
	case 1:
		chain = append(chain, 60, 0) // hop-by-hop not first
	case 2:
		chain = append(chain, 44) // atomic
	case 3:
		chain = append(chain, 44, 44)
	}
	if len(chain) == 0 {
		chain = append(chain, 60)
	}
	for i, kind := range chain {
		next := last
		if i+1 < len(chain) {
			next = chain[i+1]
		}
		length := byte(s.r.IntN(2))
		body := make([]byte, 6+8*int(length))
		switch kind {
		case 51:
			length = 1
			body = make([]byte, 10)
		case 44:
			length = 0
			body = make([]byte, 6)
		case 43:
			body[0], body[1] = byte(s.r.IntN(3)), byte(s.r.IntN(2))
		}
		if chance(s.r, 12) && kind != 44 {
			length += byte(1 + s.r.IntN(255))
		}
		b = append(append(b, next, length), body...)
	}
	return chain[0], b
}
