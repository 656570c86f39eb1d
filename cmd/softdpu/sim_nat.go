package main

import (
	"slices"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway/sim"
)

// simNAT is what a translated packet leaves with.
type simNAT struct {
	SrcIP           string  `json:"src_ip"`
	SrcPort         *uint16 `json:"src_port,omitempty"`
	DestIP          string  `json:"dest_ip"`
	DestPort        *uint16 `json:"dest_port,omitempty"`
	SourceRule      string  `json:"source_rule,omitempty"` // nat rule, absent if none translates its source
	DestinationRule string  `json:"destination_rule,omitempty"`
}

// natOf makes the object of a translated packet, nil of another. A fragment or an ICMP error does not tell the
// rules of its flow, of which the conversation knows.
func natOf(t *sim.Translation, of *flowVerdict) *simNAT {
	if t == nil {
		return nil
	}
	n := &simNAT{SrcIP: t.Src.String(), DestIP: t.Dst.String(), SourceRule: t.SourceRule, DestinationRule: t.DestinationRule}
	if t.Ports {
		n.SrcPort, n.DestPort = &t.SrcPort, &t.DstPort
	}
	if n.SourceRule == "" && n.DestinationRule == "" && of != nil && of.nat != nil {
		n.SourceRule, n.DestinationRule = of.nat.SourceRule, of.nat.DestinationRule
	}
	return n
}

// text writes what source and destination become, "*" for what stays; "-" for nothing, as of an answer that
// is shown with the addresses that its receiver knows.
func (n *simNAT) text(source, destination string) string {
	if n == nil {
		return "-"
	}
	src, dst := simEnd(n.SrcIP, n.SrcPort), simEnd(n.DestIP, n.DestPort)
	if src == source {
		src = "*"
	}
	if dst == destination {
		dst = "*"
	}
	if src == "*" && dst == "*" {
		return "-"
	}
	return src + " > " + dst
}

// translates reports whether a policy may translate something.
func translates(c *firewall.Compiled) bool { return c != nil && c.NAT != nil }

// natDevices are the addresses that masquerading writes beside those of the ports themselves: what --address
// says counts before what the routes tell.
func (o *offline) natDevices() (all []sim.Device) {
	if o.routes != nil {
		all = slices.Clone(o.routes.VLANs)
		slices.Reverse(all) // the first counts, and the last is taken
	}
	return append(all, o.devices...)
}

// routed reports whether some port of the policy is routed. Without a configuration they are inline.
func (o *offline) routed() bool {
	return o.config != nil && slices.ContainsFunc(o.compiled.Ports, func(z firewall.PortZone) bool { return o.peerOf(z.Port) == "" })
}
