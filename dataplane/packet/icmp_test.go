package packet

import (
	"testing"

	"github.com/google/gopacket/layers"
)

// icmpError4 builds an ICMP error of type 3 that quotes udp4 as far as n bytes behind its IP header; 0
// stands for all of it.
func icmpError4(t testing.TB, n int) []byte {
	inner := udp4(t)[14:]
	if n > 0 {
		inner = inner[:20+n]
	}
	return other4(t, 1, join([]byte{3, 4, 0, 0, 0, 0, 5, 0}, inner)...)
}

func icmpError6(t testing.TB, inner []byte) []byte {
	return other6(t, 58, join([]byte{2, 0, 0, 0, 0, 0, 5, 0}, inner)...)
}

func TestICMP(t *testing.T) {
	at := 14 + 20 + 8 // the quoted packet
	echo4 := other4(t, 1, 8, 0, 0, 0, 0x12, 0x34, 0, 1)
	inner6 := udp6(t)[14:]
	later6 := other6(t, 44, join(fragmentHeader(ProtoUDP, 8, false), udpHeader())...)[14:]
	deep6 := other6(t, 60, join(extension(ProtoUDP), udpHeader())...)[14:]
	run(t, []row{
		{name: "echo", frame: echo4},
		{name: "7 bytes", frame: other4(t, 1, 8, 0, 0, 0, 0, 0, 0), want: BadICMP},
		{name: "ICMPv6 of 7 bytes", frame: other6(t, 58, 128, 0, 0, 0, 0, 0, 0), want: BadICMPv6},
		{name: "ICMP over IPv6", frame: other6(t, 1, 8, 0, 0, 0, 0, 0, 0, 0), want: ForeignICMP},
		{name: "ICMPv6 over IPv4", frame: other4(t, 58, 128, 0, 0, 0, 0, 0, 0, 0), want: ForeignICMP},

		{name: "error", frame: icmpError4(t, 0)},
		{name: "error with 8 bytes", frame: icmpError4(t, 8)},
		{name: "error with 7 bytes", frame: icmpError4(t, 7), want: BadICMP},
		{name: "error with half an IP header", frame: icmpError4(t, 0), change: fixed(set(16, 0, 20+8+19)), want: BadICMP},
		{name: "error quotes version 6", frame: icmpError4(t, 0), change: set(at, 0x65), want: BadICMP},
		{name: "error quotes a short header", frame: icmpError4(t, 0), change: set(at, 0x44), want: BadICMP},
		{name: "error quotes a header beyond it", frame: icmpError4(t, 8), change: set(at, 0x4f), want: BadICMP},
		{name: "lengths and checksum inside are not looked at", frame: icmpError4(t, 8), change: set(at+2, 0xff, 0xff)},

		{name: "ICMPv6 error", frame: icmpError6(t, inner6)},
		{name: "ICMPv6 error quotes version 4", frame: icmpError6(t, udp4(t)[14:]), want: BadICMPv6},
		{name: "ICMPv6 error with 7 bytes", frame: icmpError6(t, inner6[:47]), want: BadICMPv6},
		{name: "ICMPv6 error quotes extensions", frame: icmpError6(t, deep6)},
		{name: "ICMPv6 error quotes cut extensions", frame: icmpError6(t, deep6[:44]), want: BadICMPv6},
		{name: "ICMPv6 error quotes a later fragment", frame: icmpError6(t, later6)},
	})

	for _, tc := range []struct {
		name   string
		family uint8
		frame  []byte
		kind   Kind
		id     uint16
	}{
		{"echo", 4, echo4, Query, 0x1234},
		{"timestamp", 4, other4(t, 1, 13, 0, 0, 0, 0, 9, 0, 1), Query, 9},
		{"echo reply", 4, other4(t, 1, 0, 0, 0, 0, 0, 9, 0, 1), Reply, 9},
		{"timestamp reply", 4, other4(t, 1, 14, 0, 0, 0, 0, 9, 0, 1), Reply, 9},
		{"redirect", 4, other4(t, 1, 5, 0, 0, 0, 0, 9, 0, 1), Other, 0},
		{"source quench", 4, other4(t, 1, 4, 0, 0, 0, 0, 9, 0, 1), Other, 0},
		{"echo v6", 6, other6(t, 58, 128, 0, 0, 0, 0, 9, 0, 1), Query, 9},
		{"echo reply v6", 6, other6(t, 58, 129, 0, 0, 0, 0, 9, 0, 1), Reply, 9},
		{"neighbour solicitation", 6, other6(t, 58, 135, 0, 0, 0, 0, 9, 0, 1), Neighbour, 0},
		{"listener report", 6, other6(t, 58, 143, 0, 0, 0, 0, 9, 0, 1), Other, 0},
	} {
		var p Parsed
		if got := p.Decode(tc.frame); got != OK {
			t.Errorf("%s: Decode = %v", tc.name, got)
		}
		if p.Family != tc.family || p.ICMP.Kind != tc.kind || (tc.kind == Query || tc.kind == Reply) && p.ICMP.ID != tc.id {
			t.Errorf("%s: family %d, kind %d, identifier %d; want %d, %d, %d", tc.name, p.Family, p.ICMP.Kind, p.ICMP.ID, tc.family, tc.kind, tc.id)
		}
	}
}

func TestInner(t *testing.T) {
	want := Inner{Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Proto: ProtoUDP, SrcPort: 5353, DstPort: 53}
	var p Parsed
	if got := p.Decode(icmpError4(t, 8)); got != OK || p.ICMP.Inner != want {
		t.Errorf("%v: %+v, want %+v", got, p.ICMP.Inner, want)
	}

	echo := ipv4(layers.IPProtocolICMPv4)
	inner := serialize(t, echo, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: 77, Seq: 1})
	want = Inner{Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Proto: ProtoICMP, Kind: Query, Type: 8, ID: 77}
	if got := p.Decode(other4(t, 1, join([]byte{11, 0, 0, 0, 0, 0, 0, 0}, inner)...)); got != OK || p.ICMP.Inner != want {
		t.Errorf("%v: %+v, want %+v", got, p.ICMP.Inner, want)
	}

	later := fixed(set(20, 0, 2))(udp4(t))[14:]
	want = Inner{Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Proto: ProtoUDP, Later: true}
	if got := p.Decode(other4(t, 1, join([]byte{3, 1, 0, 0, 0, 0, 0, 0}, later)...)); got != OK || p.ICMP.Inner != want {
		t.Errorf("%v: %+v, want %+v", got, p.ICMP.Inner, want)
	}
}
