package firewall

import (
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

var builtinNames = [RuleFirst]string{
	RuleNone:       NameNone,
	RuleManagement: "builtin-management",
	RuleDHCPClient: "builtin-dhcp-client",
	RuleARP:        "builtin-arp",
	RuleND:         "builtin-nd",
	RuleICMPErrors: "builtin-icmp-errors",
	RuleReplies:    "builtin-replies",
}

var builtinDescriptions = [RuleFirst]string{
	RuleManagement: "what the gateway's configuration names as its management",
	RuleDHCPClient: "the gateway's own DHCP and DHCPv6",
	RuleARP:        "ARP, between inline ports and with the gateway",
	RuleND:         "IPv6 neighbour discovery and multicast listener discovery",
	RuleICMPErrors: "ICMP errors that speak of a known flow, which are counted on the flow's own rule too",
	RuleReplies:    "replies of allowed flows, which are counted on the flow's own rule too",
}

// Sources that anti-spoofing does not ask about: link-local IPv6 and the two unspecified addresses
// are left to the rules.
var spoofExempt = []flowtable.AddrRange{
	prefixRange(netip.MustParsePrefix("fe80::/10")),
	{First: netip.IPv6Unspecified(), Last: netip.IPv6Unspecified()},
	{First: netip.IPv4Unspecified(), Last: netip.IPv4Unspecified()},
}

// builtinEntries are what stands before the policy's rules, by rule.
type builtinEntries struct{ management, dhcp []flowtable.ACLEntry }

// builtinRules describes the rules that every policy has, by id.
func builtinRules() (rules []RuleInfo) {
	for id, name := range builtinNames {
		info := RuleInfo{Rule: &Rule{Name: name, Description: builtinDescriptions[id]}, Builtin: uint32(id) != RuleNone}
		if info.Builtin {
			info.Action = Allow
		}
		rules = append(rules, info)
	}
	return rules
}

// spoofing makes the entries in front of all rules but management: what may not come from a zone.
func (c *compiler) spoofing() {
	for _, name := range c.out.Zones[zoneFirst:] {
		if name == "" {
			continue
		}
		z := &c.policy.Zones[slices.IndexFunc(c.policy.Zones, func(z Zone) bool { return z.Name == name })]
		if len(z.Addresses) == 0 {
			continue
		}
		foreign := complementAddresses(joinAddresses(slices.Concat(z.Addresses, spoofExempt)))
		if len(foreign) == 0 {
			continue
		}
		e := flowtable.ACLEntry{Src: foreign, Verdict: flowtable.Verdict(RuleNone, uint32(bpf.XDPActionACTION_SPOOFED), 0)}
		setSpan(&e, spans(nil)[0])
		e.From.Add(c.zones[name])
		c.antispoof = append(c.antispoof, e)
	}
}

// management makes the entries of the built-in rule for what the configuration names.
func (c *compiler) management(b *builtinEntries) {
	m := c.opts.Management
	var from flowtable.Zones
	for _, ref := range m.From {
		id, known := c.zones[ref.Name]
		if !known || id == zoneHost {
			c.fail(Unknown(ref.Pos, "zone", ref.Name, slices.DeleteFunc(slices.Clone(c.out.Zones[zoneFirst:]), func(name string) bool { return name == "" }), "management comes from a zone of the policy, which has none of this name"))
			continue
		}
		from.Add(id)
		if i := slices.IndexFunc(c.policy.Zones, func(z Zone) bool { return z.Name == ref.Name }); c.policy.Zones[i].Untrusted {
			c.warn(ref.Pos.Errorf("management from the untrusted zone %q", ref.Name).WithHint("anybody there reaches the gateway's services"))
		}
	}
	var services []ServiceMatch
	for _, ref := range m.Services {
		if i := slices.IndexFunc(c.policy.Services, func(s Service) bool { return s.Name == ref.Name }); i >= 0 {
			services = append(services, c.policy.Services[i].Matches...)
			c.used = append(c.used, ref.Name)
			continue
		}
		if isLiteral(ref.Name) {
			s, hint, err := parseService(ref.Name)
			if err != nil {
				c.fail(ref.Pos.Errorf("%v", err).WithHint("%s", hint))
			}
			services = append(services, s)
			continue
		}
		var names []string
		for i := range c.policy.Services {
			names = append(names, c.policy.Services[i].Name)
		}
		c.fail(Unknown(ref.Pos, "service", ref.Name, names, "declare it in the policy, or write a literal such as tcp/22"))
	}
	if len(m.From) == 0 || len(m.Services) == 0 {
		return
	}
	var to flowtable.Zones
	to.Add(zoneHost)
	for _, s := range spans(services) {
		e := flowtable.ACLEntry{From: from, To: to, Verdict: flowtable.Verdict(RuleManagement, uint32(bpf.XDPActionACTION_ALLOW), 0)}
		setSpan(&e, s)
		b.management = append(b.management, e)
	}
}

// dhcpClient admits the gateway's own requests, and answers that come unasked as far as connection
// tracking can tell: a server answers a broadcast from its own address.
func (c *compiler) dhcpClient() {
	for _, v := range []struct {
		family         uint8
		client, server uint16
	}{{4, 68, 67}, {6, 546, 547}} {
		for _, out := range []bool{true, false} {
			e := flowtable.ACLEntry{
				Family: v.family, Proto: flowtable.U8Range{First: protoUDP, Last: protoUDP},
				SrcPort: flowtable.U16Range{First: v.server, Last: v.server}, DstPort: flowtable.U16Range{First: v.client, Last: v.client},
				Verdict: flowtable.Verdict(RuleDHCPClient, uint32(bpf.XDPActionACTION_ALLOW), 0),
			}
			if out {
				e.SrcPort, e.DstPort = e.DstPort, e.SrcPort
				e.From.Add(zoneHost)
			} else {
				e.To.Add(zoneHost)
			}
			c.builtin.dhcp = append(c.builtin.dhcp, e)
		}
	}
}
