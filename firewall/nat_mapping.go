package firewall

import (
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// NATFiltering says who may send to what an end leaves as (RFC 4787, section 5).
type NATFiltering string

const (
	FilterNobodyElse NATFiltering = "address-and-port-dependent" // the other ends of its flows
	FilterAddress    NATFiltering = "address-dependent"          // the hosts to which it has sent
	FilterNone       NATFiltering = "endpoint-independent"       // everybody
)

// What an end inside leaves as, in words (RFC 4787, section 4.1).
const (
	MapEndpoint = "endpoint-independent"       // one port for all its flows
	MapFlow     = "address-and-port-dependent" // each flow has its own
)

// natMapping reads what an end leaves as, and who may send there.
func (l *loader) natMapping(r *NATRule, f map[string]*Node) {
	if v := f["mapping"]; v != nil {
		r.Mapping = l.Choice(v, "mapping", MapEndpoint, MapFlow) == MapEndpoint
	}
	v := f["filtering"]
	if v == nil {
		return
	}
	r.Filtering = NATFiltering(l.Choice(v, "filtering", string(FilterNone), string(FilterAddress), string(FilterNobodyElse)))
	if r.Filtering == FilterNobodyElse {
		r.Filtering = ""
	}
	if r.Filtering != "" && !r.Mapping {
		l.Fail(v.Pos.Errorf("filtering %s needs a port that is the same for every destination", r.Filtering).
			WithHint("add mapping: %s, or take filtering out", MapEndpoint))
	}
}

// MappingText is the word for what an end leaves as; "" of a rule that chooses no port.
func (r *NATRule) MappingText() string {
	switch {
	case r.Kind != NATMasquerade && r.Kind != NATSource:
		return ""
	case r.Mapping:
		return MapEndpoint
	}
	return MapFlow
}

// FilteringText is the word for who may send there; "" of a rule that chooses no port.
func (r *NATRule) FilteringText() string {
	switch {
	case r.Kind != NATMasquerade && r.Kind != NATSource:
		return ""
	case r.Filtering == "":
		return string(FilterNobodyElse)
	}
	return string(r.Filtering)
}

// mappingDetail is what Text says of it beside, "" of what is so without saying.
func (r *NATRule) mappingDetail() string {
	if !r.Mapping {
		return ""
	}
	text := ", mapping " + MapEndpoint
	if r.Filtering != "" {
		text += ", filtering " + string(r.Filtering)
	}
	return text
}

// natFlags are what a nat rule's mapping comes to.
func (r *NATRule) natFlags() (flags uint8) {
	if r.Mapping {
		flags |= natMapping
	}
	switch r.Filtering {
	case FilterNone:
		flags |= natFilterAny
	case FilterAddress:
		flags |= natFilterAddress
	}
	return flags
}

// sharedPorts refuses rules that would give one address and port to an end for all destinations, and to others
// for some.
func (c *compiler) sharedPorts(parts []natPart) {
	told := make(map[[2]int]bool)
	for i := range parts {
		for k := range parts[:i] {
			a, b := &c.policy.NAT[parts[k].rule], &c.policy.NAT[parts[i].rule]
			pair := [2]int{parts[k].rule, parts[i].rule}
			if a.Mapping == b.Mapping || parts[i].family != parts[k].family || told[pair] || !c.sharePorts(&parts[k], &parts[i]) {
				continue
			}
			told[pair] = true
			c.fail(b.KindPos.Errorf("nat rules %q and %q choose among the same addresses and ports, and only one with mapping: %s", a.Name, b.Name, MapEndpoint).
				WithHint("give both the same mapping, or ports that do not meet; the other is in %s", a.Pos))
		}
	}
}

// sharePorts reports whether parts of two rules for sources may write the same address and port. Which address
// masquerading writes is not known here, but that it is that of where the flow leaves.
func (c *compiler) sharePorts(p, q *natPart) bool {
	a, b := &c.policy.NAT[p.rule], &c.policy.NAT[q.rule]
	if a.Ports.Last < b.Ports.First || b.Ports.Last < a.Ports.First {
		return false
	}
	switch {
	case a.Kind == NATSource && b.Kind == NATSource:
		return len(intersectAddresses([]flowtable.AddrRange{a.Pool}, []flowtable.AddrRange{b.Pool})) > 0
	case a.Kind == NATMasquerade && b.Kind == NATMasquerade:
		for i := range p.entries {
			for k := range q.entries {
				if zonesMeet(p.entries[i].To, q.entries[k].To) {
					return true
				}
			}
		}
	}
	return false
}

// zonesMeet reports whether two sets of zones, of which the empty one is all, have one in common.
func zonesMeet(a, b flowtable.Zones) bool {
	if a == (flowtable.Zones{}) || b == (flowtable.Zones{}) {
		return true
	}
	for i := range a {
		if a[i]&b[i] != 0 {
			return true
		}
	}
	return false
}

// lintFiltering warns of a rule that lets others in where no rule of the policy does.
func (c *compiler) lintFiltering(r *NATRule, rule int, parts []natPart) {
	if r.Filtering == "" {
		return
	}
	for i := range parts {
		if parts[i].rule != rule {
			continue
		}
		for k := range parts[i].entries {
			if slices.ContainsFunc(c.entries, func(e flowtable.ACLEntry) bool { return letsBack(&e, &parts[i].entries[k]) }) {
				return
			}
		}
	}
	c.warn(r.KindPos.Errorf("nat rule %q lets others send to what it writes, and no rule allows any of that", r.Name).
		WithHint("add a rule from where it leads to, to its `from`, for the services that shall come in, or take filtering out"))
}

// letsBack reports whether an entry of the policy's rules may allow a flow of TCP or UDP the other way round than
// an entry of nat rules is about.
func letsBack(e, nat *flowtable.ACLEntry) bool {
	if bpf.XDPAction(e.Verdict>>24&7) != bpf.XDPActionACTION_ALLOW || e.Audit || !zonesMeet(e.From, nat.To) || !zonesMeet(e.To, nat.From) {
		return false
	}
	if len(e.Dst) > 0 && len(nat.Src) > 0 && len(intersectAddresses(e.Dst, nat.Src)) == 0 || e.Family != 0 && nat.Family != 0 && e.Family != nat.Family {
		return false
	}
	return slices.ContainsFunc([]uint8{protoTCP, protoUDP}, func(proto uint8) bool {
		return e.Proto.First <= proto && proto <= e.Proto.Last && nat.Proto.First <= proto && proto <= nat.Proto.Last
	})
}
