package firewall

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/flowtable"
)

// lintNAT adds warnings about nat rules that do nothing, or nothing that anybody would want.
func (c *compiler) lintNAT(parts []natPart) {
	if len(c.out.NATDestinations)+len(c.out.NATSources) <= lintEntries {
		c.shadowedNAT(parts)
	}
	if len(c.out.NATDestinations) <= lintEntries && len(c.entries) <= lintEntries {
		c.forbiddenNAT(parts)
	}
	for i := range c.policy.NAT {
		r := &c.policy.NAT[i]
		if ports := int(r.Ports.Last) - int(r.Ports.First) + 1; r.SourceLimit >= ports {
			c.warn(r.LimitPos.Errorf("source_limit %d of nat rule %q keeps nobody from taking all %d ports of an address", r.SourceLimit, r.Name, ports).
				WithHint("a limit that leaves ports to other hosts is a fraction of that"))
		}
		c.lintFiltering(r, i, parts)
		switch r.Kind {
		case NATSource:
			c.lintPool(r, r.Pool)
		case NATPrefix:
			c.lintPool(r, prefixRange(r.Outside))
		case NATDestination:
			if !slices.ContainsFunc(r.Servers, func(s NATServer) bool { return !s.Drain }) {
				c.warn(r.KindPos.Errorf("every server of nat rule %q drains", r.Name).WithHint("new flows are not translated by it"))
			}
			for k := range r.Servers {
				if s := &r.Servers[k]; !s.Drain && !c.somewhere(s.Address) {
					c.warn(s.Pos.Errorf("server %s is in the addresses of no zone", s.Address).WithHint("its answers would be dropped as spoofed"))
				}
			}
		}
	}
}

// lintPool warns of addresses that hosts of a zone have as well.
func (c *compiler) lintPool(r *NATRule, pool flowtable.AddrRange) {
	for i := range c.policy.Zones {
		z := &c.policy.Zones[i]
		if common := intersectAddresses([]flowtable.AddrRange{pool}, joinAddresses(z.Addresses)); len(common) > 0 {
			c.warn(r.KindPos.Errorf("nat rule %q writes %s, which is in the addresses of zone %q", r.Name, addressText(common[0]), z.Name).
				WithHint("answers come back only to addresses that are routed to the gateway or its own, and no host may have them"))
			return
		}
	}
}

// somewhere reports whether some zone may have a host of this address. One whose addresses are not said may.
func (c *compiler) somewhere(a netip.Addr) bool {
	return slices.ContainsFunc(c.policy.Zones, func(z Zone) bool {
		return len(z.Addresses) == 0 && !z.Untrusted ||
			slices.ContainsFunc(z.Addresses, func(r flowtable.AddrRange) bool { return !a.Less(r.First) && !r.Last.Less(a) })
	})
}

// shadowedNAT warns of rules each of whose entries is covered by one earlier entry of its list.
func (c *compiler) shadowedNAT(parts []natPart) {
	for i := range c.policy.NAT {
		var by []string
		open := false // an entry is left that can match
		for p := range parts {
			if parts[p].rule != i {
				continue
			}
			for k := range parts[p].entries {
				cover := slices.IndexFunc(parts[:p], func(earlier natPart) bool {
					return earlier.rule < i && earlier.destinations == parts[p].destinations &&
						slices.ContainsFunc(earlier.entries, func(e flowtable.ACLEntry) bool { return covers(&e, &parts[p].entries[k]) })
				})
				if cover < 0 {
					open = true
					continue
				}
				r := &c.policy.NAT[parts[cover].rule]
				if name := fmt.Sprintf("nat rule %q in %s:%d", r.Name, r.Pos.File, r.Pos.Line); !slices.Contains(by, name) {
					by = append(by, name)
				}
			}
		}
		if !open && len(by) > 0 {
			r := &c.policy.NAT[i]
			c.warn(r.Pos.Errorf("nat rule %q can never match", r.Name).WithHint("covered by %s", strings.Join(by, " and ")))
		}
	}
}
