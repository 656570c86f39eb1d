package firewall

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// IdentityRest is how long the number of a rule, zone or MAC that a policy no longer has is kept from
// others at least. Fragments of a refused datagram bear its rule for 30 s.
const IdentityRest = 40 * time.Second

// Identities are the numbers by which flows and counters know rules, nat rules, zones and MAC addresses. They live
// as long as the flows do: the policy that follows another is compiled with the other's, and what both
// have keeps its number.
//
// A rule is known by its name, wherever it stands, a nat rule by its name, family and list. A zone is known by what belongs to it: one with all
// the ports and VLANs of a zone before has that one's number, whatever either is called, because the
// flows of these ports bear it; otherwise it is known by its name too. What is gone keeps its number
// until Release, and has it again if it comes back. Identities are immutable.
type Identities struct {
	rules []RuleInfo        // index = id - RuleFirst; freeRule if the id is free
	gone  map[int]time.Time // since when no policy has those of the rules, by index
	zones []zoneIdentity    // index = id - zoneFirst
	macs  map[MAC]macIdentity
	nat   []natIdentity // index = id - 1
}

// freeRule stands where an id is free.
var freeRule = RuleInfo{Rule: new(Rule)}

// zoneIdentity is free if it has no name.
type zoneIdentity struct {
	name   string
	places []place
	gone   time.Time
}

type macIdentity struct {
	id   uint16
	gone time.Time
}

// place is where frames arrive.
type place struct {
	port string
	vlan uint16
}

// Borne says which numbers flows bear.
type Borne struct {
	Rules map[uint32]bool
	NAT   map[uint32]bool // nat rules
	Zones [zoneMax + 1]bool
	MACs  map[uint16]bool
}

// Release frees the numbers of what has been gone for IdentityRest at now and is borne by no flow. Those
// are given to others from then on, the lowest first.
func (i *Identities) Release(now time.Time, b *Borne) *Identities {
	out := &Identities{i.rules, maps.Clone(i.gone), slices.Clone(i.zones), make(map[MAC]macIdentity, len(i.macs)), slices.Clone(i.nat)}
	for n, gone := range i.gone {
		if !rested(gone, now) || b.Rules[RuleFirst+uint32(n)] {
			continue
		}
		if len(out.gone) == len(i.gone) {
			out.rules = slices.Clone(i.rules)
		}
		out.rules[n] = freeRule
		delete(out.gone, n)
	}
	for n := range out.zones {
		if z := &out.zones[n]; rested(z.gone, now) && !b.Zones[zoneFirst+n] {
			*z = zoneIdentity{}
		}
	}
	for n := range out.nat {
		if r := &out.nat[n]; rested(r.gone, now) && !b.NAT[uint32(n)+1] {
			*r = natIdentity{}
		}
	}
	for mac, m := range i.macs {
		if !rested(m.gone, now) || b.MACs[m.id] {
			out.macs[mac] = m
		}
	}
	return out
}

// rested reports whether the number of what has been gone since then may be another's at now.
func rested(gone, now time.Time) bool { return !gone.IsZero() && now.Sub(gone) >= IdentityRest }

// AnyRested reports whether there is a number that Release would free at now if no flow bore it; nat, whether that of a
// nat rule is among them.
func (i *Identities) AnyRested(now time.Time) (any, nat bool) {
	for n := range i.nat {
		if rested(i.nat[n].gone, now) {
			return true, true
		}
	}
	for n := range i.zones {
		any = any || rested(i.zones[n].gone, now)
	}
	for _, gone := range i.gone {
		any = any || rested(gone, now)
	}
	for _, m := range i.macs {
		any = any || rested(m.gone, now)
	}
	return any, false
}

// Rules returns the number of rule ids in use, those of the built-in rules included: all are below it.
func (i *Identities) Rules() int { return int(RuleFirst) + len(i.rules) }

// RuleName returns the name of the rule with an id, "" if the id is free or built in.
func (i *Identities) RuleName(id uint32) string {
	if n := int(id) - int(RuleFirst); n >= 0 && n < len(i.rules) {
		return i.rules[n].Name
	}
	return ""
}

// ZoneName returns the name of the zone with an id, the last one if the zone is gone; "" if the id is
// free.
func (i *Identities) ZoneName(id uint8) string {
	if id == zoneHost {
		return NameHost
	}
	if n := int(id) - zoneFirst; n >= 0 && n < len(i.zones) {
		return i.zones[n].name
	}
	return ""
}

// numberRules gives every rule of the policy its id, in the policy's order.
func (c *compiler) numberRules() []uint32 {
	rules := c.policy.Rules
	next := make([]RuleInfo, len(builtinNames)+len(c.previous.rules), len(builtinNames)+len(c.previous.rules)+len(rules)/64+64)
	copy(next, builtinRules())
	copy(next[RuleFirst:], c.previous.rules)
	ids, taken := make([]uint32, len(rules)), make([]bool, len(next), cap(next))
	// Those that were numbered before as the same.
	for _, run := range c.runs {
		for k := range run.n {
			if id := c.opts.After.Order[run.old+k]; int(id) < len(next) && next[id].Rule == rules[run.new+k] {
				ids[run.new+k], taken[id] = id, true
			}
		}
	}
	// Those of the same name.
	known := make(map[string]uint32)
	for id := int(RuleFirst); id < len(next); id++ {
		if !taken[id] && next[id].Rule != freeRule.Rule {
			known[next[id].Name] = uint32(id)
		}
	}
	// The others.
	free := int(RuleFirst)
	for i, id := range ids {
		if id != 0 {
			continue
		}
		id, old := known[rules[i].Name]
		if !old {
			for free < len(next) && next[free].Rule != freeRule.Rule {
				free++
			}
			if id = uint32(free); free == len(next) {
				next, taken = append(next, freeRule), append(taken, false)
			}
		}
		next[id], taken[id], ids[i] = RuleInfo{Rule: rules[i]}, true, id
	}
	if len(next) > maxRules {
		e := Error{Msg: "policy has too many rules"}
		if last := len(rules) - 1; last >= 0 {
			e = c.policy.RulePos(last).Errorf("no number below %d is left for rule %q", maxRules, rules[last].Name)
		}
		c.fail(e.WithHint("flows still bear rules that are gone: apply again when they have ended, or restart"))
	}
	gone := maps.Clone(c.previous.gone)
	for id := int(RuleFirst); id < len(next); id++ {
		n := id - int(RuleFirst)
		if info := &next[id]; taken[id] {
			info.Gone = false
		} else if info.Rule != freeRule.Rule && !info.Gone {
			if info.Gone = true; gone == nil {
				gone = make(map[int]time.Time)
			}
			gone[n] = c.opts.Now
		}
	}
	for n := range gone {
		if taken[n+int(RuleFirst)] {
			delete(gone, n)
		}
	}
	if len(gone) == 0 {
		gone = nil
	}
	c.placeRules(next, ids)
	c.out.Rules = slices.Clip(next)
	c.out.Identities.rules, c.out.Identities.gone = c.out.Rules[RuleFirst:], gone
	return ids
}

// placeRules says where the rules of the policy stand, which have expired, and when the first of the others will.
func (c *compiler) placeRules(infos []RuleInfo, ids []uint32) {
	for i, id := range ids {
		info, at := &infos[id], &c.policy.places[i]
		if file := c.policy.Files[at.file]; info.File != file {
			info.File = file
		}
		info.Line = int(at.line)
	}
	for _, i := range c.policy.special {
		r := c.policy.Rules[i]
		expired := r.Expired(c.opts.Now)
		if !expired && !r.Expires.IsZero() && (c.out.NextExpiry.IsZero() || r.Expires.Before(c.out.NextExpiry)) {
			c.out.NextExpiry = r.Expires
		}
		infos[ids[i]].Expired = expired
		c.out.Special = append(c.out.Special, ids[i])
	}
}

// numberZones gives every zone of the policy its id.
func (c *compiler) numberZones() {
	zones := slices.SortedFunc(slices.Values(c.policy.Zones), func(a, b Zone) int { return strings.Compare(a.Name, b.Name) })
	if most := zoneMax - zoneFirst + 1; len(zones) > most {
		last := c.policy.Zones[len(c.policy.Zones)-1].Pos
		c.fail(last.Errorf("policy has %d zones, more than %d", len(zones), most).
			WithHint("tell networks apart by addresses or workloads inside a zone"))
		zones = zones[:most]
	}
	next := slices.Clone(c.previous.zones)
	taken := make([]bool, len(next))
	give := func(z *Zone, n int) {
		next[n], taken[n] = zoneIdentity{name: z.Name, places: c.placesOf(z)}, true
		c.zones[z.Name] = uint8(zoneFirst + n)
	}
	// Those that have the same places, then those of the same name, then the new ones.
	for i := range zones {
		places := c.placesOf(&zones[i])
		for n, old := range c.previous.zones {
			if len(places) > 0 && !taken[n] && old.gone.IsZero() && slices.Equal(old.places, places) {
				give(&zones[i], n)
				break
			}
		}
	}
	for _, gone := range []bool{false, true} {
		for i := range zones {
			if c.zones[zones[i].Name] != 0 {
				continue
			}
			for n, old := range c.previous.zones {
				if !taken[n] && old.name == zones[i].Name && old.gone.IsZero() != gone {
					give(&zones[i], n)
					break
				}
			}
		}
	}
	for i := range zones {
		if c.zones[zones[i].Name] != 0 {
			continue
		}
		// Not the number of a zone that leaves with this policy either: flows bear it.
		n := slices.IndexFunc(next, func(z zoneIdentity) bool { return z.name == "" })
		if n < 0 {
			n = len(next)
			if zoneFirst+n > zoneMax {
				c.fail(zones[i].Pos.Errorf("no number is left for zone %q", zones[i].Name).
					WithHint("flows still bear zones that are gone: apply again when they have ended, or restart"))
				break
			}
			next, taken = append(next, zoneIdentity{}), append(taken, false)
		}
		give(&zones[i], n)
	}
	c.out.Zones = []string{"", NameHost}
	for n := range next {
		name := next[n].name
		if !taken[n] {
			if name != "" && next[n].gone.IsZero() {
				next[n].gone = c.opts.Now
			}
			name = ""
		}
		c.out.Zones = append(c.out.Zones, name)
	}
	c.out.Identities.zones = next
}

// numberMACs gives each MAC that a workload or set holds an identity; new ones in the order of their bytes.
func (c *compiler) numberMACs() {
	all := make(map[MAC]Pos)
	for i := range c.policy.Workloads {
		for _, m := range c.policy.Workloads[i].MACs {
			all[m] = c.policy.Workloads[i].Pos
		}
	}
	for i := range c.policy.Sets {
		for _, m := range c.policy.Sets[i].MACs {
			all[m] = c.policy.Sets[i].Pos
		}
	}
	next := make(map[MAC]macIdentity, len(all))
	taken := make(map[uint16]bool, len(all))
	for mac, old := range c.previous.macs {
		if _, still := all[mac]; still {
			old.gone = time.Time{}
		} else if old.gone.IsZero() {
			old.gone = c.opts.Now
		}
		next[mac], taken[old.id] = old, true
	}
	c.out.MACs = make(map[MAC]uint16, len(all))
	id := 1
	for _, mac := range slices.SortedFunc(maps.Keys(all), func(a, b MAC) int { return slices.Compare(a[:], b[:]) }) {
		if _, old := next[mac]; !old {
			for taken[uint16(id)] && id <= maxMACs {
				id++
			}
			switch {
			case id > maxMACs && len(all) > maxMACs:
				c.fail(all[mac].Errorf("policy names %d MAC addresses, more than %d", len(all), maxMACs).WithHint("use addresses or zones instead"))
				return
			case id > maxMACs:
				c.fail(all[mac].Errorf("no number is left for MAC address %s", mac).
					WithHint("flows still bear MAC addresses that are gone: apply again when they have ended, or restart"))
				return
			}
			next[mac], taken[uint16(id)] = macIdentity{id: uint16(id)}, true
		}
		c.out.MACs[mac] = next[mac].id
		c.lastMAC = max(c.lastMAC, next[mac].id)
	}
	c.out.Identities.macs = next
}

// maxMACs is what the context of a flow can tell apart, 0 being none.
const maxMACs = 65535
