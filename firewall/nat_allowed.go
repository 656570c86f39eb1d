package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// forbiddenNAT warns of rules for destinations whose flows no rule of the policy allows. Those see the packet as
// its sender sends it, with the zone in which its server lives.
func (c *compiler) forbiddenNAT(parts []natPart) {
	var allows []*flowtable.ACLEntry
	for i := range c.entries {
		e := &c.entries[i]
		if bpf.XDPAction(e.Verdict>>24&7) == bpf.XDPActionACTION_ALLOW && !e.Audit {
			allows = append(allows, e)
		}
	}
	for i := range c.policy.NAT {
		r := &c.policy.NAT[i]
		if r.Kind != NATDestination || !slices.ContainsFunc(r.Servers, func(s NATServer) bool { return !s.Drain }) {
			continue
		}
		zones, names := c.serverZones(r)
		some, allowed := false, false
		for p := range parts {
			if parts[p].rule != i {
				continue
			}
			for k := range parts[p].entries {
				e := parts[p].entries[k]
				e.Family, e.To, some = parts[p].family, zones, true
				allowed = allowed || slices.ContainsFunc(allows, func(a *flowtable.ACLEntry) bool { return meet(a, &e) })
			}
		}
		if some && !allowed {
			c.warn(r.Pos.Errorf("no rule allows what nat rule %q translates", r.Name).
				WithHint("add a rule to zone %s, for the addresses and ports that are asked for, as the nat rule names them: rules see packets as they are sent", names))
		}
	}
}

// serverZones returns the zones in which the servers of a rule may live, empty for any, and their names.
func (c *compiler) serverZones(r *NATRule) (zones flowtable.Zones, names string) {
	var known []string
	for i := range c.policy.Zones {
		z := &c.policy.Zones[i]
		if slices.ContainsFunc(r.Servers, func(s NATServer) bool { return !s.Drain && inAddresses(z.Addresses, s.Address) && len(z.Addresses) > 0 }) {
			zones.Add(c.zones[z.Name])
			known = append(known, fmt.Sprintf("%q", z.Name))
		}
	}
	for k := range r.Servers {
		s := &r.Servers[k]
		if s.Drain || slices.ContainsFunc(c.policy.Zones, func(z Zone) bool { return len(z.Addresses) > 0 && inAddresses(z.Addresses, s.Address) }) {
			continue
		}
		return flowtable.Zones{}, "of its server" // routes decide
	}
	return zones, strings.Join(known, " or ")
}

// meet reports whether some packet matches both entries.
func meet(a, b *flowtable.ACLEntry) bool {
	zones := func(x, y flowtable.Zones) bool {
		if x == (flowtable.Zones{}) || y == (flowtable.Zones{}) {
			return true
		}
		for w := range x {
			if x[w]&y[w] != 0 {
				return true
			}
		}
		return false
	}
	addresses := func(x, y []flowtable.AddrRange) bool {
		return len(x) == 0 || len(y) == 0 || len(intersectAddresses(x, y)) > 0
	}
	ports := func(x, y flowtable.U16Range) bool { return x.First <= y.Last && y.First <= x.Last }
	return zones(a.From, b.From) && zones(a.To, b.To) &&
		(a.Family == 0 || b.Family == 0 || a.Family == b.Family) &&
		a.Proto.First <= b.Proto.Last && b.Proto.First <= a.Proto.Last && ports(a.SrcPort, b.SrcPort) && ports(a.DstPort, b.DstPort) &&
		(len(a.Contexts) == 0 || len(b.Contexts) == 0 || slices.ContainsFunc(a.Contexts, func(id uint16) bool { return slices.Contains(b.Contexts, id) })) &&
		addresses(a.Src, b.Src) && addresses(a.Dst, b.Dst)
}
