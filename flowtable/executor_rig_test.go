package flowtable

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// The rig: a routed gateway between lan and wan, with a dmz that routes may move to, and an inline
// pair beside it.
//
//	10.1.0.2, fd10:1::2 -- lan [port 1]    [port 2] wan -- 10.2.0.2, fd10:2::2
//	                                       [port 3] dmz
//	                     left [port 4] === [port 5] right
const (
	lanIf, wanIf, dmzIf, leftIf, rightIf = 11, 12, 13, 14, 15

	zoneLAN, zoneWAN, zoneDMZ, zoneLeft, zoneRight, zoneVLAN, zonePeerVLAN = 2, 3, 4, 5, 6, 7, 8

	hopLAN, hopWAN, hopDMZ, hopPending, hopTagged, hopSmall = 128, 129, 130, 131, 132, 133

	ruleAll = 1
)

var (
	hostMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 0x0a}
	portMACs  = map[uint32][6]byte{lanIf: {2, 0, 0, 0, 1, 1}, wanIf: {2, 0, 0, 0, 1, 2}, dmzIf: {2, 0, 0, 0, 1, 3}, leftIf: {2, 0, 0, 0, 1, 4}, rightIf: {2, 0, 0, 0, 1, 5}}
	client4   = net.IP{10, 1, 0, 2}
	server4   = net.IP{10, 2, 0, 2}
	client6   = net.ParseIP("fd10:1::2")
	server6   = net.ParseIP("fd10:2::2")
	gateway4  = net.IP{10, 1, 0, 1}
	gateway6  = net.ParseIP("fd10:1::1")
	second    = uint64(1e9)
	startTime = 1000 * second
)

type rules func(k *bpf.XDPClassifyKey, audit func(uint32)) uint32

func (r rules) Classify(k *bpf.XDPClassifyKey, audit func(uint32)) uint32 { return r(k, audit) }

func always(verdict uint32) rules {
	return func(*bpf.XDPClassifyKey, func(uint32)) uint32 { return verdict }
}

func allow(rule uint32) uint32 { return Verdict(rule, uint32(bpf.XDPActionACTION_ALLOW), 0) }

type rig struct {
	*Executor
	t      testing.TB
	now    uint64
	hops   []bpf.XDPNexthop
	answer [256]byte
	route  *Route // in the place of the one by destination
}

// newRig makes a rig whose only rule allows everything. setup may change the configuration.
func newRig(t testing.TB, setup ...func(*Config)) *rig {
	t.Helper()
	hops := make([]bpf.XDPNexthop, 140)
	mac := func(b [6]byte) uint64 {
		return uint64(binary.LittleEndian.Uint32(b[:])) | uint64(binary.LittleEndian.Uint16(b[4:]))<<32
	}
	port := func(ifindex uint32, id, zone uint8) bpf.XDPPort {
		hops[NexthopPort+int(id)] = bpf.XDPNexthop{State: NexthopReady, Port: id, Zone: zone, Src: mac(portMACs[ifindex]) | 1500<<48}
		return bpf.XDPPort{Ifindex: ifindex, Id: id, Zone: zone, Mac: portMACs[ifindex], Mtu: 1500}
	}
	hop := func(ifindex uint32, id, zone, last uint8, mtu uint64) bpf.XDPNexthop {
		return bpf.XDPNexthop{State: NexthopReady, Port: id, Zone: zone, Dst: mac([6]byte{2, 0, 0, 0, 2, last}), Src: mac(portMACs[ifindex]) | mtu<<48}
	}
	hops[hopLAN] = hop(lanIf, 1, zoneLAN, 1, 1500)
	hops[hopWAN] = hop(wanIf, 2, zoneWAN, 2, 1500)
	hops[hopDMZ] = hop(dmzIf, 3, zoneDMZ, 3, 1500)
	hops[hopPending] = hop(wanIf, 2, zoneWAN, 4, 1500)
	hops[hopPending].State = NexthopPending
	hops[hopTagged] = hop(wanIf, 2, zoneWAN, 5, 1500)
	hops[hopTagged].Dst |= uint64(swap16(100)) << 48
	hops[hopSmall] = hop(wanIf, 2, zoneWAN, 6, 60)

	cfg := Config{
		Ports: []bpf.XDPPort{
			port(lanIf, 1, zoneLAN), port(wanIf, 2, zoneWAN), port(dmzIf, 3, zoneDMZ),
			port(leftIf, 4, zoneLeft), port(rightIf, 5, zoneRight),
		},
		VLANZones:  map[uint32]uint8{VLANKey(1, 7): zoneVLAN, VLANKey(4, 7): zoneVLAN, VLANKey(5, 7): zonePeerVLAN, VLANKey(4, 8): zoneVLAN},
		Ethertypes: []uint16{0x88cc},
		Nexthops:   hops, Fragments: 16, Epoch: 10, Classifier: always(allow(ruleAll)), Rules: 9,
	}
	cfg.Ports[0].Ip4, cfg.Ports[0].Ip6 = load32(gateway4), words((*packet.Addr)(gateway6))
	left, right := &cfg.Ports[3], &cfg.Ports[4]
	left.Flags, right.Flags = PortInline, PortInline
	left.Pair, right.Pair = 1, 1
	left.Peer, left.PeerPort, left.PeerZone = NexthopPort+5, 5, zoneRight
	right.Peer, right.PeerPort, right.PeerZone = NexthopPort+4, 4, zoneLeft

	var err error
	if cfg.Table, err = NewTable(TableConfig{
		Groups4: 64, Groups6: 64, Seed: 42, StripeBits: 2, FlowsMax: 500, HalfOpenMax: 400, OverflowMax: 16,
	}); err != nil {
		t.Fatal(err)
	}
	for _, f := range setup {
		f(&cfg)
	}
	e, err := NewExecutor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{Executor: e, t: t, now: startTime, hops: hops}
}

// routeTo answers as the kernel's routes would.
func routeTo(a netip.Addr) Route {
	if isLocal(a) {
		return Route{Nexthop: NexthopHost}
	}
	for prefix, hop := range map[string]uint32{"10.1.0.0/16": hopLAN, "10.2.0.0/16": hopWAN, "fd10:1::/64": hopLAN, "fd10:2::/64": hopWAN} {
		if netip.MustParsePrefix(prefix).Contains(a) {
			return Route{Nexthop: hop}
		}
	}
	return Route{Reason: bpf.XDPReasonREASON_NO_ROUTE}
}

// isLocal reports whether an address is the gateway's own.
func isLocal(a netip.Addr) bool {
	switch a.String() {
	case "10.1.0.1", "fd10:1::1", "10.2.0.1", "fd10:2::1":
		return true
	}
	return false
}

// send processes a copy of the frame.
func (r *rig) send(ifindex uint32, frame []byte) Result {
	r.t.Helper()
	f := append(make([]byte, 0, len(frame)+4), frame...)
	route := Route{Reason: bpf.XDPReasonREASON_NO_ROUTE}
	var p packet.Parsed
	if p.Decode(frame) == packet.OK && p.Family != 0 {
		dst := address(p.Family, &p.Dst)
		local := isLocal(dst)
		if to, ok := r.Routed(r.now, ifindex, frame, local); ok {
			dst = to
		}
		route = routeTo(dst)
		route.Local = local
	}
	if r.route != nil {
		route = *r.route
	}
	return r.Process(r.now, ifindex, f, route, r.answer[:])
}

// want sends and checks what becomes of the frame.
func (r *rig) want(ifindex uint32, frame []byte, v Outcome, reason bpf.XDPReason) Result {
	r.t.Helper()
	res := r.send(ifindex, frame)
	if res.Verdict != v || res.Reason != reason {
		r.t.Fatalf("%v %v, want %v %v", res.Verdict, res.Reason, v, reason)
	}
	return res
}

func (r *rig) flow(tuple Tuple) Flow {
	r.t.Helper()
	f, ok := r.Table().Lookup(tuple)
	if !ok {
		r.t.Fatalf("no flow %+v", tuple)
	}
	return f
}

// serialize builds a frame with right lengths and checksums, without gopacket's padding.
func serialize(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	var network gopacket.NetworkLayer
	for _, l := range ls {
		if n, ok := l.(gopacket.NetworkLayer); ok && network == nil {
			network = n
		}
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(network)
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(network)
		case *layers.ICMPv6:
			_ = l.SetNetworkLayerForChecksum(network)
		}
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, ls[1:]...); err != nil {
		t.Fatalf("serialize: %v", err)
	}
	eth := ls[0].(*layers.Ethernet)
	head := append(append([]byte(nil), eth.DstMAC...), eth.SrcMAC...)
	head = binary.BigEndian.AppendUint16(head, uint16(eth.EthernetType))
	return append(head, buf.Bytes()...)
}

// packetIn is a frame that arrives.
type packetIn struct {
	ifindex uint32
	frame   []byte
}

// side is one end of a conversation: where its packets arrive, and how their headers begin.
type side struct {
	ifindex  uint32
	src, dst net.IP
}

var (
	fromClient4 = side{lanIf, client4, server4}
	fromServer4 = side{wanIf, server4, client4}
	fromClient6 = side{lanIf, client6, server6}
	fromServer6 = side{wanIf, server6, client6}
	toHost4     = side{lanIf, client4, gateway4}
	inline4     = side{leftIf, client4, server4}
	inlineBack4 = side{rightIf, server4, client4}
)

func (s side) ip(proto layers.IPProtocol) []gopacket.SerializableLayer {
	mac := portMACs[s.ifindex]
	if s.src.To4() != nil {
		return []gopacket.SerializableLayer{
			&layers.Ethernet{SrcMAC: hostMAC, DstMAC: mac[:], EthernetType: layers.EthernetTypeIPv4},
			&layers.IPv4{Version: 4, IHL: 5, TTL: 64, Id: 7, Protocol: proto, SrcIP: s.src, DstIP: s.dst},
		}
	}
	return []gopacket.SerializableLayer{
		&layers.Ethernet{SrcMAC: hostMAC, DstMAC: mac[:], EthernetType: layers.EthernetTypeIPv6},
		&layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: s.src, DstIP: s.dst},
	}
}

func (s side) udp(t testing.TB, sport, dport uint16, payload int) []byte {
	return serialize(t, append(s.ip(layers.IPProtocolUDP),
		&layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}, gopacket.Payload(make([]byte, payload)))...)
}

// raw builds a packet of any protocol.
func (s side) raw(t testing.TB, proto uint8, payload ...byte) []byte {
	return serialize(t, append(s.ip(layers.IPProtocol(proto)), gopacket.Payload(payload))...)
}

// seg is a TCP segment: flags as in packet.SYN, ...
type seg struct {
	flags    uint8
	seq, ack uint32
	win      uint16
	payload  int
	scale    int8 // window scale option, < 0 = none
}

func (s side) tcp(t testing.TB, sport, dport uint16, g seg) []byte {
	l := &layers.TCP{
		SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: g.seq, Ack: g.ack, Window: g.win,
		SYN: g.flags&packet.SYN != 0, ACK: g.flags&packet.ACK != 0, RST: g.flags&packet.RST != 0,
		FIN: g.flags&packet.FIN != 0, URG: g.flags&packet.URG != 0,
	}
	if g.flags&packet.SYN != 0 && g.scale >= 0 {
		l.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{byte(g.scale)}}}
	}
	return serialize(t, append(s.ip(layers.IPProtocolTCP), l, gopacket.Payload(make([]byte, g.payload)))...)
}

func (s side) echo(t testing.TB, request bool, id uint16) []byte {
	if s.src.To4() != nil {
		typ := byte(0)
		if request {
			typ = 8
		}
		return s.raw(t, 1, typ, 0, 0, 0, byte(id>>8), byte(id), 0, 1)
	}
	typ := byte(129)
	if request {
		typ = 128
	}
	return s.raw(t, 58, typ, 0, 0, 0, byte(id>>8), byte(id), 0, 1)
}

// tuple is the flow key of a packet of this side.
func (s side) tuple(proto uint8, sport, dport uint16) Tuple {
	t := Tuple{Family: 6, Proto: proto, SrcPort: sport, DstPort: dport}
	src, dst := s.src, s.dst
	if s.src.To4() != nil {
		t.Family, src, dst = 4, s.src.To4(), s.dst.To4()
	}
	copy(t.Src[:], src)
	copy(t.Dst[:], dst)
	if s.ifindex == leftIf || s.ifindex == rightIf {
		t.Domain = 1 << 12
	}
	return t
}

// patch changes bytes of an IPv4 or IPv6 frame and corrects the IPv4 header checksum.
func patch(frame []byte, at int, b ...byte) []byte {
	f := append([]byte(nil), frame...)
	copy(f[at:], b)
	if f[12] == 8 && f[13] == 0 {
		header := min(int(f[14]&0x0f)*4, len(f)-14)
		f[24], f[25] = 0, 0
		binary.BigEndian.PutUint16(f[24:], packet.Checksum(f[14:14+header], 0))
	}
	return f
}

// tag puts VLAN tags into a frame.
func tag(frame []byte, ids ...uint16) []byte {
	f := append([]byte(nil), frame[:12]...)
	for _, id := range ids {
		f = binary.BigEndian.AppendUint16(append(f, 0x81, 0), id)
	}
	return append(f, frame[12:]...)
}
