package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// configText is the configuration to begin with.
func (o *initOptions) configText() string {
	var b strings.Builder
	b.WriteString(`# What this machine is. Every key: GATEWAY.md in /usr/share/doc/softdpu. After a change: softdpu policy check
apiVersion: softdpu/v1
kind: Gateway
ports: # names of ours for the devices that 'ip link' shows
`)
	for i, c := range o.inside {
		fmt.Fprintf(&b, "  lan%d: {device: %s}\n", i, c.name)
	}
	fmt.Fprintf(&b, "  wan0: {device: %s}\n", o.outside.name)
	if o.inline {
		b.WriteString("inline: [[lan0, wan0]] # a bump in the wire; without this line the machine routes between them\n")
	}
	b.WriteString("policy: policy.d\n")
	switch {
	case o.inline:
		b.WriteString("management: none # an inline pair is a piece of cable: reach this machine by another device\n")
	case o.manageOutside:
		b.WriteString("# No policy cuts these off. The outside is among them because an SSH session came from there.\n")
		b.WriteString("management: {from: [lan, wan], services: [tcp/22]}\n")
	default:
		b.WriteString("management: {from: [lan], services: [tcp/22]} # no policy cuts this off\n")
	}
	return b.String()
}

// policyText is the policy to begin with.
func (o *initOptions) policyText() string {
	var b strings.Builder
	b.WriteString(`# Who may talk to whom. Nothing passes that no rule allows; the first rule that matches decides; replies
# need no rule. The language: POLICY.md in /usr/share/doc/softdpu. After a change: softdpu policy check
apiVersion: softdpu/v1
kind: Policy
zones:
`)
	ports := make([]string, len(o.inside))
	var networks []netip.Prefix
	addressed := true // every device inside
	for i, c := range o.inside {
		ports[i] = fmt.Sprintf("lan%d", i)
		networks = append(networks, c.addresses...)
		addressed = addressed && len(c.addresses) > 0
	}
	addresses := ""
	if addressed && !o.inline {
		quoted := make([]string, len(networks))
		for i, p := range networks {
			quoted[i] = fmt.Sprintf("%q", p)
		}
		addresses = fmt.Sprintf(", addresses: [%s]", strings.Join(quoted, ", "))
		b.WriteString("  # Other sources are dropped as spoofed: add the networks behind routers inside.\n")
	} else {
		b.WriteString("  # Add addresses: [NETWORK, ...] to lan, and other sources are dropped as spoofed.\n")
	}
	fmt.Fprintf(&b, "  lan: {ports: [%s]%s}\n", strings.Join(ports, ", "), addresses)
	// Management from an untrusted zone would be warned of in each check.
	untrusted := ", untrusted: true"
	if o.manageOutside {
		untrusted = ""
	}
	fmt.Fprintf(&b, "  wan: {ports: [wan0]%s}\n", untrusted)
	pinged := "host, wan"
	if o.inline {
		pinged = "wan"
	}
	fmt.Fprintf(&b, `rules: [] # nobody may anything yet
# To let the inside out, take the line above away, and the #: from these:
#:services:
#:  web: [tcp/80, tcp/443, udp/443]
#:  names: [udp/53, tcp/53]
#:  ping: [icmp/echo-request, icmpv6/echo-request]
#:rules:
#:  - {name: web, from: {zone: lan}, to: {zone: wan}, service: web, action: allow}
#:  - {name: names, from: {zone: lan}, to: {zone: wan}, service: names, action: allow}
#:  - {name: ping, from: {zone: lan}, to: [%s], service: ping, action: allow}
`, pinged)
	if !o.inline {
		b.WriteString("#:  - {name: gateway-itself, from: host, to: {zone: wan}, service: [web, names, udp/123], action: allow}\n")
		b.WriteString(`# Where outside knows no way back to the networks inside, let them share the address of wan0: take the #; from these:
#;nat:
#;  - {name: inside, from: {zone: lan}, to: {zone: wan}, masquerade: {}}
`)
	}
	fmt.Fprintf(&b, `tests: # run on every check and before every start
  - {name: nobody comes in, packet: {in: wan0, out: lan0, src: 198.51.100.7, dst: %s, service: tcp/22}, expect: {verdict: deny}}
`, example(networks))
	return b.String()
}

// example returns an address inside, that a test can speak of.
func example(networks []netip.Prefix) netip.Addr {
	for _, p := range networks {
		if a := p.Addr().Next().Next(); p.Addr().Is4() && p.Contains(a) {
			return a
		}
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, 2})
}
