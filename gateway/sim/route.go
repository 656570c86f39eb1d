package sim

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// RouteKind says what becomes of a destination.
type RouteKind uint8

const (
	RoutePort      RouteKind = iota // unicast by one of the ports
	RouteHost                       // the gateway's own address, or a broadcast
	RouteBlocked                    // blackhole, unreachable, prohibit
	RouteElsewhere                  // unicast by an interface that is no port
)

// Route is a route with its neighbour. The longest prefix wins; of equal ones the first in the list.
type Route struct {
	Prefix netip.Prefix
	Kind   RouteKind
	// Of RoutePort.
	Port string
	VLAN uint16  // 0 = untagged
	MAC  [6]byte // of the next hop; zero: not known yet
}

const (
	firstHop = 128    // NEXTHOP_FIRST of abi.h
	maxHop   = 16_384 // NEXTHOP_MAX
)

// routeTable answers by longest prefix: for each family the lengths in use, longest first, and the
// prefixes of that length.
type routeTable struct {
	v4, v6 []prefixLength
}

type prefixLength struct {
	bits   int
	routes map[netip.Addr]target
}

type target struct {
	answer flowtable.Route
	route  *Route
}

// layRoutes gives each next hop a slot and sorts the routes.
func (s *Sim) layRoutes() error {
	slots := make(map[bpf.XDPNexthop]uint32)
	byLength := make(map[[2]int]map[netip.Addr]target)
	for i := range s.cfg.Routes {
		r := &s.cfg.Routes[i]
		if !r.Prefix.IsValid() {
			return fmt.Errorf("route %d has no prefix", i+1)
		}
		t := target{route: r}
		switch r.Kind {
		case RouteHost:
			t.answer.Nexthop = flowtable.NexthopHost
		case RouteBlocked:
			t.answer.Reason = bpf.XDPReasonREASON_ROUTE_BLOCKED
		case RouteElsewhere:
			t.answer.Reason = bpf.XDPReasonREASON_EGRESS_NOT_A_PORT
		default:
			hop, err := s.hop(r)
			if err != nil {
				return fmt.Errorf("route %v: %w", r.Prefix, err)
			}
			slot, ok := slots[hop]
			if !ok {
				if len(s.hops) == maxHop {
					return fmt.Errorf("route %v: more than %d next hops", r.Prefix, maxHop-firstHop)
				}
				slot = uint32(len(s.hops))
				slots[hop] = slot
				s.hops = append(s.hops, hop)
			}
			t.answer.Nexthop = slot
		}
		key := [2]int{r.Prefix.Addr().BitLen(), r.Prefix.Bits()}
		if byLength[key] == nil {
			byLength[key] = make(map[netip.Addr]target)
		}
		at := r.Prefix.Masked().Addr()
		if _, taken := byLength[key][at]; !taken {
			byLength[key][at] = t
		}
	}
	for key, routes := range byLength {
		to := &s.routes.v4
		if key[0] == 128 {
			to = &s.routes.v6
		}
		*to = append(*to, prefixLength{key[1], routes})
	}
	for _, list := range [][]prefixLength{s.routes.v4, s.routes.v6} {
		slices.SortFunc(list, func(a, b prefixLength) int { return cmp.Compare(b.bits, a.bits) })
	}
	return nil
}

func (s *Sim) hop(r *Route) (bpf.XDPNexthop, error) {
	at := s.ports[r.Port]
	switch {
	case at == nil:
		return bpf.XDPNexthop{}, fmt.Errorf("no port %q", r.Port)
	case at.peer != nil:
		return bpf.XDPNexthop{}, fmt.Errorf("port %q is inline, and routes do not leave by those", r.Port)
	}
	hop := bpf.XDPNexthop{
		Dst: macWord(r.MAC), Src: macWord(at.MAC) | uint64(at.entry.Mtu)<<48,
		State: flowtable.NexthopReady, Port: at.entry.Id, Zone: at.entry.Zone,
	}
	if r.VLAN != 0 {
		hop.Zone = at.vlans[r.VLAN]
		hop.Vlan = r.VLAN<<8 | r.VLAN>>8
		hop.Dst |= uint64(hop.Vlan) << 48
	}
	if r.MAC == [6]byte{} {
		hop.State = flowtable.NexthopPending
	}
	return hop, nil
}

// lookUp returns the target of a destination.
func (t *routeTable) lookUp(dst netip.Addr) (target, bool) {
	list := t.v6
	if dst.Is4() {
		list = t.v4
	}
	for i := range list {
		prefix, err := dst.Prefix(list[i].bits)
		if err != nil {
			continue // an address has no prefix longer than itself
		}
		if found, ok := list[i].routes[prefix.Addr()]; ok {
			return found, true
		}
	}
	return target{}, false
}

// of answers for a destination.
func (t *routeTable) of(dst netip.Addr) flowtable.Route {
	if found, ok := t.lookUp(dst); ok {
		return found.answer
	}
	return flowtable.Route{Reason: bpf.XDPReasonREASON_NO_ROUTE}
}

// local reports whether a destination is the gateway's own.
func (t *routeTable) local(dst netip.Addr) bool {
	found, ok := t.lookUp(dst)
	return ok && found.route.Kind == RouteHost
}

// destination reads the IP destination of a frame behind up to two tags.
func destination(frame []byte) (netip.Addr, bool) {
	at := 12
	for range 3 {
		if len(frame) < at+2 {
			break
		}
		switch proto := binary.BigEndian.Uint16(frame[at:]); proto {
		case 0x8100, 0x88a8:
			at += 4
			continue
		case 0x0800:
			if len(frame) >= at+2+20 {
				return netip.AddrFrom4([4]byte(frame[at+2+16:])), true
			}
		case 0x86dd:
			if len(frame) >= at+2+40 {
				return netip.AddrFrom16([16]byte(frame[at+2+24:])), true
			}
		}
		break
	}
	return netip.Addr{}, false
}

// Lookup says where a destination lies: the name of the port, or "host"; "" if no route leads there.
func (s *Sim) Lookup(dst netip.Addr) (port string) {
	t, ok := s.routes.lookUp(dst.Unmap())
	switch {
	case !ok:
		return ""
	case t.route.Kind == RouteHost:
		return "host"
	case t.route.Kind == RoutePort:
		return t.route.Port
	}
	return ""
}
