package firewall

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// NATRuleInfo is what messages and counters say of an id of a nat rule. A rule has one for each list that it
// is asked in, and there for each address family.
type NATRuleInfo struct {
	Name         string // id 0: ""
	File         string
	Line         int
	Kind         NATKind
	Text         string          // what it does, as in "dnat to 10.20.1.5:8080"; "" if it is Gone
	Family       uint8           // 4 or 6
	Destinations bool            // of the list that is asked for destinations, else for sources
	To           flowtable.Zones // by which what it is about leaves, of the list for sources
	Gone         bool            // of an earlier policy: flows may still bear it
	SourceLimit  int             // flows that one source may have by it, 0: any number
	Mapping      string          // of a rule that chooses ports: the words of its keys; else ""
	Filtering    string
	Description  string
	Owner        string
}

// Bounds of all rules together.
const (
	maxPoolAddresses   = 4096 // each has 100 KB of nat_ports
	maxServersTogether = 1 << 16
	maxBucketsTogether = 1 << 24 // of 2 bytes
)

// natNoPorts is NAT_NO_PORTS of abi.h.
const natNoPorts = 1<<32 - 1

// natPart is what a rule comes to in one list and for one family.
type natPart struct {
	rule         int // index in the policy
	family       uint8
	destinations bool
	entries      []flowtable.ACLEntry // without their verdicts
	id           uint32
}

// zones are those that the entries of a part for sources name as where packets go; empty: any.
func (p *natPart) zones() (all flowtable.Zones) {
	if p.destinations {
		return all
	}
	for i := range p.entries {
		to := p.entries[i].To
		if to == (flowtable.Zones{}) {
			return to
		}
		for w := range to {
			all[w] |= to[w]
		}
	}
	return all
}

// natRules compiles what the policy translates.
func (c *compiler) natRules() {
	var parts []natPart
	for i := range c.policy.NAT {
		of := c.natParts(i)
		if len(of) == 0 {
			r := &c.policy.NAT[i]
			c.warn(r.Pos.Errorf("nat rule %q can never match", r.Name).WithHint("%s", c.natNeverHint(r)))
		}
		parts = append(parts, of...)
	}
	c.sharedPorts(parts)
	c.numberNAT(parts)
	if len(parts) == 0 {
		return
	}
	b := natBuilder{compiler: c, out: &flowtable.NAT{Rules: make([]bpf.XDPNatRule, len(c.out.NATRules))}}
	for i := range parts {
		p := &parts[i]
		b.rule(p)
		for k := range p.entries {
			p.entries[k].Verdict = flowtable.Verdict(p.id, 0, 0)
		}
		if p.destinations {
			c.out.NATDestinations = append(c.out.NATDestinations, p.entries...)
		} else {
			c.out.NATSources = append(c.out.NATSources, p.entries...)
		}
	}
	if len(c.out.NATDestinations) > 0 || b.out.Filters() {
		c.out.NATDestinations = append(c.natExempt(), c.out.NATDestinations...)
	}
	c.out.NAT = b.out
	if nat, err := c.out.NATBehind(nil); err != nil {
		c.fail(Error{Msg: err.Error()})
	} else {
		c.out.NAT = nat
	}
	c.lintNAT(parts)
}

// natExempt makes the entries that answer before all nat rules for destinations and before all mappings, and
// with none: what the gateway's configuration names as its management must not be cut off, nor the gateway's
// own DHCP.
func (c *compiler) natExempt() []flowtable.ACLEntry {
	exempt := slices.Clone(c.builtin.dhcp)
	if !c.opts.Management.Override {
		exempt = append(exempt, c.builtin.management...)
	}
	exempt = slices.DeleteFunc(exempt, func(e flowtable.ACLEntry) bool { return e.To == flowtable.Zones{} })
	for i := range exempt {
		exempt[i].Verdict = flowtable.Verdict(0, uint32(bpf.XDPActionACTION_ALLOW), 0) // no rule, and yet an answer
	}
	return exempt
}

// NATBehind returns NAT with its pipes numbered for a program whose rules are in another, which may be nil
// (flowtable.CompileACLAfter). Without a nat rule that can match it is nil.
func (c *Compiled) NATBehind(rules *flowtable.ACL) (*flowtable.NAT, error) {
	if c.NAT == nil {
		return nil, nil
	}
	out := *c.NAT
	out.Destinations, out.Sources = nil, nil
	for _, l := range []struct {
		entries []flowtable.ACLEntry
		to      **flowtable.ACL
	}{{c.NATDestinations, &out.Destinations}, {c.NATSources, &out.Sources}} {
		if len(l.entries) == 0 {
			continue
		}
		pipe, err := flowtable.CompileACLAfter(l.entries, rules, out.Destinations)
		if err != nil {
			return nil, fmt.Errorf("compile nat rules: %w", err)
		}
		*l.to = pipe
	}
	return &out, nil
}

// TranslatesAs reports whether the policy translates exactly as another, so that either may have the other's pipes.
func (c *Compiled) TranslatesAs(other *Compiled) bool {
	if c.NAT == nil || other.NAT == nil {
		return c.NAT == nil && other.NAT == nil
	}
	return slices.Equal(c.NAT.Rules, other.NAT.Rules) && slices.Equal(c.NAT.Buckets, other.NAT.Buckets) &&
		slices.Equal(c.NAT.Servers, other.NAT.Servers) && slices.Equal(c.NAT.Ports, other.NAT.Ports) &&
		reflect.DeepEqual(c.NATDestinations, other.NATDestinations) && reflect.DeepEqual(c.NATSources, other.NATSources)
}

// natParts expands one rule into the entries of both lists.
func (c *compiler) natParts(i int) (parts []natPart) {
	r := &c.policy.NAT[i]
	from, to := c.selector(&r.From), c.selector(&r.To)
	add := func(destinations bool, from, to []box) {
		for _, family := range []uint8{4, 6} {
			if f := r.family(); f != 0 && f != family {
				continue
			}
			if entries := natEntries(from, to, r.Services, family); len(entries) > 0 {
				parts = append(parts, natPart{rule: i, family: family, destinations: destinations, entries: entries})
			}
		}
	}
	switch r.Kind {
	case NATMasquerade, NATSource:
		add(false, from, to)
	case NATDestination:
		add(true, from, to)
	case NATKeep:
		// Where the destination lives is known for sources only, but for the gateway's own addresses.
		add(true, from, keepZones(to, func(zone uint8) bool { return zone == zoneHost }))
		add(false, from, keepZones(to, func(zone uint8) bool { return zone != zoneHost }))
	case NATPrefix:
		inside, outside := []box{{addrs: []flowtable.AddrRange{prefixRange(r.Inside)}}}, []box{{addrs: []flowtable.AddrRange{prefixRange(r.Outside)}}}
		add(true, to, outside)
		add(false, product(from, inside), to)
	}
	return parts
}

// keepZones returns alternatives with those of their zones that are wanted, without those that have no such zone.
func keepZones(in []box, wanted func(zone uint8) bool) (out []box) {
	for _, b := range in {
		if b.zones != (flowtable.Zones{}) {
			var zones flowtable.Zones
			for z := zoneHost; z <= zoneMax; z++ {
				if b.zones.Has(uint8(z)) && wanted(uint8(z)) {
					zones.Add(uint8(z))
				}
			}
			if b.zones = zones; zones == (flowtable.Zones{}) {
				continue
			}
		}
		out = append(out, b)
	}
	return out
}

func natEntries(from, to []box, services []ServiceMatch, family uint8) (entries []flowtable.ACLEntry) {
	for _, f := range from {
		for _, t := range to {
			for _, s := range spans(services) {
				if s.family != 0 && s.family != family || !possible(f.addrs, t.addrs, family) {
					continue
				}
				e := flowtable.ACLEntry{
					From: f.zones, To: t.zones, Contexts: f.contexts,
					Src: familyAddresses(f.addrs, family), Dst: familyAddresses(t.addrs, family),
				}
				s.family = family
				setSpan(&e, s)
				entries = append(entries, e)
			}
		}
	}
	return entries
}

func (c *compiler) natNeverHint(r *NATRule) string {
	switch {
	case len(c.selector(&r.From)) == 0:
		return "nothing fulfils all that `from` asks"
	case len(c.selector(&r.To)) == 0:
		return "nothing fulfils all that `to` asks"
	case len(spans(r.Services)) == 0:
		return "its service holds no port"
	}
	return "`from`, `to`, `service` and what it writes have no address family in common"
}

// natBuilder fills the tables of all rules.
type natBuilder struct {
	*compiler
	out       *flowtable.NAT
	addresses int // of pools
	full      bool
}

func (b *natBuilder) rule(p *natPart) {
	r := &b.policy.NAT[p.rule]
	rule := bpf.XDPNatRule{Ports: natNoPorts, Family: p.family, SourceLimit: uint32(r.SourceLimit)}
	kind := bpf.XDPNatKindNAT_KEEP
	switch r.Kind {
	case NATMasquerade:
		kind = bpf.XDPNatKindNAT_MASQUERADE
		rule.Ports, rule.Flags = b.ports(r, 1), r.natFlags()
	case NATSource:
		kind = bpf.XDPNatKindNAT_SOURCE
		rule.Address, rule.Addresses = natWords(r.Pool.First), uint32(addressCount(r.Pool))
		rule.Ports, rule.Flags = b.ports(r, int(rule.Addresses)), r.natFlags()
	case NATDestination:
		kind = bpf.XDPNatKindNAT_DESTINATION
		if r.Hairpin {
			rule.Flags |= natHairpin
			rule.Ports = b.ports(r, 1)
		}
		if r.ByConnection {
			rule.Flags |= natByConnection
		}
		rule.Bucket, rule.Buckets = b.servers(r)
	case NATPrefix:
		from, to := r.Inside, r.Outside
		kind = bpf.XDPNatKindNAT_PREFIX_SOURCE
		if p.destinations {
			from, to = to, from
			kind = bpf.XDPNatKindNAT_PREFIX_DESTINATION
		}
		rule.Address, rule.Prefix = natWords(to.Addr()), uint8(to.Bits())
		if to.Addr().Is6() {
			rule.Adjust = prefixAdjustment(from, to)
		}
	}
	rule.Kind = uint8(kind)
	b.out.Rules[p.id] = rule
}

// Flags of a nat_rule (abi.h: NAT_*).
const (
	natHairpin       = 0x01
	natByConnection  = 0x02
	natMapping       = 0x04
	natFilterAny     = 0x08
	natFilterAddress = 0x10
)

// Elements of nat_ports that each address has (abi.h: NAT_CLASSES, NAT_SLICES).
const natElements = 3 * 4

// ports adds a rule's block of nat_ports and returns its first element.
func (b *natBuilder) ports(r *NATRule, addresses int) uint32 {
	first := b.out.Bitmaps()
	if b.addresses += addresses; b.addresses > maxPoolAddresses && !b.full {
		b.full = true
		b.fail(r.Pos.Errorf("nat rules have more than %d addresses together", maxPoolAddresses).
			WithHint("write smaller pools: each address has its own ports for every destination"))
	}
	b.out.Ports = append(b.out.Ports, flowtable.NATPorts{Elements: uint32(addresses * natElements), First: r.Ports.First, Last: r.Ports.Last})
	return uint32(first)
}

// servers adds a rule's servers and buckets, and returns where the latter stand.
func (b *natBuilder) servers(r *NATRule) (first, count uint32) {
	spread := make([]flowtable.Server, len(r.Servers))
	for i, s := range r.Servers {
		spread[i] = flowtable.Server{Address: s.Address, Port: s.Port, Weight: uint16(s.Weight), Drain: s.Drain}
	}
	buckets, err := flowtable.ConsistentHash(spread)
	base := len(b.out.Servers)
	switch {
	case err != nil:
		b.fail(r.KindPos.Errorf("%v", err))
		return 0, 0
	case base+len(r.Servers) > maxServersTogether || len(b.out.Buckets)+len(buckets) > maxBucketsTogether:
		if !b.full {
			b.full = true
			b.fail(r.Pos.Errorf("nat rules spread over too many servers together").WithHint("write fewer servers, or weights that differ less"))
		}
		return 0, 0
	}
	for _, s := range r.Servers {
		b.out.Servers = append(b.out.Servers, bpf.XDPNatServer{Address: natWords(s.Address), Port: bits.ReverseBytes16(s.Port)})
	}
	first = uint32(len(b.out.Buckets))
	for _, server := range buckets {
		b.out.Buckets = append(b.out.Buckets, uint16(base+int(server)))
	}
	return first, uint32(len(buckets))
}

// natWords returns an address as it stands in a packet, an IPv4 address in the first word.
func natWords(a netip.Addr) (w [4]uint32) {
	for i, text := 0, a.AsSlice(); i < len(text); i += 4 {
		w[i/4] = binary.LittleEndian.Uint32(text[i:])
	}
	return w
}

// prefixAdjustment returns what is added, in one's complement, to one word of an IPv6 address whose
// prefix becomes another, for the sum of its words to stay as it was (RFC 6296, section 3.1).
func prefixAdjustment(from, to netip.Prefix) uint16 {
	sum := func(p netip.Prefix) (sum uint32) {
		a := p.Addr().As16()
		for i := 0; i < len(a); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(a[i:]))
		}
		return sum
	}
	difference := sum(from)%0xffff + 0xffff - sum(to)%0xffff
	return uint16(difference % 0xffff)
}
