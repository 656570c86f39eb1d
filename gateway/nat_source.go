package gateway

import (
	"fmt"
	"net/netip"

	"github.com/softdpu/softdpu/flowtable"
)

// NATSourceStatus is a source and how many flows it has by a nat rule with a limit.
type NATSourceStatus struct {
	Source string `json:"source"` // an IPv4 address, or the /64 of IPv6 addresses
	Flows  uint64 `json:"flows"`
}

// natSourcesShown is how many sources of a rule are told of.
const natSourcesShown = 5

// sources lists the sources of translated flows whose rules limit them, those with the most flows first.
func (l *ledger) sources() ([]flowtable.Source, error) {
	beside, err := l.beside()
	if err != nil {
		return nil, err
	}
	return l.table.Sources(beside), nil
}

// beside is a table to list of what stands beside the groups; nil if that is nothing.
func (l *ledger) beside() (*flowtable.Table, error) {
	flows4, flows6, err := l.plane.Overflow()
	if err != nil {
		return nil, err
	}
	return overflowTable(flows4, flows6)
}

// addSources adds to a rule with a limit which sources have the most flows by its parts. List is in that order.
func (s *NATRuleStatus) addSources(list []flowtable.Source, parts map[uint32]bool) {
	for i := range list {
		of := &list[i]
		if !parts[of.Rule] {
			continue
		}
		if len(s.Sources) < natSourcesShown {
			s.Sources = append(s.Sources, NATSourceStatus{sourceText(of.Prefix), uint64(of.Flows)})
		}
		if of.Flows*100 > s.SourceLimit*natNearlyFull {
			s.SourcesNear++
		}
	}
}

// fullestSource is the share of its limit that the source with the most flows has, 0 to 1; more where the limit was
// lowered.
func (s *NATRuleStatus) fullestSource() float64 {
	if s.SourceLimit == 0 || len(s.Sources) == 0 {
		return 0
	}
	return float64(s.Sources[0].Flows) / float64(s.SourceLimit)
}

// NATSourceNotes says which rules have sources that will be refused new flows soon, or are.
func NATSourceNotes(rules []NATRuleStatus) (notes []string) {
	for i := range rules {
		r := &rules[i]
		if r.SourcesNear == 0 || len(r.Sources) == 0 {
			continue
		}
		others := ""
		if r.SourcesNear > 1 {
			others = fmt.Sprintf(", and %d more are near", r.SourcesNear-1)
		}
		notes = append(notes, fmt.Sprintf("nat rule %s: %s has %d of the %d flows that one source may have%s: beyond that new ones are refused (nat-source-limit)",
			r.Name, r.Sources[0].Source, r.Sources[0].Flows, r.SourceLimit, others))
	}
	return notes
}

// sourceText writes a source: an IPv4 address without its length.
func sourceText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
