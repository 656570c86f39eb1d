package oracle

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// serialize puts layers together with right lengths and checksums.
func serialize(all ...gopacket.SerializableLayer) []byte {
	b := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(b, opts, all...); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// macs of the world of the tests
var (
	lanMAC  = [6]byte{2, 0, 0, 0, 0, 1}
	wanMAC  = [6]byte{2, 0, 0, 0, 0, 2}
	hostMAC = [6]byte{2, 0, 0, 0, 1, 1} // a station of the lan
	nextMAC = [6]byte{2, 0, 0, 0, 2, 1} // next hop of the wan
)

// ends are the addresses of a packet that arrives on a port of the world, at Ethernet and IP.
type ends struct {
	from, to [6]byte
	src, dst string
}

func (e ends) back() ends { return ends{nextMAC, wanMAC, e.dst, e.src} }

func outbound(src, dst string) ends { return ends{hostMAC, lanMAC, src, dst} }

func (e ends) is4() bool { return netip.MustParseAddr(e.src).Is4() }

// packet makes a frame of a transport layer and payload.
func (e ends) packet(proto layers.IPProtocol, l4 gopacket.SerializableLayer, payload []byte) []byte {
	eth := &layers.Ethernet{SrcMAC: e.from[:], DstMAC: e.to[:], EthernetType: layers.EthernetTypeIPv4}
	var ip gopacket.SerializableLayer
	v4 := &layers.IPv4{Version: 4, TTL: 64, Id: 7, Protocol: proto, SrcIP: net.ParseIP(e.src), DstIP: net.ParseIP(e.dst)}
	v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: net.ParseIP(e.src), DstIP: net.ParseIP(e.dst)}
	var network gopacket.NetworkLayer = v4
	if ip = v4; !e.is4() {
		eth.EthernetType, ip, network = layers.EthernetTypeIPv6, v6, v6
	}
	switch l := l4.(type) {
	case *layers.TCP:
		_ = l.SetNetworkLayerForChecksum(network)
	case *layers.UDP:
		_ = l.SetNetworkLayerForChecksum(network)
	case *layers.ICMPv6:
		_ = l.SetNetworkLayerForChecksum(network)
	case nil:
		return serialize(eth, ip, gopacket.Payload(payload))
	}
	return serialize(eth, ip, l4, gopacket.Payload(payload))
}

// tcp makes a segment; flags are letters of SAFRPU.
func (e ends) tcp(sport, dport uint16, flags string, seq, ack uint32, payload int, edits ...func(*layers.TCP)) []byte {
	t := &layers.TCP{
		SrcPort: layers.TCPPort(sport), DstPort: layers.TCPPort(dport), Seq: seq, Ack: ack, Window: 1000,
		SYN: strings.Contains(flags, "S"), ACK: strings.Contains(flags, "A"), FIN: strings.Contains(flags, "F"),
		RST: strings.Contains(flags, "R"), PSH: strings.Contains(flags, "P"), URG: strings.Contains(flags, "U"),
	}
	for _, edit := range edits {
		edit(t)
	}
	return e.packet(layers.IPProtocolTCP, t, make([]byte, payload))
}

func scale(n byte) func(*layers.TCP) {
	return func(t *layers.TCP) {
		t.Options = append(t.Options, layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{n}})
	}
}

func window(n uint16) func(*layers.TCP) { return func(t *layers.TCP) { t.Window = n } }

func (e ends) udp(sport, dport uint16, payload int) []byte {
	return e.packet(layers.IPProtocolUDP, &layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}, make([]byte, payload))
}

// icmp makes a message of either family; rest is the header's last four bytes.
func (e ends) icmp(kind, code uint8, rest uint32, payload []byte) []byte {
	body := append(binary.BigEndian.AppendUint32(nil, rest), payload...)
	if e.is4() {
		return e.packet(layers.IPProtocolICMPv4, nil, append([]byte{kind, code, 0, 0}, body...))
	}
	return e.packet(layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, code)}, body)
}

// fragments cuts an IPv4 frame's payload at the given offsets in bytes.
func fragments(frame []byte, cuts ...int) [][]byte {
	var out [][]byte
	payload := frame[34:]
	cuts = append(append([]int{0}, cuts...), len(payload))
	for i := 1; i < len(cuts); i++ {
		b := append(append([]byte{}, frame[:34]...), payload[cuts[i-1]:cuts[i]]...)
		field := uint16(cuts[i-1] / 8)
		if i < len(cuts)-1 {
			field |= 0x2000
		}
		out = append(out, ip4(b, func(h []byte) {
			binary.BigEndian.PutUint16(h[2:], uint16(len(b)-14))
			binary.BigEndian.PutUint16(h[6:], field)
		}))
	}
	return out
}

// ip4 changes an untagged frame's IPv4 header and makes its checksum right again.
func ip4(frame []byte, edit func(h []byte)) []byte {
	out := append([]byte{}, frame...)
	edit(out[14:])
	header := out[14:]
	if n := int(header[0]&15) * 4; n >= 20 && n <= len(header) {
		header = header[:n]
	} else {
		header = header[:20]
	}
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], ^sum(header))
	return out
}

// edit changes a frame's bytes.
func edit(frame []byte, change func(b []byte)) []byte {
	out := append([]byte{}, frame...)
	change(out)
	return out
}

// tagged puts a VLAN tag behind the MACs.
func tagged(frame []byte, ids ...uint16) []byte {
	out := append([]byte{}, frame[:12]...)
	for _, id := range ids {
		out = append(out, 0x81, 0)
		out = binary.BigEndian.AppendUint16(out, id)
	}
	return append(out, frame[12:]...)
}

// ip6 puts bytes, extension headers, between the IPv6 header and its payload.
func ip6(frame []byte, first uint8, headers ...byte) []byte {
	out := append(append(append([]byte{}, frame[:54]...), headers...), frame[54:]...)
	out[20] = first
	binary.BigEndian.PutUint16(out[18:], uint16(len(out)-54))
	return out
}

func TestBuildersMakeSoundFrames(t *testing.T) {
	for _, e := range []ends{outbound("10.0.0.5", "198.51.100.9"), outbound("2001:db8:1::5", "2001:db8:2::9")} {
		for _, frame := range [][]byte{e.tcp(1, 2, "S", 1, 0, 3), e.udp(1, 2, 3), e.icmp(8, 0, 1, nil)} {
			decoded := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
			if decoded.ErrorLayer() != nil || decoded.NetworkLayer() == nil {
				t.Errorf("frame %x: %v", frame, decoded.ErrorLayer())
			}
		}
	}
}
