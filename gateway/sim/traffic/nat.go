package traffic

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/gateway/sim/oracle"
)

// devices gives segments the addresses that masquerading uses, but for some: the last one has none of IPv6.
func (l *layout) devices(r *rand.Rand) {
	defer func() { l.world.Devices[len(l.world.Devices)-1].IP6 = netip.Addr{} }()
	for i := range l.segments {
		s := &l.segments[i]
		if s.peer != -1 {
			continue
		}
		d := oracle.Device{Port: s.port, VLAN: s.vlan}
		own := s.gateway()
		if !chance(r, 6) {
			d.IP4 = own[0].Addr()
		}
		if !chance(r, 6) {
			d.IP6 = own[1].Addr()
		}
		l.world.Devices = append(l.world.Devices, d)
	}
}

// routedSegment draws one; there must be some.
func (w *author) routedSegment() *segment {
	for {
		if s := w.segment(); s.peer == -1 {
			return s
		}
	}
}

func (w *author) routedZone() string { return w.routedSegment().zone }

// server writes an address that a flow may be sent to, one time in ten one that no flow may.
func (w *author) server(family uint8) string {
	s := w.routedSegment()
	if chance(w.r, 10) {
		return s.gateway()[family/6].Addr().String()
	}
	return s.host(w.r, family).String()
}

// natRule writes one rule of translation.
func (w *author) natRule() string {
	w.translated++
	name := fmt.Sprintf("n%03d", w.translated)
	family := uint8(4 + 2*w.r.IntN(2))
	from, to := w.natFrom(), w.natTo()
	what, service := "", ""
	if chance(w.r, 4) {
		service = ", service: " + w.natService()
	}
	switch w.r.IntN(10) {
	case 0:
		what = "keep: true"
	case 1, 2, 3:
		what = "masquerade: {" + strings.TrimPrefix(w.natPorts()+w.mapping()+w.natLimit(), ", ") + "}"
	case 4, 5:
		what = "snat: {addresses: " + w.pool(family) + w.natPorts() + w.mapping() + w.natLimit() + "}"
	case 6, 7, 8:
		to = w.natDestination(family)
		what, service = w.dnat(family)
	default:
		from, service = w.routedZone(), ""
		what = w.prefix(family)
	}
	return fmt.Sprintf("{name: %s, from: %s, to: %s%s, %s}", name, from, to, service, what)
}

func (w *author) natFrom() string {
	switch w.r.IntN(6) {
	case 0:
		return "any"
	case 1:
		return w.list(1+w.r.IntN(2), w.address)
	case 2:
		return fmt.Sprintf("{set: nets%d}", w.r.IntN(setCount))
	}
	return w.routedZone()
}

func (w *author) natTo() string {
	switch w.r.IntN(5) {
	case 0:
		return "any"
	case 1:
		return fmt.Sprintf("{zone: %s, addresses: %s}", w.routedZone(), w.list(1+w.r.IntN(2), w.address))
	}
	return w.routedZone()
}

func (w *author) natDestination(family uint8) string {
	s := w.routedSegment()
	net := 1 + w.r.IntN(4)
	switch {
	case chance(w.r, 4):
		return "host"
	case family == 4:
		return fmt.Sprintf("[10.%d.%d.0/25]", s.number(), net)
	}
	return fmt.Sprintf(`["fd00:%x:%x::/48"]`, s.number(), net)
}

func (w *author) natService() string {
	return w.one("tcp", "udp", "icmp", "icmpv6", "[tcp, udp]", "gre", "tcp/1-1023", "udp/53")
}

// natPorts writes which ports a rule chooses among, few of them now and then.
func (w *author) natPorts() string {
	if !chance(w.r, 3) {
		return ""
	}
	first := 1024 + w.r.IntN(60000)
	return fmt.Sprintf(", ports: %d-%d", first, first+[]int{0, 3, 15, 200, 4000}[w.r.IntN(5)])
}

// natLimit writes how many flows a source may have, few of them, now and then.
func (w *author) natLimit() string {
	if !chance(w.r, 4) {
		return ""
	}
	return fmt.Sprintf(", source_limit: %d", 1+w.r.IntN(12))
}

// otherLimit gives a rule that masquerades, whose limit stands last, another limit now and then, its first one or none: its flows stay.
func (w *author) otherLimit(rule string) string {
	before, limit, limited := strings.Cut(rule, "source_limit: ")
	switch {
	case !chance(w.r, 4) || !strings.Contains(rule, "masquerade: {"):
		return rule
	case limited && chance(w.r, 2):
		before = strings.TrimSuffix(before, ", ")
		return before + limit[strings.Index(limit, "}"):]
	case limited:
		return fmt.Sprintf("%ssource_limit: %d%s", before, 1+w.r.IntN(12), limit[strings.Index(limit, "}"):])
	}
	return strings.Replace(rule, "masquerade: {", fmt.Sprintf("masquerade: {source_limit: %d, ", 1+w.r.IntN(12)), 1)
}

// mapping writes what a rule that chooses ports says of mappings: all of a stream have them or none, since they
// share addresses.
func (w *author) mapping() string {
	if !w.maps {
		return w.one("", ", mapping: address-and-port-dependent, filtering: address-and-port-dependent")
	}
	return ", mapping: endpoint-independent" + w.one("", ", filtering: endpoint-independent", ", filtering: endpoint-independent", ", filtering: address-dependent")
}

func (w *author) pool(family uint8) string {
	n := w.r.IntN(200)
	if family == 4 {
		return fmt.Sprintf("[203.0.113.%d-203.0.113.%d]", n+1, n+1+w.r.IntN(4))
	}
	return fmt.Sprintf(`["2001:db8:ff::%x-2001:db8:ff::%x"]`, n+1, n+1+w.r.IntN(4))
}

func (w *author) dnat(family uint8) (what, service string) {
	port := func() string { return "" }
	if chance(w.r, 2) {
		service = ", service: " + w.one("tcp", "udp", "[tcp/any, udp/any]")
		port = func() string {
			if chance(w.r, 3) {
				return ""
			}
			return ", port: " + w.one("80", "443", "8080", "53")
		}
	} else if chance(w.r, 3) {
		service = ", service: " + w.natService()
	}
	options := ""
	if chance(w.r, 4) {
		options += ", hairpin: false"
	}
	if chance(w.r, 3) {
		options += ", spread: connection"
	}
	if chance(w.r, 2) {
		return "dnat: {to: " + quoted(w.server(family)) + port() + options + "}", service
	}
	var servers []string
	seen := map[string]bool{}
	for range 1 + w.r.IntN(4) {
		a := w.server(family)
		if seen[a] {
			continue
		}
		seen[a] = true
		s := "{address: " + quoted(a) + port()
		if chance(w.r, 3) {
			s += fmt.Sprintf(", weight: %d", 1+w.r.IntN(5))
		}
		if chance(w.r, 5) {
			s += ", drain: true"
		}
		servers = append(servers, s+"}")
	}
	return "dnat: {servers: [" + strings.Join(servers, ", ") + "]" + options + "}", service
}

func quoted(a string) string { return `"` + a + `"` }

func (w *author) prefix(family uint8) string {
	n, net := w.routedSegment().number(), 1+w.r.IntN(4)
	if family == 4 {
		bits := []int{24, 25, 28, 32}[w.r.IntN(4)]
		inside := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, n, byte(net), byte(w.r.IntN(120))}), bits).Masked()
		outside := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(w.r.IntN(250))}), bits).Masked()
		return fmt.Sprintf("prefix: {inside: %s, outside: %s}", inside, outside)
	}
	bits := []int{32, 40, 48, 52, 56, 64}[w.r.IntN(6)]
	inside := netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:%x:%x::", n, net)), bits).Masked()
	outside := netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:ff:%x::", w.r.IntN(1<<16))), bits).Masked()
	return fmt.Sprintf(`prefix: {inside: "%s", outside: "%s"}`, inside, outside)
}

// toGateway writes a rule that sends flows where none may be sent.
func (w *author) toGateway() string {
	s := w.routedSegment()
	w.translated++
	return fmt.Sprintf("{name: n%03d, from: any, to: [10.%d.4.200-10.%d.4.203], dnat: {to: %s}}", w.translated, s.number(), s.number(), s.gateway()[0].Addr())
}

// natRules drops some of the rules of the policy before and adds others.
func (w *author) natRules(old []string) []string {
	var rules []string
	for _, rule := range old {
		if !chance(w.r, 4) {
			rules = append(rules, w.otherLimit(rule))
		}
	}
	if len(old) == 0 {
		rules = w.usualRules()
	}
	for want := 5 + w.r.IntN(12); len(rules) < want; {
		at := w.r.IntN(len(rules) + 1)
		rules = append(rules[:at], append([]string{w.natRule()}, rules[at:]...)...)
	}
	return rules
}

// usualRules are those that a stream begins with: without them some refusals would be rare.
func (w *author) usualRules() []string {
	var all []string
	few := w.r.IntN(60000) + 1024
	for i := range w.segments {
		if s := &w.segments[i]; s.peer == -1 {
			all = append(all, fmt.Sprintf("{name: few%d, from: any, to: %s, service: [udp, icmp, icmpv6], masquerade: {ports: %d-%d%s}}", i, s.zone, few, few+2, w.mapping()))
			break
		}
	}
	all = append(all, w.toGateway())
	all = append(all, fmt.Sprintf("{name: shy, from: any, to: %s, service: [tcp/1-1023, udp/53, gre], masquerade: {%s}}", w.routedZone(), strings.TrimPrefix(fmt.Sprintf("%s, source_limit: %d", w.mapping(), 1+w.r.IntN(6)), ", ")))
	for i, zone := range w.zones {
		if slices.ContainsFunc(w.segments, func(s segment) bool { return s.zone == zone && s.peer == -1 }) {
			all = append(all, fmt.Sprintf("{name: out%d, from: any, to: %s, masquerade: {%s}}", i, zone, strings.TrimPrefix(w.mapping(), ", ")))
		}
	}
	return all
}
