package oracle

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/softdpu/softdpu/firewall"
)

// Names of built-in rules that verdicts carry.
const (
	ruleManagement = "builtin-management"
	ruleDHCPClient = "builtin-dhcp-client"
	ruleARP        = "builtin-arp"
	ruleND         = "builtin-nd"
	ruleICMPErrors = "builtin-icmp-errors"
	ruleReplies    = "builtin-replies"
)

// Opening is what rules are asked about: the opening packet of a flow.
type Opening struct {
	From, To string // zones
	Src, Dst netip.Addr
	MAC      firewall.MAC // of the frame's source
	Proto    uint8        // of the transport header
	SrcPort  uint16       // of TCP and UDP, else 0
	DstPort  uint16       // of TCP and UDP; ICMP and ICMPv6 queries: type << 8 | code; else 0
}

// Judgement is what anti-spoofing and rules say of an opening packet.
type Judgement struct {
	Reason    string   // "" if allowed, else spoofed, no-rule-matched, deny or reject
	Rule      string   // that decided, "" if none did
	Midstream bool     // the rule admits TCP without its SYN
	Worker    bool     // the rule asks for a worker
	Audit     []string // rules in audit mode that matched on the way
}

// Judge asks about management unless that is overridden, anti-spoofing, then the rules in their order.
func (o *Oracle) Judge(op Opening) Judgement {
	if !o.world.Management.Override && o.managed(op) {
		return Judgement{Rule: ruleManagement}
	}
	if o.spoofed(op) {
		return Judgement{Reason: "spoofed"}
	}
	if o.dhcp(op) {
		return Judgement{Rule: ruleDHCPClient}
	}
	var audit []string
	for i := range o.policy.Rules {
		r := o.policy.Rules[i]
		if r.Expired(o.world.Now) || !o.matches(r, op) {
			continue
		}
		if r.Audit {
			audit = append(audit, r.Name)
			continue
		}
		j := Judgement{Rule: r.Name, Midstream: r.Midstream, Worker: r.Mirror.Port != "", Audit: audit}
		switch r.Action {
		case firewall.Deny:
			j.Reason = "deny"
		case firewall.Reject:
			j.Reason = "reject"
		}
		return j
	}
	if o.managed(op) {
		return Judgement{Rule: ruleManagement, Audit: audit}
	}
	return Judgement{Reason: "no-rule-matched", Audit: audit}
}

var linkLocal6 = netip.MustParsePrefix("fe80::/10")

func (o *Oracle) spoofed(op Opening) bool {
	if op.Src.IsUnspecified() || linkLocal6.Contains(op.Src) {
		return false
	}
	for i := range o.policy.Zones {
		z := &o.policy.Zones[i]
		if z.Name != op.From || len(z.Addresses) == 0 {
			continue
		}
		for _, r := range z.Addresses {
			if between(r.First, op.Src, r.Last) {
				return false
			}
		}
		return true
	}
	return false
}

// dhcp is the built-in rule for the gateway's own DHCP: what servers send to clients, and the other
// way from the gateway.
func (o *Oracle) dhcp(op Opening) bool {
	client, server := uint16(68), uint16(67)
	if op.Src.Is6() {
		client, server = 546, 547
	}
	return op.Proto == protoUDP &&
		(op.To == firewall.NameHost && op.SrcPort == server && op.DstPort == client ||
			op.From == firewall.NameHost && op.SrcPort == client && op.DstPort == server)
}

func (o *Oracle) managed(op Opening) bool {
	if op.To != firewall.NameHost {
		return false
	}
	for _, from := range o.world.Management.From {
		if from.Name == op.From && anyService(o.management, op) {
			return true
		}
	}
	return false
}

// managementServices resolves what the configuration names: services of the policy, tcp/N and udp/N.
func managementServices(p *firewall.Policy, m firewall.Management) ([]firewall.ServiceMatch, error) {
	var out []firewall.ServiceMatch
	for _, ref := range m.Services {
		if i := slices.IndexFunc(p.Services, func(s firewall.Service) bool { return s.Name == ref.Name }); i >= 0 {
			out = append(out, p.Services[i].Matches...)
			continue
		}
		name, number, _ := strings.Cut(ref.Name, "/")
		port, err := strconv.ParseUint(number, 10, 16)
		proto := map[string]uint8{"tcp": protoTCP, "udp": protoUDP}[name]
		if err != nil || proto == 0 {
			return nil, fmt.Errorf("management service %q is neither of the policy nor tcp/PORT or udp/PORT", ref.Name)
		}
		// A range type that only firewall's own dependency names, so it is made in place.
		s := firewall.ServiceMatch{}
		s.Proto.First, s.Proto.Last = proto, proto
		s.SrcPorts = slices.Grow(s.SrcPorts, 1)[:1]
		s.SrcPorts[0].Last = math.MaxUint16
		s.DstPorts = slices.Grow(s.DstPorts, 1)[:1]
		s.DstPorts[0].First, s.DstPorts[0].Last = uint16(port), uint16(port)
		out = append(out, s)
	}
	return out, nil
}

// matches reports whether all that a rule asks holds.
func (o *Oracle) matches(r *firewall.Rule, op Opening) bool {
	return o.selects(&r.From, op.From, op.Src, &op.MAC) &&
		o.selects(&r.To, op.To, op.Dst, nil) &&
		(len(r.Services) == 0 || anyService(r.Services, op))
}

// selects reports whether an endpoint is the one that a selector speaks of. MAC is nil for a
// destination.
func (o *Oracle) selects(s *firewall.Selector, zone string, addr netip.Addr, mac *firewall.MAC) bool {
	if len(s.Zones) > 0 && !slices.Contains(s.Zones, zone) {
		return false
	}
	if len(s.Addresses) > 0 {
		inside := false
		for _, r := range s.Addresses {
			inside = inside || between(r.First, addr, r.Last)
		}
		if !inside {
			return false
		}
	}
	if len(s.Sets) > 0 && !slices.ContainsFunc(s.Sets, func(name string) bool { return o.inSet(name, addr, mac) }) {
		return false
	}
	if len(s.Workloads) > 0 && !slices.ContainsFunc(o.policy.Workloads, func(w firewall.Workload) bool {
		return slices.Contains(s.Workloads, w.Name) && is(&w, zone, addr, mac)
	}) {
		return false
	}
	if len(s.Labels) > 0 && !slices.ContainsFunc(o.policy.Workloads, func(w firewall.Workload) bool {
		for k, v := range s.Labels {
			if have, ok := w.Labels[k]; !ok || have != v {
				return false
			}
		}
		return is(&w, zone, addr, mac)
	}) {
		return false
	}
	return true
}

func (o *Oracle) inSet(name string, addr netip.Addr, mac *firewall.MAC) bool {
	for i := range o.policy.Sets {
		s := &o.policy.Sets[i]
		if s.Name != name {
			continue
		}
		for _, r := range s.Prefixes {
			if between(r.First, addr, r.Last) {
				return true
			}
		}
		return mac != nil && slices.Contains(s.MACs, *mac)
	}
	return false
}

func is(w *firewall.Workload, zone string, addr netip.Addr, mac *firewall.MAC) bool {
	if len(w.Zones) > 0 && !slices.Contains(w.Zones, zone) {
		return false
	}
	if len(w.MACs) > 0 && (mac == nil || !slices.Contains(w.MACs, *mac)) {
		return false
	}
	if len(w.Addresses) == 0 {
		return true
	}
	for _, r := range w.Addresses {
		if between(r.First, addr, r.Last) {
			return true
		}
	}
	return false
}

func anyService(services []firewall.ServiceMatch, op Opening) bool {
	family := uint8(6)
	if op.Src.Is4() {
		family = 4
	}
	for i := range services {
		s := &services[i]
		if op.Proto < s.Proto.First || s.Proto.Last < op.Proto || s.Family != 0 && s.Family != family {
			continue
		}
		src, dst := false, false
		for _, r := range s.SrcPorts {
			src = src || r.First <= op.SrcPort && op.SrcPort <= r.Last
		}
		for _, r := range s.DstPorts {
			dst = dst || r.First <= op.DstPort && op.DstPort <= r.Last
		}
		if src && dst {
			return true
		}
	}
	return false
}

func between(first, a, last netip.Addr) bool {
	return first.Is4() == a.Is4() && first.Compare(a) <= 0 && a.Compare(last) <= 0
}
