package oracle

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/softdpu/softdpu/firewall"
)

// Device is a port with the addresses that masquerading uses where packets leave by it.
type Device struct {
	Port string
	VLAN uint16     // 0 = untagged
	IP4  netip.Addr // zero: none
	IP6  netip.Addr // zero: none
}

// Choice is what an executor chose where section 15 leaves the choice to its secret hash. The oracle makes no
// use of what it did not have to choose.
type Choice struct {
	Routed netip.Addr     // the destination that it looked a route up for
	Made   bool           // it has a translated flow now of the packet's tuple; then:
	Src    netip.AddrPort // as the other end sees it, an ICMP identifier as port
	Dst    netip.AddrPort
	Reason string // why it refused the packet, "" if it did not
	// Mapping returns the port that it has for an end inside and an address outside by a rule with mapping, once
	// the packet is through.
	Mapping func(rule string, proto uint8, inside netip.AddrPort, outside netip.Addr) (port uint16, made bool)
}

// destinationRule returns the rule for the destination of an opening packet, nil if none translates it. Before
// the route is known only the gateway itself has a zone.
func (o *Oracle) destinationRule(op Opening) *firewall.NATRule {
	r, _ := o.destinationAnswer(op)
	return r
}

// destinationAnswer is destinationRule, and whether the packet is left as it is where no rule translates it: no
// mapping is asked then.
func (o *Oracle) destinationAnswer(op Opening) (rule *firewall.NATRule, decided bool) {
	if within(op.Dst, groups...) {
		return nil, true // for the host zone
	}
	op.To = ""
	if r := o.world.Route(op.Dst); r != nil && r.Kind == RouteHost {
		op.To = firewall.NameHost
	}
	if o.dhcp(op) || !o.world.Management.Override && o.managed(op) {
		return nil, true // not to be cut off
	}
	for i := range o.policy.NAT {
		r := &o.policy.NAT[i]
		switch r.Kind {
		case firewall.NATKeep:
			if o.asks(r, op) {
				return nil, true
			}
		case firewall.NATDestination:
			if r.Servers[0].Address.Is4() == op.Dst.Is4() && o.asks(r, op) {
				if len(willing(r)) == 0 {
					return nil, true
				}
				return r, true
			}
		case firewall.NATPrefix:
			// The other way round: from where the rule leads to, to what is seen there.
			if r.Outside.Contains(op.Dst) && o.selects(&r.To, op.From, op.Src, &op.MAC) {
				return r, true
			}
		}
	}
	return nil, false
}

// sourceRule returns the rule for the source, nil if none translates it.
func (o *Oracle) sourceRule(op Opening) *firewall.NATRule {
	for i := range o.policy.NAT {
		r := &o.policy.NAT[i]
		switch r.Kind {
		case firewall.NATDestination:
			continue
		case firewall.NATSource:
			if r.Pool.First.Is4() != op.Src.Is4() {
				continue
			}
		case firewall.NATPrefix:
			if !r.Inside.Contains(op.Src) {
				continue
			}
		}
		if o.asks(r, op) {
			return r
		}
	}
	return nil
}

// Rules returns the nat rules that an opening packet between routed zones meets; nil where none translates it.
func (o *Oracle) Rules(op Opening) (source, destination *firewall.NATRule) {
	destination = o.destinationRule(op)
	if source = o.sourceRule(op); source != nil && source.Kind == firewall.NATKeep {
		source = nil
	}
	return source, destination
}

// asks reports whether a nat rule is about an opening packet.
func (o *Oracle) asks(r *firewall.NATRule, op Opening) bool {
	return o.selects(&r.From, op.From, op.Src, &op.MAC) && o.selects(&r.To, op.To, op.Dst, nil) &&
		(len(r.Services) == 0 || anyService(r.Services, op))
}

// willing returns the servers that take new flows.
func willing(r *firewall.NATRule) []firewall.NATServer {
	return slices.DeleteFunc(slices.Clone(r.Servers), func(s firewall.NATServer) bool { return s.Drain })
}

// masquerade returns the address by which packets leave; false if the device has none of the family.
func (o *Oracle) masquerade(h hop, is4 bool) (netip.Addr, bool) {
	for _, d := range o.world.Devices {
		if d.Port != h.port.Name || d.VLAN != h.vlan {
			continue
		}
		if is4 {
			return d.IP4, d.IP4.IsValid()
		}
		return d.IP6, d.IP6.IsValid()
	}
	return netip.Addr{}, false
}

// device reports whether masquerading may write an address.
func (o *Oracle) device(a netip.Addr) bool {
	return slices.ContainsFunc(o.world.Devices, func(d Device) bool { return d.IP4 == a || d.IP6 == a })
}

// made reports whether the executor opened a flow that is translated. One that it refused to open again is
// still there.
func (c *Choice) made() bool { return c != nil && c.Made && !strings.HasPrefix(c.Reason, "nat-") }

func (c *Choice) refused(reason string) bool { return c != nil && c.Reason == reason }
