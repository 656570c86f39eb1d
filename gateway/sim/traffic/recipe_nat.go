package traffic

import (
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// natRecipes are drawn where the policy translates.
var natRecipes = []recipe{
	{name: "nat", weight: 12, allowed: 6, reasons: []string{"nat-no-address", "nat-untranslated"}, plan: func(s *Stream, p *plan) {
		if t, ok := s.natTuple(nil); ok {
			s.planConversation(p, &t)
		}
	}},
	{name: "nat-fragments", weight: 3, allowed: 2, plan: func(s *Stream, p *plan) {
		if t, ok := s.natTuple(nil); ok {
			s.planFragments(p, &t)
			if t.b.port != "" && chance(s.r, 2) {
				for _, part := range pieces(s.message(&t, false, 300), s.datagramID(), 64, 128) {
					p.add(t.b.port, part)
				}
			}
		}
	}},
	{name: "nat-to-host", weight: 1, reasons: []string{"nat-to-host"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(r *firewall.NATRule) bool { return len(r.Servers) == 1 && s.own(r.Servers[0].Address) })
		if ok {
			p.add(t.a.port, s.opening(&t, 8))
		}
	}},
	// One sender, one destination, more flows than there are ports.
	{name: "nat-exhausted", weight: 1, reasons: []string{"nat-exhausted"}, plan: func(s *Stream, p *plan) {
		few := func(r *firewall.NATRule) bool {
			return (r.Kind == firewall.NATMasquerade || r.Kind == firewall.NATSource) && r.Ports.Last-r.Ports.First < 20
		}
		t, ok := s.natTuple(few)
		if !ok || !t.hasPorts() {
			return
		}
		for range 24 {
			t.sport = uint16(1 + s.r.IntN(65535))
			p.add(t.a.port, s.opening(&t, 8))
		}
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
		if t.b.port != "" {
			p.add(t.a.port, s.icmpError(t.a, t.b, s.message(&t, false, 8)))
		}
	}},
	// Openers that have each other's outer addresses, and protocols that have nothing to choose.
	{name: "nat-portless", weight: 2, reasons: []string{"nat-conflict"}, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(nil)
		if !ok {
			return
		}
		t.proto, t.sport, t.dport = protoGRE, 0, 0
		for range 3 {
			p.add(t.a.port, s.opening(&t, 8))
			b := t.a.addr.AsSlice()
			b[len(b)-1] ^= byte(1 + s.r.IntN(3))
			if t.a.addr = addr(b); t.a.addr == t.b.addr {
				return
			}
		}
	}},
}

// own reports whether an address is the gateway's.
func (s *Stream) own(a netip.Addr) bool {
	r := s.World.Route(a)
	return r != nil && r.Kind == oracle.RouteHost
}

// natTuple draws what some nat rule is about; false if it finds nothing that goes anywhere.
func (s *Stream) natTuple(fits func(*firewall.NATRule) bool) (tuple, bool) {
	rules := slices.Clone(s.policy.Parsed.NAT)
	if fits != nil {
		rules = slices.DeleteFunc(rules, func(r firewall.NATRule) bool { return !fits(&r) })
	}
	if len(rules) == 0 {
		return tuple{}, false
	}
	var last tuple
	found := false
	for range 12 {
		r := &rules[s.r.IntN(len(rules))]
		like := firewall.Rule{From: r.From, To: r.To, Services: r.Services}
		if r.Kind == firewall.NATPrefix {
			// Out, or in to what is seen outside.
			if chance(s.r, 2) {
				like.From, like.To = r.To, r.From
			}
		}
		t, ok := s.draw(s.policy.Parsed, &like)
		if !ok {
			continue
		}
		if r.Kind == firewall.NATPrefix && t.is4() == r.Inside.Addr().Is4() {
			if like.From.Pos == r.From.Pos {
				t.a.addr = inRange(s.r, r.Inside)
			} else {
				t.b.addr = inRange(s.r, r.Outside)
			}
			if t.a.addr == t.b.addr {
				continue
			}
		}
		last, found = t, true
		if w, ok := s.judge(s.oracle, t); ok {
			if last = w.tuple; w.allowed {
				return w.tuple, true
			}
		}
	}
	return last, found
}
