package firewall

import (
	"fmt"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/flowtable"
)

// Bounds of the search for rules that can never match, which compares entries in pairs: a policy
// with more entries is not searched, and lists of addresses that are longer are not compared.
const (
	lintEntries   = 8192
	lintAddresses = 1024
)

// lint adds warnings about what is written and does nothing.
func (c *compiler) lint() {
	p := c.policy
	for i := range p.Zones {
		z := &p.Zones[i]
		if !slices.ContainsFunc(c.out.Ports, func(o PortZone) bool { return o.Zone == c.zones[z.Name] }) {
			c.warn(z.Pos.Errorf("zone %q has no ports", z.Name).WithHint("no packet comes from it or goes to it; add ports: [...]"))
		}
	}
	unused := func(what, name string, at Pos) {
		if !p.used[what+" "+name] {
			c.warn(at.Errorf("%s %q is not used", what, name))
		}
	}
	for i := range p.Sets {
		unused("set", p.Sets[i].Name, p.Sets[i].Pos)
	}
	for i := range p.Workloads {
		unused("workload", p.Workloads[i].Name, p.Workloads[i].Pos)
	}
	for i := range p.Services {
		if s := &p.Services[i]; !slices.Contains(c.used, s.Name) {
			unused("service", s.Name, s.Pos)
		}
	}
	if len(c.out.Entries) <= lintEntries {
		c.shadowed()
	}
}

// shadowed warns of rules each of whose entries is covered by one earlier entry that decides.
func (c *compiler) shadowed() {
	entries := c.out.Entries
	rules := make(map[uint32]int, len(c.out.Order))
	for i, id := range c.out.Order {
		rules[id] = i
	}
	for i := 0; i < len(entries); {
		rule := entries[i].Verdict & (maxRules - 1)
		end := i + 1
		for end < len(entries) && entries[end].Verdict&(maxRules-1) == rule {
			end++
		}
		if rule >= RuleFirst {
			var by []string
			for e := i; e < end; e++ {
				cover := 0
				for cover < i && !covers(&entries[cover], &entries[e]) {
					cover++
				}
				if cover == i {
					by = nil
					break
				}
				if name := c.coverName(&entries[cover]); !slices.Contains(by, name) {
					by = append(by, name)
				}
			}
			if len(by) > 0 {
				at := rules[rule]
				c.warn(c.policy.RulePos(at).Errorf("rule %q can never match", c.policy.Rules[at].Name).WithHint("covered by %s", strings.Join(by, " and ")))
			}
		}
		i = end
	}
}

func (c *compiler) coverName(e *flowtable.ACLEntry) string {
	rule := e.Verdict & (maxRules - 1)
	if rule == RuleNone {
		for id := zoneFirst; id < len(c.out.Zones); id++ {
			if e.From.Has(uint8(id)) {
				return fmt.Sprintf("the addresses of zone %q", c.out.Zones[id])
			}
		}
	}
	info := c.out.Rules[rule]
	if info.Builtin {
		return fmt.Sprintf("built-in rule %q", info.Name)
	}
	return fmt.Sprintf("rule %q in %s:%d", info.Name, info.File, info.Line)
}

// covers reports whether every packet that b matches is decided by a. False where that is not clear.
func covers(a, b *flowtable.ACLEntry) bool {
	// Most of many pairs end here.
	if a.DstPort.First > b.DstPort.First || a.DstPort.Last < b.DstPort.Last {
		return false
	}
	if a.Audit || !coversZones(a.From, b.From) || !coversZones(a.To, b.To) {
		return false
	}
	x := span{a.Proto, a.Family, a.SrcPort, a.DstPort}
	y := span{b.Proto, b.Family, b.SrcPort, b.DstPort}
	if !x.covers(y) {
		return false
	}
	if len(a.Contexts) > 0 {
		if len(b.Contexts) == 0 {
			return false
		}
		for _, id := range b.Contexts {
			if !slices.Contains(a.Contexts, id) {
				return false
			}
		}
	}
	return coversAddresses(a.Src, b.Src) && coversAddresses(a.Dst, b.Dst)
}

func coversZones(a, b flowtable.Zones) bool {
	if a == (flowtable.Zones{}) {
		return true
	}
	if b == (flowtable.Zones{}) {
		return false
	}
	for i := range a {
		if b[i]&^a[i] != 0 {
			return false
		}
	}
	return true
}

// coversAddresses compares joined lists, empty for any.
func coversAddresses(a, b []flowtable.AddrRange) bool {
	switch {
	case len(a) == 0:
		return true
	case len(b) == 0 || len(a) > lintAddresses || len(b) > lintAddresses:
		return false
	}
	i := 0
	for _, r := range b {
		for i < len(a) && a[i].Last.Less(r.First) {
			i++
		}
		if i == len(a) || r.First.Less(a[i].First) || a[i].Last.Less(r.Last) {
			return false
		}
	}
	return true
}
