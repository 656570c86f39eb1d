package traffic

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// TCP flags as they stand in the header.
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
	urg
	ece
	cwr
)

// frame is bytes of an Ethernet frame, with where its headers begin.
type frame struct {
	b  []byte
	ip int // offset of the IP header
	l4 int // offset of what follows it
}

func (f frame) is4() bool { return f.b[f.ip]>>4 == 4 }

// clone returns a copy that may be changed.
func (f frame) clone() frame {
	f.b = slices.Clone(f.b)
	return f
}

// edit returns a changed copy. Offsets are those of the IP header and of the header behind it.
func (f frame) edit(change func(ip, l4 []byte)) frame {
	out := f.clone()
	change(out.b[out.ip:], out.b[out.l4:])
	return out
}

// edit4 is edit with the IPv4 checksum made right again; in IPv6 it is plain edit.
func (f frame) edit4(change func(ip, l4 []byte)) frame {
	out := f.edit(change)
	if out.is4() {
		out.sum()
	}
	return out
}

// sum makes the IPv4 header checksum right, as far as the header is inside the frame.
func (f frame) sum() {
	h := f.b[f.ip:]
	if n := int(h[0]&15) * 4; n >= 20 && n <= len(h) {
		h = h[:n]
	} else {
		h = h[:20]
	}
	h[10], h[11] = 0, 0
	var total uint32
	for i := 0; i < len(h); i += 2 {
		total += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(total))
}

// bare leaves no more of the checksum of TCP or UDP over IPv4 than the sum of its pseudo-header, as a sender
// does whose device is to complete it.
func (f frame) bare() frame {
	proto, at := f.b[f.ip+9], map[uint8]int{protoTCP: 16, protoUDP: 6}[f.b[f.ip+9]]
	if at == 0 {
		return f
	}
	return f.edit(func(ip, l4 []byte) {
		total := uint32(proto) + uint32(len(f.payload()))
		for i := 12; i < 20; i += 2 {
			total += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		for total > 0xffff {
			total = total>>16 + total&0xffff
		}
		binary.BigEndian.PutUint16(l4[at:], uint16(total))
	})
}

// length writes the IP header's length field, in bytes from the IP header on.
func (f frame) length(n int) {
	if f.is4() {
		binary.BigEndian.PutUint16(f.b[f.ip+2:], uint16(n))
		return
	}
	binary.BigEndian.PutUint16(f.b[f.ip+4:], uint16(n-40))
}

// cut ends the IP packet after n bytes behind the IP header, if it has as many, and the frame with it.
func (f frame) cut(n int) frame {
	out := f.clone()
	out.b = out.b[:min(out.l4+n, len(out.b))]
	out.length(len(out.b) - out.ip)
	if out.is4() {
		out.sum()
	}
	return out
}

// insert puts bytes between the IP header and what follows: options in IPv4, extension headers of
// which first is the first one's type in IPv6.
func (f frame) insert(first uint8, b ...byte) frame {
	total := f.total() + len(b)
	out := frame{b: slices.Concat(f.b[:f.l4], b, f.b[f.l4:]), ip: f.ip, l4: f.l4}
	if out.is4() {
		out.b[out.ip] += byte(len(b) / 4)
		out.l4 += len(b)
		out.length(total)
		out.sum()
		return out
	}
	out.b[out.ip+6] = first
	out.length(total)
	return out
}

// total is the length of the IP packet by its header.
func (f frame) total() int {
	if f.is4() {
		return int(binary.BigEndian.Uint16(f.b[f.ip+2:]))
	}
	return 40 + int(binary.BigEndian.Uint16(f.b[f.ip+4:]))
}

// payload is what follows the IP header, without the frame's padding.
func (f frame) payload() []byte { return f.b[f.l4 : f.ip+f.total()] }

// tag puts VLAN tags behind the MACs, in front of those that are there.
func (f frame) tag(ids ...uint16) frame {
	tags := []byte{}
	for _, id := range ids {
		tags = append(tags, 0x81, 0)
		tags = binary.BigEndian.AppendUint16(tags, id)
	}
	return frame{b: slices.Concat(f.b[:12], tags, f.b[12:]), ip: f.ip + len(tags), l4: f.l4 + len(tags)}
}

// smith makes frames. It reuses its layers: it is for one goroutine.
type smith struct {
	*layout
	buffer gopacket.SerializeBuffer
	eth    layers.Ethernet
	tag    layers.Dot1Q
	ip4    layers.IPv4
	ip6    layers.IPv6
	tcp    layers.TCP
	udp    layers.UDP
	icmp6  layers.ICMPv6
	id     uint16 // of the next IPv4 packet
	blank  []byte // payload
}

func newSmith(l *layout) *smith {
	s := &smith{layout: l, buffer: gopacket.NewSerializeBuffer(), blank: make([]byte, 4096)}
	for i := range s.blank {
		s.blank[i] = byte(i)
	}
	return s
}

// make puts a frame from one station to another together. Without a layer the payload follows the IP
// header.
func (s *smith) make(from, to station, proto uint8, l4 gopacket.SerializableLayer, payload []byte) frame {
	var all [5]gopacket.SerializableLayer
	n := 1
	s.id++
	f := frame{ip: 14}
	s.eth = layers.Ethernet{SrcMAC: from.mac[:], DstMAC: to.mac[:], EthernetType: layers.EthernetTypeIPv6}
	if from.addr.Is4() {
		s.eth.EthernetType = layers.EthernetTypeIPv4
	}
	if pair := s.peerOf(from.port); pair == "" {
		for i := range s.world.Ports {
			if s.world.Ports[i].Name == from.port {
				s.eth.DstMAC = s.world.Ports[i].MAC[:]
			}
		}
	}
	all[0] = &s.eth
	if from.vlan != 0 {
		s.tag = layers.Dot1Q{VLANIdentifier: from.vlan, Type: s.eth.EthernetType}
		s.eth.EthernetType = layers.EthernetTypeDot1Q
		all[1], n, f.ip = &s.tag, 2, 18
	}
	var network gopacket.NetworkLayer
	if from.addr.Is4() {
		s.ip4 = layers.IPv4{Version: 4, TTL: 64, Id: s.id, Protocol: layers.IPProtocol(proto), SrcIP: from.addr.AsSlice(), DstIP: to.addr.AsSlice()}
		all[n], network, f.l4 = &s.ip4, &s.ip4, f.ip+20
	} else {
		s.ip6 = layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocol(proto), SrcIP: from.addr.AsSlice(), DstIP: to.addr.AsSlice()}
		all[n], network, f.l4 = &s.ip6, &s.ip6, f.ip+40
	}
	n++
	switch l := l4.(type) {
	case *layers.TCP:
		_ = l.SetNetworkLayerForChecksum(network)
	case *layers.UDP:
		_ = l.SetNetworkLayerForChecksum(network)
	case *layers.ICMPv6:
		_ = l.SetNetworkLayerForChecksum(network)
	}
	if l4 != nil {
		all[n] = l4
		n++
	}
	all[n] = gopacket.Payload(payload)
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(s.buffer, opts, all[:n+1]...); err != nil {
		// Every field comes from this package, so this is a mistake in it.
		panic(fmt.Sprintf("traffic: make frame: %v", err))
	}
	f.b = slices.Clone(s.buffer.Bytes())
	return f
}

// peerOf returns the other port of an inline pair, "" for a routed port.
func (l *layout) peerOf(port string) string {
	for _, pair := range l.world.Pairs {
		switch port {
		case pair[0]:
			return pair[1]
		case pair[1]:
			return pair[0]
		}
	}
	return ""
}

// segmentTCP is what a TCP segment says beside its ports.
type segmentTCP struct {
	flags   uint8
	seq     uint32
	ack     uint32
	win     uint16
	payload int
	options []layers.TCPOption
}

func (s *smith) makeTCP(from, to station, sport, dport uint16, g segmentTCP) frame {
	has := func(flag uint8) bool { return g.flags&flag != 0 }
	s.tcp = layers.TCP{
		SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: g.seq, Ack: g.ack, Window: g.win,
		FIN: has(fin), SYN: has(syn), RST: has(rst), PSH: has(psh), ACK: has(ack), URG: has(urg), ECE: has(ece), CWR: has(cwr),
		Options: g.options,
	}
	return s.make(from, to, protoTCP, &s.tcp, s.blank[:g.payload])
}

func (s *smith) makeUDP(from, to station, sport, dport uint16, payload int) frame {
	s.udp = layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
	return s.make(from, to, protoUDP, &s.udp, s.blank[:payload])
}

// makeICMP makes a message of the stations' family. Rest is the header's second half.
func (s *smith) makeICMP(from, to station, kind, code uint8, rest uint32, payload []byte) frame {
	body := append(binary.BigEndian.AppendUint32(nil, rest), payload...)
	if from.addr.Is4() {
		return s.make(from, to, protoICMP, nil, append([]byte{kind, code, 0, 0}, body...))
	}
	s.icmp6 = layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, code)}
	return s.make(from, to, protoICMPv6, &s.icmp6, body)
}

// opening makes the packet that opens a tuple's conversation, with a payload of n bytes.
func (s *smith) opening(t *tuple, n int) frame { return s.message(t, true, n) }

// message makes a packet of either end; TCP's is a SYN from the opener, else an ACK.
func (s *smith) message(t *tuple, fromOpener bool, n int) frame {
	from, to, sport, dport := t.a, t.b, t.sport, t.dport
	if !fromOpener {
		from, to, sport, dport = to, from, dport, sport
	}
	switch t.proto {
	case protoTCP:
		g := segmentTCP{flags: syn, seq: 1000, win: 8000, payload: n}
		if !fromOpener {
			g.flags, g.ack = syn|ack, 1001
		}
		return s.makeTCP(from, to, sport, dport, g)
	case protoUDP:
		return s.makeUDP(from, to, sport, dport, n)
	case protoICMP, protoICMPv6:
		kind := uint8(t.dport >> 8)
		if !fromOpener {
			kind = map[uint8]uint8{8: 0, 13: 14, 128: 129}[kind]
		}
		return s.makeICMP(from, to, kind, uint8(t.dport), uint32(t.sport)<<16|1, s.blank[:n])
	}
	return s.make(from, to, t.proto, nil, s.blank[:n+16])
}

// pieces cuts an IP packet's payload at offsets in bytes, multiples of 8, into fragments.
func pieces(f frame, id uint32, cuts ...int) []frame {
	body := f.payload()
	cuts = slices.Concat([]int{0}, cuts, []int{len(body)})
	var out []frame
	for i := 1; i < len(cuts); i++ {
		out = append(out, piece(f, id, cuts[i-1], body[cuts[i-1]:cuts[i]], i < len(cuts)-1))
	}
	return out
}

// piece makes a fragment of f's datagram out of any bytes.
func piece(f frame, id uint32, offset int, body []byte, more bool) frame {
	head := f.b[:f.l4]
	flag := uint16(0)
	if f.is4() {
		if more {
			flag = 0x2000
		}
		out := frame{b: slices.Concat(head, body), ip: f.ip, l4: f.l4}
		binary.BigEndian.PutUint16(out.b[out.ip+4:], uint16(id))
		binary.BigEndian.PutUint16(out.b[out.ip+6:], uint16(offset/8)|flag)
		out.length(len(out.b) - out.ip)
		out.sum()
		return out
	}
	if more {
		flag = 1
	}
	header := []byte{f.b[f.ip+6], 0}
	header = binary.BigEndian.AppendUint16(header, uint16(offset)|flag)
	header = binary.BigEndian.AppendUint32(header, id)
	out := frame{b: slices.Concat(head, header, body), ip: f.ip, l4: f.l4}
	out.b[out.ip+6] = 44
	out.length(len(out.b) - out.ip)
	return out
}
