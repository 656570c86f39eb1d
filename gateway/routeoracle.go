package gateway

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/firewall"
)

// A routeOracle answers which zone a destination lies in, by the kernel's routes as they are now: for
// the policy's tests that do not say.
type routeOracle struct {
	config *Config
	nl     *netlink.Handle
}

// openRouteOracle asks in the network namespace of the calling thread, wherever it is used.
func openRouteOracle(c *Config) (*routeOracle, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	return &routeOracle{c, nl}, nil
}

func (o *routeOracle) close() { o.nl.Close() }

// zone returns the zone of the inline peer if `in` is an inline port, else of the port that the route
// leaves by.
func (o *routeOracle) zone(r *Ruleset, in string, dst netip.Addr) (string, bool) {
	for _, pair := range o.config.Inline {
		for side, name := range pair {
			if name == in {
				return o.portZone(r, pair[1-side], 0)
			}
		}
	}
	routes, err := o.nl.RouteGet(dst.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", false
	}
	switch routes[0].Type {
	case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_MULTICAST, unix.RTN_ANYCAST:
		return firewall.NameHost, true
	case unix.RTN_UNICAST:
	default:
		return "", false
	}
	link, err := o.nl.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", false
	}
	var vlan uint16
	if v, ok := link.(*netlink.Vlan); ok {
		vlan = uint16(v.VlanId)
		if link, err = o.nl.LinkByIndex(v.ParentIndex); err != nil {
			return "", false
		}
	}
	for _, p := range o.config.Ports {
		if p.Device == link.Attrs().Name {
			return o.portZone(r, p.Name, vlan)
		}
	}
	return "", false
}

func (o *routeOracle) portZone(r *Ruleset, port string, vlan uint16) (string, bool) {
	id, ok := r.Compiled.ZoneOf(port, vlan)
	return r.zoneName(id), ok
}
