package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/flowtable"
)

// A packet of a test, as its fields. Frames are made of it with checksums computed over everything, so that a
// translated one that is equal to a made one has every checksum right.
type made struct {
	src, dst netip.AddrPort // ICMP queries: the identifier is the requester's port
	proto    uint8
	flags    uint8 // TCP
	kind     uint8 // ICMP type
	code     uint8
	rest     uint32 // ICMP errors: behind the checksum
	payload  []byte // or what an ICMP error quotes
	ttl      uint8  // 0 = 64
	noSum    bool   // UDP: the checksum is 0
	id       uint16 // fragments: of the datagram
	first    bool
	later    []byte // a later fragment, of this payload alone
	cut      bool   // IPv4: it may be fragmented
}

const (
	tcpFIN, tcpSYN, tcpRST, tcpACK = 1, 2, 4, 16
)

// ip makes the packet without Ethernet header.
func (m made) ip() []byte {
	src, dst := m.src.Addr().AsSlice(), m.dst.Addr().AsSlice()
	l4 := m.transport(src, dst)
	ttl := m.ttl
	if ttl == 0 {
		ttl = 64
	}
	if m.first {
		l4 = l4[:len(l4)&^7]
	}
	if m.later != nil {
		l4 = m.later
	}
	if m.src.Addr().Is4() {
		h := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, ttl, m.proto, 0, 0}
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(l4)))
		if m.cut {
			h[6] = 0
		}
		if m.id != 0 {
			binary.BigEndian.PutUint16(h[4:], m.id)
			field := uint16(0x2000)
			if m.later != nil {
				field = 2 // two words in
			}
			binary.BigEndian.PutUint16(h[6:], field)
		}
		h = append(append(h, src...), dst...)
		binary.BigEndian.PutUint16(h[10:], packet.Checksum(h, 0))
		return append(h, l4...)
	}
	h := []byte{0x60, 0, 0, 0, 0, 0, m.proto, ttl}
	h = append(append(h, src...), dst...)
	if m.id != 0 {
		h[6] = 44
		f := []byte{m.proto, 0, 0, 1, 0, 0, 0, 0}
		if m.later != nil {
			f[3] = 16
		}
		binary.BigEndian.PutUint16(f[6:], m.id)
		l4 = append(f, l4...)
	}
	binary.BigEndian.PutUint16(h[4:], uint16(len(l4)))
	return append(h, l4...)
}

// transport makes header and payload, as of a packet that is whole.
func (m made) transport(src, dst []byte) []byte {
	var b []byte
	at := 0
	switch m.proto {
	case packet.ProtoTCP:
		b = make([]byte, 20)
		b[12], b[13] = 5<<4, m.flags
		binary.BigEndian.PutUint32(b[4:], 1000)
		if m.flags&tcpACK != 0 {
			binary.BigEndian.PutUint32(b[8:], 1001)
		}
		binary.BigEndian.PutUint16(b[14:], 8000)
		at = 16
	case packet.ProtoUDP:
		b = make([]byte, 8)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(m.payload)))
		at = 6
	case packet.ProtoICMP, packet.ProtoICMPv6:
		b = []byte{m.kind, m.code, 0, 0, 0, 0, 0, 7}
		at = 2
		if m.rest != 0 || m.src.Port()|m.dst.Port() == 0 {
			binary.BigEndian.PutUint32(b[4:], m.rest)
		} else {
			binary.BigEndian.PutUint16(b[4:], m.src.Port()|m.dst.Port())
		}
	case packet.ProtoUDPLite, packet.ProtoDCCP:
		b = make([]byte, 8)
		at = 6
	default:
		return append([]byte{0, 0, 0, 9, 0, 0, 0, 1}, m.payload...)
	}
	if m.proto == packet.ProtoTCP || m.proto == packet.ProtoUDP {
		binary.BigEndian.PutUint16(b, m.src.Port())
		binary.BigEndian.PutUint16(b[2:], m.dst.Port())
	}
	b = append(b, m.payload...)
	if m.noSum {
		return b
	}
	sum := uint32(0)
	if m.proto != packet.ProtoICMP {
		head := append(append([]byte{}, src...), dst...)
		head = binary.BigEndian.AppendUint32(head, uint32(len(b)))
		sum = packet.Sum(append(head, 0, 0, 0, m.proto), 0)
	}
	check := packet.Checksum(b, sum)
	if check == 0 && (m.proto == packet.ProtoUDP || m.proto == packet.ProtoUDPLite) {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], check)
	return b
}

// natRig is a gateway that simulates: port lan (zone 2) and port wan (zone 3), which has the address 192.0.2.1.
type natRig struct {
	*testing.T
	p     *Plane
	table *flowtable.Table
	now   uint64
}

// Next hops of a natRig.
const (
	toWAN    = nexthopFirst + iota // MTU 1500
	toLAN                          // MTU 1500
	toSilent                       // on the WAN, its MAC not known
	toNarrow                       // on the WAN, MTU 600
)

const natEpoch = 3

var natPortMAC = map[string][6]byte{"lan": {2, 0, 0, 0, 0, 1}, "wan": {2, 0, 0, 0, 0, 2}}

// openRig makes a gateway without policy.
func openRig(t *testing.T, o Options) *natRig {
	t.Helper()
	o.Simulate = true
	r := &natRig{T: t, p: openPlane(t, o), now: 1 << 40}
	if err := r.p.Place([]Port{
		{PortConfig: PortConfig{Name: "lan", Zone: 2}, Index: 101, MAC: natPortMAC["lan"], MTU: 1500, IP4: netip.MustParseAddr("10.0.0.1"), IP6: netip.MustParseAddr("fd00:1::1")},
		{PortConfig: PortConfig{Name: "wan", Zone: 3}, Index: 1, MAC: natPortMAC["wan"], MTU: 1500, IP4: netip.MustParseAddr("192.0.2.1"), IP6: netip.MustParseAddr("2001:db8::1")},
	}); err != nil {
		t.Fatal(err)
	}
	for i, hop := range []bpf.XDPNexthop{
		{State: nexthopReady, Port: 2, Zone: 3, Dst: 0x020000000102, Src: 0x020000000002 | 1500<<48},
		{State: nexthopReady, Port: 1, Zone: 2, Dst: 0x020000000101, Src: 0x020000000001 | 1500<<48},
		{State: uint32(flowtable.NexthopPending), Port: 2, Zone: 3, Src: 0x020000000002 | 1500<<48},
		{State: nexthopReady, Port: 2, Zone: 3, Dst: 0x020000000102, Src: 0x020000000002 | 600<<48},
	} {
		if err := r.p.SetNexthop(nexthopFirst+i, hop); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.table, err = r.p.Table(); err != nil {
		t.Fatal(err)
	}
	return r
}

// openNATRig makes a gateway whose nat rules, by id from 1, are asked in this order.
func openNATRig(t *testing.T, o Options, rules ...natRuleOf) *natRig {
	t.Helper()
	r := openRig(t, o)
	if err := r.p.SetNATAddresses(map[bpf.XDPNatDevice]bpf.XDPNatAddress{
		{Port: 2}: {Ip4: words(netip.MustParseAddr("192.0.2.1"))[0], Ip6: words(netip.MustParseAddr("2001:db8::1"))},
		{Port: 1}: {Ip4: words(netip.MustParseAddr("10.0.0.1"))[0]},
	}); err != nil {
		t.Fatal(err)
	}
	g := Generation{Epoch: natEpoch, ACL: allowAll(t), Rules: 1, NAT: &flowtable.NAT{Rules: []bpf.XDPNatRule{{}}}, NATNames: []string{""}}
	var sources, destinations []flowtable.ACLEntry
	for i, rule := range rules {
		rule.compile(g.NAT)
		g.NATNames = append(g.NATNames, rule.name)
		entry := flowtable.ACLEntry{
			Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
			Verdict: flowtable.Verdict(uint32(i+1), uint32(bpf.XDPActionACTION_ALLOW), 0),
		}
		of := netip.MustParsePrefix(rule.of)
		within := []flowtable.AddrRange{{First: of.Addr(), Last: lastOf(of)}}
		if rule.destination() {
			entry.Dst = within
			destinations = append(destinations, entry)
		} else {
			entry.Src = within
			sources = append(sources, entry)
		}
	}
	var err error
	if g.NAT.Destinations, err = flowtable.CompileACLAfter(destinations, g.ACL); err != nil {
		t.Fatal(err)
	}
	if g.NAT.Sources, err = flowtable.CompileACLAfter(sources, g.ACL, g.NAT.Destinations); err != nil {
		t.Fatal(err)
	}
	if err := r.p.Publish(g); err != nil {
		t.Fatal(err)
	}
	r.table.SetNATPorts(natEpoch, portsOf(r.p).Bitmaps)
	return r
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// natRuleOf is a nat rule of a test: packets from, or to, `of`.
type natRuleOf struct {
	name, of string
	rule     bpf.XDPNatRule
	ports    [2]uint16          // allowed; of rules that choose one
	servers  []bpf.XDPNatServer // one bucket each
	chooses  bool
}

func (n natRuleOf) destination() bool {
	return n.rule.Kind == uint8(bpf.XDPNatKindNAT_DESTINATION) || n.rule.Kind == uint8(bpf.XDPNatKindNAT_PREFIX_DESTINATION)
}

func (n natRuleOf) compile(nat *flowtable.NAT) {
	rule := n.rule
	rule.Ports = ^uint32(0)
	if n.chooses {
		rule.Ports = uint32(nat.Bitmaps())
		nat.Ports = append(nat.Ports, flowtable.NATPorts{Elements: 12 * max(1, rule.Addresses), First: n.ports[0], Last: n.ports[1]})
	}
	if len(n.servers) > 0 {
		rule.Bucket, rule.Buckets = uint32(len(nat.Buckets)), uint32(len(n.servers))
		for range n.servers {
			nat.Buckets = append(nat.Buckets, uint16(len(nat.Buckets)))
		}
		nat.Servers = append(nat.Servers, n.servers...)
	}
	nat.Rules = append(nat.Rules, rule)
}

func masquerade(name, of string, first, last uint16) natRuleOf {
	family := uint8(4)
	if netip.MustParsePrefix(of).Addr().Is6() {
		family = 6
	}
	return natRuleOf{name: name, of: of, chooses: true, ports: [2]uint16{first, last}, rule: bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_MASQUERADE), Family: family}}
}

func forward(name, of, to string, port uint16) natRuleOf {
	a := netip.MustParseAddr(to)
	family := uint8(4)
	if a.Is6() {
		family = 6
	}
	return natRuleOf{
		name: name, of: of, rule: bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_DESTINATION), Family: family},
		servers: []bpf.XDPNatServer{{Address: words(a), Port: port<<8 | port>>8}},
	}
}

func prefix(name, of, to string, kind bpf.XDPNatKind, adjust uint16) natRuleOf {
	p := netip.MustParsePrefix(to)
	family := uint8(4)
	if p.Addr().Is6() {
		family = 6
	}
	return natRuleOf{name: name, of: of, rule: bpf.XDPNatRule{
		Kind: uint8(kind), Family: family, Address: words(p.Addr()), Prefix: uint8(p.Bits()), Adjust: adjust,
	}}
}

// passed is what became of a packet.
type passed struct {
	verdict uint32
	ip      []byte
	bpf.XDPSimResult
}

// send has a packet arrive by a port, with a route for where it goes.
func (r *natRig) send(port string, m made, route uint32) passed {
	r.Helper()
	return r.sendIP(port, m.ip(), route)
}

func (r *natRig) sendIP(port string, ip []byte, route uint32) passed {
	r.Helper()
	index := map[string]uint32{"lan": 101, "wan": 1}[port]
	mac := natPortMAC[port]
	frame := append(append(mac[:], 2, 0, 0, 0, 9, 9), 8, 0)
	if ip[0]>>4 == 6 {
		frame[12], frame[13] = 0x86, 0xdd
	}
	frame = append(frame, ip...)
	sim := r.p.Sim()
	r.now += 1 << 22
	sim.Control = bpf.XDPSimControl{Now: r.now, Ifindex: index, Route: route}
	sim.Result = bpf.XDPSimResult{}
	prog, err := r.p.Program()
	if err != nil {
		r.Fatal(err)
	}
	defer prog.Close()
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 4096)}
	verdict, err := prog.Run(&run)
	if err != nil {
		r.Fatal(err)
	}
	out := run.DataOut
	if verdict == 2 { // what stands in front of it is for the kernel
		out = out[max(0, len(out)-len(frame)):]
	}
	if len(out) < 14 {
		r.Fatalf("%d bytes came out", len(out))
	}
	return passed{verdict, out[14:], sim.Result}
}

// wants has a packet leave as another one, of which every byte is known.
func (r *natRig) wants(what, port string, in made, route uint32, xlat uint32, out made) {
	r.Helper()
	if out.ttl == 0 {
		out.ttl = 63
	}
	got := r.send(port, in, route)
	if got.Reason != 0 || got.Pass != 0 || got.Xlat != xlat {
		r.Errorf("%s: reason %v, pass %d, translated %#x; want it to leave with %#x", what, bpf.XDPReason(got.Reason), got.Pass, got.Xlat, xlat)
	}
	if want := out.ip(); !bytes.Equal(got.ip, want) {
		r.Errorf("%s leaves as\n%x, want\n%x", what, got.ip, want)
	}
}

func (r *natRig) refused(what, port string, in made, route uint32, reason bpf.XDPReason) {
	r.Helper()
	if got := r.send(port, in, route); bpf.XDPReason(got.Reason) != reason {
		r.Errorf("%s: %v, want %v", what, bpf.XDPReason(got.Reason), reason)
	}
}

// holds checks how many entries there are, and that as many ports are taken as aliases have.
func (r *natRig) holds(what string, flows, aliases int64, ports int) {
	r.Helper()
	gw := &r.p.mem.gateway[0]
	if gw.Flows != flows || gw.Aliases != aliases {
		r.Errorf("%s: %d entries, %d of them aliases; want %d, %d", what, gw.Flows, gw.Aliases, flows, aliases)
	}
	shown := portsOf(r.p)
	taken := 0
	for i, fresh := range shown.NAT.NewBitmaps() {
		for w := range fresh.Taken {
			for now := shown.Bitmaps[i].Taken[w] &^ fresh.Taken[w]; now != 0; now &= now - 1 {
				taken++
			}
		}
	}
	if taken != ports {
		r.Errorf("%s: %d ports are taken, want %d", what, taken, ports)
	}
}

// end frees all flows.
func (r *natRig) end() {
	r.table.Kill(func(*flowtable.Flow) bool { return true }, func() {}, func(*flowtable.Flow) {})
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// flow returns the flow that a packet has opened.
func (r *natRig) flow(m made) flowtable.Flow {
	r.Helper()
	for f := range r.table.All() {
		if f.Tuple.Source() == m.src.Addr() && f.Tuple.SrcPort == m.src.Port() && f.Tuple.Destination() == m.dst.Addr() && f.Tuple.Proto == m.proto {
			return f
		}
	}
	r.Fatalf("there is no flow from %s to %s", m.src, m.dst)
	return flowtable.Flow{}
}
