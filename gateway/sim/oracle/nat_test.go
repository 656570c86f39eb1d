package oracle

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/firewall"
)

const natPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan0]}
  dmz: {ports: [lan0], vlans: [20]}
  wan: {ports: [wan0]}
nat:
  - {name: not-to-vpn, from: lan, to: {zone: wan, addresses: [10.99.0.0/16]}, keep: true}
  - {name: few, from: lan, to: wan, service: udp/7, masquerade: {ports: 5000-5001}}
  - {name: static, from: dmz, to: wan, prefix: {inside: 10.20.0.0/24, outside: 198.51.100.0/24}}
  - {name: branch, from: lan, to: wan, masquerade: {}}
  - {name: pool, from: dmz, to: wan, snat: {addresses: [203.0.113.8/30]}}
  - {name: www, from: any, to: [192.0.2.80], service: tcp/80, dnat: {to: 10.20.0.5, port: 8080}}
  - {name: farm, from: wan, to: [192.0.2.81], dnat: {servers: [{address: 10.20.0.6}, {address: 10.20.0.7}, {address: 10.20.0.8, drain: true}]}}
  - {name: loop, from: wan, to: [192.0.2.82], dnat: {to: 10.0.0.1}}
rules:
  - {name: all, from: any, to: any, action: allow}
`

func natOracle(t *testing.T) *Oracle {
	t.Helper()
	w := world()
	w.Pairs, w.Ports, w.Management = nil, w.Ports[:2], firewall.Management{}
	w.Devices = []Device{{Port: "wan0", IP4: netip.MustParseAddr("192.0.2.1")}, {Port: "lan0", VLAN: 20, IP4: netip.MustParseAddr("10.20.0.1")}}
	o, err := New(parsePolicy(t, natPolicy), w)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// made is what an executor says that it made of a flow.
func made(src, dst string) *Choice {
	c := &Choice{Made: true, Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst)}
	c.Routed = c.Dst.Addr()
	return c
}

// sent is a frame as a router sends it on: one hop further, between other stations.
func sent(e ends, vlan uint16, make func(e ends) []byte) []byte {
	frame := make(e)
	if e.is4() {
		frame = ip4(frame, func(h []byte) { h[8] = 63 })
	}
	if vlan != 0 {
		frame = tagged(frame, vlan)
	}
	return frame
}

// message is an ICMP message of IPv4 with its checksum.
func message(e ends, kind, code uint8, rest uint32, payload []byte) []byte {
	return edit(e.icmp(kind, code, rest, payload), func(b []byte) {
		l4 := b[34 : 14+int(binary.BigEndian.Uint16(b[16:]))]
		binary.BigEndian.PutUint16(l4[2:], ^sum(append(l4[:len(l4):len(l4)], make([]byte, len(l4)%2)...)))
	})
}

// A flow out and its replies are byte for byte what a sender with the other addresses would have sent.
func TestTranslatedFrames(t *testing.T) {
	o := natOracle(t)
	out, outer := outbound("10.0.1.5", "198.51.100.9"), ends{wanMAC, nextMAC, "192.0.2.1", "198.51.100.9"}
	back, inner := outer.back(), ends{lanMAC, hostMAC, "198.51.100.9", "10.0.1.5"}
	for i, row := range []struct {
		port        string
		frame, want []byte
	}{
		{"lan0", out.udp(4000, 53, 21), sent(outer, 0, func(e ends) []byte { return e.udp(4000, 53, 21) })},
		{"wan0", back.udp(53, 4000, 5), sent(inner, 0, func(e ends) []byte { return e.udp(53, 4000, 5) })},
		// Errors of routers on the way. One behind the translated end is known as that end, as nobody outside knows it.
		{"wan0", message(ends{nextMAC, wanMAC, "203.0.113.99", "192.0.2.1"}, 11, 0, 0, outer.udp(4000, 53, 21)[14:]),
			sent(ends{lanMAC, hostMAC, "203.0.113.99", "10.0.1.5"}, 0, func(e ends) []byte { return message(e, 11, 0, 0, out.udp(4000, 53, 21)[14:]) })},
		{"lan0", message(outbound("10.0.9.9", "198.51.100.9"), 3, 3, 0, inner.udp(53, 4000, 5)[14:]),
			sent(outer, 0, func(e ends) []byte { return message(e, 3, 3, 0, back.udp(53, 4000, 5)[14:]) })},
	} {
		v := o.Check(time.Duration(i), row.port, row.frame, made("192.0.2.1:4000", "198.51.100.9:53"))
		if v.Verdict != Forward || v.Wrong != "" || !bytes.Equal(v.Frame, row.want) {
			t.Errorf("packet %d: %s %s %s, leaves as\n%x\nwant\n%x", i+1, v.Verdict, v.Reason, v.Wrong, v.Frame, row.want)
		}
	}
}

// A checksum that is not there stays away, and one that arrived wrong is as wrong as it was.
func TestTranslatedChecksums(t *testing.T) {
	out, outer := outbound("10.0.1.5", "198.51.100.9"), ends{wanMAC, nextMAC, "192.0.2.1", "198.51.100.9"}
	add := func(frame []byte, at int, n uint16) []byte {
		return edit(frame, func(b []byte) {
			binary.BigEndian.PutUint16(b[at:], uint16((uint32(binary.BigEndian.Uint16(b[at:]))+uint32(n))%0xffff))
		})
	}
	none := func(frame []byte) []byte { return edit(frame, func(b []byte) { b[40], b[41] = 0, 0 }) }
	for name, makes := range map[string]func(e ends) []byte{
		"tcp":         func(e ends) []byte { return e.tcp(1024, 80, "S", 1, 0, 3, scale(7)) },
		"wrong tcp":   func(e ends) []byte { return add(e.tcp(1024, 80, "S", 1, 0, 3), 50, 777) },
		"wrong udp":   func(e ends) []byte { return add(e.udp(1024, 80, 3), 40, 777) },
		"no udp":      func(e ends) []byte { return none(e.udp(1024, 80, 4)) },
		"other":       func(e ends) []byte { return e.packet(layers.IPProtocolSCTP, nil, make([]byte, 20)) },
		"the options": func(e ends) []byte { return e.tcp(1024, 80, "S", 1, 0, 0, scale(1), window(9)) },
	} {
		o := natOracle(t)
		c := made("192.0.2.1:1024", "198.51.100.9:80")
		if name == "other" {
			c = made("192.0.2.1:0", "198.51.100.9:0")
		}
		v := o.Check(0, "lan0", makes(out), c)
		if want := sent(outer, 0, makes); v.Wrong != "" || !bytes.Equal(v.Frame, want) {
			t.Errorf("%s: %s %s %s, leaves as\n%x\nwant\n%x", name, v.Verdict, v.Reason, v.Wrong, v.Frame, want)
		}
	}
	// An identifier is changed inside a message whose checksum is over nothing else.
	o := natOracle(t)
	v := o.Check(0, "lan0", message(out, 8, 0, 7<<16|1, []byte("odd")), made("192.0.2.1:2000", "198.51.100.9:0"))
	if want := sent(outer, 0, func(e ends) []byte { return message(e, 8, 0, 2000<<16|1, []byte("odd")) }); v.Wrong != "" || !bytes.Equal(v.Frame, want) {
		t.Errorf("echo: %s %s, leaves as\n%x\nwant\n%x", v.Reason, v.Wrong, v.Frame, want)
	}
}

// What an executor chooses is held against what it may.
func TestChoices(t *testing.T) {
	out := outbound("10.0.1.5", "198.51.100.9")
	toFarm := ends{nextMAC, wanMAC, "198.51.100.9", "192.0.2.81"}
	other := tagged(ends{hostMAC, lanMAC, "10.20.1.9", "198.51.100.9"}.udp(3000, 53, 1), 20)
	other2 := tagged(ends{hostMAC, lanMAC, "10.20.1.9", "198.51.100.9"}.udp(3001, 53, 1), 20)
	type packet struct {
		port  string
		frame []byte
		c     *Choice
	}
	for _, tt := range []struct {
		name    string
		packets []packet
		want    string // reason of the last packet, or part of what is wrong
	}{
		{"the port is kept", []packet{{"lan0", out.udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.9:53")}}, ""},
		{"another address", []packet{{"lan0", out.udp(4000, 53, 1), made("192.0.2.9:4000", "198.51.100.9:53")}}, "translates to 192.0.2.1"},
		{"a port that could have been kept", []packet{{"lan0", out.udp(4000, 53, 1), made("192.0.2.1:4001", "198.51.100.9:53")}}, "4000 became 4001"},
		{"a port below the rule's", []packet{{"lan0", out.udp(40, 53, 1), made("192.0.2.1:40", "198.51.100.9:53")}}, "port 40 is not of rule"},
		{"a port that another flow has", []packet{
			{"lan0", out.udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.9:53")},
			{"lan0", outbound("10.0.1.6", "198.51.100.9").udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.9:53")},
		}, "another flow's"},
		{"the same port to somebody else", []packet{
			{"lan0", out.udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.9:53")},
			{"lan0", outbound("10.0.1.6", "198.51.100.10").udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.10:53")},
		}, ""},
		{"no flow although ports are free", []packet{{"lan0", out.udp(4000, 53, 1), &Choice{Reason: "nat-exhausted"}}}, "are free"},
		{"exhausted", []packet{
			{"lan0", out.udp(1, 7, 1), made("192.0.2.1:5000", "198.51.100.9:7")},
			{"lan0", out.udp(2, 7, 1), made("192.0.2.1:5001", "198.51.100.9:7")},
			{"lan0", out.udp(3, 7, 1), &Choice{Reason: "nat-exhausted"}},
		}, "nat-exhausted"},
		{"a sender with two addresses of a pool", []packet{
			{"lan0", other, made("203.0.113.9:3000", "198.51.100.9:53")}, {"lan0", other2, made("203.0.113.10:3001", "198.51.100.9:53")},
		}, "has had address 203.0.113.9"},
		{"an address that is none of the pool", []packet{{"lan0", other, made("203.0.113.12:3000", "198.51.100.9:53")}}, "not of the pool"},
		{"a server that drains", []packet{{"wan0", toFarm.udp(1, 2, 1), made("198.51.100.9:1", "10.20.0.8:2")}}, "none of the servers"},
		{"a client with two servers", []packet{
			{"wan0", toFarm.udp(1, 2, 1), made("198.51.100.9:1", "10.20.0.6:2")}, {"wan0", toFarm.udp(3, 2, 1), made("198.51.100.9:3", "10.20.0.7:2")},
		}, "has had server 10.20.0.6"},
		{"kept as it is", []packet{{"lan0", outbound("10.0.1.5", "10.99.0.1").udp(4000, 53, 1), &Choice{}}}, ""},
		{"to the gateway itself", []packet{{"wan0", ends{nextMAC, wanMAC, "198.51.100.9", "192.0.2.82"}.udp(1, 2, 1), &Choice{}}}, "nat-to-host"},
		{"hairpin", []packet{{"lan0", tagged(ends{hostMAC, lanMAC, "10.20.0.9", "192.0.2.80"}.tcp(9, 80, "S", 1, 0, 0), 20), made("10.20.0.1:1024", "10.20.0.5:8080")}}, ""},
		{"a reply that knows the opener", []packet{
			{"lan0", out.udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.9:53")}, {"wan0", out.back().udp(53, 4000, 1), nil},
		}, "nat-untranslated"},
		{"what leaves comes again", []packet{
			{"lan0", out.udp(4000, 53, 1), made("192.0.2.1:4000", "198.51.100.9:53")}, {"lan0", outbound("192.0.2.1", "198.51.100.9").udp(4000, 53, 1), nil},
		}, "nat-conflict"},
		{"two senders without ports behind one address", []packet{
			{"lan0", out.packet(layers.IPProtocolESP, nil, make([]byte, 16)), made("192.0.2.1:0", "198.51.100.9:0")},
			{"lan0", outbound("10.0.1.6", "198.51.100.9").packet(layers.IPProtocolESP, nil, make([]byte, 16)), &Choice{Reason: "nat-conflict"}},
		}, "nat-conflict"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := natOracle(t)
			var v Verdict
			for i, p := range tt.packets {
				if v = o.Check(time.Duration(i), p.port, p.frame, p.c); i < len(tt.packets)-1 && (v.Wrong != "" || v.Reason != "") {
					t.Fatalf("packet %d: %s %s %s", i+1, v.Verdict, v.Reason, v.Wrong)
				}
			}
			switch {
			case tt.want == "" && (v.Wrong != "" || v.Reason != ""), tt.want != "" && v.Reason != tt.want && !strings.Contains(v.Wrong, tt.want), tt.want != "" && v.Wrong+v.Reason == "":
				t.Errorf("%s %q, wrong: %q; want %q", v.Verdict, v.Reason, v.Wrong, tt.want)
			}
		})
	}
}

// A new policy leaves flows their translation; a connection that is opened again is translated anew.
func TestTranslationStays(t *testing.T) {
	o := natOracle(t)
	out, outer := outbound("10.0.1.5", "198.51.100.9"), ends{wanMAC, nextMAC, "192.0.2.1", "198.51.100.9"}
	send := func(port string, frame []byte, c *Choice) Verdict {
		t.Helper()
		v := o.Check(0, port, frame, c)
		if v.Verdict != Forward || v.Wrong != "" {
			t.Fatalf("%s %s %s", v.Verdict, v.Reason, v.Wrong)
		}
		return v
	}
	send("lan0", out.tcp(4000, 80, "S", 1, 0, 0), made("192.0.2.1:4000", "198.51.100.9:80"))
	if err := o.SetPolicy(parsePolicy(t, strings.Replace(natPolicy, "branch, from: lan, to: wan, masquerade: {}", "branch, from: lan, to: wan, keep: true", 1))); err != nil {
		t.Fatal(err)
	}
	send("wan0", outer.back().tcp(80, 4000, "SA", 9, 2, 0), nil)
	send("lan0", out.tcp(4000, 80, "RA", 2, 10, 0), nil)
	if o.Flows() != 1 || len(o.aliases) != 1 {
		t.Fatalf("%d flows, %d aliases", o.Flows(), len(o.aliases))
	}
	v := send("lan0", out.tcp(4000, 80, "S", 77, 0, 0), &Choice{})
	if v.Translated || len(o.aliases) != 0 {
		t.Errorf("a connection that was opened again is translated as before, %d aliases", len(o.aliases))
	}
}

// RFC 6296, section 3.2 and its appendix B.
func TestMovePrefix(t *testing.T) {
	for _, tt := range []struct{ address, from, to, want string }{
		{"fd01:203:405:1::1234", "fd01:203:405::/48", "2001:db8:1::/48", "2001:db8:1:d550::1234"},
		{"2001:db8:1:d550::1234", "2001:db8:1::/48", "fd01:203:405::/48", "fd01:203:405:1::1234"},
		{"fd00:0:0:1:ffff:0:0:1", "fd00:0:0:1::/64", "2001:db8:0:1::/64", "2001:db8:0:1:ffff:cf47:0:1"},
		{"fd00:0:0:1:ffff:ffff:ffff:ffff", "fd00:0:0:1::/64", "2001:db8:0:1::/64", ""},
		{"10.20.0.77", "10.20.0.0/24", "198.51.100.0/24", "198.51.100.77"},
		{"10.20.0.77", "10.20.0.64/28", "198.51.100.32/28", "198.51.100.45"},
	} {
		a, from, to := netip.MustParseAddr(tt.address), netip.MustParsePrefix(tt.from), netip.MustParsePrefix(tt.to)
		got, ok := movePrefix(a, from, to)
		if tt.want == "" {
			if ok {
				t.Errorf("%s becomes %s, which cannot hold the difference", a, got)
			}
			continue
		}
		if got.String() != tt.want || got.Is6() && residue(got.AsSlice()) != residue(a.AsSlice()) {
			t.Errorf("%s becomes %s, want %s", a, got, tt.want)
		}
	}
}
