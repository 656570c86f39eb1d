package testenv

import (
	"fmt"
	"sort"
	"strings"

	"github.com/vishvananda/netlink"
)

// Describe returns the lab's state as text for a person who looks for a fault: each node's devices
// with addresses and counters, routes, neighbours, and the protocol counters that are not 0.
func (l *Lab) Describe() string {
	var b strings.Builder
	for _, node := range l.Topology.Nodes {
		n := l.namespace(node.Name)
		fmt.Fprintf(&b, "%s\n", n.name)
		if err := n.Do(func() error { return describeNamespace(&b) }); err != nil {
			fmt.Fprintf(&b, "  %v\n", err)
		}
		counters, err := n.Counters()
		if err != nil {
			fmt.Fprintf(&b, "  %v\n", err)
			continue
		}
		var names []string
		for name, value := range counters {
			if value != 0 && !strings.HasSuffix(name, "Octets") {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Fprintf(&b, "  %s %d\n", name, counters[name])
		}
	}
	return b.String()
}

func describeNamespace(b *strings.Builder) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, link := range links {
		a := link.Attrs()
		fmt.Fprintf(b, "  %s %s %s mtu %d", a.Name, a.OperState, a.HardwareAddr, a.MTU)
		if a.Xdp != nil && a.Xdp.Attached {
			fmt.Fprintf(b, " xdp program %d", a.Xdp.ProgId)
		}
		if k := a.Statistics; k != nil {
			fmt.Fprintf(b, " rx %d (dropped %d) tx %d (dropped %d)", k.RxPackets, k.RxDropped, k.TxPackets, k.TxDropped)
		}
		b.WriteByte('\n')
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, addr := range addrs {
			fmt.Fprintf(b, "    %s\n", addr.IPNet)
		}
		neighbours, err := netlink.NeighList(a.Index, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, neighbour := range neighbours {
			fmt.Fprintf(b, "    neighbour %s\n", neighbour.String())
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		fmt.Fprintf(b, "  route %s\n", r)
	}
	return nil
}
