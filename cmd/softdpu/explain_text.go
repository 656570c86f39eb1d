package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
)

// ruleLines returns the lines of a rule from that of its name to where the next rule begins.
func ruleLines(file string, line int) []string {
	const most = 12
	b, err := firewall.ReadFile(file)
	if err != nil {
		return nil // it was there when the policy was read; the place is known all the same
	}
	lines := strings.Split(strings.ReplaceAll(string(b), "\r\n", "\n"), "\n")
	if line < 1 || line > len(lines) {
		return nil
	}
	indent := func(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }
	item := func(s string) bool { return strings.HasPrefix(strings.TrimLeft(s, " "), "- ") }
	first := lines[line-1]
	least := indent(first) // of the lines that belong to it
	if item(first) {
		least++
	}
	out := []string{first}
	for _, l := range lines[line:] {
		if strings.TrimSpace(l) == "" || indent(l) < least || indent(l) == least && item(l) || len(out) == most {
			break
		}
		out = append(out, l)
	}
	return out
}

// text is the explanation for people.
func (x *explanation) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n\n", x.Verdict, x.Says)
	fmt.Fprintf(&b, "  packet  %s\n", x.Packet)
	fmt.Fprintf(&b, "  from    %s\n", x.From)
	fmt.Fprintf(&b, "  to      %s\n", x.To)
	if x.NAT != nil {
		b.WriteString(x.NAT.text())
	}
	for _, a := range x.Audit {
		fmt.Fprintf(&b, "  audit   rule %q, %s:%d would %s it\n", a.Rule, a.File, a.Line, a.Action)
	}
	if len(x.Why) > 0 {
		fmt.Fprintf(&b, "  tier    %s: %s; without one on_failure: %s\n", x.Tier, strings.Join(x.Why, ", "), x.OnFailure)
	}
	if x.expires != "" {
		fmt.Fprintf(&b, "  until   %s\n", x.expires)
	}
	if len(x.Source) > 0 {
		fmt.Fprintln(&b)
	}
	for i, line := range x.Source {
		fmt.Fprintf(&b, "  %*d | %s\n", len(strconv.Itoa(x.Line+len(x.Source)-1)), x.Line+i, printable(line))
	}
	if x.Remedy != "" {
		fmt.Fprintf(&b, "\nThis rule would allow it:\n  %s\n", x.Remedy)
	}
	return b.String()
}

// String writes the packet in one line.
func (p explainedPacket) String() string {
	switch {
	case p.Type != nil:
		return fmt.Sprintf("%s type %d code %d, %s -> %s", p.Proto, *p.Type, *p.Code, p.SrcIP, p.DestIP)
	case p.SrcPort != 0 || p.DstPort != 0:
		return fmt.Sprintf("%s %s -> %s", p.Proto, joinHostPort(p.SrcIP, p.SrcPort), joinHostPort(p.DestIP, p.DstPort))
	}
	return fmt.Sprintf("%s %s -> %s", p.Proto, p.SrcIP, p.DestIP)
}

// String writes zone, port and workloads of an end.
func (e explainedEnd) String() string {
	s := "zone " + e.Zone
	if e.Port != "" {
		s += ", port " + e.Port
	}
	if e.VLAN != 0 {
		s += fmt.Sprintf(", VLAN %d", e.VLAN)
	}
	for _, w := range e.Workloads {
		s += ", workload " + w
	}
	return s
}

func joinHostPort(host string, port uint16) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(port))
}

// protocols are the names of IP protocols as policies write them.
var protocolNames = map[uint8]string{
	packet.ProtoICMP: "icmp", packet.ProtoTCP: "tcp", packet.ProtoUDP: "udp", packet.ProtoGRE: "gre", packet.ProtoESP: "esp",
	packet.ProtoAH: "ah", packet.ProtoICMPv6: "icmpv6", packet.ProtoSCTP: "sctp",
}

// protocol names an IP protocol; one without a name is its number.
func protocol(number uint8) string {
	if name := protocolNames[number]; name != "" {
		return name
	}
	return strconv.Itoa(int(number))
}

// printable replaces what would move the cursor.
func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, line)
}
