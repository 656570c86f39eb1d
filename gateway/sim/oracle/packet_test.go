package oracle

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/gopacket/layers"
)

// Each row is one frame and what sections 1 to 5 say of it.
func TestFrames(t *testing.T) {
	udp, udp6 := toWeb.udp(1, 53, 16), toWeb6.udp(1, 53, 16)
	tcp, tcp6 := toWeb.tcp(1, 80, "S", 1, 0, 4), toWeb6.tcp(1, 80, "S", 1, 0, 4)
	from4 := func(src, dst string) []byte { return outbound(src, dst).udp(1, 53, 0) }
	set := func(frame []byte, at int, values ...byte) []byte {
		return edit(frame, func(b []byte) { copy(b[at:], values) })
	}
	options := func(o ...byte) []byte {
		b := append(append(append([]byte{}, udp[:34]...), o...), udp[34:]...)
		return ip4(b, func(h []byte) {
			h[0] = 0x45 + byte(len(o)/4)
			binary.BigEndian.PutUint16(h[2:], uint16(len(b)-14))
		})
	}
	dest := []byte{17, 0, 1, 4, 0, 0, 0, 0}
	six := func(n int) []byte {
		var b []byte
		for i := range n {
			next := byte(60)
			if i == n-1 {
				next = 17
			}
			b = append(b, next, 0, 1, 4, 0, 0, 0, 0)
		}
		return ip6(udp6, 60, b...)
	}
	br := ends{hostMAC, nextMAC, "10.9.0.5", "198.51.100.9"}
	rows := []struct {
		name, port string
		frame      []byte
		want       string
	}{
		{"good", "lan0", udp, Forward},
		{"short frame", "lan0", udp[:13], "malformed-ethernet"},
		{"tag cut short", "lan0", tagged(udp, 20)[:17], "malformed-vlan"},
		{"third tag", "lan0", tagged(udp, 20, 1, 2), "malformed-vlan"},
		{"two tags", "lan0", tagged(udp, 20, 1), "no-rule-matched"},
		{"priority tag", "lan0", tagged(udp, 0), Forward},
		{"unknown vlan", "lan0", tagged(udp, 21), "vlan-unknown"},
		{"no vlan at the peer", "br0", tagged(br.udp(1, 53, 0), 5), "vlan-unknown"},
		{"not for us", "lan0", set(udp, 0, 2, 9), "not-for-us"},
		{"group MAC", "lan0", set(udp, 0, 1, 9), Forward},
		{"inline is promiscuous", "br0", br.udp(1, 53, 0), Forward},
		{"ARP", "lan0", set(udp, 12, 8, 6), "pass arp"},
		{"ARP inline", "br1", set(udp, 12, 8, 6), Forward},
		{"LLDP", "lan0", set(udp, 12, 0x88, 0xcc), "ethertype"},
		{"LLDP inline", "br0", set(udp, 12, 0x88, 0xcc), Forward},
		{"802.3 inline", "br0", set(udp, 12, 0, 10), "ethertype"},

		{"IPv4 cut short", "lan0", udp[:33], "malformed-ipv4"},
		{"version", "lan0", ip4(udp, func(h []byte) { h[0] = 0x65 }), "malformed-ipv4"},
		{"IHL", "lan0", ip4(udp, func(h []byte) { h[0] = 0x44 }), "malformed-ipv4"},
		{"header beyond the frame", "lan0", ip4(udp, func(h []byte) { h[0] = 0x4f }), "malformed-ipv4"},
		{"total below header", "lan0", ip4(udp, func(h []byte) { h[3] = 19 }), "malformed-ipv4"},
		{"total beyond the frame", "lan0", ip4(udp, func(h []byte) { h[3] = 47 }), "malformed-ipv4"},
		{"padding", "lan0", append(append([]byte{}, udp...), 1, 2, 3), Forward},
		{"checksum", "lan0", set(udp, 24, 9, 9), "malformed-ipv4-checksum"},
		{"no-op and router alert", "lan0", options(1, 148, 4, 0, 0, 0, 0, 0), Forward},
		{"after the end anything", "lan0", options(0, 7, 0, 0), Forward},
		{"option of length 1", "lan0", options(7, 1, 0, 0), "malformed-ipv4-options"},
		{"option beyond the header", "lan0", options(7, 5, 0, 0), "malformed-ipv4-options"},
		{"loose source route", "lan0", options(131, 3, 4, 0), "ipv4-source-route"},
		{"strict source route", "lan0", options(137, 3, 4, 0), "ipv4-source-route"},
		{"source is destination", "lan0", from4("10.0.0.5", "10.0.0.5"), "martian"},
		{"from loopback", "lan0", from4("127.0.0.1", "10.0.0.5"), "martian"},
		{"to loopback", "lan0", from4("10.0.0.5", "127.1.2.3"), "martian"},
		{"from a group", "lan0", from4("224.0.0.1", "10.0.0.5"), "martian"},
		{"from broadcast", "lan0", from4("255.255.255.255", "10.0.0.5"), "martian"},
		{"from this network", "lan0", from4("0.0.0.0", "10.0.0.5"), "martian"},
		{"to this network", "lan0", from4("10.0.0.5", "0.1.0.0"), "martian"},
		{"from nowhere to broadcast", "lan0", from4("0.0.0.0", "255.255.255.255"), "no-rule-matched"},

		{"good IPv6", "lan0", udp6, Forward},
		{"IPv6 cut short", "lan0", udp6[:53], "malformed-ipv6"},
		{"version 4 in IPv6", "lan0", set(udp6, 14, 0x40), "malformed-ipv6"},
		{"payload beyond the frame", "lan0", set(udp6, 19, 25), "malformed-ipv6"},
		{"from loopback 6", "lan0", outbound("::1", "2001:db8:1::5").udp(1, 53, 0), "martian"},
		{"from a group 6", "lan0", outbound("ff02::1", "2001:db8:1::5").udp(1, 53, 0), "martian"},
		{"to nowhere 6", "lan0", outbound("2001:db8:1::5", "::").udp(1, 53, 0), "martian"},
		{"from nowhere 6", "lan0", outbound("::", "ff02::1").udp(1, 53, 0), "martian"},
		{"duplicate address detection", "lan0", edit(outbound("::", "ff02::1").icmp(135, 0, 0, make([]byte, 16)), func(b []byte) { b[21] = 255 }), "pass neighbour-discovery"},
		{"link-local source", "lan0", outbound("fe80::5", "2001:db8:2::9").udp(1, 53, 0), "martian"},
		{"destination options", "lan0", ip6(udp6, 60, dest...), Forward},
		{"AH of 12 bytes", "lan0", ip6(udp6, 51, 17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), Forward},
		{"six headers", "lan0", six(6), Forward},
		{"seven headers", "lan0", six(7), "malformed-ipv6-extension"},
		{"hop-by-hop first", "lan0", ip6(udp6, 0, dest...), Forward},
		{"hop-by-hop second", "lan0", ip6(udp6, 60, append([]byte{0, 0, 1, 4, 0, 0, 0, 0}, dest...)...), "malformed-ipv6-extension"},
		{"header beyond the packet", "lan0", ip6(udp6, 60, 17, 9, 1, 4, 0, 0, 0, 0), "malformed-ipv6-extension"},
		{"two fragment headers", "lan0", ip6(udp6, 44, 44, 0, 0, 0, 0, 0, 0, 1, 17, 0, 0, 0, 0, 0, 0, 1), "malformed-ipv6-extension"},
		{"atomic fragment", "lan0", ip6(udp6, 44, 17, 0, 0, 0, 0, 0, 0, 1), Forward},
		{"routing header 0", "lan0", ip6(udp6, 43, 17, 0, 0, 1, 0, 0, 0, 0), "ipv6-routing-header"},
		{"routing header 0, arrived", "lan0", ip6(udp6, 43, 17, 0, 0, 0, 0, 0, 0, 0), Forward},
		{"routing header 2", "lan0", ip6(udp6, 43, 17, 0, 2, 1, 0, 0, 0, 0), Forward},
		{"header before address", "lan0", ip6(outbound("::1", "2001:db8:1::5").udp(1, 53, 0), 43, 17, 0, 0, 1, 0, 0, 0, 0), "ipv6-routing-header"},

		{"TCP cut short", "lan0", ip4(tcp[:53], func(h []byte) { h[3] = 39 }), "malformed-tcp"},
		{"data offset 4", "lan0", set(tcp, 46, 0x40), "malformed-tcp"},
		{"data offset beyond the packet", "lan0", set(tcp, 46, 0x70), "malformed-tcp"},
		{"payload length 0", "lan0", edit(tcp6, func(b []byte) { b[18], b[19] = 0, 0 }), "malformed-tcp"},
		{"no flags", "lan0", set(tcp, 47, 0), "malformed-tcp-flags"},
		{"all flags", "lan0", set(tcp, 47, 0x3f), "malformed-tcp-flags"},
		{"SYN, ECE, CWR, PSH", "lan0", set(tcp, 47, 0xca), Forward},
		{"UDP length 7", "lan0", set(udp, 38, 0, 7), "malformed-udp"},
		{"UDP length beyond the packet", "lan0", set(udp, 38, 0, 25), "malformed-udp"},
		{"UDP length below the packet's", "lan0", set(udp, 38, 0, 8), Forward},
		{"UDP length 0 in IPv6", "lan0", set(udp6, 58, 0, 0), "malformed-udp"},
		{"ICMP cut short", "lan0", toWeb.packet(1, nil, []byte{8, 0, 0, 0, 0, 0, 0}), "malformed-icmp"},
		{"ICMPv6 cut short", "lan0", toWeb6.packet(58, nil, []byte{128, 0, 0, 0, 0, 0, 0}), "malformed-icmpv6"},
		{"ICMPv6 in IPv4", "lan0", toWeb.packet(58, nil, make([]byte, 8)), "icmp-type"},
		{"ICMP in IPv6", "lan0", toWeb6.packet(1, nil, make([]byte, 8)), "icmp-type"},
		{"GRE cut short", "lan0", toWeb.packet(47, nil, make([]byte, 3)), "malformed-transport"},
		{"ESP cut short", "lan0", toWeb6.packet(50, nil, make([]byte, 7)), "malformed-transport"},
		{"AH cut short", "lan0", toWeb.packet(51, nil, make([]byte, 11)), "malformed-transport"},
		{"SCTP cut short", "lan0", toWeb6.packet(132, nil, make([]byte, 11)), "malformed-transport"},
		{"no next header", "lan0", toWeb6.packet(59, nil, nil), "no-rule-matched"},

		{"no route", "lan0", outbound("2001:db8:1::5", "2001:db8:9::9").udp(1, 53, 0), "no-route"},
		{"blackhole", "lan0", from4("10.0.0.5", "192.0.2.9"), "route-blocked"},
		{"another interface", "lan0", from4("10.0.0.5", "198.19.0.1"), "egress-not-a-port"},
		{"group", "lan0", from4("10.0.0.5", "224.0.0.251"), "no-rule-matched"},
		{"TTL 1", "lan0", ip4(udp, func(h []byte) { h[8] = 1 }), "ttl-expired"},
		{"hop limit 0", "lan0", set(udp6, 21, 0), "ttl-expired"},
		{"TTL 1 for the host", "lan0", ip4(outbound("10.0.0.5", "10.0.0.1").udp(1, 123, 0), func(h []byte) { h[8] = 1 }), "pass host"},
		{"TTL 1 inline", "br0", ip4(br.udp(1, 53, 0), func(h []byte) { h[8] = 1 }), Forward},
		{"as large as the MTU", "lan0", toWeb.udp(1, 53, 1372), Forward},
		{"too big", "lan0", toWeb.udp(1, 53, 1373), "pass fragmentation-needed"},
		{"too big, DF", "lan0", ip4(toWeb.udp(1, 53, 1373), func(h []byte) { h[6] = 0x40 }), "too-big"},
		{"too big in IPv6", "lan0", toWeb6.udp(1, 53, 1353), "too-big"},
		{"too big inline", "br0", br.udp(1, 53, 1373), "too-big"},
		{"neighbour not known", "lan0", outbound("10.0.1.5", "203.0.113.7").tcp(1, 443, "S", 1, 0, 0), "pass neighbour-unknown"},
		{"ICMP redirect", "lan0", toWeb.icmp(5, 1, 0, make([]byte, 28)), "icmp-type"},
		{"router solicitation from afar", "lan0", toWeb6.icmp(133, 0, 0, nil), "icmp-type"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			before := fmt.Sprintf("%x", row.frame)
			v := newOracle(t).Packet(0, row.port, row.frame)
			got := v.Reason
			switch v.Verdict {
			case Forward:
				got = Forward
			case Pass:
				got = "pass " + v.Pass
			}
			if got != row.want {
				t.Errorf("%s, want %s", got, row.want)
			}
			if fmt.Sprintf("%x", row.frame) != before {
				t.Error("the frame was changed")
			}
		})
	}
}

// A routed packet leaves with other MACs and tag, its TTL lowered and its checksum right.
func TestRoutedFrame(t *testing.T) {
	o := newOracle(t)
	request := toWeb.udp(1, 53, 5)
	v := o.Packet(0, "lan0", tagged(request, 0))
	want := ip4(request, func(h []byte) { h[8] = 63 })
	copy(want, nextMAC[:])
	copy(want[6:], wanMAC[:])
	if v.Out != "wan0" || string(v.Frame) != string(want) {
		t.Errorf("out %s\n%x, want wan0\n%x", v.Out, v.Frame, want)
	}
	printer := outbound("10.0.0.5", "10.20.0.9")
	printer.from = [6]byte{2, 0, 0, 0, 1, 9}
	frame := printer.tcp(1, 631, "S", 1, 0, 0)
	v = o.Packet(0, "lan0", frame)
	want = ip4(frame, func(h []byte) { h[8] = 63 })
	copy(want, hostMAC[:])
	copy(want[6:], lanMAC[:])
	want = tagged(want, 20)
	if v.Out != "lan0" || string(v.Frame) != string(want) {
		t.Errorf("out %s\n%x, want lan0\n%x", v.Out, v.Frame, want)
	}
	frame = toWeb6.icmp(128, 0, 7<<16, nil)
	v = o.Packet(0, "lan0", frame)
	if v.Verdict != Forward || v.Frame[21] != 63 || v.Frame[54] != 128 {
		t.Errorf("IPv6: %+v", v)
	}
	inline := ends{hostMAC, nextMAC, "10.9.0.5", "198.51.100.9"}.tcp(1, 80, "S", 1, 0, 0, func(*layers.TCP) {})
	if v = o.Packet(0, "br0", inline); v.Out != "br1" || string(v.Frame) != string(inline) {
		t.Errorf("inline: %+v, want the frame as it came", v)
	}
}
