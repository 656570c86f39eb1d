package firewall

import (
	"slices"
)

// checkNAT makes sure that a rule asks nothing that is not known when it is asked. Fields are what it says by key, and
// services where its services are said.
func (l *loader) checkNAT(r *NATRule, fields map[string]*Node, services []Pos) {
	if slices.Contains(l.selectorZones(&r.From), NameHost) {
		l.Fail(fields["from"].Pos.Errorf("what the gateway itself sends is not translated").WithHint("name the zones whose traffic it is, or any"))
	}
	to := l.selectorZones(&r.To)
	if r.Kind == NATDestination {
		for _, zone := range to {
			if zone != NameHost {
				l.Fail(fields["to"].Pos.Errorf("where the destination lives is not known before it is translated, and so not that it is zone %q", zone).
					WithHint("name its addresses or a set, or host for every address of the gateway itself"))
				break
			}
		}
	} else if r.Kind != NATKeep && slices.Contains(to, NameHost) {
		l.Fail(fields["to"].Pos.Errorf("what is for the gateway itself keeps its source").WithHint("name the zones that the flows leave to"))
	}
	switch r.Kind {
	case NATDestination:
		l.natServicePorts(r, services)
	case NATPrefix:
		if f := &r.From; !f.Any && (len(f.Addresses) > 0 || len(f.Sets) > 0 || len(f.Workloads) > 0 || len(f.Labels) > 0) {
			l.Fail(fields["from"].Pos.Errorf("from of a prefix rule names more than zones").
				WithHint("inside says whose addresses they are: write the zone that they live in, or any"))
		}
		if service := fields["service"]; service != nil && r.Services != nil {
			l.Fail(service.Pos.Errorf("service on a prefix rule").
				WithHint("it translates all protocols both ways; write keep, snat and dnat rules for single services"))
		}
	}
}

// natServicePorts makes sure that where a server has a port, the rule's packets have.
func (l *loader) natServicePorts(r *NATRule, services []Pos) {
	at := slices.IndexFunc(r.Servers, func(s NATServer) bool { return s.Port != 0 })
	if at < 0 {
		return
	}
	if len(r.Services) == 0 {
		l.Fail(r.KindPos.Errorf("server %s has a port, and nat rule %q does not say its service", r.Servers[at].Address, r.Name).
			WithHint("add service: tcp/443, or other ports of TCP and UDP"))
		return
	}
	for i, s := range r.Services {
		if s.Proto.First != s.Proto.Last || s.Proto.First != protoTCP && s.Proto.First != protoUDP {
			l.Fail(services[i].Errorf("server %s has a port, and %s has none", r.Servers[at].Address, s.Text).
				WithHint("name ports of TCP and UDP alone, as in service: tcp/443; a rule without port does for the rest"))
			return
		}
	}
}

// selectorZones returns the zones that a selector names itself or by a workload.
func (l *loader) selectorZones(s *Selector) []string {
	zones := slices.Clone(s.Zones)
	for _, name := range s.Workloads {
		zones = append(zones, l.policy.Workloads[l.workloadIndex[name]].Zones...)
	}
	if len(s.Labels) > 0 {
		for _, w := range l.policy.labelled(s.Labels) {
			zones = append(zones, w.Zones...)
		}
	}
	return zones
}
