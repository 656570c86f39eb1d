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
		{"listener query", 6, other6(t, 58, 130, 0, 0, 0, 0, 9, 0, 1), Listener, 0},
		{"listener done", 6, other6(t, 58, 132, 0, 0, 0, 0, 9, 0, 1), Listener, 0},
		{"listener report", 6, other6(t, 58, 143, 0, 0, 0, 0, 9, 0, 1), Listener, 0},
		{"node information", 6, other6(t, 58, 139, 0, 0, 0, 0, 9, 0, 1), Other, 0},
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

// Discovery is what it claims to be only on its own link.
func TestOnLink(t *testing.T) {
	local, reports, unspecified := Addr{0xfe, 0x80, 15: 9}, Addr{0xff, 2, 15: 0x16}, Addr{}
	global, site := Addr(a6), Addr{0xfe, 0xc0, 15: 9}
	for _, tc := range []struct {
		name     string
		kind     uint8
		limit    uint8
		src, dst Addr
		want     bool
	}{
		{"neighbour solicitation", 135, 255, global, Addr(b6), true},
		{"neighbour solicitation from afar", 135, 254, global, Addr(b6), false},
		{"listener query", 130, 1, local, reports, true},
		{"listener query of nobody", 130, 1, unspecified, reports, false},
		{"listener report", 131, 1, local, reports, true},
		{"listener report before there is an address", 131, 1, unspecified, reports, true},
		{"listener done", 132, 1, unspecified, reports, true},
		{"version 2 report", 143, 1, local, reports, true},
		{"version 2 report before there is an address", 143, 1, unspecified, reports, true},
		{"version 2 report from afar", 143, 64, local, reports, false},
		{"version 2 report that came by a router", 143, 0, local, reports, false},
		{"version 2 report of a global address", 143, 1, global, reports, false},
		{"version 2 report beside fe80::/10", 143, 1, site, reports, false},
		{"version 2 report to a single host", 143, 1, local, Addr(b6), false},
		{"echo request", 128, 1, local, reports, false},
	} {
		for _, alert := range []bool{false, true} {
			payload := []byte{tc.kind, 0, 0, 0, 0, 0, 0, 0}
			frame := other6(t, ProtoICMPv6, payload...)
			if alert { // as listener discovery has it: a hop-by-hop header with a router alert
				frame = other6(t, ProtoHopByHop, append([]byte{ProtoICMPv6, 0, 5, 2, 0, 0, 1, 0}, payload...)...)
			}
			frame[21] = tc.limit
			copy(frame[22:], tc.src[:])
			copy(frame[38:], tc.dst[:])
			var p Parsed
			if got := p.Decode(frame); got != OK || p.OnLink() != tc.want {
				t.Errorf("%s, router alert %v: %v, on its link %v", tc.name, alert, got, p.OnLink())
			}
		}
	}
	first := other6(t, ProtoFragment, ProtoICMPv6, 0, 0, 1, 0, 0, 0, 7, 143, 0, 0, 0, 0, 0, 0, 0)
	first[21] = 1
	copy(first[22:], local[:])
	copy(first[38:], reports[:])
	var p Parsed
	if got := p.Decode(first); got != OK || p.Piece != First || p.OnLink() {
		t.Errorf("a fragment: %v, on its link %v", got, p.OnLink())
	}
}

func TestInner(t *testing.T) {
	want := Inner{Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Proto: ProtoUDP, L4: 62, SrcPort: 5353, DstPort: 53}
	var p Parsed
	if got := p.Decode(icmpError4(t, 8)); got != OK || p.ICMP.Inner != want {
		t.Errorf("%v: %+v, want %+v", got, p.ICMP.Inner, want)
	}

	echo := ipv4(layers.IPProtocolICMPv4)
	inner := serialize(t, echo, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 3), Id: 77, Seq: 1})
	want = Inner{Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Proto: ProtoICMP, L4: 62, Kind: Query, Type: 8, Code: 3, ID: 77}
	if got := p.Decode(other4(t, 1, join([]byte{11, 0, 0, 0, 0, 0, 0, 0}, inner)...)); got != OK || p.ICMP.Inner != want {
		t.Errorf("%v: %+v, want %+v", got, p.ICMP.Inner, want)
	}

	later := fixed(set(20, 0, 2))(udp4(t))[14:]
	want = Inner{Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Proto: ProtoUDP, L4: 62, Later: true}
	if got := p.Decode(other4(t, 1, join([]byte{3, 1, 0, 0, 0, 0, 0, 0}, later)...)); got != OK || p.ICMP.Inner != want {
		t.Errorf("%v: %+v, want %+v", got, p.ICMP.Inner, want)
	}
}
