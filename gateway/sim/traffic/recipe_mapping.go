package traffic

import (
	"net/netip"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// mappingRecipes are drawn where rules that choose ports have mappings.
var mappingRecipes = []recipe{
	// One end inside talks to several hosts, and to several ports of one.
	{name: "mapping", weight: 4, allowed: 3, plan: func(s *Stream, p *plan) {
		t, ok := s.natTuple(func(w *witness, source, _ *firewall.NATRule) bool {
			return source != nil && source.Mapping && w.hasPorts()
		})
		if !ok {
			return
		}
		for range 2 + s.r.IntN(3) {
			other := t
			if chance(s.r, 2) {
				b := t.b.addr.AsSlice()
				b[len(b)-1] = byte(2 + s.r.IntN(120))
				other.b.addr = addr(b)
			}
			if other.proto == protoTCP || other.proto == protoUDP {
				other.dport = uint16(1 + s.r.IntN(65535))
			}
			if w, ok := s.judge(s.oracle, other); ok && w.allowed && other.a.addr != other.b.addr && w.b.port != "" {
				s.planConversation(p, &w.tuple)
			}
		}
	}},
	// Somebody sends to what an end inside leaves as.
	{name: "mapping-stranger", weight: 6, allowed: 4, plan: func(s *Stream, p *plan) {
		if t, ok := s.strangerTuple(); ok {
			s.planConversation(p, &t)
		}
	}},
}

// strangerTuple draws somebody who sends to a mapping: a host anywhere, or one that the mapping's end may have sent
// to. Most are of those that the rules would let in. False if there is no mapping yet.
func (s *Stream) strangerTuple() (tuple, bool) {
	all := s.oracle.Mappings()
	for range 40 {
		if len(all) == 0 {
			break
		}
		m := all[s.r.IntN(len(all))]
		inside := s.segmentOf(m.Inside.Addr())
		if m.Proto != protoTCP && m.Proto != protoUDP || inside == nil || inside.peer != -1 {
			continue
		}
		near := s.routedSegment()
		family := uint8(6)
		if m.Inside.Addr().Is4() {
			family = 4
		}
		t := tuple{a: s.stationOf(near, family), proto: m.Proto, sport: uint16(1 + s.r.IntN(65535)), dport: m.Outside.Port()}
		t.b = s.stationOf(inside, family)
		t.b.addr = m.Outside.Addr()
		if hosts := s.oracle.Peers(m); len(hosts) > 0 && chance(s.r, 2) {
			a := hosts[s.r.IntN(len(hosts))]
			at := s.segmentOf(a)
			if at == nil || at.peer != -1 {
				continue
			}
			t.a = s.stationOf(at, family)
			t.a.addr = a
		}
		if t.a.addr == t.b.addr || t.a.addr == m.Inside.Addr() {
			continue
		}
		if chance(s.r, 8) || s.letIn(&t, m.Inside) {
			return t, true
		}
	}
	return tuple{}, false
}

// letIn reports whether the rules allow what comes in by a mapping.
func (s *Stream) letIn(t *tuple, inside netip.AddrPort) bool {
	return s.oracle.Judge(oracle.Opening{
		From: s.zoneAt(t.a.port, t.a.vlan), To: s.zoneAt(t.b.port, t.b.vlan), Src: t.a.addr, Dst: inside.Addr(), MAC: t.a.mac,
		Proto: t.proto, SrcPort: t.sport, DstPort: inside.Port(),
	}).Reason == ""
}
