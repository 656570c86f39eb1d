package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/firewall"
)

// Endpoint-independent mappings and what they let in, section 15.12.

// Mapping is what an end inside leaves as, by one rule.
type Mapping struct {
	Rule    string
	Proto   uint8
	Inside  netip.AddrPort // an ICMP identifier as port
	Outside netip.AddrPort
	To      string // zone to which it leads
}

// endpoint is one that a protocol has.
type endpoint struct {
	at    netip.AddrPort
	proto uint8
}

// peer is a host to which an end inside has sent.
type peer struct {
	inside endpoint
	host   netip.Addr
}

// mappings are all that there have been: they live as long as this knows of no time-out.
type mappings struct {
	all   []*Mapping
	at    map[endpoint]*Mapping // by what they leave as
	peers map[peer]bool
}

// Mappings returns those that there are, the oldest first.
func (o *Oracle) Mappings() []*Mapping { return o.mapped.all }

// Peers returns the hosts to which the end inside of a mapping has sent, as far as filtering asks, in order.
func (o *Oracle) Peers(of *Mapping) (hosts []netip.Addr) {
	for p := range o.mapped.peers {
		if p.inside == (endpoint{of.Inside, of.Proto}) {
			hosts = append(hosts, p.host)
		}
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	return hosts
}

// mappingOf returns the mapping that an end has for an address outside, nil if it has none.
func (o *Oracle) mappingOf(rule string, proto uint8, inside netip.AddrPort, outside netip.Addr) *Mapping {
	for _, m := range o.mapped.all {
		if m.Rule == rule && m.Proto == proto && m.Inside == inside && m.Outside.Addr() == outside {
			return m
		}
	}
	return nil
}

// mappingAt returns the mapping that leaves as an address and port, nil if none does.
func (o *Oracle) mappingAt(proto uint8, outside netip.AddrPort) *Mapping {
	return o.mapped.at[endpoint{outside, proto}]
}

// mapSource is step 5 for a rule with mapping.
func (o *Oracle) mapSource(p *packet, r *firewall.NATRule, t *translation, c *Choice, to string) string {
	switch {
	case t.outer == p.key():
		return ""
	case t.outer.src == t.outer.dst:
		return "nat-conflict"
	case o.hasEnough(p, r):
		return "nat-source-limit" // and what it would leave as is not made
	}
	inside := netip.AddrPortFrom(p.src, p.sport)
	m := o.mappingOf(r.Name, p.proto, inside, t.outer.src)
	port, made := uint16(0), false
	if t.outer.src.IsValid() && c != nil {
		port, made = c.Mapping(r.Name, p.proto, inside, t.outer.src)
	}
	switch {
	case m != nil && (!made || port != m.Outside.Port()):
		t.wrong = fmt.Sprintf("%s leaves as %s by rule %q, and the executor says port %d (%v)", inside, m.Outside, r.Name, port, made)
	case m != nil:
	case !made:
		if c.refused("nat-exhausted") && o.mayHaveNoPort(r, t.outer.src, p.proto) {
			return "nat-exhausted"
		}
		t.outer, t.wrong = p.key(), fmt.Sprintf("ports of rule %q are free for %s on %s, and no mapping was made", r.Name, inside, t.outer.src)
		return ""
	default:
		outside := netip.AddrPortFrom(t.outer.src, port)
		t.wrong = o.wrongMapping(r, inside.Port(), outside, p.proto)
		m = &Mapping{Rule: r.Name, Proto: p.proto, Inside: inside, Outside: outside, To: to}
		o.mapped.all, o.mapped.at[endpoint{outside, p.proto}] = append(o.mapped.all, m), m
		o.marks[mark{outside.Addr(), port, p.proto}] = true
		if o.device(outside.Addr()) {
			o.marks[mark{port: port, proto: p.proto}] = true
		}
	}
	t.outer.sport = m.Outside.Port()
	if r.Filtering == firewall.FilterAddress {
		o.mapped.peers[peer{endpoint{inside, p.proto}, t.outer.dst}] = true
	}
	return o.unchosen(p, r, t, c)
}

// wrongMapping says why a port may not be that of a new mapping, "" if it may.
func (o *Oracle) wrongMapping(r *firewall.NATRule, own uint16, outside netip.AddrPort, proto uint8) string {
	port, same := outside.Port(), markOf(r, key{src: outside.Addr(), sport: own, proto: proto})
	switch {
	case port < r.Ports.First || r.Ports.Last < port:
		return fmt.Sprintf("port %d is not of rule %q", port, r.Name)
	case port != own && r.Ports.First <= own && own <= r.Ports.Last && !o.marks[same]:
		return fmt.Sprintf("port %d became %d, and nobody has it on %s", own, port, outside.Addr())
	case o.mappingAt(proto, outside) != nil:
		return fmt.Sprintf("%s is another mapping's", outside)
	}
	return ""
}

// mayHaveNoPort reports whether each port of some address of the rule has been somebody's, or so many are
// mappings' that trying may have found no other.
func (o *Oracle) mayHaveNoPort(r *firewall.NATRule, outside netip.Addr, proto uint8) bool {
	all := func(a netip.Addr) bool {
		marked, used := true, 0
		for port := int(r.Ports.First); port <= int(r.Ports.Last); port++ {
			marked = marked && o.marks[markOf(r, key{src: a, sport: uint16(port), proto: proto})]
			if o.mappingAt(proto, netip.AddrPortFrom(a, uint16(port))) != nil {
				used++
			}
		}
		return marked || used >= tries
	}
	if r.Kind != firewall.NATSource || outside.IsValid() {
		return all(outside)
	}
	for a := r.Pool.First; between(r.Pool.First, a, r.Pool.Last); a = a.Next() {
		if all(a) {
			return true
		}
	}
	return false
}

// mappedAddress returns the address of the pool at which the executor has a mapping for a packet's source.
func mappedAddress(p *packet, r *firewall.NATRule, c *Choice) (netip.Addr, bool) {
	if c == nil || !r.Mapping {
		return netip.Addr{}, false
	}
	for a := r.Pool.First; between(r.Pool.First, a, r.Pool.Last); a = a.Next() {
		if _, made := c.Mapping(r.Name, p.proto, netip.AddrPortFrom(p.src, p.sport), a); made {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// admits returns the mapping that an opening packet is sent to, nil if there is none that lets it in.
func (o *Oracle) admits(p *packet) *Mapping {
	if p.proto != protoTCP && p.proto != protoUDP {
		return nil
	}
	m := o.mappingAt(p.proto, netip.AddrPortFrom(p.dst, p.dport))
	if m == nil {
		return nil
	}
	r := o.ruleOf(m)
	if r == nil || r.Kind == firewall.NATSource && r.Pool.First.Is4() != p.is4() {
		return nil
	}
	switch r.Filtering {
	case firewall.FilterNone:
		return m
	case firewall.FilterAddress:
		if o.mapped.peers[peer{endpoint{m.Inside, p.proto}, p.src}] {
			return m
		}
	}
	return nil
}

// inside is what rules judge of a packet that a mapping lets in: its end inside.
func (m *Mapping) inside(op Opening) Opening {
	if m != nil {
		op.Dst, op.DstPort = m.Inside.Addr(), m.Inside.Port()
	}
	return op
}

// hairpin returns the rule that the opener is behind itself, if it sends to a mapping on its own side of that.
func (o *Oracle) hairpin(m *Mapping, op Opening) *firewall.NATRule {
	if m == nil || op.From == m.To {
		return nil
	}
	op.To = m.To
	r := o.sourceRule(op)
	if r == nil || r.Kind != firewall.NATSource && (r.Kind != firewall.NATMasquerade || o.ruleOf(m).Kind != firewall.NATMasquerade) {
		return nil
	}
	return r
}

// ruleOf returns the policy's rule of a mapping, nil if there is none.
func (o *Oracle) ruleOf(m *Mapping) *firewall.NATRule {
	i := slices.IndexFunc(o.policy.NAT, func(r firewall.NATRule) bool { return r.Name == m.Rule })
	if i < 0 {
		return nil
	}
	return &o.policy.NAT[i]
}
