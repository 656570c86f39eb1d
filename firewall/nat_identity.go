package firewall

import (
	"slices"
	"time"
)

// natIdentity is free if its rule has no name.
type natIdentity struct {
	info NATRuleInfo
	gone time.Time // since when no policy has it; zero: it is in force
}

// natKey is what a nat rule's id stands for, from policy to policy.
type natKey struct {
	name         string
	family       uint8
	destinations bool
}

func (i *NATRuleInfo) key() natKey { return natKey{i.Name, i.Family, i.Destinations} }

// numberNAT gives every part of the policy's nat rules its id.
func (c *compiler) numberNAT(parts []natPart) {
	next := slices.Clone(c.previous.nat)
	known := make(map[natKey]int, len(next))
	for n := range next {
		if next[n].info.Name == "" {
			continue
		}
		known[next[n].info.key()] = n
		if next[n].gone.IsZero() {
			next[n].gone = c.opts.Now
		}
	}
	c.out.NATOrder = make([][]uint32, len(c.policy.NAT))
	free := 0
	for i := range parts {
		p := &parts[i]
		r := &c.policy.NAT[p.rule]
		info := NATRuleInfo{
			Name: r.Name, File: r.Pos.File, Line: r.Pos.Line, Kind: r.Kind, Text: r.Text(), Family: p.family,
			Destinations: p.destinations, To: p.zones(), SourceLimit: r.SourceLimit, Mapping: r.MappingText(), Filtering: r.FilteringText(),
			Description: r.Description, Owner: r.Owner,
		}
		n, old := known[info.key()]
		if !old {
			for free < len(next) && next[free].info.Name != "" {
				free++
			}
			if n = free; n == len(next) {
				next = append(next, natIdentity{})
			}
		}
		next[n] = natIdentity{info: info}
		p.id = uint32(n) + 1
		c.out.NATOrder[p.rule] = append(c.out.NATOrder[p.rule], p.id)
	}
	if len(next) >= maxRules {
		r := &c.policy.NAT[len(c.policy.NAT)-1]
		c.fail(r.Pos.Errorf("no number below %d is left for nat rule %q", maxRules, r.Name).
			WithHint("flows still bear rules that are gone: apply again when they have ended, or restart"))
	}
	c.out.NATRules = []NATRuleInfo{{}}
	for n := range next {
		info := next[n].info
		if info.Gone = !next[n].gone.IsZero(); info.Gone {
			info.Text = ""
		}
		c.out.NATRules = append(c.out.NATRules, info)
	}
	c.out.Identities.nat = next
}
