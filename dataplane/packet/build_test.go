package packet

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	a4   = net.IP{10, 1, 0, 2}
	b4   = net.IP{10, 2, 0, 2}
	a6   = net.ParseIP("fd10:1::2")
	b6   = net.ParseIP("fd10:2::2")
)

func ethernet(t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: t}
}

func ipv4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Id: 0x1234, Protocol: proto, SrcIP: a4, DstIP: b4}
}

func ipv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: a6, DstIP: b6}
}

// serialize builds a frame with right lengths and checksums. gopacket pads Ethernet frames to 60 bytes.
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
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ls...); err != nil {
		t.Fatalf("serialize: %v", err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

func tcp4(t testing.TB) []byte {
	return serialize(t, ethernet(layers.EthernetTypeIPv4), ipv4(layers.IPProtocolTCP), &layers.TCP{
		SrcPort: 40000, DstPort: 443, Seq: 1000, SYN: true, Window: 64240,
		Options: []layers.TCPOption{
			{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}},
			{OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}},
		},
	}, gopacket.Payload("hello"))
}

func udp4(t testing.TB) []byte {
	return serialize(t, ethernet(layers.EthernetTypeIPv4), ipv4(layers.IPProtocolUDP),
		&layers.UDP{SrcPort: 5353, DstPort: 53}, gopacket.Payload("hello world"))
}

func udp6(t testing.TB) []byte {
	return serialize(t, ethernet(layers.EthernetTypeIPv6), ipv6(layers.IPProtocolUDP),
		&layers.UDP{SrcPort: 5353, DstPort: 53}, gopacket.Payload("hello world"))
}

// other6 builds an IPv6 packet with a payload of a protocol that gopacket does not build.
func other6(t testing.TB, next uint8, payload ...byte) []byte {
	return serialize(t, ethernet(layers.EthernetTypeIPv6), ipv6(layers.IPProtocol(next)), gopacket.Payload(payload))
}

func other4(t testing.TB, proto uint8, payload ...byte) []byte {
	return serialize(t, ethernet(layers.EthernetTypeIPv4), ipv4(layers.IPProtocol(proto)), gopacket.Payload(payload))
}

// change is a mutation of a frame.
type change func([]byte) []byte

func set(at int, b ...byte) change {
	return func(f []byte) []byte { copy(f[at:], b); return f }
}

func cut(n int) change { return func(f []byte) []byte { return f[:n] } }

func grow(b ...byte) change { return func(f []byte) []byte { return append(f, b...) } }

// fixed corrects the IPv4 header checksum after other changes.
func fixed(changes ...change) change {
	return func(f []byte) []byte {
		for _, c := range changes {
			f = c(f)
		}
		header := int(f[14]&0x0f) * 4
		binary.BigEndian.PutUint16(f[24:], 0)
		binary.BigEndian.PutUint16(f[24:], Checksum(f[14:14+header], 0))
		return f
	}
}

// tagged puts VLAN tags behind the addresses.
func tagged(tags ...uint32) change {
	return func(f []byte) []byte {
		out := append([]byte(nil), f[:12]...)
		for _, t := range tags {
			out = binary.BigEndian.AppendUint32(out, t)
		}
		return append(out, f[12:]...)
	}
}

// options inserts IPv4 options, which must be whole words.
func options(b ...byte) change {
	return fixed(func(f []byte) []byte {
		out := append([]byte(nil), f[:34]...)
		out = append(append(out, b...), f[34:]...)
		out[14] = 0x45 + byte(len(b)/4)
		binary.BigEndian.PutUint16(out[16:], binary.BigEndian.Uint16(f[16:])+uint16(len(b)))
		return out
	})
}

// row is one good frame with one mutation.
type row struct {
	name   string
	frame  []byte
	change change
	want   Failure
}

func run(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			f := append([]byte(nil), r.frame...)
			if r.change != nil {
				f = r.change(f)
			}
			var p Parsed
			if got := p.Decode(f); got != r.want {
				t.Fatalf("Decode = %v, want %v\n% x", got, r.want, f)
			}
		})
	}
}
