package traffic

import (
	"net/netip"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// natRecipes are drawn where policies translate.
var natRecipes = []recipe{
	{name: "nat", weight: 12, allowed: 6, reasons: []string{"nat-untranslated"}, plan: func(s *Stream, p *plan) {
		if t, ok := s.natTuple(nil); ok {
			s.planConversation(p, &t)
		}
	}},
	{name: "nat-ports", weight: 3, allowed: 2, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, source, _ *firewall.NATRule) bool {
			return source != nil && w.hasPorts() && w.proto != protoTCP
		})
		if ok {
			s.planTalk(p, &t, 2+s.r.IntN(4))
		}
	}},
	{name: "nat-fragments", weight: 3, allowed: 2, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(nil)
		if !ok {
			return
		}
		s.planFragments(p, &t)
		if chance(s.r, 2) {
			for _, part := range pieces(s.message(&t, false, 300), s.datagramID(), 64, 128) {
				p.add(t.b.port, part)
			}
		}
	}},
	{name: "nat-to-host", weight: 1, reasons: []string{"nat-to-host"}, plan: func(s *Stream, p *plan) {
		for _, r := range s.policy.Parsed.NAT {
			if len(r.Servers) != 1 || !s.own(r.Servers[0].Address) {
				continue
			}
			for range 4 {
				t, ok := s.draw(s.policy.Parsed, &firewall.Rule{From: r.From, To: r.To, Services: r.Services})
				if ok && s.segmentAt(t.a.port, t.a.vlan).peer == -1 {
					p.add(t.a.port, s.opening(&t, 8))
				}
			}
		}
	}},
	{name: "nat-no-address", weight: 1, reasons: []string{"nat-no-address"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, source, _ *firewall.NATRule) bool {
			return source != nil && source.Kind == firewall.NATMasquerade && !s.masquerades(&w.b)
		})
		if ok {
			p.add(t.a.port, s.opening(&t, 8))
		}
	}},
	// One sender, one destination, more flows than there are ports.
	{name: "nat-exhausted", weight: 1, reasons: []string{"nat-exhausted"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, source, _ *firewall.NATRule) bool {
			return source != nil && w.hasPorts() && source.Ports.Last-source.Ports.First < 20 && (source.Kind != firewall.NATMasquerade || s.masquerades(&w.b))
		})
		if !ok {
			return
		}
		for range 24 {
			t.sport = uint16(1 + s.r.IntN(65535))
			p.add(t.a.port, s.opening(&t, 8))
		}
	}},
	// One sender, more flows than it may have; the first ones go on.
	{name: "nat-source-limit", weight: 1, reasons: []string{"nat-source-limit"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, source, _ *firewall.NATRule) bool {
			return source != nil && w.hasPorts() && source.SourceLimit > 0 && source.SourceLimit < 9 && (source.Kind != firewall.NATMasquerade || s.masquerades(&w.b))
		})
		if !ok {
			return
		}
		first := s.opening(&t, 8)
		p.add(t.a.port, first)
		for range 9 {
			t.sport = uint16(1 + s.r.IntN(65535))
			p.add(t.a.port, s.opening(&t, 8))
		}
		p.add(t.a.port, first)
	}},
	// What leaves comes once more, from the opener's side.
	{name: "nat-conflict", weight: 1, reasons: []string{"nat-conflict"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(nil)
		if !ok {
			return
		}
		f := s.opening(&t, 40)
		p.add(t.a.port, f)
		p.add(t.a.port, f)
		p.steps[len(p.steps)-1].before = true
		p.add(t.a.port, s.icmpError(t.a, t.b, s.message(&t, false, 8)))
	}},
	// Senders that cannot be told apart behind one address, since there is no port to choose.
	{name: "nat-portless", weight: 2, reasons: []string{"nat-conflict"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, source, _ *firewall.NATRule) bool { return source != nil && !w.hasPorts() })
		if !ok {
			return
		}
		for range 3 {
			s.planTalk(p, &t, 1+s.r.IntN(2))
			b := t.a.addr.AsSlice()
			b[len(b)-1] ^= byte(1 + s.r.IntN(3))
			if t.a.addr = addr(b); t.a.addr == t.b.addr {
				return
			}
		}
	}},
	// Checksums that are not looked at, missing, or beyond the packet's end.
	{name: "nat-checksums", weight: 2, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(nil)
		if !ok {
			return
		}
		if t.proto = []uint8{protoUDPLite, protoDCCP, protoUDP}[s.r.IntN(3)]; t.proto != protoUDP {
			t.sport, t.dport = 0, 0
		}
		if w, ok := s.judge(s.oracle, t); !ok || !w.allowed {
			return
		}
		for range 2 {
			f := s.opening(&t, s.r.IntN(9))
			switch s.r.IntN(4) {
			case 0:
				f.b[f.l4+6], f.b[f.l4+7] = 0, 0
			case 1:
				f.b[f.l4+6], f.b[f.l4+7] = 0xff, 0xff
			case 2:
				if t.proto != protoUDP {
					f = f.cut(s.r.IntN(9))
				}
			}
			p.add(t.a.port, f)
		}
	}},
	// The kernel carries it on: to a neighbour that is not known, or in pieces.
	{name: "nat-to-kernel", weight: 2, allowed: 1, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, _, _ *firewall.NATRule) bool { return w.is4() })
		if !ok {
			return
		}
		if chance(s.r, 2) {
			f := s.opening(&t, 0)
			f = s.opening(&t, s.mtu(&t)-f.total()+1+s.r.IntN(8))
			if chance(s.r, 2) {
				f = f.bare()
			}
			p.add(t.a.port, f)
			return
		}
		t.b.addr = inRange(s.r, s.segmentAt(t.b.port, t.b.vlan).silent()[0])
		p.add(t.a.port, s.opening(&t, 30))
		p.add(t.a.port, s.icmpError(t.a, t.b, s.message(&t, false, 8)))
	}},
}

// masquerades reports whether there is an address to masquerade with on the way to a station.
func (s *Stream) masquerades(to *station) bool {
	for _, d := range s.World.Devices {
		if d.Port == to.port && d.VLAN == to.vlan {
			return d.IP4.IsValid() && to.addr.Is4() || d.IP6.IsValid() && to.addr.Is6()
		}
	}
	return false
}

// own reports whether an address is the gateway's.
func (s *Stream) own(a netip.Addr) bool {
	r := s.World.Route(a)
	return r != nil && r.Kind == oracle.RouteHost
}

// natTuple draws a tuple that the policy allows and translates: one of those that rules were found for, or one
// made for a nat rule. False if it finds none.
func (s *Stream) natTuple(fits func(w *witness, source, destination *firewall.NATRule) bool) (tuple, bool) {
	suits := func(w *witness) bool {
		if !w.allowed || w.b.port == "" || s.segmentAt(w.a.port, w.a.vlan).peer != -1 {
			return false
		}
		source, destination := s.oracle.Rules(oracle.Opening{
			From: s.zoneAt(w.a.port, w.a.vlan), To: s.zoneAt(w.b.port, w.b.vlan), Src: w.a.addr, Dst: w.b.addr, MAC: w.a.mac,
			Proto: w.proto, SrcPort: ruleSport(w.tuple), DstPort: ruleDport(w.tuple),
		})
		return (source != nil || destination != nil) && (fits == nil || fits(w, source, destination))
	}
	for range 40 {
		w := s.found[s.r.IntN(len(s.found))]
		if s.r.IntN(3) > 0 {
			drawn, ok := s.natDraw()
			if !ok {
				continue
			}
			w = drawn
		}
		if suits(&w) {
			if t := s.vary(w); suits(&witness{tuple: t, allowed: true}) {
				return t, true
			}
			return w.tuple, true
		}
	}
	return tuple{}, false
}

// natDraw draws a tuple that some nat rule is about.
func (s *Stream) natDraw() (witness, bool) {
	rules := s.policy.Parsed.NAT
	r := &rules[s.r.IntN(len(rules))]
	like, out := firewall.Rule{From: r.From, To: r.To, Services: r.Services}, true
	if r.Kind == firewall.NATPrefix && chance(s.r, 2) {
		like.From, like.To, out = r.To, r.From, false // in, to what is seen outside
	}
	t, ok := s.draw(s.policy.Parsed, &like)
	if !ok {
		return witness{}, false
	}
	if r.Kind == firewall.NATPrefix && t.is4() == r.Inside.Addr().Is4() {
		if out {
			t.a.addr = inRange(s.r, r.Inside)
		} else {
			t.b.addr = inRange(s.r, r.Outside)
		}
	}
	if t.a.addr == t.b.addr {
		return witness{}, false
	}
	return s.judge(s.oracle, t)
}
