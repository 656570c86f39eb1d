package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim"
)

// explainedNAT is what the policy's nat rules make of the packet's flow.
type explainedNAT struct {
	Destination explainedSide `json:"destination"`
	Source      explainedSide `json:"source"`
}

// explainedSide is what becomes of one end.
type explainedSide struct {
	Rule  string         `json:"rule,omitempty"` // that matched; absent if none did
	Kind  string         `json:"kind,omitempty"` // of the rule
	File  string         `json:"file,omitempty"`
	Line  int            `json:"line,omitempty"`
	IP    string         `json:"ip,omitempty"` // what it becomes; absent if it stays, or is one of several, or not known here
	Port  uint16         `json:"port,omitempty"`
	OneOf []string       `json:"one_of,omitempty"` // servers, or first and last address of a pool
	Ports string         `json:"ports,omitempty"`  // that a source port or identifier is chosen from when the flow opens
	Says  string         `json:"explanation"`
	Asked []explainedNot `json:"not_matched,omitempty"` // rules of the list that were asked before, or all if none matched

	conflict bool // the rule cannot translate this address
	exempt   bool // no rule is asked
}

type explainedNot struct {
	Rule string `json:"rule"`
	File string `json:"file"`
	Line int    `json:"line"`
	Why  string `json:"why"`
	ways int    // in which the packet is another
}

// translate fills in what becomes of both ends, if the policy has nat rules. It is asked behind judge.
func (x *explanation) translate(o *offline, p *firewall.TestPacket) {
	c := o.compiled
	if len(o.policy.NAT) == 0 || x.Reason == bpf.XDPReasonREASON_MARTIAN.String() {
		return
	}
	x.NAT = &explainedNAT{}
	destination, source := &x.NAT.Destination, &x.NAT.Source
	from, to := slices.Index(c.Zones, x.From.Zone), slices.Index(c.Zones, x.To.Zone)
	switch {
	case x.From.Zone == firewall.NameHost:
		destination.Says, source.Says = "stays: what the gateway itself sends is not translated", "stays"
		return
	case o.peerOf(p.In) != "":
		destination.Says, source.Says = "stays: inline ports pass packets on as they are", "stays"
		return
	case c.NAT == nil:
		destination.Says, source.Says = "stays: no nat rule can match", "stays"
		return
	}
	t := c.TranslateDestination(p, uint8(from), o.local(p))
	destination.asked(c, t.DestinationRule, t.DestinationMisses)
	destination.exempt = t.Exempt
	destination.becomes(o, p, &t)
	if destination.Rule == "" && !x.Builtin {
		destination.mapped(o, p)
	}
	switch {
	case destination.conflict:
		x.refuse(bpf.XDPReasonREASON_NAT_CONFLICT, "nat rule %q finds no word in the destination that can keep checksums as they are", destination.Rule)
	case len(t.To) > 0 && x.To.Zone == firewall.NameHost:
		x.refuse(bpf.XDPReasonREASON_NAT_TO_HOST, "nat rule %q sends it to an address of the gateway itself, so no rule is asked", destination.Rule)
	}
	switch {
	case x.Verdict != string(firewall.VerdictAllow):
		source.Says = "stays: the packet is refused, and no nat rule is asked for its source"
		return
	case x.To.Zone == firewall.NameHost:
		source.Says = "stays: what is for the gateway itself keeps its source"
		return
	}
	c.TranslateSource(&t, p, uint8(from), uint8(to))
	source.asked(c, t.SourceRule, t.SourceMisses)
	source.leaves(o, p, &t)
	if source.conflict {
		x.refused = cmp.Or(x.Rule, firewall.NameNone)
		x.refuse(bpf.XDPReasonREASON_NAT_CONFLICT, "nat rule %q finds no word in the source that can keep checksums as they are", source.Rule)
	}
}

// refuse says that translation fails, whatever the rules say.
func (x *explanation) refuse(reason bpf.XDPReason, why, rule string) {
	x.Verdict, x.Reason = string(firewall.VerdictDrop), reason.String()
	x.Rule, x.File, x.Line, x.Builtin, x.Source, x.Remedy, x.Audit, x.Tier, x.Why = "", "", 0, false, nil, "", nil, "", nil
	x.Says = fmt.Sprintf("%s: "+why, reason, rule)
}

// asked fills in the rule that matched, and those before it.
func (s *explainedSide) asked(c *firewall.Compiled, rule uint32, misses []firewall.NATMiss) {
	for _, m := range misses {
		s.Asked = append(s.Asked, explainedNot{m.Rule.Name, m.Rule.File, m.Rule.Line, m.Why, m.Ways})
	}
	if info := &c.NATRules[rule]; rule != 0 {
		s.Rule, s.Kind, s.File, s.Line = info.Name, string(info.Kind), info.File, info.Line
		return
	}
	s.Says = "stays: there is no nat rule for it"
	if len(misses) > 0 {
		s.Says = "stays: no nat rule matched"
	}
}

// by names the rule that matched.
func (s *explainedSide) by() string { return fmt.Sprintf("nat rule %q, %s:%d", s.Rule, s.File, s.Line) }

// becomes fills in the destination.
func (s *explainedSide) becomes(o *offline, p *firewall.TestPacket, t *firewall.Translation) {
	switch {
	case s.Rule == "":
	case s.Kind == string(firewall.NATKeep):
		s.Says = "stays: " + s.by()
	case len(t.To) == 0:
		s.Says = fmt.Sprintf("stays: every server of %s drains", s.by())
		if s.conflict = s.Kind == string(firewall.NATPrefix); s.conflict {
			s.Says = "cannot be translated: " + s.by()
		}
	case len(t.To) == 1:
		s.IP = t.To[0].Addr().String()
		if s.Port = t.To[0].Port(); s.Port == p.DstPort || icmpProto(p.Proto) {
			s.Port = 0
		}
		s.Says = fmt.Sprintf("becomes %s: %s", endOf(t.To[0]), s.by())
	default:
		for _, to := range t.To {
			s.OneOf = append(s.OneOf, endOf(to))
		}
		by := "source address"
		if o.natRule(s.Rule).ByConnection {
			by = "source and destination port too"
		}
		s.Says = fmt.Sprintf("becomes one of %s, by the %s; the first is taken here: %s", strings.Join(s.OneOf, ", "), by, s.by())
	}
}

// mapped adds which rule may let the packet in to an end inside: what mappings there are the running gateway alone
// knows.
func (s *explainedSide) mapped(o *offline, p *firewall.TestPacket) {
	if p.Proto != packet.ProtoTCP && p.Proto != packet.ProtoUDP {
		return
	}
	for i := range o.policy.NAT {
		r := &o.policy.NAT[i]
		writes := r.Kind == firewall.NATMasquerade && o.local(p) ||
			r.Kind == firewall.NATSource && !p.Dst.Less(r.Pool.First) && !r.Pool.Last.Less(p.Dst)
		if r.Filtering == "" || !writes || p.DstPort < r.Ports.First || r.Ports.Last < p.DstPort {
			continue
		}
		s.Says += fmt.Sprintf(", but if an end inside has this address and port by nat rule %q, whose filtering is %s, it may become that, and the rules are asked about that",
			r.Name, r.Filtering)
		return
	}
}

// leaves fills in the source.
func (s *explainedSide) leaves(o *offline, p *firewall.TestPacket, t *firewall.Translation) {
	what := ""
	switch {
	case s.Rule == "":
		return
	case t.Masquerade:
		var known bool
		if s.IP, what, known = o.masquerade(p, t); known {
			what = s.IP
		}
	case !t.From.First.IsValid():
		s.Says = "stays: " + s.by()
		if s.conflict = s.Kind == string(firewall.NATPrefix); s.conflict {
			s.Says = "cannot be translated: " + s.by()
		}
		return
	case t.From.First == t.From.Last:
		s.IP = t.From.First.String()
		what = s.IP
	default:
		s.OneOf = []string{t.From.First.String(), t.From.Last.String()}
		what = fmt.Sprintf("one of %s to %s, for this sender always the same", s.OneOf[0], s.OneOf[1])
	}
	if t.SourceRule == t.DestinationRule {
		what += " (hairpin: the server lives in the same zone)"
	}
	s.Says = fmt.Sprintf("becomes %s%s: %s", what, s.choice(o, p), s.by())
}

// choice says what becomes of the source port.
func (s *explainedSide) choice(o *offline, p *firewall.TestPacket) string {
	r := o.natRule(s.Rule)
	if r.Kind == firewall.NATPrefix {
		return "" // it keeps its port
	}
	s.Ports = fmt.Sprintf("%d-%d", r.Ports.First, r.Ports.Last)
	when := "when the flow opens"
	if r.Mapping {
		when = "when the first flow opens, and then the same for every destination"
	}
	switch {
	case icmpProto(p.Proto):
		return fmt.Sprintf(", its identifier chosen from %s %s: as it was if that is free", s.Ports, when)
	case p.Proto != packet.ProtoTCP && p.Proto != packet.ProtoUDP:
		s.Ports = ""
		return "; it has no port, so only one sender at a time can speak to this destination"
	case p.SrcPort < r.Ports.First || r.Ports.Last < p.SrcPort:
		return fmt.Sprintf(", its port chosen from %s %s", s.Ports, when)
	}
	return fmt.Sprintf(", its port chosen from %s %s: %d if that is free", s.Ports, when, p.SrcPort)
}

// masquerade returns the address of the port by which the flow leaves, or says what it is.
func (o *offline) masquerade(p *firewall.TestPacket, t *firewall.Translation) (ip, says string, known bool) {
	port, vlan := p.Out, p.OutVLAN
	dst := p.Dst
	if len(t.To) > 0 {
		dst = t.To[0].Addr()
	}
	if o.routes != nil && port == "" {
		if r, ok := o.routes.Lookup(dst); ok && r.Kind == sim.RoutePort {
			port, vlan = r.Port, r.VLAN
		}
	}
	if a, ok := o.deviceAddress(port, vlan, p.Src.Is4()); ok {
		return a.String(), "", true
	}
	name := port
	if name == "" || slices.Contains(o.compiled.Zones, name) {
		return "", "the address of the port by which it leaves, at that time", false
	}
	if vlan != 0 {
		name = fmt.Sprintf("%s, VLAN %d", name, vlan)
	}
	return "", fmt.Sprintf("the address of port %s at that time", name), false
}

// local reports whether a packet's destination is an address of the gateway itself, as far as is known.
func (o *offline) local(p *firewall.TestPacket) bool {
	if o.routes == nil {
		return p.Out == firewall.NameHost
	}
	r, ok := o.routes.Lookup(p.Dst)
	return ok && r.Kind == sim.RouteHost
}

// headedFor is where a packet goes: its destination, or what a nat rule makes of it.
func (o *offline) headedFor(p *firewall.TestPacket) string {
	from, ok := zoneOf(o.compiled, p.In, p.VLAN)
	if !ok || o.compiled.NAT == nil {
		return p.Dst.String()
	}
	t := o.compiled.TranslateDestination(p, from, false)
	if len(t.To) == 0 {
		return p.Dst.String()
	}
	return fmt.Sprintf("%s (for %s, by nat rule %q)", t.To[0].Addr(), p.Dst, o.compiled.NATRules[t.DestinationRule].Name)
}

func (o *offline) natRule(name string) *firewall.NATRule {
	return &o.policy.NAT[slices.IndexFunc(o.policy.NAT, func(r firewall.NATRule) bool { return r.Name == name })]
}

func icmpProto(proto uint8) bool { return proto == packet.ProtoICMP || proto == packet.ProtoICMPv6 }

// endOf writes an address, and its port if there is one.
func endOf(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// mostAsked is how many rules that did not match are listed for people, of each side, where none did: those that
// came nearest.
const mostAsked = 3

// text is the two sides for people.
func (n *explainedNAT) text() string {
	var b strings.Builder
	for _, side := range []struct {
		name string
		*explainedSide
	}{{"source", &n.Source}, {"destination", &n.Destination}} {
		fmt.Fprintf(&b, "  nat     %s %s\n", side.name, side.Says)
		if side.Rule != "" {
			if len(side.Asked) > 0 {
				fmt.Fprintf(&b, "          %s before it did not match, which -o json lists\n", quantity(len(side.Asked), "rule"))
			}
			continue
		}
		nearest := slices.SortedStableFunc(slices.Values(side.Asked), func(a, b explainedNot) int { return cmp.Compare(a.ways, b.ways) })
		for i, m := range nearest {
			if i == mostAsked && len(side.Asked) > mostAsked+1 {
				fmt.Fprintf(&b, "          and %s more, which -o json lists\n", quantity(len(side.Asked)-i, "rule"))
				break
			}
			fmt.Fprintf(&b, "          not %q, %s:%d: %s\n", m.Rule, m.File, m.Line, m.Why)
		}
	}
	return b.String()
}
