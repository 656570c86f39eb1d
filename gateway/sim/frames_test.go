package sim

import (
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// tcp, udp and echo build frames with right lengths and checksums. Flags are letters of SAFRP.
func tcp(t testing.TB, src, dst string, sport, dport uint16, flags string, seq, ack uint32) []byte {
	l := &layers.TCP{SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: seq, Ack: ack, Window: 4096}
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
		case 'P':
			l.PSH = true
		}
	}
	return build(t, src, dst, layers.IPProtocolTCP, l)
}

func udp(t testing.TB, src, dst string, sport, dport uint16, payload string) []byte {
	return build(t, src, dst, layers.IPProtocolUDP, &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}, gopacket.Payload(payload))
}

func echo(t testing.TB, src, dst string, request bool, id uint16) []byte {
	kind := uint8(layers.ICMPv4TypeEchoReply)
	if request {
		kind = layers.ICMPv4TypeEchoRequest
	}
	return build(t, src, dst, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: id})
}

var (
	senderMAC   = net.HardwareAddr{2, 0, 0, 0, 0, 7}
	receiverMAC = net.HardwareAddr{2, 0, 0, 0, 0, 8}
)

func build(t testing.TB, src, dst string, proto layers.IPProtocol, rest ...gopacket.SerializableLayer) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: senderMAC, DstMAC: receiverMAC, EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.SerializableLayer
	var network gopacket.NetworkLayer
	if s := net.ParseIP(src); s.To4() != nil {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Id: 1, Protocol: proto, SrcIP: s, DstIP: net.ParseIP(dst)}
		ip, network = v4, v4
	} else {
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: s, DstIP: net.ParseIP(dst)}
		ip, network, eth.EthernetType = v6, v6, layers.EthernetTypeIPv6
	}
	for _, l := range rest {
		switch l := l.(type) {
		case *layers.TCP:
			_ = l.SetNetworkLayerForChecksum(network)
		case *layers.UDP:
			_ = l.SetNetworkLayerForChecksum(network)
		case *layers.ICMPv6:
			_ = l.SetNetworkLayerForChecksum(network)
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append([]gopacket.SerializableLayer{ip}, rest...)...); err != nil {
		t.Fatal(err)
	}
	head := append(append([]byte(nil), receiverMAC...), senderMAC...)
	head = append(head, byte(eth.EthernetType>>8), byte(eth.EthernetType))
	return append(head, b.Bytes()...)
}
