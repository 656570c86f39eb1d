package firewall

import (
	"net/netip"
	"slices"
	"time"

	"github.com/softdpu/softdpu/flowtable"
)

// The oracle decides about a packet from what the operator wrote, rule by rule and field by field.
// It shares nothing with the compiler but the parsed policy.

type oraclePacket struct {
	from, to     string
	src, dst     netip.Addr
	mac          MAC
	proto        uint8
	sport, dport uint16
}

type oracleVerdict struct {
	verdict TestVerdict
	rule    string
	audited []string
}

func oracle(p *Policy, now time.Time, pk oraclePacket) oracleVerdict {
	var out oracleVerdict
	for _, z := range p.Zones {
		if z.Name != pk.from || len(z.Addresses) == 0 {
			continue
		}
		exempt := pk.src.IsUnspecified() || pk.src.Is6() && pk.src.IsLinkLocalUnicast()
		if !exempt && !oracleIn(z.Addresses, pk.src) {
			return oracleVerdict{verdict: VerdictDrop, rule: "none"}
		}
	}
	dhcp := func(client, server uint16) bool {
		return pk.proto == 17 && (pk.from == "host" && pk.sport == client && pk.dport == server ||
			pk.to == "host" && pk.sport == server && pk.dport == client)
	}
	if pk.src.Is4() && dhcp(68, 67) || pk.src.Is6() && dhcp(546, 547) {
		return oracleVerdict{verdict: VerdictAllow, rule: "builtin-dhcp-client"}
	}
	for _, r := range p.Rules {
		if !r.Expires.IsZero() && !now.Before(r.Expires) ||
			!oracleEnd(p, r.From, pk.from, pk.src, &pk.mac) || !oracleEnd(p, r.To, pk.to, pk.dst, nil) || !oracleService(r.Services, pk) {
			continue
		}
		if r.Audit {
			out.audited = append(out.audited, r.Name)
			continue
		}
		out.rule = r.Name
		out.verdict = map[Action]TestVerdict{Allow: VerdictAllow, Deny: VerdictDeny, Reject: VerdictReject}[r.Action]
		return out
	}
	out.verdict, out.rule = VerdictDeny, "none"
	return out
}

func oracleIn(ranges []flowtable.AddrRange, a netip.Addr) bool {
	for _, r := range ranges {
		if r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0 {
			return true
		}
	}
	return false
}

// oracleEnd asks one end of a packet; mac is nil where it is not known.
func oracleEnd(p *Policy, s Selector, zone string, a netip.Addr, mac *MAC) bool {
	if len(s.Zones) > 0 && !slices.Contains(s.Zones, zone) {
		return false
	}
	if s.Addresses != nil && !oracleIn(s.Addresses, a) {
		return false
	}
	workload := func(w Workload) bool {
		return (len(w.Zones) == 0 || slices.Contains(w.Zones, zone)) &&
			(len(w.Addresses) == 0 || oracleIn(w.Addresses, a)) &&
			(len(w.MACs) == 0 || mac != nil && slices.Contains(w.MACs, *mac))
	}
	some := func(names []string, holds func(name string) bool) bool {
		return len(names) == 0 || slices.ContainsFunc(names, holds)
	}
	if !some(s.Sets, func(name string) bool {
		for _, set := range p.Sets {
			if set.Name == name && (oracleIn(set.Prefixes, a) || mac != nil && slices.Contains(set.MACs, *mac)) {
				return true
			}
		}
		return false
	}) {
		return false
	}
	if !some(s.Workloads, func(name string) bool {
		for _, w := range p.Workloads {
			if w.Name == name && workload(w) {
				return true
			}
		}
		return false
	}) {
		return false
	}
	if len(s.Labels) == 0 {
		return true
	}
	for _, w := range p.Workloads {
		all := true
		for k, v := range s.Labels {
			all = all && w.Labels[k] == v
		}
		if all && workload(w) {
			return true
		}
	}
	return false
}

func oracleService(services []ServiceMatch, pk oraclePacket) bool {
	if len(services) == 0 {
		return true
	}
	in := func(ranges []flowtable.U16Range, p uint16) bool {
		return slices.ContainsFunc(ranges, func(r flowtable.U16Range) bool { return r.First <= p && p <= r.Last })
	}
	family := uint8(6)
	if pk.src.Is4() {
		family = 4
	}
	for _, s := range services {
		if s.Proto.First <= pk.proto && pk.proto <= s.Proto.Last && (s.Family == 0 || s.Family == family) &&
			in(s.SrcPorts, pk.sport) && in(s.DstPorts, pk.dport) {
			return true
		}
	}
	return false
}
