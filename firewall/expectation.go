package firewall

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/softdpu/softdpu/flowtable"
)

// defaultSourcePort is the source port of a test's TCP or UDP packet that names none: the first of
// the dynamic ports (RFC 6335).
const defaultSourcePort = 49152

// tests reads the packets that a policy is checked with.
func (l *loader) tests(n *Node) {
	if n.Kind != ListNode {
		l.Fail(n.Pos.Errorf("tests must be a list, not %s", n.Kind).WithHint("begin each test with: - name: NAME"))
		return
	}
	for _, item := range n.Items {
		f := l.Fields(item, "a test", keys["test"])
		if item.Kind != MapNode {
			continue
		}
		t := Test{Pos: item.Pos}
		if v := f["name"]; v == nil {
			l.Fail(item.Pos.Errorf("test without a name").WithHint("add name: what it shows"))
		} else {
			t.Pos = v.Pos
			t.Name, _ = l.Text(v, "name")
			for _, other := range l.policy.Tests {
				if other.Name == t.Name {
					l.Fail(v.Pos.Errorf("test %q exists already", t.Name).WithHint("first in %s", other.Pos))
				}
			}
		}
		if v := f["packet"]; v == nil {
			l.Fail(t.Pos.Errorf("test %q has no packet", t.Name).WithHint("add packet: {in: PORT, src: ADDRESS, dst: ADDRESS, service: tcp/443}"))
		} else {
			t.Packet = l.testPacket(v)
		}
		if v := f["expect"]; v == nil {
			l.Fail(t.Pos.Errorf("test %q expects nothing", t.Name).WithHint("add expect: {verdict: allow, rule: NAME}"))
		} else {
			t.Expect = l.testExpect(v)
		}
		l.policy.Tests = append(l.policy.Tests, t)
	}
}

func (l *loader) testExpect(n *Node) TestExpect {
	e := TestExpect{Pos: n.Pos}
	f := l.Fields(n, "expect", keys["expect"])
	if v := f["verdict"]; v != nil {
		e.Verdict = TestVerdict(l.Choice(v, "verdict", string(VerdictAllow), string(VerdictDeny), string(VerdictReject), string(VerdictDrop)))
	} else if n.Kind == MapNode {
		l.Fail(n.Pos.Errorf("expect does not say the verdict").WithHint("add verdict: allow, deny, reject, or drop for a spoofed source"))
	}
	if v := f["rule"]; v != nil {
		name, ok := l.Text(v, "rule")
		_, known := l.ruleIndex[name]
		if ok && !known && name != NameNone && name != builtinNames[RuleManagement] && name != builtinNames[RuleDHCPClient] {
			l.Fail(Unknown(v.Pos, "rule", name, append(slices.Sorted(maps.Keys(l.ruleIndex)), NameNone), "write the name of a rule, or none"))
		}
		e.Rule = name
	}
	if v := f["nat"]; v != nil {
		e.NAT = l.testNAT(v)
		if e.Verdict != VerdictAllow && e.Verdict != "" {
			l.Fail(v.Pos.Errorf("nat beside verdict %s", e.Verdict).WithHint("only what is allowed is translated; take nat out"))
		}
	}
	return e
}

func (l *loader) testPacket(n *Node) TestPacket {
	p := TestPacket{Pos: n.Pos}
	before := len(l.Errs)
	f := l.Fields(n, "a packet", keys["packet"])
	if n.Kind != MapNode {
		return p
	}
	for _, key := range []string{"in", "src", "dst"} {
		if f[key] == nil && len(l.Errs) == before {
			l.Fail(n.Pos.Errorf("packet does not say %s", key).WithHint("add %s: %s", key,
				map[string]string{"in": "the port that it arrives on", "src": "its source address", "dst": "its destination address"}[key]))
		}
	}
	if v := f["in"]; v != nil {
		p.In, p.InPos = l.testPort(v, "in"), v.Pos
		if p.In == NameHost && f["vlan"] != nil {
			l.Fail(f["vlan"].Pos.Errorf("a packet of the gateway itself has no VLAN"))
		}
	}
	if v := f["out"]; v != nil {
		p.Out, p.OutPos = l.testPort(v, "out"), v.Pos
	}
	for _, vlan := range []struct {
		key string
		to  *uint16
	}{{"vlan", &p.VLAN}, {"out_vlan", &p.OutVLAN}} {
		if v := f[vlan.key]; v != nil {
			id, _ := l.Int(v, vlan.key, 1, 4094)
			*vlan.to = uint16(id)
		}
	}
	p.Src, p.Dst = l.testAddress(f["src"]), l.testAddress(f["dst"])
	if p.Src.IsValid() && p.Dst.IsValid() && p.Src.Is4() != p.Dst.Is4() {
		l.Fail(f["dst"].Pos.Errorf("source and destination are of different families"))
	}
	if v := f["mac"]; v != nil {
		if text, ok := l.Text(v, "mac"); ok {
			m, hint, err := parseMAC(text)
			if err != nil {
				l.Fail(v.Pos.Errorf("%v", err).WithHint("%s", hint))
			}
			p.MAC = m
		}
	}
	l.testService(&p, n, f)
	return p
}

// testPort reads a port of some zone, a zone, or host.
func (l *loader) testPort(n *Node, what string) string {
	name, ok := l.Text(n, what)
	if !ok {
		return ""
	}
	known := l.zoneList()
	for i := range l.policy.Zones {
		known = append(known, l.policy.Zones[i].Ports...)
	}
	if !slices.Contains(known, name) {
		l.Fail(Unknown(n.Pos, "port", name, known, "no zone has it"))
	}
	return name
}

func (l *loader) testAddress(n *Node) netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	text, ok := l.Text(n, "an address")
	if !ok {
		return netip.Addr{}
	}
	a, _, err := parseAddress(text)
	if err != nil {
		l.Fail(n.Pos.Errorf("%v", err).WithHint("a test's packet has one source and one destination address"))
		return netip.Addr{}
	}
	return a
}

// testService fills in protocol and ports.
func (l *loader) testService(p *TestPacket, n *Node, f map[string]*Node) {
	m := ServiceMatch{SrcPorts: anyPort, DstPorts: anyPort}
	at := n
	switch service, proto := f["service"], f["proto"]; {
	case service != nil && proto != nil:
		l.Fail(proto.Pos.Errorf("packet has both service and proto").WithHint("leave one of them out"))
		return
	case service != nil:
		before := len(l.Errs)
		matches := l.services(service, false)
		if len(l.Errs) > before {
			return
		}
		if d := f["dport"]; d != nil && len(matches) > 1 {
			matches = slices.DeleteFunc(slices.Clone(matches), func(m ServiceMatch) bool { return !holdsPort(m.DstPorts, d.Text) })
		}
		if len(matches) != 1 {
			l.Fail(service.Pos.Errorf("a packet has one protocol, and this service has %d alternatives", len(matches)).
				WithHint("write a literal such as tcp/443"))
			return
		}
		m, at = matches[0], service
	case proto != nil:
		text, ok := l.Text(proto, "proto")
		if !ok {
			return
		}
		if _, err := strconv.ParseUint(text, 10, 8); err == nil {
			text = "proto/" + text
		}
		match, hint, err := parseService(text)
		if err != nil {
			l.Fail(proto.Pos.Errorf("%v", err).WithHint("%s", hint))
			return
		}
		m, at = match, proto
	default:
		l.Fail(n.Pos.Errorf("packet says neither service nor proto").WithHint("add service: tcp/443, or proto: 47"))
		return
	}
	p.Proto = m.Proto.First
	v4 := p.Src.Is4()
	if p.Src.IsValid() && (m.Family == 4 || p.Proto == protoICMP) && !v4 {
		l.Fail(at.Pos.Errorf("icmp between IPv6 addresses").WithHint("write icmpv6"))
	} else if p.Src.IsValid() && (m.Family == 6 || p.Proto == protoICMPv6) && v4 {
		l.Fail(at.Pos.Errorf("icmpv6 between IPv4 addresses").WithHint("write icmp"))
	}
	switch p.Proto {
	case protoTCP, protoUDP:
		p.SrcPort = l.testPortNumber(f["sport"], "sport", m.SrcPorts, at, defaultSourcePort)
		p.DstPort = l.testPortNumber(f["dport"], "dport", m.DstPorts, at, -1)
		return
	case protoICMP:
		p.DstPort = testICMP(m.DstPorts, 8<<8)
	case protoICMPv6:
		p.DstPort = testICMP(m.DstPorts, 128<<8)
	}
	for _, key := range []string{"sport", "dport"} {
		if f[key] != nil {
			l.Fail(f[key].Pos.Errorf("%s on a packet without ports", key).WithHint("only TCP and UDP have ports"))
		}
	}
}

func holdsPort(ports []flowtable.U16Range, text string) bool {
	v, err := strconv.ParseUint(text, 10, 16)
	return err == nil && slices.ContainsFunc(ports, func(r flowtable.U16Range) bool { return r.First <= uint16(v) && uint16(v) <= r.Last })
}

// testPortNumber returns the port that is given, or the only one of the service, or otherwise.
func (l *loader) testPortNumber(n *Node, key string, of []flowtable.U16Range, at *Node, otherwise int) uint16 {
	if n != nil {
		v, ok := l.Int(n, key, 0, 65535)
		if ok && !holdsPort(of, n.Text) {
			l.Fail(n.Pos.Errorf("%s %d is not of the packet's service", key, v).WithHint("leave %s out, or say proto instead of service", key))
		}
		return uint16(v)
	}
	if len(of) == 1 && of[0].First == of[0].Last {
		return of[0].First
	}
	if otherwise < 0 {
		l.Fail(at.Pos.Errorf("packet has one destination port, and this service has many").WithHint("add dport: PORT"))
		return 0
	}
	if len(of) > 0 && (otherwise < int(of[0].First) || int(of[0].Last) < otherwise) {
		return of[0].First
	}
	return uint16(otherwise)
}

// testICMP returns type << 8 | code of a packet: the first that the service holds, or otherwise if it
// holds all.
func testICMP(of []flowtable.U16Range, otherwise uint16) uint16 {
	if len(of) == 1 && of[0] != anyPort[0] {
		return of[0].First
	}
	return otherwise
}
