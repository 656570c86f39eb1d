package testenv

import (
	"fmt"
	"net/netip"
	"strings"
)

// DefaultPrefix is what the namespaces of a person's lab begin with.
const DefaultPrefix = "sdpu"

// Gateway is the node in which a gateway under test runs. The topology wire has none.
const Gateway = "gw"

// A Topology says which namespaces a lab has and how they are joined. It is pure data.
type Topology struct {
	Name  string
	About string // one line for people
	Nodes []Node
	Links []Link
}

// A Node is one network namespace, named Prefix-Name.
type Node struct {
	Name    string
	Devices []Device
	Default []netip.Addr // next hops of its default routes, one a family
}

// A Device is one end of a veth pair.
type Device struct {
	Name      string
	Addresses []netip.Prefix // none: the device has no addresses and no IPv6
	GRO       bool           // the device is a far end: GRO gives it NAPI, which a redirect to it needs
}

// A Link is a veth pair between two devices.
type Link struct{ A, B End }

// An End names a device by its node and its own name.
type End struct{ Node, Device string }

// Topologies returns all topologies, in the order in which they are explained.
func Topologies() []Topology {
	return []Topology{clientServer(), inline(), threeZone(), wire()}
}

// TopologyByName returns the topology of that name. The error names those that exist.
func TopologyByName(name string) (Topology, error) {
	var names []string
	for _, t := range Topologies() {
		if t.Name == name {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Topology{}, fmt.Errorf("find topology %q: there are %s", name, strings.Join(names, ", "))
}

// Node returns the node of that name.
func (t Topology) Node(name string) (Node, bool) {
	for _, n := range t.Nodes {
		if n.Name == name {
			return n, true
		}
	}
	return Node{}, false
}

// Peer returns the other end of the veth pair that e is an end of.
func (t Topology) Peer(e End) (End, bool) {
	for _, l := range t.Links {
		switch e {
		case l.A:
			return l.B, true
		case l.B:
			return l.A, true
		}
	}
	return End{}, false
}

// IPv4 returns the device's first IPv4 address, the zero Addr if it has none.
func (d Device) IPv4() netip.Addr { return d.first(netip.Addr.Is4) }

// IPv6 returns the device's first IPv6 address, the zero Addr if it has none.
func (d Device) IPv6() netip.Addr { return d.first(netip.Addr.Is6) }

func (d Device) first(is func(netip.Addr) bool) netip.Addr {
	for _, p := range d.Addresses {
		if is(p.Addr()) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

func clientServer() Topology {
	return Topology{
		Name:  "client-server",
		About: "a routed gateway between a client and a server",
		Nodes: []Node{
			host("client", "c0", 1, 2),
			{Name: Gateway, Devices: []Device{device("lan", 1, 1), device("wan", 2, 1)}},
			host("server", "s0", 2, 2),
		},
		Links: []Link{
			{End{"client", "c0"}, End{Gateway, "lan"}},
			{End{Gateway, "wan"}, End{"server", "s0"}},
		},
	}
}

func inline() Topology {
	return Topology{
		Name:  "inline",
		About: "a bump in the wire between a client and a server of one subnet",
		Nodes: []Node{
			neighbour("client", "c0", 2),
			{Name: Gateway, Devices: []Device{{Name: "lan"}, {Name: "wan"}}},
			neighbour("server", "s0", 3),
		},
		Links: []Link{
			{End{"client", "c0"}, End{Gateway, "lan"}},
			{End{Gateway, "wan"}, End{"server", "s0"}},
		},
	}
}

func threeZone() Topology {
	return Topology{
		Name:  "three-zone",
		About: "a routed gateway between an inside, an outside and a server zone",
		Nodes: []Node{
			host("lan", "l0", 1, 2),
			{Name: Gateway, Devices: []Device{device("lan", 1, 1), device("wan", 2, 1), device("dmz", 3, 1)}},
			host("wan", "w0", 2, 2),
			host("dmz", "d0", 3, 2),
		},
		Links: []Link{
			{End{"lan", "l0"}, End{Gateway, "lan"}},
			{End{Gateway, "wan"}, End{"wan", "w0"}},
			{End{Gateway, "dmz"}, End{"dmz", "d0"}},
		},
	}
}

func wire() Topology {
	return Topology{
		Name:  "wire",
		About: "a client and a server on one bare cable, to compare with",
		Nodes: []Node{neighbour("client", "c0", 2), neighbour("server", "s0", 3)},
		Links: []Link{{End{"client", "c0"}, End{"server", "s0"}}},
	}
}

// device is a device with the n-th addresses of the net-th subnets.
func device(name string, net, n byte) Device {
	return Device{Name: name, Addresses: []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 10, net, n}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x10, 3: net, 15: n}), 64),
	}}
}

// host is a node with one far-end device and default routes by the gateway's addresses.
func host(name, dev string, net, n byte) Node {
	d, gw := device(dev, net, n), device("", net, 1)
	d.GRO = true
	return Node{Name: name, Devices: []Device{d}, Default: []netip.Addr{gw.IPv4(), gw.IPv6()}}
}

// neighbour is a node with one far-end device in the first subnet and no default route.
func neighbour(name, dev string, n byte) Node {
	d := device(dev, 1, n)
	d.GRO = true
	return Node{Name: name, Devices: []Device{d}}
}
