package packet

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// FuzzDecode holds what Decode accepts against what the fields promise and against gopacket's reading
// of the same frame.
func FuzzDecode(f *testing.F) {
	for _, frame := range [][]byte{
		tcp4(f), udp4(f), udp6(f), hopByHop(f), icmpError4(f, 8), icmpError6(f, udp6(f)[14:]),
		tagged(0x88a8_0064, 0x8100_00c8)(tcp4(f)), options(131, 3, 4, 0)(udp4(f)),
		fixed(set(20, 0x20, 3), set(16, 0, 36))(udp4(f)),
		other6(f, 44, join(fragmentHeader(ProtoUDP, 0, true), udpHeader())...),
		other6(f, 51, join([]byte{ProtoUDP, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2}, udpHeader())...),
	} {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := string(frame)
		var p Parsed
		got := p.Decode(frame)
		if string(frame) != before {
			t.Fatal("Decode changed the frame")
		}
		var again Parsed
		again.Decode(udp6(t))
		if second := again.Decode(frame); second != got {
			t.Fatalf("%v, but %v with a Parsed that was used before", got, second)
		}
		if got != OK || p.EtherType != EtherTypeIPv4 && p.EtherType != EtherTypeIPv6 {
			return
		}
		checkOffsets(t, &p)
		compare(t, &p)
	})
}

func checkOffsets(t *testing.T, p *Parsed) {
	n := len(p.Frame)
	if p.L3 < EthernetLen || p.L4 < p.L3+IPv4Len || p.End < p.L4 || p.End > n || p.Length != p.End-p.L3 {
		t.Fatalf("L3 %d, L4 %d, end %d, length %d in a frame of %d", p.L3, p.L4, p.End, p.Length, n)
	}
	if p.Piece != Whole {
		f := &p.Fragment
		if f.Payload <= 0 || f.Offset+f.Payload > 65535 || f.More && f.Payload%8 != 0 || (f.Offset == 0) != (p.Piece == First) {
			t.Fatalf("piece %d of %+v", p.Piece, *f)
		}
	}
	if p.Piece != Later && p.Proto == ProtoTCP {
		if p.TCP.HeaderLen < 20 || p.L4+p.TCP.HeaderLen+p.TCP.Payload != p.End || p.TCP.HasScale && p.TCP.Scale > 14 {
			t.Fatalf("TCP %+v at %d to %d", p.TCP, p.L4, p.End)
		}
	}
	if icmp := p.Proto == ProtoICMP || p.Proto == ProtoICMPv6; icmp && p.Piece != Later && p.ICMP.Kind == Error {
		if in := &p.ICMP.Inner; in.L4 < p.L4+8+IPv4Len || in.L4+8 > p.End {
			t.Fatalf("quotes %+v at %d to %d", *in, p.L4, p.End)
		}
	}
}

// compare reads an accepted frame with gopacket. It is laxer than Decode in what it refuses, and reads
// no transport header behind a fragment, so only what both read is compared.
func compare(t *testing.T, p *Parsed) {
	g := gopacket.NewPacket(p.Frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	if ip, ok := g.Layer(layers.LayerTypeIPv4).(*layers.IPv4); ok && p.Family == 4 && p.Tags < 2 {
		if string(ip.SrcIP) != string(p.Src[:4]) || string(ip.DstIP) != string(p.Dst[:4]) ||
			int(ip.Length) != p.Length || ip.TTL != p.TTL || uint8(ip.Protocol) != p.Proto {
			t.Fatalf("gopacket reads %+v, Decode %+v", ip, p)
		}
		if fragment := ip.FragOffset != 0 || ip.Flags&layers.IPv4MoreFragments != 0; fragment != (p.Piece != Whole) {
			t.Fatalf("gopacket reads fragment %v, Decode piece %d", fragment, p.Piece)
		}
	}
	if ip, ok := g.Layer(layers.LayerTypeIPv6).(*layers.IPv6); ok && p.Family == 6 && p.Tags < 2 {
		if string(ip.SrcIP) != string(p.Src[:]) || string(ip.DstIP) != string(p.Dst[:]) || ip.HopLimit != p.TTL {
			t.Fatalf("gopacket reads %+v, Decode %+v", ip, p)
		}
	}
	if p.Piece != Whole || p.Tags > 1 {
		return
	}
	if tcp, ok := g.TransportLayer().(*layers.TCP); ok && p.Proto == ProtoTCP {
		if uint16(tcp.SrcPort) != p.SrcPort || uint16(tcp.DstPort) != p.DstPort || tcp.Seq != p.TCP.Seq || tcp.Ack != p.TCP.Ack ||
			tcp.SYN != (p.TCP.Flags&SYN != 0) || tcp.RST != (p.TCP.Flags&RST != 0) || len(tcp.LayerPayload()) != p.TCP.Payload {
			t.Fatalf("gopacket reads %+v, Decode %+v", tcp, p.TCP)
		}
	}
	if udp, ok := g.TransportLayer().(*layers.UDP); ok && p.Proto == ProtoUDP {
		if uint16(udp.SrcPort) != p.SrcPort || uint16(udp.DstPort) != p.DstPort {
			t.Fatalf("gopacket reads %+v, Decode %d to %d", udp, p.SrcPort, p.DstPort)
		}
	}
}
