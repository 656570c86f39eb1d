package firewall

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// Classifier decides about the opening packet of a flow. The result is rule id, action and flags as
// in abi.h (VERDICT_*). Audit is called with the id of each rule in audit mode that matched on the
// way; it may be nil.
type Classifier interface {
	Classify(k *bpf.XDPClassifyKey, audit func(rule uint32)) uint32
}

// TestResult is what became of one test.
type TestResult struct {
	Test    Test
	Pass    bool
	Verdict TestVerdict // "" if the packet could not be judged
	Rule    string      // that decided, "none" if no rule matched
	Audited []string    // rules in audit mode that matched on the way
	Err     *Error      // why it did not pass
}

// RunTests judges the packet of every test. Route answers which zone a destination lies in, for
// tests that do not say `out`; in is the test's `in`. It may be nil where no route is known.
func RunTests(c *Compiled, cl Classifier, route func(in string, dst netip.Addr) (zone string, ok bool)) []TestResult {
	results := make([]TestResult, 0, len(c.Tests))
	for _, t := range c.Tests {
		results = append(results, c.runTest(t, cl, route))
	}
	return results
}

func (c *Compiled) runTest(t Test, cl Classifier, route func(string, netip.Addr) (string, bool)) TestResult {
	out := TestResult{Test: t}
	fail := func(e Error) TestResult {
		e.Msg = fmt.Sprintf("test %q: %s", t.Name, e.Msg)
		out.Err = &e
		return out
	}
	p := &t.Packet
	from, err := c.testZone(p.InPos, p.In, p.VLAN, "vlan")
	if err != nil {
		return fail(*err)
	}
	k := Key(p.Src, p.Dst, p.Proto, p.SrcPort, p.DstPort)
	k.From, k.Context = from, c.MACs[p.MAC]
	var to uint8
	var becomes translation
	if p.Out != "" {
		if to, err = c.testZone(p.OutPos, p.Out, p.OutVLAN, "out_vlan"); err != nil {
			return fail(*err)
		}
		if becomes = c.natDestination(&k, to == zoneHost); to == zoneHost && len(becomes.to) > 0 {
			return fail(p.OutPos.Errorf("%s makes the destination %s, and out says host", c.natRuleText(becomes.destination), endText(becomes.to[0])).
				WithHint("say where that lives: out: PORT"))
		}
	} else {
		dst := p.Dst
		if route == nil {
			return fail(p.Pos.Errorf("where %s lies is not known", dst).WithHint("add out: PORT (or out: host), or give the routes with --routes"))
		}
		zone, ok := route(p.In, dst)
		if becomes = c.natDestination(&k, ok && zone == NameHost); len(becomes.to) > 0 {
			dst = becomes.to[0].Addr()
			zone, ok = route(p.In, dst)
		}
		if !ok {
			return fail(p.Pos.Errorf("no route leads to %s", dst).WithHint("add out: PORT (or out: host), or add the route"))
		}
		i := slices.Index(c.Zones, zone)
		if i < zoneHost {
			return fail(p.Pos.Errorf("the route to %s leads to %q, which is no zone of the policy", dst, zone).WithHint("add out: PORT"))
		}
		to = uint8(i)
	}
	why, remedy := unasked(p), "test the request or the connection that it belongs to"
	switch {
	case why != "":
		out.Verdict, out.Rule = VerdictDrop, NameNone
	case len(becomes.to) > 0 && to == zoneHost:
		out.Verdict, out.Rule = VerdictDrop, NameNone
		why, remedy = "nat-to-host: "+c.natRuleText(becomes.destination)+" makes it the gateway's own", "let the service listen on the address"
	default:
		k.To = to
		verdict := cl.Classify(&k, func(rule uint32) { out.Audited = append(out.Audited, c.Rules[rule].Name) })
		out.Verdict, out.Rule = verdictOf(verdict), c.Rules[verdict&(maxRules-1)].Name
		why, remedy = c.Explain(verdict), "change the rules, or what the test expects"
	}
	e := &t.Expect
	if out.Verdict == VerdictAllow && e.Verdict == VerdictAllow {
		c.natSource(&k, &becomes)
		if fault := becomes.fault(c, p, &e.NAT); fault != "" {
			return fail(e.NAT.Pos.Errorf("%s", fault).WithHint("change the nat rules, or what the test expects"))
		}
	}
	if out.Verdict == e.Verdict && (e.Rule == "" || e.Rule == out.Rule) {
		out.Pass = true
		return out
	}
	want := string(e.Verdict)
	if e.Rule != "" {
		want += " by " + ruleWord(e.Rule)
	}
	return fail(e.Pos.Errorf("expected %s, got %s: %s", want, out.Verdict, why).WithHint("%s", remedy))
}

// unasked says why no rule is asked about a packet, "" if they are. Discovery, which passes by a built-in rule on its
// own link, is not known here from what should cross the gateway, and left to the rules.
func unasked(p *TestPacket) string {
	family := uint8(4)
	switch {
	case p.Proto == protoICMPv6:
		family = 6
	case p.Proto != protoICMP:
		return ""
	}
	switch packet.KindOf(family, uint8(p.DstPort>>8)) {
	case packet.Reply:
		return "no rule is asked, a reply passes with the request that it answers"
	case packet.Error:
		return "no rule is asked, an error passes with the connection of the packet that it quotes"
	case packet.Other:
		return "no rule is asked, only queries and what belongs to a connection pass"
	}
	return ""
}

func ruleWord(name string) string {
	if name == NameNone {
		return "no rule"
	}
	return fmt.Sprintf("rule %q", name)
}

// testZone returns the zone of a port and VLAN, or the zone of this name.
func (c *Compiled) testZone(at Pos, name string, vlan uint16, key string) (uint8, *Error) {
	if zone, ok := c.ZoneOf(name, vlan); ok {
		return zone, nil
	}
	var here []PortZone
	for _, p := range c.Ports {
		if p.Port == name {
			here = append(here, p)
		}
	}
	if vlan == 0 && len(here) == 1 {
		return here[0].Zone, nil
	}
	if len(here) > 0 {
		e := at.Errorf("no zone has VLAN %d on port %q", vlan, name)
		if vlan == 0 {
			e = at.Errorf("no zone has the untagged frames of port %q", name)
		}
		e = e.WithHint("add %s: ID, which is one of the port's VLANs", key)
		return 0, &e
	}
	if i := slices.Index(c.Zones, name); i >= zoneHost {
		return uint8(i), nil
	}
	e := at.Errorf("no zone has port %q", name).WithHint("name a port of a zone, or a zone")
	return 0, &e
}

// ZoneOf returns the zone that frames of a port and outer VLAN id (0: untagged) belong to.
func (c *Compiled) ZoneOf(port string, vlan uint16) (zone uint8, ok bool) {
	for _, p := range c.Ports {
		if p.Port == port && p.VLAN == vlan {
			return p.Zone, true
		}
	}
	return 0, false
}
