package firewall

import (
	"cmp"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// Flags of a verdict (abi.h: VERDICT_LOG, VERDICT_MIDSTREAM).
const (
	verdictLog       = 1 << 28
	verdictMidstream = 1 << 29
)

// maxRules is what a verdict's rule id can hold.
const maxRules = 1 << 24

// Compile turns a policy into the rows of an ACL pipe. It is a pure function: equal arguments give
// equal results. The error is an Errors.
func Compile(p *Policy, opts CompileOptions) (*Compiled, error) {
	c := &compiler{
		policy: p,
		opts:   opts,
		zones:  map[string]uint8{NameHost: zoneHost},
		sets:   make(map[string][]box),
		out:    &Compiled{Tests: slices.Clone(p.Tests), Warnings: slices.Clone(p.Warnings), Identities: new(Identities)},
	}
	if c.previous = opts.Previous; c.previous == nil {
		c.previous = new(Identities)
	}
	c.numberZones()
	c.numberMACs()
	c.claimPorts()
	c.monitors()
	c.runs = c.sameRules()
	c.out.Order = c.numberRules()
	c.spoofing()
	c.management(&c.builtin)
	c.dhcpClient()
	before := slices.Concat(c.antispoof, c.builtin.dhcp)
	if !opts.Management.Override {
		// Before anti-spoofing: the wrong addresses of a zone must not cut the operator off either.
		before = slices.Concat(c.builtin.management, before)
	}
	c.rules(before)
	if opts.Management.Override {
		c.out.Entries = append(c.out.Entries, c.builtin.management...)
	}
	c.natRules()
	if len(c.errs) > 0 {
		return nil, c.errs.Sorted(p.Files...)
	}
	c.lint()
	c.out.Warnings = c.out.Warnings.Sorted(p.Files...)
	return c.out, nil
}

type compiler struct {
	policy    *Policy
	opts      CompileOptions
	previous  *Identities
	zones     map[string]uint8
	lastMAC   uint16 // highest identity
	out       *Compiled
	errs      Errors
	antispoof []flowtable.ACLEntry
	builtin   builtinEntries
	runs      []ruleRun            // of rules that After has
	entries   []flowtable.ACLEntry // of the policy's rules, a part of out.Entries
	used      []string             // services that management names
	sets      map[string][]box     // what lists of sets come to
}

func (c *compiler) fail(e Error) { c.errs = append(c.errs, e) }

// claimPorts says for every port and VLAN which zone its frames belong to.
func (c *compiler) claimPorts() {
	for i := range c.policy.Zones {
		z := &c.policy.Zones[i]
		for j, name := range z.Ports {
			if !c.opts.OwnNamePorts && !c.portExists(name) {
				c.fail(Unknown(z.PortPos[j], "port", name, c.opts.Ports, "the gateway's configuration has no such port"))
			}
		}
		for _, at := range c.placesOf(z) {
			c.out.Ports = append(c.out.Ports, PortZone{Port: at.port, VLAN: at.vlan, Zone: c.zones[z.Name]})
		}
	}
	slices.SortFunc(c.out.Ports, func(a, b PortZone) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.VLAN, b.VLAN), cmp.Compare(a.Zone, b.Zone))
	})
	for i := 1; i < len(c.out.Ports); i++ {
		if a, b := c.out.Ports[i-1], c.out.Ports[i]; a.Port == b.Port && a.VLAN == b.VLAN {
			// Load refuses it where it is written; here one of the two took the port of its own name.
			at := c.policy.Zones[slices.IndexFunc(c.policy.Zones, func(z Zone) bool { return c.zones[z.Name] == b.Zone })].Pos
			c.fail(at.Errorf("port %q belongs to zones %q and %q", a.Port, c.out.Zones[a.Zone], c.out.Zones[b.Zone]).
				WithHint("say the ports of each zone"))
		}
	}
}

// placesOf returns what a zone says belongs to it, in order.
func (c *compiler) placesOf(z *Zone) (places []place) {
	ports := z.Ports
	if c.opts.OwnNamePorts {
		ports = slices.DeleteFunc(slices.Clone(ports), func(name string) bool { return !c.portExists(name) })
		if len(ports) == 0 && c.portExists(z.Name) {
			ports = []string{z.Name}
		}
	}
	for _, name := range ports {
		for _, vlan := range z.vlanIDs() {
			places = append(places, place{name, vlan})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.port, b.port), cmp.Compare(a.vlan, b.vlan)) })
	return places
}

func (c *compiler) portExists(name string) bool {
	return c.opts.Ports == nil && !c.opts.OwnNamePorts || slices.Contains(c.opts.Ports, name)
}

// rule expands rule i of the policy into entries.
func (c *compiler) rule(id uint32, i int) {
	r := c.policy.Rules[i]
	if r.Expired(c.opts.Now) {
		c.out.source.odd = append(c.out.source.odd, int32(i))
		c.warn(c.policy.RulePos(i).Errorf("rule %q has expired and matches nothing", r.Name).
			WithHint("its last day was %s; take it out or extend it", r.Expires.AddDate(0, 0, -1).Format("2006-01-02")))
		return
	}
	var flags uint32
	if r.Log {
		flags |= verdictLog
	}
	if r.Midstream {
		flags |= verdictMidstream
	}
	verdict := flowtable.Verdict(id, uint32(actionCodes[r.Action]), flags)
	from, to := c.selector(&r.From), c.selector(&r.To)
	var entries []flowtable.ACLEntry
	for _, f := range from {
		for _, t := range to {
			for _, s := range spans(r.Services) {
				e := flowtable.ACLEntry{
					From: f.zones, To: t.zones, Contexts: f.contexts,
					Src: familyAddresses(f.addrs, s.family), Dst: familyAddresses(t.addrs, s.family),
					Verdict: verdict, Audit: r.Audit,
				}
				setSpan(&e, s)
				if possible(f.addrs, t.addrs, s.family) {
					entries = append(entries, e)
				}
			}
		}
	}
	if len(entries) == 0 {
		c.out.source.odd = append(c.out.source.odd, int32(i))
		c.warn(c.policy.RulePos(i).Errorf("rule %q can never match", r.Name).WithHint("%s", neverHint(from, to, r)))
	}
	if r.Audit {
		entries = disjoint(entries, c.lastMAC)
	}
	c.out.Entries = append(c.out.Entries, entries...)
}

var actionCodes = [...]bpf.XDPAction{Allow: bpf.XDPActionACTION_ALLOW, Deny: bpf.XDPActionACTION_DENY, Reject: bpf.XDPActionACTION_REJECT}

func neverHint(from, to []box, r *Rule) string {
	switch {
	case len(from) == 0:
		return "nothing fulfils all that `from` asks"
	case len(to) == 0:
		return "nothing fulfils all that `to` asks"
	case len(spans(r.Services)) == 0:
		return "its service holds no port"
	}
	return "`from`, `to` and `service` have no address family in common"
}

func (c *compiler) warn(e Error) { c.out.Warnings = append(c.out.Warnings, e) }

// possible reports whether some family is left in which both endpoints have addresses.
func possible(src, dst []flowtable.AddrRange, family uint8) bool {
	for _, f := range []uint8{4, 6} {
		if family != 0 && family != f {
			continue
		}
		if (src == nil || len(familyAddresses(src, f)) > 0) && (dst == nil || len(familyAddresses(dst, f)) > 0) {
			return true
		}
	}
	return false
}

func setSpan(e *flowtable.ACLEntry, s span) {
	e.Proto, e.Family, e.SrcPort, e.DstPort = s.proto, s.family, s.src, s.dst
}

// selector returns the alternatives of an endpoint; none if nothing can match.
func (c *compiler) selector(s *Selector) []box {
	out := []box{{}}
	if len(s.Zones) > 0 {
		out = product(out, []box{{zones: c.zoneSet(s.Zones)}})
	}
	if s.Addresses != nil {
		addrs := s.Addresses
		if len(addrs) > 1 {
			addrs = joinAddresses(addrs)
		}
		out = product(out, []box{{addrs: addrs}})
	}
	if len(s.Sets) > 0 {
		out = product(out, c.setBoxes(s.Sets))
	}
	if len(s.Workloads) > 0 {
		var boxes []box
		for _, name := range s.Workloads {
			i := slices.IndexFunc(c.policy.Workloads, func(w Workload) bool { return w.Name == name })
			boxes = append(boxes, c.workload(&c.policy.Workloads[i]))
		}
		out = product(out, mergeBoxes(boxes))
	}
	if len(s.Labels) > 0 {
		var boxes []box
		for _, w := range c.policy.labelled(s.Labels) {
			boxes = append(boxes, c.workload(w))
		}
		out = product(out, mergeBoxes(boxes))
	}
	return mergeBoxes(out)
}

// setBoxes returns the alternatives that sets come to. Rules that name the same sets share them: a large
// one takes its time.
func (c *compiler) setBoxes(names []string) []box {
	key := strings.Join(names, " ")
	boxes, known := c.sets[key]
	if known {
		return boxes
	}
	addrs, macs := []flowtable.AddrRange{}, []MAC{}
	for _, name := range names {
		set := &c.policy.Sets[slices.IndexFunc(c.policy.Sets, func(s Set) bool { return s.Name == name })]
		addrs = append(addrs, set.Prefixes...)
		macs = append(macs, set.MACs...)
	}
	boxes = []box{{addrs: joinAddresses(addrs)}, {contexts: c.contexts(macs)}}
	c.sets[key] = boxes
	return boxes
}

func (c *compiler) workload(w *Workload) box {
	b := box{zones: c.zoneSet(w.Zones)}
	if len(w.Addresses) > 0 {
		b.addrs = joinAddresses(w.Addresses)
	}
	if len(w.MACs) > 0 {
		b.contexts = c.contexts(w.MACs)
	}
	return b
}

func (c *compiler) zoneSet(names []string) flowtable.Zones {
	var z flowtable.Zones
	for _, name := range names {
		z.Add(c.zones[name])
	}
	return z
}

func (c *compiler) contexts(macs []MAC) []uint16 {
	out := []uint16{}
	for _, m := range macs {
		out = append(out, c.out.MACs[m])
	}
	return joinContexts(out)
}
