package traffic

import (
	"encoding/binary"
	"net/netip"
)

// towards plans a packet of an allowed tuple's sender to somewhere else.
func towards(to func(s *Stream, family int) netip.Addr) func(*Stream, *plan) {
	return func(s *Stream, p *plan) {
		t := s.tuple(0)
		for s.peerOf(t.a.port) != "" {
			t = s.free()
		}
		family := 1
		if t.is4() {
			family = 0
		}
		t.b.addr = to(s, family)
		if t.b.addr != t.a.addr {
			p.add(t.a.port, s.opening(&t, s.size()))
		}
	}
}

var routeRecipes = []recipe{
	{name: "no-route", weight: 1, reasons: []string{"no-route"}, fits: routed,
		plan: towards(func(s *Stream, family int) netip.Addr { return inRange(s.r, nowhere[family]) })},
	{name: "blocked", weight: 1, reasons: []string{"route-blocked"}, fits: routed,
		plan: towards(func(s *Stream, family int) netip.Addr { return inRange(s.r, blocked[family]) })},
	{name: "elsewhere", weight: 1, reasons: []string{"egress-not-a-port"}, fits: routed,
		plan: towards(func(s *Stream, family int) netip.Addr { return inRange(s.r, elsewhere[family]) })},
	{name: "to-the-gateway", weight: 2, fits: routed,
		plan: towards(func(s *Stream, family int) netip.Addr { return s.routedSegment().gateway()[family].Addr() })},
	{name: "to-a-group", weight: 2, fits: routed, plan: towards(func(s *Stream, family int) netip.Addr {
		to := [][]string{{"224.0.0.251", "255.255.255.255", "239.1.2.3", "10.1.255.255"}, {"ff02::1", "ff05::2", "ff0e::99", "ff02::fb"}}
		return netip.MustParseAddr(to[family][s.r.IntN(4)])
	})},
	{name: "to-a-silent-neighbour", weight: 2, fits: routed,
		plan: towards(func(s *Stream, family int) netip.Addr { return inRange(s.r, s.routedSegment().silent()[family]) })},
	{name: "ttl", weight: 2, reasons: []string{"ttl-expired"}, fits: routed, plan: func(s *Stream, p *plan) {
		t, f := s.anyFrame(0)
		p.add(t.a.port, f.ttl(uint8(s.r.IntN(3))))
		if chance(s.r, 2) {
			p.add(t.a.port, f)
			if t.b.port != "" {
				p.add(t.b.port, s.message(&t, false, 8).ttl(uint8(s.r.IntN(3))))
			}
		}
	}},
	{name: "too-big", weight: 2, reasons: []string{"too-big"}, plan: func(s *Stream, p *plan) {
		t := s.tuple(0)
		if t.b.port == "" {
			return
		}
		f := s.opening(&t, 0)
		n := s.mtu(&t) - f.total() + s.r.IntN(4) - 1 // from one byte less to two bytes more
		f = s.opening(&t, n)
		if f.is4() && chance(s.r, 2) {
			f = f.edit4(func(ip, _ []byte) { binary.BigEndian.PutUint16(ip[6:], 0x4000) })
		}
		p.add(t.a.port, f)
		p.add(t.a.port, s.opening(&t, 8))
	}},
	{name: "revisit", weight: 4, allowed: 1, reasons: []string{"policy-revoked"}, plan: func(s *Stream, p *plan) {
		if len(s.past) == 0 {
			return
		}
		t := s.past[s.r.IntN(len(s.past))]
		if t.b.port != "" && chance(s.r, 4) {
			// An error is enough for a flow to be asked about, by the code that it quotes.
			about := s.message(&t, true, 20)
			if t.proto == protoICMP || t.proto == protoICMPv6 {
				about.b[about.l4+1] = uint8(s.r.IntN(3))
			}
			p.add(t.b.port, s.icmpError(t.b, t.a, about))
			return
		}
		fromOpener := t.b.port == "" || chance(s.r, 2)
		f := s.message(&t, fromOpener, 20)
		if t.proto == protoTCP {
			f.b[f.l4+13] = ack
		}
		if fromOpener {
			p.add(t.a.port, f)
		} else {
			p.add(t.b.port, f)
		}
	}},
}

// remember keeps the tuple of a conversation, to come back to it under another policy.
func (s *Stream) remember(t *tuple) {
	const most = 256
	if len(s.past) < most {
		s.past = append(s.past, *t)
		return
	}
	s.past[s.r.IntN(most)] = *t
}
