package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"slices"
	"strings"
)

// KernelRoutes is what `ip -j route show table all` tells of a gateway.
type KernelRoutes struct {
	Routes []Route
	// Addresses are the gateway's own on each port: sources of what it sends itself.
	Addresses map[string][]netip.Addr
	// VLANs are the addresses of VLANs on ports: what masquerading writes there. Of each family and VLAN the
	// first counts.
	VLANs []Device
}

// ipRoute is one object of iproute2's JSON.
type ipRoute struct {
	Type     string
	Dst      string
	Gateway  string
	Via      struct{ Host string }
	Dev      string
	Protocol string
	Scope    string
	Prefsrc  string
	Table    string
	Metric   uint64
	Flags    []string
	Nexthops []struct {
		Gateway, Dev string
		Via          struct{ Host string }
		Flags        []string
	}
	Pref string // of IPv6 routes only
}

// ReadKernelRoutes reads what `ip -j route` prints, for one or more of its calls after one another: with
// `show table all` both families and the gateway's own addresses, else the main table, of whose
// connected IPv4 routes the own addresses follow. Port says which port, and which VLAN on it, a network
// device is.
//
// Neighbours are not in it: every next hop has a MAC address of our making. Of several next hops the
// first is taken, and tables that only routing rules lead to are left out.
func ReadKernelRoutes(r io.Reader, port func(device string) (name string, vlan uint16, ok bool)) (KernelRoutes, error) {
	out := KernelRoutes{Addresses: make(map[string][]netip.Addr)}
	d := json.NewDecoder(r)
	var local, main []ipRoute
	var family6 []bool // of main
	for {
		var list []ipRoute
		if err := d.Decode(&list); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return out, fmt.Errorf("read routes: this is not what `ip -j route show table all` prints: %w", err)
		}
		// An IPv4 default route by a device alone looks like an IPv6 one, but for what IPv6 routes have.
		for i := range list {
			switch route := list[i]; route.Table {
			case "local":
				local = append(local, route)
			case "", "main", "default":
				main = append(main, route)
				family6 = append(family6, route.Pref != "" || strings.Contains(route.Gateway, ":"))
			}
		}
	}
	for i := range local {
		if err := out.addLocal(&local[i], port); err != nil {
			return out, err
		}
	}
	order := make([]int, len(main))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if main[a].Metric < main[b].Metric {
			return -1
		} else if main[a].Metric > main[b].Metric {
			return 1
		}
		return 0
	})
	for _, i := range order {
		if err := out.addConnected(&main[i], port); err != nil {
			return out, err
		}
	}
	for _, i := range order {
		if err := out.add(&main[i], family6[i], port); err != nil {
			return out, err
		}
	}
	return out, nil
}

// addLocal adds an entry of the table `local`.
func (k *KernelRoutes) addLocal(r *ipRoute, port func(string) (string, uint16, bool)) error {
	prefix, err := routePrefix(r.Dst, strings.Contains(r.Dst, ":"))
	if err != nil {
		return err
	}
	switch r.Type {
	case "local", "broadcast", "anycast":
		k.Routes = append(k.Routes, Route{Prefix: prefix, Kind: RouteHost})
	}
	if r.Type == "local" && prefix.IsSingleIP() {
		k.own(r.Dev, prefix.Addr(), port)
	}
	return nil
}

// addConnected takes the gateway's own address and the broadcast address from a connected IPv4 route.
func (k *KernelRoutes) addConnected(r *ipRoute, port func(string) (string, uint16, bool)) error {
	if r.Protocol != "kernel" || r.Prefsrc == "" || r.Type != "" {
		return nil
	}
	own, err := netip.ParseAddr(r.Prefsrc)
	if err != nil {
		return fmt.Errorf("read routes: source of %s: %w", r.Dst, err)
	}
	k.Routes = append(k.Routes, Route{Prefix: netip.PrefixFrom(own, own.BitLen()), Kind: RouteHost})
	k.own(r.Dev, own, port)
	prefix, err := routePrefix(r.Dst, own.Is6())
	if err != nil {
		return err
	}
	if own.Is4() && prefix.Bits() < 31 {
		last := prefix.Addr().As4()
		for i := range last {
			host := max(0, min(8, (i+1)*8-prefix.Bits()))
			last[i] |= byte(1<<host - 1)
		}
		k.Routes = append(k.Routes, Route{Prefix: netip.PrefixFrom(netip.AddrFrom4(last), 32), Kind: RouteHost})
	}
	return nil
}

func (k *KernelRoutes) own(device string, a netip.Addr, port func(string) (string, uint16, bool)) {
	switch name, vlan, ok := port(device); {
	case !ok:
	case vlan == 0:
		if !slices.Contains(k.Addresses[name], a) {
			k.Addresses[name] = append(k.Addresses[name], a)
		}
	case a.IsLinkLocalUnicast():
	case a.Is4():
		k.VLANs = append(k.VLANs, Device{Port: name, VLAN: vlan, IP4: a})
	default:
		k.VLANs = append(k.VLANs, Device{Port: name, VLAN: vlan, IP6: a})
	}
}

// add adds a route of the main table.
func (k *KernelRoutes) add(r *ipRoute, v6 bool, port func(string) (string, uint16, bool)) error {
	prefix, err := routePrefix(r.Dst, v6)
	if err != nil {
		return err
	}
	out := Route{Prefix: prefix}
	switch r.Type {
	case "", "unicast":
	case "blackhole", "unreachable", "prohibit":
		out.Kind = RouteBlocked
		k.Routes = append(k.Routes, out)
		return nil
	case "local", "broadcast", "anycast":
		out.Kind = RouteHost
		k.Routes = append(k.Routes, out)
		return nil
	default:
		return nil // throw ends the table's search, multicast goes to the host anyway
	}
	if prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
		return nil // the same on every device: it leads nowhere
	}
	device, gateway, flags := r.Dev, r.Gateway+r.Via.Host, r.Flags
	for _, hop := range r.Nexthops {
		if !slices.Contains(hop.Flags, "dead") {
			device, gateway, flags = hop.Dev, hop.Gateway+hop.Via.Host, hop.Flags
			break
		}
	}
	if slices.Contains(flags, "dead") {
		return nil
	}
	name, vlan, ok := port(device)
	if !ok {
		out.Kind = RouteElsewhere
	} else {
		out.Port, out.VLAN, out.MAC = name, vlan, neighbourMAC(device, gateway)
	}
	k.Routes = append(k.Routes, out)
	return nil
}

// routePrefix reads a destination as iproute2 writes it.
func routePrefix(dst string, v6 bool) (netip.Prefix, error) {
	if dst == "default" {
		if v6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0), nil
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), nil
	}
	if a, err := netip.ParseAddr(dst); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(dst)
	if err != nil {
		return prefix, fmt.Errorf("read routes: destination %q: %w", dst, err)
	}
	return prefix.Masked(), nil
}

// neighbourMAC makes the MAC address of a next hop: the same for the same one, and locally administered.
func neighbourMAC(device, gateway string) [6]byte {
	h := fnv.New32a()
	io.WriteString(h, device+" "+gateway)
	sum := h.Sum32()
	return [6]byte{0x02, 0x5e, byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}
}

// Lookup returns the route to a destination: of the longest prefixes the first.
func (k *KernelRoutes) Lookup(dst netip.Addr) (best Route, ok bool) {
	for _, r := range k.Routes {
		if r.Prefix.Contains(dst) && (!ok || r.Prefix.Bits() > best.Prefix.Bits()) {
			best, ok = r, true
		}
	}
	return best, ok
}
