package gateway

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// FlowNAT is what the packets of a translated flow become, in its opener's direction.
type FlowNAT struct {
	SrcIP           netip.Addr `json:"src_ip"`
	SrcPort         uint16     `json:"src_port"`
	DestIP          netip.Addr `json:"dest_ip"`
	DestPort        uint16     `json:"dest_port"`
	SourceRule      string     `json:"source_rule"`      // that translated its source, "" for none
	DestinationRule string     `json:"destination_rule"` // that translated its destination, "" for none
}

// NATStatus is what GET /v1/nat answers.
type NATStatus struct {
	Rules     []NATRuleStatus    `json:"rules"`     // of the policy, in its order; then those gone that still translate flows
	Addresses []NATAddressStatus `json:"addresses"` // that masquerading writes
}

// NATRuleStatus is a nat rule of the policy and what it does.
type NATRuleStatus struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"` // keep, masquerade, snat, dnat or prefix
	Text      string `json:"text"` // what it writes, "" if it is gone
	File      string `json:"file"`
	Line      int    `json:"line"`
	Flows     uint64 `json:"flows"`      // that it translates now
	Opened    uint64 `json:"opened"`     // flows since the gateway's start, and what became of others:
	Exhausted uint64 `json:"exhausted"`  // no port was free
	Conflicts uint64 `json:"conflicts"`  // the translation was another flow's
	Limited   uint64 `json:"limited"`    // their source had as many as it may
	PortsUsed uint64 `json:"ports_used"` // of all its addresses
	// FullestPercent is the share of the ports that is in use where it is largest: of one address, protocol and
	// quarter of the remote ends.
	FullestPercent float64 `json:"fullest_percent"`
	FullestOf      string  `json:"fullest_of"` // address, of a pool, and protocol of these; "" for none
	Mapping        string  `json:"mapping"`    // of rules that choose ports: as their keys say; else ""
	Filtering      string  `json:"filtering"`  // likewise
	Mappings       uint64  `json:"mappings"`   // that there are now, of endpoint-independent mapping
	// SourceLimit is how many flows one source may have, 0: any number. Sources are those that have most, five at
	// most, and SourcesNear have more than 90 % of it.
	SourceLimit int               `json:"source_limit"`
	SourcesNear int               `json:"sources_near"`
	Sources     []NATSourceStatus `json:"sources"`
	Gone        bool              `json:"gone"` // of an earlier policy: it translates the flows that it has, and no new ones
	// Unaddressed are ports, or port.VLAN, by which it should masquerade and which have no address that it could write.
	Unaddressed []string `json:"unaddressed"`
	Description string   `json:"description,omitempty"`
	Owner       string   `json:"owner,omitempty"`
}

// NATAddressStatus is what masquerading writes for flows that leave by a port.
type NATAddressStatus struct {
	Port string     `json:"port"`
	VLAN uint16     `json:"vlan"` // 0 = untagged
	IP4  netip.Addr `json:"ip4"`  // "" for none
	IP6  netip.Addr `json:"ip6"`  // "" for none
}

// natNearlyFull is the share of an address's ports from which on people are warned, in percent.
const natNearlyFull = 90

// Of nat_ports (abi.h).
const (
	natNoPorts = 0xffffffff
	natSlices  = 4
)

// natClasses name what an address has ports of, in the order of nat_ports (abi.h).
var natClasses = [3]string{"tcp", "udp", "icmp"}

// natRule describes the id of a nat rule, one of an earlier policy as it was there.
func (r *Ruleset) natRule(id uint32) firewall.NATRuleInfo {
	if id == 0 {
		return firewall.NATRuleInfo{}
	}
	if int(id) < len(r.Compiled.NATRules) && r.Compiled.NATRules[id].Name != "" {
		return r.Compiled.NATRules[id]
	}
	return firewall.NATRuleInfo{Name: fmt.Sprintf("nat-%d", id)}
}

// natNames are the names of nat rules by id.
func (r *Ruleset) natNames() []string {
	names := make([]string, len(r.Compiled.NATRules))
	for id := range names {
		names[id] = r.Compiled.NATRules[id].Name
	}
	return names
}

// translation describes what becomes of a flow's packets; nil: nothing.
func (r *Ruleset) translation(t *flowtable.Translation) *FlowNAT {
	if t == nil {
		return nil
	}
	return &FlowNAT{
		SrcIP: t.Outer.Source(), SrcPort: t.Outer.SrcPort, DestIP: t.Outer.Destination(), DestPort: t.Outer.DstPort,
		SourceRule: r.natRule(t.SourceRule).Name, DestinationRule: r.natRule(t.DestinationRule).Name,
	}
}

// masqueradesTo reports whether a flow got one of these addresses as its source because its port had it.
func (r *Ruleset) masqueradesTo(f *flowtable.Flow, addresses map[netip.Addr]bool) bool {
	if f.NAT == nil || !addresses[f.NAT.Outer.Source()] || f.NAT.Outer.Source() == f.Tuple.Source() {
		return false
	}
	switch r.natRule(f.NAT.SourceRule).Kind {
	case firewall.NATSource, firewall.NATPrefix:
		return false // the address is the policy's
	}
	return true
}

// nat returns what is translated.
func (r *reporter) nat() (*NATStatus, error) {
	rules := r.rules.Load()
	s := &NATStatus{Rules: []NATRuleStatus{}, Addresses: []NATAddressStatus{}}
	addresses := r.plane.NATAddresses()
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, NATAddressStatus{a.Port, a.VLAN, a.IP4, a.IP6})
	}
	counted, err := r.plane.NATCounters()
	if err != nil {
		return nil, err
	}
	flows, err := r.ledger.translated(rules.natNames())
	if err != nil {
		return nil, err
	}
	var sources []flowtable.Source
	if rules.NAT.LimitsSources() {
		if sources, err = r.ledger.sources(); err != nil {
			return nil, err
		}
	}
	ports, done := r.plane.NATPorts()
	defer done()
	for _, ids := range rules.Compiled.NATOrder {
		if len(ids) == 0 {
			continue // it can never match
		}
		info := rules.natRule(ids[0])
		c := counted[info.Name]
		out := NATRuleStatus{
			Name: info.Name, Kind: string(info.Kind), Text: info.Text, File: info.File, Line: info.Line,
			Flows: flows[info.Name].flows, Opened: c.Flows, Exhausted: c.Exhausted, Conflicts: c.Conflicts,
			Limited: c.Limited, SourceLimit: info.SourceLimit, Sources: []NATSourceStatus{},
			Mapping: info.Mapping, Filtering: info.Filtering, Mappings: flows[info.Name].mappings,
			Unaddressed: rules.natUnaddressed(ids, addresses), Description: info.Description, Owner: info.Owner,
		}
		parts := make(map[uint32]bool)
		for _, id := range ids {
			parts[id] = true
			// Another policy may have come into force since its rules were read.
			if ports.NAT == rules.NAT && rules.NAT != nil {
				out.addPorts(ports.NAT, &ports.NAT.Rules[id], ports.Bitmaps)
			}
		}
		if out.SourceLimit > 0 {
			out.addSources(sources, parts)
		}
		s.Rules = append(s.Rules, out)
	}
	s.Rules = append(s.Rules, rules.natGone(flows)...)
	for i := range s.Rules {
		if r := &s.Rules[i]; r.Gone {
			c := counted[r.Name]
			r.Opened, r.Exhausted, r.Conflicts, r.Limited, r.Mappings = c.Flows, c.Exhausted, c.Conflicts, c.Limited, flows[r.Name].mappings
		}
	}
	return s, nil
}

// natUnaddressed lists where a rule masquerades and finds no address of any family that it translates. That one
// of two families has none is as a rule what the operator means.
func (r *Ruleset) natUnaddressed(ids []uint32, addresses []dataplane.NATAddress) []string {
	missing := []string{}
	for _, at := range addresses {
		leaves, has := false, false
		for _, id := range ids {
			info := r.natRule(id)
			if info.Kind != firewall.NATMasquerade || at.Zone == 0 || !info.To.Has(at.Zone) {
				continue
			}
			leaves = true
			has = has || info.Family == 4 && at.IP4.IsValid() || info.Family == 6 && at.IP6.IsValid()
		}
		switch {
		case !leaves || has:
		case at.VLAN != 0:
			missing = append(missing, fmt.Sprintf("%s.%d", at.Port, at.VLAN))
		default:
			missing = append(missing, at.Port)
		}
	}
	return missing
}

// natGone lists the rules of earlier policies that still translate flows; how many, flows say by name.
func (r *Ruleset) natGone(flows map[string]natFlows) (gone []NATRuleStatus) {
	for i := range r.Compiled.NATRules {
		info := &r.Compiled.NATRules[i]
		named := func(s NATRuleStatus) bool { return s.Name == info.Name }
		current := func(c firewall.NATRuleInfo) bool { return c.Name == info.Name && !c.Gone }
		if !info.Gone || flows[info.Name].flows == 0 || slices.ContainsFunc(gone, named) || slices.ContainsFunc(r.Compiled.NATRules, current) {
			continue
		}
		gone = append(gone, NATRuleStatus{
			Name: info.Name, Kind: string(info.Kind), File: info.File, Line: info.Line, Gone: true,
			Flows: flows[info.Name].flows, PortsUsed: flows[info.Name].ports, Sources: []NATSourceStatus{}, Unaddressed: []string{},
		})
	}
	return gone
}

// addPorts counts the ports in use of one part of a rule.
func (s *NATRuleStatus) addPorts(nat *flowtable.NAT, rule *bpf.XDPNatRule, bitmaps []bpf.XDPNatBitmap) {
	if rule.Ports == natNoPorts {
		return
	}
	block, ok := natBlock(nat, rule.Ports)
	if !ok {
		return
	}
	allowed := int(block.Last) - int(block.First) + 1
	for n := range int(block.Elements) {
		used := natTaken(&bitmaps[int(rule.Ports)+n]) - (1<<16 - allowed)
		s.PortsUsed += uint64(max(0, used))
		if share := 100 * float64(used) / float64(allowed); share > s.FullestPercent {
			address := n / natSlices / len(natClasses)
			s.FullestPercent, s.FullestOf = share, natClasses[n/natSlices%len(natClasses)]
			if at := natPoolAddress(rule, address); at.IsValid() {
				s.FullestOf = at.String() + " " + s.FullestOf
			}
		}
	}
}

// natBlock returns the block of nat_ports that begins with an element.
func natBlock(nat *flowtable.NAT, element uint32) (flowtable.NATPorts, bool) {
	first := uint32(0)
	for _, block := range nat.Ports {
		if first == element {
			return block, true
		}
		first += block.Elements
	}
	return flowtable.NATPorts{}, false
}

// natTaken counts the taken ports of an element of nat_ports.
func natTaken(b *bpf.XDPNatBitmap) (n int) {
	for w := range b.Taken {
		n += bits.OnesCount64(atomic.LoadUint64(&b.Taken[w]))
	}
	return n
}

// natPoolAddress returns an address of a rule's pool; that of masquerading is not the rule's, and zero.
func natPoolAddress(rule *bpf.XDPNatRule, n int) netip.Addr {
	if bpf.XDPNatKind(rule.Kind) != bpf.XDPNatKindNAT_SOURCE {
		return netip.Addr{}
	}
	b := eventAddress(rule.Family, &rule.Address).As16()
	for i := len(b) - 1; n > 0 && i >= 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	return netip.AddrFrom16(b).Unmap()
}

// NATNotes says which rules' addresses will have no port left soon.
func NATNotes(rules []NATRuleStatus) (notes []string) {
	for i := range rules {
		if r := &rules[i]; r.FullestPercent > natNearlyFull {
			notes = append(notes, fmt.Sprintf("nat rule %s: %.0f %% of the ports of an address are in use (%s): when all are, new flows are refused (nat-exhausted)",
				r.Name, r.FullestPercent, r.FullestOf))
		}
	}
	return notes
}

// NATAddressNotes says which rules masquerade where there is no address to do so with.
func NATAddressNotes(rules []NATRuleStatus) (notes []string) {
	for i := range rules {
		if r := &rules[i]; len(r.Unaddressed) > 0 {
			notes = append(notes, fmt.Sprintf("nat rule %s: no address that it could write at %s: new flows that leave there are refused (nat-no-address)",
				r.Name, strings.Join(r.Unaddressed, ", ")))
		}
	}
	return notes
}

// natFlows are the flows that a rule translates now, those of them whose source port it chose, and its mappings.
type natFlows struct{ flows, ports, mappings uint64 }

// translated counts the flows that are translated now, and the mappings, by the name of their rules. Names are by id.
func (l *ledger) translated(names []string) (map[string]natFlows, error) {
	flows := make(map[string]natFlows)
	if atomic.LoadInt64(&l.table.State().Aliases) <= 0 {
		return flows, nil
	}
	name := func(id uint32) string {
		if int(id) < len(names) {
			return names[id]
		}
		return ""
	}
	count := func(source, destination uint32, port, mapping bool) {
		of := [2]string{name(source), name(destination)}
		if of[0] != "" {
			n := flows[of[0]]
			if mapping {
				n.mappings++
			} else {
				n.flows++
			}
			if port {
				n.ports++
			}
			flows[of[0]] = n
		}
		if of[1] != "" && of[1] != of[0] {
			n := flows[of[1]]
			n.flows++
			flows[of[1]] = n
		}
	}
	l.table.Translated(count)
	beside, err := l.beside()
	if err == nil && beside != nil {
		beside.Translated(count)
	}
	return flows, err
}
