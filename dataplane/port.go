package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/softdpu/softdpu/bpf"
)

// Mode says where XDP runs.
type Mode uint8

const (
	ModeAuto    Mode = iota // native where the driver can, else generic
	ModeNative              // in the driver
	ModeGeneric             // in the kernel's stack, on any device, several times slower
)

// String returns the mode's name in configuration and status.
func (m Mode) String() string { return [...]string{"auto", "native", "generic"}[m] }

// Switch is a setting that may be left to the daemon.
type Switch uint8

const (
	SwitchAuto Switch = iota
	SwitchOn
	SwitchOff
)

// PortConfig says what a port shall be. Zone ids are those of the running policy; bpf's ZONE_NONE (0)
// is no zone.
type PortConfig struct {
	Name   string           // the operator's, unique
	Device string           // name or alternative name of a network device
	Zone   uint8            // of untagged frames, 0 = they are refused
	VLANs  map[uint16]uint8 // zone of each VLAN id, 1..4094
	Peer   string           // inline: name of the port on the other side; empty = routed
	Mode   Mode
	// FixOffloads lets Attach turn off offloads that hide VLAN tags or, in generic mode, hand over what is
	// not yet segmented or lacks its checksum; Close turns them on again.
	FixOffloads bool
	// FixChecksum completes checksums that the sender left to its device. Auto is on for veth and tun,
	// whose frames come from a local stack, and off otherwise.
	FixChecksum Switch
	// SetMTU is what the device is given until the end, in bytes of an IP packet; 0 = it keeps its own.
	SetMTU int
	// MSSClamp is the most that SYNs over IPv4 that come or leave by the port may ask for, 20 less over IPv6;
	// MSSAuto: what fits its MTU; 0 = whatever they do. Generation.ClampMSS turns it on.
	MSSClamp uint16
}

// Port is a port as it stands.
type Port struct {
	PortConfig

	ID     uint8  // 1.., key in what XDP counts by port
	Index  uint32 // interface index
	Kind   string // of the device: veth, tuntap, device, bond ...
	Driver string // as ethtool names it, empty if it does not
	MAC    [6]byte
	MTU    int // bytes of IP packet that the device has
	Up     bool
	Since  time.Time // of Up and Missing; of Attach, if they have not changed
	// Missing says why the port has no device now; empty = it has one. It takes its device back by itself.
	Missing string
	IP4     netip.Addr // source of what the gateway itself sends from here; zero = none
	IP6     netip.Addr

	Running      Mode   // native or generic
	WhyNotNative string // the kernel's reason, if generic was not asked for
	Guard        string // how the egress guard hangs there: tcx or clsact
	Notes        []string

	wanted      string // name or alternative name of the device, as configured
	lost        bool   // it had a device, and waits for one: that may be down as it comes
	fresh       bool   // it is being taken beside ports that run
	shut        bool   // its entry refuses everything
	pair        uint8  // inline pair 1.., 0 = routed
	peer        *Port
	fixChecksum bool
	vlanDevices map[uint16]device // routed: VLAN devices of the kernel on top of the device
	attached    Mode              // in which an earlier run's XDP runs there, auto = none does
	xdp         link.Link
	guards      []link.Link // tcx: egress guard and ingress mark
}

// device is a network device as netlink names it.
type device struct {
	index uint32
	name  string
}

// Domain is the routing domain of frames with an outer VLAN id, 0 for none, that come by the port.
func (p *Port) Domain(vlan uint16) uint16 {
	if p.pair == 0 {
		return 0
	}
	return uint16(p.pair)<<12 | vlan
}

// Inline reports whether frames leave by the peer port instead of by a route.
func (p *Port) Inline() bool { return p.Peer != "" }

// note adds what the operator should know, once.
func (p *Port) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.Notes, text) {
		p.Notes = append(p.Notes, text)
	}
}

// setUp takes over whether frames can pass, and since when that is so.
func (p *Port) setUp(up bool) {
	if up != p.Up || p.Since.IsZero() {
		p.Up, p.Since = up, time.Now()
	}
}

// present reports whether the port has a device.
func (p *Port) present() bool { return p.Missing == "" }

// errorf prefixes an error with the port that it is about.
func (p *Port) errorf(format string, args ...any) error {
	return fmt.Errorf("port %s: %w", p.Name, fmt.Errorf(format, args...))
}

func (p *Port) clone() Port {
	c := *p
	c.Notes = slices.Clone(p.Notes)
	c.peer, c.xdp, c.guards, c.vlanDevices = nil, nil, nil, nil
	return c
}

// portByID returns the port of a number, nil if there is none. p.mu is held.
func (p *Plane) portByID(id uint8) *Port {
	for _, port := range p.ports {
		if port.ID == id {
			return port
		}
	}
	return nil
}

// Ports returns the ports in the order of configuration.
func (p *Plane) Ports() []Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	ports := make([]Port, len(p.ports))
	for i, port := range p.ports {
		ports[i] = port.clone()
	}
	return ports
}

// numbering gives ports and inline pairs their numbers in the maps, by name of port. Flows and next hops
// bear them, so a port keeps its own for as long as it is configured.
type numbering struct {
	IDs   map[string]uint8 `json:"ids,omitempty"`
	Pairs map[string]uint8 `json:"pairs,omitempty"` // of inline ports
}

// numberingOf returns the numbers that ports have.
func numberingOf(ports []*Port) numbering {
	n := numbering{make(map[string]uint8), make(map[string]uint8)}
	for _, p := range ports {
		n.IDs[p.Name] = p.ID
		if p.pair != 0 {
			n.Pairs[p.Name] = p.pair
		}
	}
	return n
}

// free returns the least number from 1 to most that is not among those taken, and takes it; 0: there is
// none.
func free(taken map[uint8]bool, most int) uint8 {
	for n := 1; n <= most; n++ {
		if !taken[uint8(n)] {
			taken[uint8(n)] = true
			return uint8(n)
		}
	}
	return 0
}

func numbersTaken(of map[string]uint8) map[uint8]bool {
	taken := make(map[uint8]bool)
	for _, n := range of {
		taken[n] = true
	}
	return taken
}

// arrange checks what can be checked without the host, numbers the ports and joins inline pairs. Ports
// that had numbers before keep them, and nobody else gets these.
func arrange(ports []*Port, before numbering) error {
	if len(ports) == 0 {
		return errors.New("no port is configured")
	}
	if len(ports) > portMax {
		return fmt.Errorf("%d ports are configured, at most %d are possible", len(ports), portMax)
	}
	var errs []error
	byName := make(map[string]*Port)
	byDevice := make(map[string]*Port)
	ids := numbersTaken(before.IDs)
	for i, p := range ports {
		if p.ID = before.IDs[p.Name]; p.ID == 0 {
			if p.ID = free(ids, portMax); p.ID == 0 {
				errs = append(errs, p.errorf("no number is left for it: apply without the ports that leave first, then with the new ones"))
			}
		}
		if p.Name == "" {
			errs = append(errs, fmt.Errorf("port %d has no name", i+1))
		}
		if byName[p.Name] != nil {
			errs = append(errs, p.errorf("there are two of this name"))
		}
		byName[p.Name] = p
		if p.wanted == "" {
			p.wanted = p.Device
		}
		if other := byDevice[p.wanted]; other != nil && p.wanted != "" {
			errs = append(errs, p.errorf("device %s is port %s already", p.wanted, other.Name))
		}
		byDevice[p.wanted] = p
		for vid, zone := range p.VLANs {
			if vid < 1 || vid > 4094 {
				errs = append(errs, p.errorf("VLAN %d: ids go from 1 to 4094", vid))
			}
			if zone == zoneNone {
				errs = append(errs, p.errorf("VLAN %d has no zone", vid))
			}
		}
	}
	pairs := numbersTaken(before.Pairs)
	for _, p := range ports {
		if !p.Inline() || p.peer != nil {
			continue
		}
		peer := byName[p.Peer]
		switch {
		case peer == nil:
			errs = append(errs, p.errorf("its inline peer %s is no port", p.Peer))
			continue
		case peer == p:
			errs = append(errs, p.errorf("it is its own inline peer"))
			continue
		case peer.Peer != p.Name:
			errs = append(errs, p.errorf("its inline peer %s is not joined to it", p.Peer))
			continue
		}
		n := before.Pairs[p.Name]
		if n == 0 || n != before.Pairs[peer.Name] {
			n = free(pairs, pairMax)
		}
		if n == 0 {
			errs = append(errs, p.errorf("there are more than %d inline pairs", pairMax))
			continue
		}
		p.peer, peer.peer = peer, p
		p.pair, peer.pair = n, n
	}
	return errors.Join(errs...)
}

// entry is the port as XDP sees it.
func (p *Port) entry() bpf.XDPPort {
	e := bpf.XDPPort{
		Ifindex: p.Index, Id: p.ID, Zone: p.Zone, Pair: p.pair, Mac: p.MAC,
		Mtu: uint16(min(p.MTU, 65535)),
	}
	if p.Inline() {
		e.Flags |= portInline
		e.Peer = nexthopPort + uint16(p.peer.ID)
		e.PeerZone, e.PeerPort = p.peer.Zone, p.peer.ID
	}
	if len(p.VLANs) > 0 {
		e.Flags |= portVLANs
	}
	if p.shut {
		e.Zone, e.PeerZone = zoneNone, zoneNone
	}
	if p.fixChecksum {
		e.Flags |= portFixChecksum
	}
	if p.Up {
		e.Flags |= portUp
	}
	if p.IP4.Is4() {
		e.Ip4 = words(p.IP4)[0]
	}
	if p.IP6.Is6() {
		e.Ip6 = words(p.IP6)
	}
	return e
}

// nexthop is the entry by which frames leave unchanged by this port.
func (p *Port) nexthop() bpf.XDPNexthop {
	return bpf.XDPNexthop{Src: p.source(), State: nexthopReady, Port: p.ID, Zone: p.Zone}
}

// source is a next hop's src word: MAC in the low 48 bits as it stands in the frame, MTU above.
func (p *Port) source() uint64 { return macWord(p.MAC[:]) | uint64(min(p.MTU, 65535))<<48 }
