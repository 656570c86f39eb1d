package gateway

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// A way is what frames from one end to another have in common.
type way struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.Addr
	ttl            uint8  // 0 is 64
	vlan           uint16 // 0: no tag
}

// frame puts headers before what follows the IP header. The layers lack only their checksums and
// lengths.
func (w way) frame(t testing.TB, proto layers.IPProtocol, behind ...gopacket.SerializableLayer) []byte {
	t.Helper()
	all, network := w.headers(proto)
	for _, l := range behind {
		if s, ok := l.(interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}); ok {
			if err := s.SetNetworkLayerForChecksum(network); err != nil {
				t.Fatal(err)
			}
		}
	}
	return serialize(t, append(all, behind...)...)
}

func serialize(t testing.TB, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (w way) headers(proto layers.IPProtocol) (all []gopacket.SerializableLayer, network gopacket.NetworkLayer) {
	ttl := w.ttl
	if ttl == 0 {
		ttl = 64
	}
	ethertype := layers.EthernetTypeIPv4
	if w.src.Is6() {
		ethertype = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: proto, SrcIP: w.src.AsSlice(), DstIP: w.dst.AsSlice()}
		all, network = append(all, ip), ip
	} else {
		ip := &layers.IPv4{Version: 4, IHL: 5, TTL: ttl, Protocol: proto, SrcIP: w.src.AsSlice(), DstIP: w.dst.AsSlice()}
		all, network = append(all, ip), ip
	}
	eth := &layers.Ethernet{SrcMAC: w.srcMAC, DstMAC: w.dstMAC, EthernetType: ethertype}
	if w.vlan == 0 {
		return append([]gopacket.SerializableLayer{eth}, all...), network
	}
	eth.EthernetType = layers.EthernetTypeDot1Q
	return append([]gopacket.SerializableLayer{eth, &layers.Dot1Q{VLANIdentifier: w.vlan, Type: ethertype}}, all...), network
}

func (w way) udp(t testing.TB, sport, dport uint16, payload []byte) []byte {
	t.Helper()
	return w.frame(t, layers.IPProtocolUDP,
		&layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}, gopacket.Payload(payload))
}

// tcp takes the ports and numbers of a segment; its flags are letters: S, A, F, R.
func (w way) tcp(t testing.TB, sport, dport uint16, flags string, seq, ack uint32, payload []byte) []byte {
	t.Helper()
	l := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: seq, Ack: ack, Window: 65535}
	for _, f := range flags {
		switch f {
		case 'S':
			l.SYN = true
		case 'A':
			l.ACK = true
		case 'F':
			l.FIN = true
		case 'R':
			l.RST = true
		default:
			t.Fatalf("no flag %c", f)
		}
	}
	return w.frame(t, layers.IPProtocolTCP, l, gopacket.Payload(payload))
}

// echo is an echo request of the way's family.
func (w way) echo(t testing.TB, id, seq uint16, payload []byte) []byte {
	t.Helper()
	if w.src.Is6() {
		return w.frame(t, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(128, 0)},
			&layers.ICMPv6Echo{Identifier: id, SeqNumber: seq}, gopacket.Payload(payload))
	}
	return w.frame(t, layers.IPProtocolICMPv4,
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: id, Seq: seq}, gopacket.Payload(payload))
}

// unreachable is the port's unreachability, quoting a frame's IP packet.
func (w way) unreachable(t testing.TB, quoted []byte) []byte {
	t.Helper()
	packet := quoted[14:]
	if w.src.Is6() {
		return w.frame(t, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 4)},
			gopacket.Payload(append(make([]byte, 4), packet...)))
	}
	return w.frame(t, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 3)}, gopacket.Payload(packet))
}

// fragments cuts an untagged frame's IP payload in two, the first piece of that many bytes.
func (w way) fragments(t testing.TB, id uint32, first int, whole []byte) [2][]byte {
	t.Helper()
	if w.src.Is4() {
		proto, payload := layers.IPProtocol(whole[14+9]), whole[14+20:]
		var out [2][]byte
		for i, piece := range [][]byte{payload[:first], payload[first:]} {
			out[i] = w.frame(t, proto, gopacket.Payload(piece))
			header := out[i][14:34]
			binary.BigEndian.PutUint16(header[4:], uint16(id))
			binary.BigEndian.PutUint16(header[6:], [2]uint16{0x2000, uint16(first / 8)}[i])
			sumHeader(header)
		}
		return out
	}
	proto, payload := whole[14+6], whole[14+40:]
	var out [2][]byte
	for i, piece := range [][]byte{payload[:first], payload[first:]} {
		header := make([]byte, 8)
		header[0] = proto
		binary.BigEndian.PutUint16(header[2:], [2]uint16{1, uint16(first)}[i])
		binary.BigEndian.PutUint32(header[4:], id)
		out[i] = w.frame(t, layers.IPProtocolIPv6Fragment, gopacket.Payload(append(header, piece...)))
	}
	return out
}

// sumHeader makes an IPv4 header's checksum right.
func sumHeader(h []byte) {
	h[10], h[11] = 0, 0
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}
