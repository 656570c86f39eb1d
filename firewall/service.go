package firewall

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/firewall/mistake"
	"github.com/softdpu/softdpu/flowtable"
)

// IP protocol numbers that the language knows by name.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoGRE    = 47
	protoESP    = 50
	protoAH     = 51
	protoICMPv6 = 58
	protoSCTP   = 132
)

var protoNumbers = map[string]uint8{
	"icmp": protoICMP, "tcp": protoTCP, "udp": protoUDP, "gre": protoGRE,
	"esp": protoESP, "ah": protoAH, "icmpv6": protoICMPv6, "sctp": protoSCTP,
}

var icmpTypes = map[string]uint8{
	"echo-reply": 0, "destination-unreachable": 3, "redirect": 5, "echo-request": 8,
	"time-exceeded": 11, "parameter-problem": 12, "timestamp-request": 13, "timestamp-reply": 14,
}

var icmpv6Types = map[string]uint8{
	"destination-unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4,
	"echo-request": 128, "echo-reply": 129, "router-solicitation": 133, "router-advertisement": 134,
	"neighbour-solicitation": 135, "neighbour-advertisement": 136, "redirect": 137,
}

var anyPort = []flowtable.U16Range{{First: 0, Last: 65535}}

// queryTypes are the ICMP types that a rule can ever decide about; all others are errors and replies,
// which follow the flow that they speak of, or neighbour discovery, or refused.
var queryTypes = map[uint8][]uint8{protoICMP: {8, 13}, protoICMPv6: {128}}

// isLiteral reports whether a word is read as a literal and not as the name of a service.
func isLiteral(text string) bool {
	proto, _, slash := strings.Cut(text, "/")
	_, known := protoNumbers[proto]
	return slash || known
}

// parseService reads a literal such as tcp/443, icmp/echo-request, esp or proto/47. The second value
// is the remedy where the third says that the text is wrong.
func parseService(text string) (ServiceMatch, string, error) {
	name, rest, slash := strings.Cut(text, "/")
	m := ServiceMatch{SrcPorts: anyPort, DstPorts: anyPort, Text: text}
	if name == "proto" {
		n, err := strconv.ParseUint(rest, 10, 8)
		if err != nil {
			return m, "write a protocol number from 0 to 255, as in proto/47", fmt.Errorf("%q is not a protocol", text)
		}
		m.Proto = flowtable.U8Range{First: uint8(n), Last: uint8(n)}
		return m, "", nil
	}
	number, known := protoNumbers[name]
	if !known {
		hint := "write it as in tcp/443, udp/53, icmp/echo-request, esp or proto/47"
		if near := mistake.Nearest(name, protoNames()); near != "" {
			hint = fmt.Sprintf("did you mean %q?", strings.TrimSuffix(near+"/"+rest, "/"))
		}
		return m, hint, fmt.Errorf("unknown protocol %q", name)
	}
	m.Proto = flowtable.U8Range{First: number, Last: number}
	switch number {
	case protoTCP, protoUDP:
		if !slash || rest == "any" {
			return m, "", nil
		}
		ports, hint, err := parsePorts(rest)
		m.DstPorts = []flowtable.U16Range{ports}
		return m, hint, err
	case protoICMP, protoICMPv6:
		types := icmpTypes
		m.Family = 4
		if number == protoICMPv6 {
			types, m.Family = icmpv6Types, 6
		}
		if !slash || rest == "any" {
			return m, "", nil
		}
		r, hint, err := parseICMPType(name, rest, types)
		m.DstPorts = []flowtable.U16Range{r}
		return m, hint, err
	}
	if slash && number == protoSCTP {
		return m, "write sctp", fmt.Errorf("ports are not available for sctp yet")
	}
	if slash {
		return m, "write " + name, fmt.Errorf("%s has no ports", name)
	}
	return m, "", nil
}

func protoNames() []string {
	return append(slices.Sorted(maps.Keys(protoNumbers)), "proto")
}

// parsePorts reads a port or a first-last range.
func parsePorts(text string) (flowtable.U16Range, string, error) {
	const remedy = "write a port from 0 to 65535, or a range as in 1000-2000"
	first, last, isRange := strings.Cut(text, "-")
	a, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return flowtable.U16Range{}, remedy, fmt.Errorf("%q is not a port", text)
	}
	if !isRange {
		return flowtable.U16Range{First: uint16(a), Last: uint16(a)}, "", nil
	}
	b, err := strconv.ParseUint(last, 10, 16)
	if err != nil {
		return flowtable.U16Range{}, remedy, fmt.Errorf("%q is not a port range", text)
	}
	if b < a {
		return flowtable.U16Range{}, fmt.Sprintf("write %d-%d", b, a), fmt.Errorf("port range %q ends before it begins", text)
	}
	return flowtable.U16Range{First: uint16(a), Last: uint16(b)}, "", nil
}

// parseICMPType reads type or type/code as a range of type << 8 | code.
func parseICMPType(proto, text string, types map[string]uint8) (flowtable.U16Range, string, error) {
	name, code, hasCode := strings.Cut(text, "/")
	number, known := types[name]
	if !known {
		n, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			names := slices.Sorted(maps.Keys(types))
			hint := "write a number from 0 to 255 or one of: " + strings.Join(names, ", ")
			if near := mistake.Nearest(name, names); near != "" {
				hint = fmt.Sprintf("did you mean %q?", proto+"/"+near)
			}
			return flowtable.U16Range{}, hint, fmt.Errorf("unknown %s type %q", proto, name)
		}
		number = uint8(n)
	}
	if !hasCode {
		return flowtable.U16Range{First: uint16(number) << 8, Last: uint16(number)<<8 | 255}, "", nil
	}
	c, err := strconv.ParseUint(code, 10, 8)
	if err != nil {
		return flowtable.U16Range{}, "write a number from 0 to 255", fmt.Errorf("%q is not an %s code", code, proto)
	}
	v := uint16(number)<<8 | uint16(c)
	return flowtable.U16Range{First: v, Last: v}, "", nil
}

// undecided reports whether m speaks only of ICMP packets that no rule is ever asked about.
func (m *ServiceMatch) undecided() bool {
	types, icmp := queryTypes[m.Proto.First]
	if !icmp || m.Proto.First != m.Proto.Last {
		return false
	}
	for _, r := range m.DstPorts {
		for _, t := range types {
			if r.First <= uint16(t)<<8|255 && uint16(t)<<8 <= r.Last {
				return false
			}
		}
	}
	return true
}

// services reads a service: a name, a literal, a map, `any`, or a list of these. Names are looked up
// in the policy unless declaring, when only literals and maps may stand there. Any is nil. Where each is said is in l.at.
func (l *loader) services(n *Node, declaring bool) []ServiceMatch {
	out := []ServiceMatch{}
	l.at = l.at[:0]
	items := l.List(n)
	for _, item := range items {
		switch {
		case item.Kind == MapNode:
			if m, ok := l.serviceMap(item); ok {
				out, l.at = append(out, m), append(l.at, item.Pos)
			}
		case item.Kind == ScalarNode && item.Text == NameAny:
			if declaring {
				l.Fail(item.Pos.Errorf("a service cannot be any").WithHint("leave `service` out of the rule"))
				continue
			}
			if len(items) > 1 {
				l.Fail(item.Pos.Errorf("any beside other services").WithHint("any alone already holds the others"))
			}
			return nil
		default:
			text, ok := l.Text(item, "a service")
			if !ok {
				continue
			}
			if !isLiteral(text) {
				if declaring {
					_, hint, err := parseService(text)
					l.Fail(item.Pos.Errorf("%v", err).WithHint("%s", hint))
				} else {
					out = append(out, l.serviceByName(item, text)...)
				}
				continue
			}
			m, hint, err := l.literal(text)
			if err != nil {
				l.Fail(item.Pos.Errorf("%v", err).WithHint("%s", hint))
				continue
			}
			l.warnUndecided(&m, item.Pos)
			out, l.at = append(out, m), append(l.at, item.Pos)
		}
	}
	if len(items) == 0 {
		l.Fail(n.Pos.Errorf("an empty list of services matches nothing").WithHint("name one, or leave `service` out for any"))
	}
	return out
}

// literal is parseService, once for each text.
func (l *loader) literal(text string) (ServiceMatch, string, error) {
	if m, known := l.literals[text]; known {
		return m, "", nil
	}
	text = strings.Clone(text)
	m, hint, err := parseService(text)
	if err == nil && l.literals != nil {
		l.literals[text] = m
	}
	return m, hint, err
}

// shared returns ports that are the same memory wherever they are read.
func (l *loader) shared(ports []flowtable.U16Range) []flowtable.U16Range {
	if len(ports) != 1 || l.ranges == nil {
		return ports
	}
	if known := l.ranges[ports[0]]; known != nil {
		return known
	}
	l.ranges[ports[0]] = ports
	return ports
}

func (l *loader) warnUndecided(m *ServiceMatch, at Pos) {
	if m.undecided() {
		l.warn(at.Errorf("no rule is asked about %s", m.Text).
			WithHint("ICMP errors and replies follow the flow that they speak of; rules decide about echo-request (and IPv4 timestamp-request)"))
	}
}

func (l *loader) serviceByName(n *Node, name string) []ServiceMatch {
	if s, ok := l.serviceIndex[name]; ok {
		l.used["service "+name] = true
		l.at = append(l.at, l.policy.Services[s].at...)
		return l.policy.Services[s].Matches
	}
	known := append(slices.Sorted(maps.Keys(l.serviceIndex)), protoNames()...)
	l.Fail(Unknown(n.Pos, "service", name, known, "declare it under `services`, or write a literal such as tcp/443"))
	return nil
}

// serviceMap reads {proto, port, source_port}.
func (l *loader) serviceMap(n *Node) (ServiceMatch, bool) {
	before := len(l.Errs)
	f := l.Fields(n, "a service", keys["service"])
	m := ServiceMatch{SrcPorts: anyPort, DstPorts: anyPort, Text: "service"}
	proto := f["proto"]
	if proto == nil {
		if len(l.Errs) == before {
			l.Fail(n.Pos.Errorf("service without `proto`").WithHint("add proto: tcp or proto: udp"))
		}
		return m, false
	}
	text := l.Choice(proto, "proto", "tcp", "udp")
	number := protoNumbers[text]
	m.Proto, m.Text = flowtable.U8Range{First: number, Last: number}, text
	if p := f["port"]; p != nil {
		m.DstPorts, m.dst = l.ports(p, "port")
	}
	if p := f["source_port"]; p != nil {
		m.SrcPorts, m.src = l.ports(p, "source_port")
	}
	return m, len(l.Errs) == before
}

// ports reads a port, a range, {set: name} or a list of these, joined, and what it was made of if sets are among that.
func (l *loader) ports(n *Node, what string) (joined []flowtable.U16Range, from *portList) {
	out := []flowtable.U16Range{}
	var own []flowtable.U16Range
	var sets []string
	items := l.List(n)
	for _, item := range items {
		if item.Kind == MapNode {
			f := l.Fields(item, what, keys["port"])
			if f["set"] == nil {
				l.Fail(item.Pos.Errorf("%s names no set", what).WithHint("write a port, a range, or {set: NAME}"))
				continue
			}
			for _, s := range l.List(f["set"]) {
				if set := l.setByName(s, SetPort); set != nil {
					out = append(out, set.Ports...)
					sets = append(sets, set.Name)
				}
			}
			continue
		}
		text, ok := l.Text(item, what)
		if !ok {
			continue
		}
		if text == NameAny {
			out, own = append(out, anyPort...), append(own, anyPort...)
			continue
		}
		p, hint, err := parsePorts(text)
		if err != nil {
			l.Fail(item.Pos.Errorf("%v", err).WithHint("%s", hint))
			continue
		}
		out, own = append(out, p), append(own, p)
	}
	if len(items) == 0 {
		l.Fail(n.Pos.Errorf("an empty list of ports matches nothing").WithHint("leave `%s` out for any", what))
	}
	if len(sets) > 0 {
		from = &portList{own, sets}
	}
	return l.shared(joinPorts(out)), from
}
