package traffic

import (
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// IP protocol numbers that recipes speak of.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoDCCP    = 33
	protoGRE     = 47
	protoESP     = 50
	protoAH      = 51
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
)

// station is an end of a conversation, and where its frames arrive.
type station struct {
	port string // "" for the gateway itself
	vlan uint16
	mac  firewall.MAC
	addr netip.Addr
}

// tuple is who talks to whom about what. The first station opens.
type tuple struct {
	a, b         station
	proto        uint8
	sport, dport uint16 // ICMP: type << 8 | code of the query as dport
}

func (t *tuple) is4() bool { return t.a.addr.Is4() }

// hasPorts reports whether other ports, or another identifier, make another flow.
func (t *tuple) hasPorts() bool {
	switch t.proto {
	case protoTCP, protoUDP, protoICMP, protoICMPv6:
		return true
	}
	return false
}

// witness is a tuple that a rule decides about.
type witness struct {
	tuple
	rules   []string // the deciding one, and those in audit mode on the way
	allowed bool
}

// Draws for a rule's witnesses, and how many are enough.
const (
	witnessDraws  = 300
	witnessEnough = 10
)

// witnesses draws packets that a rule decides about, or would in audit mode.
func (w *author) witnesses(judge *oracle.Oracle, p *firewall.Policy, rule *firewall.Rule) []witness {
	var out []witness
	for range witnessDraws {
		t, ok := w.draw(p, rule)
		if !ok {
			continue
		}
		found, ok := w.judge(judge, t)
		if ok && slices.Contains(found.rules, rule.Name) {
			if out = append(out, found); len(out) == witnessEnough {
				break
			}
		}
	}
	return out
}

// judge finds out where a tuple's packets go and what the rules say. False if no conversation can
// come of it: no route there or, by the same zone, back.
func (w *author) judge(judge *oracle.Oracle, t tuple) (witness, bool) {
	from := w.zoneAt(t.a.port, t.a.vlan)
	op := oracle.Opening{From: from, Src: t.a.addr, Dst: t.b.addr, MAC: t.a.mac, Proto: t.proto, SrcPort: ruleSport(t), DstPort: ruleDport(t)}
	zone, out, vlan, reason := judge.Egress(t.a.port, t.a.vlan, op)
	if reason != "" {
		return witness{}, false
	}
	if zone == firewall.NameHost {
		t.b.port = ""
	} else {
		t.b.port, t.b.vlan = out, vlan
		back, reason := judge.Back(out, vlan, t.b.addr, t.a.addr)
		if reason != "" || back != from {
			return witness{}, false
		}
	}
	if s := w.segmentAt(t.b.port, t.b.vlan); s != nil {
		t.b.mac = s.macs[w.r.IntN(len(s.macs))]
	}
	op.To = zone
	j := judge.Judge(op)
	rules := slices.Clone(j.Audit)
	if j.Rule != "" {
		rules = append(rules, j.Rule)
	}
	return witness{tuple: t, rules: rules, allowed: j.Reason == ""}, j.Reason != "spoofed"
}

// ruleSport and ruleDport are the ports that rules see.
func ruleSport(t tuple) uint16 {
	if t.proto == protoTCP || t.proto == protoUDP {
		return t.sport
	}
	return 0
}

func ruleDport(t tuple) uint16 {
	switch t.proto {
	case protoTCP, protoUDP, protoICMP, protoICMPv6:
		return t.dport
	}
	return 0
}

func (l *layout) segmentAt(port string, vlan uint16) *segment {
	for i := range l.segments {
		if l.segments[i].port == port && l.segments[i].vlan == vlan {
			return &l.segments[i]
		}
	}
	return nil
}

func (l *layout) zoneAt(port string, vlan uint16) string {
	if s := l.segmentAt(port, vlan); s != nil {
		return s.zone
	}
	return ""
}

// draw makes a tuple out of what a rule asks for.
func (w *author) draw(p *firewall.Policy, rule *firewall.Rule) (tuple, bool) {
	from, to := w.wanted(p, &rule.From), w.wanted(p, &rule.To)
	t, ok := w.drawService(rule.Services)
	if !ok {
		return t, false
	}
	family := uint8(4 + 2*w.r.IntN(2))
	switch t.proto {
	case protoICMP, protoAH: // in IPv6, AH is an extension header
		family = 4
	case protoICMPv6:
		family = 6
	}
	src, ok := from.address(w, family)
	seg := w.segmentIn(from.zones)
	if ok {
		if at := w.segmentOf(src); at != nil && w.r.IntN(4) > 0 {
			seg = at
		}
	} else if len(from.ranges) > 0 {
		return t, false
	} else {
		src = seg.host(w.r, family)
	}
	if seg.peer == -2 {
		return t, false
	}
	dst, ok := to.address(w, family)
	if !ok && len(to.ranges) > 0 {
		return t, false
	}
	if !ok {
		far := w.segmentIn(to.zones)
		if seg.peer >= 0 {
			far = &w.segments[seg.peer]
		}
		dst = far.host(w.r, family)
		if slices.Contains(to.zones, firewall.NameHost) && seg.peer == -1 {
			dst = seg.gateway()[family/6].Addr()
		}
	}
	mac := seg.macs[w.r.IntN(len(seg.macs))]
	if len(from.macs) > 0 && w.r.IntN(8) > 0 {
		mac = from.macs[w.r.IntN(len(from.macs))]
	}
	t.a = station{port: seg.port, vlan: seg.vlan, mac: mac, addr: src}
	t.b = station{addr: dst}
	return t, src != dst
}

// wanted is what a selector would like an endpoint to be.
type wanted struct {
	zones  []string
	ranges [][2]netip.Addr
	macs   []firewall.MAC
}

func (w *author) wanted(p *firewall.Policy, s *firewall.Selector) wanted {
	want := wanted{zones: slices.Clone(s.Zones)}
	for _, r := range s.Addresses {
		want.ranges = append(want.ranges, [2]netip.Addr{r.First, r.Last})
	}
	for i := range p.Sets {
		if slices.Contains(s.Sets, p.Sets[i].Name) {
			want.macs = append(want.macs, p.Sets[i].MACs...)
			for _, r := range p.Sets[i].Prefixes {
				want.ranges = append(want.ranges, [2]netip.Addr{r.First, r.Last})
			}
		}
	}
	for i := range p.Workloads {
		load := &p.Workloads[i]
		labelled := len(s.Labels) > 0
		for k, v := range s.Labels {
			labelled = labelled && load.Labels[k] == v
		}
		if !labelled && !slices.Contains(s.Workloads, load.Name) {
			continue
		}
		want.macs = append(want.macs, load.MACs...)
		if len(s.Zones) == 0 {
			want.zones = append(want.zones, load.Zones...)
		}
		for _, r := range load.Addresses {
			want.ranges = append(want.ranges, [2]netip.Addr{r.First, r.Last})
		}
	}
	if len(want.macs) > 0 && w.r.IntN(2) == 0 {
		want.ranges = nil
	}
	return want
}

// address draws one of the ranges' edges or an address near the first; false if there is none of the
// family.
func (want *wanted) address(w *author, family uint8) (netip.Addr, bool) {
	if len(want.ranges) == 0 {
		return netip.Addr{}, false
	}
	r := want.ranges[w.r.IntN(len(want.ranges))]
	if r[0].Is4() != (family == 4) {
		return netip.Addr{}, false
	}
	switch w.r.IntN(8) {
	case 0:
		return r[0], true
	case 1:
		return r[1], true
	}
	b := r[0].AsSlice()
	if w.r.IntN(2) == 0 && family == 4 {
		b[2] += byte(w.r.IntN(5))
	}
	b[len(b)-1] += byte(w.r.IntN(120))
	a, _ := netip.AddrFromSlice(b)
	if a.Less(r[0]) || r[1].Less(a) {
		return r[0], true
	}
	return a, true
}

// segmentIn draws a segment of one of the zones, or any.
func (w *author) segmentIn(zones []string) *segment {
	first := w.r.IntN(len(w.segments))
	for i := range w.segments {
		s := &w.segments[(first+i)%len(w.segments)]
		if slices.Contains(zones, s.zone) {
			return s
		}
	}
	return &w.segments[first]
}

var queries = []uint16{8 << 8, 13 << 8, 128 << 8}

// drawService draws protocol and ports; false if an ICMP service holds no query.
func (w *author) drawService(services []firewall.ServiceMatch) (tuple, bool) {
	t := tuple{sport: uint16(1024 + w.r.IntN(64000)), dport: uint16(1 + w.r.IntN(65535))}
	if len(services) == 0 {
		t.proto = []uint8{protoTCP, protoTCP, protoUDP, protoUDP, protoICMP, protoICMPv6, protoGRE, protoESP, protoSCTP, 99}[w.r.IntN(10)]
		switch t.proto {
		case protoICMP:
			t.dport = queries[w.r.IntN(2)]
		case protoICMPv6:
			t.dport = queries[2]
		}
		return t, true
	}
	s := &services[w.r.IntN(len(services))]
	t.proto = s.Proto.First
	if t.proto == protoICMP || t.proto == protoICMPv6 {
		start := w.r.IntN(len(queries))
		for i := range queries {
			q := queries[(start+i)%len(queries)]
			if (q == 128<<8) != (t.proto == protoICMPv6) {
				continue
			}
			for _, r := range s.DstPorts {
				if r.First <= q && q <= r.Last {
					t.dport = q
					return t, true
				}
			}
		}
		return t, false
	}
	pick := func(first, last uint16) uint16 {
		switch w.r.IntN(4) {
		case 0:
			return first
		case 1:
			return last
		}
		return first + uint16(w.r.IntN(int(last-first)+1))
	}
	if len(s.SrcPorts) == 0 || len(s.DstPorts) == 0 {
		return t, false
	}
	if r := s.SrcPorts[w.r.IntN(len(s.SrcPorts))]; r.First != 0 || r.Last != 65535 {
		t.sport = pick(r.First, r.Last)
	}
	r := s.DstPorts[w.r.IntN(len(s.DstPorts))]
	t.dport = pick(r.First, r.Last)
	return t, true
}
