package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// What XLAT_* of abi.h says.
const xlatSrc, xlatDst, xlatReply = 1, 2, 4

const (
	tcp    = packet.ProtoTCP
	udp    = packet.ProtoUDP
	icmp   = packet.ProtoICMP
	icmpv6 = packet.ProtoICMPv6
)

// Flows of one address for a whole network leave and their answers come back, with every byte as it must be.
func TestMasquerade(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("four", "10.0.0.0/24", 1024, 65535), masquerade("six", "fd00:1::/64", 1024, 65535))
	for _, family := range []struct {
		name                           string
		inside, other, gateway, server string
		icmp, ask, answer              uint8
	}{
		{"ipv4", "10.0.0.7", "10.0.0.8", "192.0.2.1", "198.51.100.9", icmp, 8, 0},
		{"ipv6", "[fd00:1::7]", "[fd00:1::8]", "[2001:db8::1]", "[2001:db8:9::9]", icmpv6, 128, 129},
	} {
		r.T = t
		t.Run(family.name, func(t *testing.T) {
			r.T = t
			for _, row := range []struct {
				name    string
				ask     made
				answer  made
				ports   [2]string // of the client, of the server
				changed string    // of the client of another inside host with the same port
			}{
				{"tcp", made{proto: tcp, flags: tcpSYN}, made{proto: tcp, flags: tcpSYN | tcpACK}, [2]string{":40000", ":443"}, ""},
				{"udp", made{proto: udp, payload: []byte("abc")}, made{proto: udp, payload: []byte("de")}, [2]string{":5000", ":53"}, ""},
				{"udp of which the checksum becomes 0", made{proto: udp, payload: zeroSum(family.gateway, family.server)}, made{proto: udp}, [2]string{":5001", ":54"}, ""},
				{"echo", made{proto: family.icmp, kind: family.ask}, made{proto: family.icmp, kind: family.answer}, [2]string{":3000", ":0"}, ""},
			} {
				ask, answer := row.ask, row.answer
				ask.src, ask.dst = at(family.inside+row.ports[0]), at(family.server+row.ports[1])
				out := ask
				out.src = at(family.gateway + row.ports[0])
				r.wants(row.name, "lan", ask, toWAN, xlatSrc, out)
				answer.src, answer.dst = ask.dst, out.src
				back := answer
				back.dst = ask.src
				r.wants(row.name+", answered", "wan", answer, toLAN, xlatDst|xlatReply, back)

				// the port is another's now: any other will do
				ask.src = at(family.other + row.ports[0])
				got := r.send("lan", ask, toWAN)
				flow := r.flow(ask)
				if got.Reason != 0 || flow.NAT == nil || flow.NAT.Outer.SrcPort == out.src.Port() {
					t.Fatalf("%s of another host with the same port: %v, flow %+v", row.name, bpf.XDPReason(got.Reason), flow.NAT)
				}
				out.src = netip.AddrPortFrom(out.src.Addr(), flow.NAT.Outer.SrcPort)
				if row.name == "udp of which the checksum becomes 0" {
					out.payload = ask.payload
				}
				out.ttl = 63
				if !bytes.Equal(got.ip, out.ip()) {
					t.Errorf("%s of another host leaves as\n%x, want\n%x", row.name, got.ip, out.ip())
				}
				answer.dst, back.dst = out.src, ask.src
				r.wants(row.name+" of another host, answered", "wan", answer, toLAN, xlatDst|xlatReply, back)
			}
			if t.Failed() {
				return
			}
			r.holds("after all", 16, 8, 8)
			r.end()
			r.holds("after their end", 0, 0, 0)
		})
	}
	r.T = t
}

// zeroSum is a payload with which a datagram from port 5001 to port 54 sums to 0xffff.
func zeroSum(src, dst string) []byte {
	m := made{proto: udp, src: at(src + ":5001"), dst: at(dst + ":54"), payload: []byte{0, 0}}
	check := binary.BigEndian.Uint16(m.transport(m.src.Addr().AsSlice(), m.dst.Addr().AsSlice())[6:])
	return binary.BigEndian.AppendUint16(nil, check)
}

// A datagram without a checksum gets none.
func TestMasqueradeWithoutChecksum(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535))
	ask := made{proto: udp, src: at("10.0.0.7:5000"), dst: at("198.51.100.9:53"), noSum: true}
	out := ask
	out.src = at("192.0.2.1:5000")
	r.wants("a datagram without checksum", "lan", ask, toWAN, xlatSrc, out)
}

// Protocols without ports get the address alone, and those with a checksum over addresses that as well.
func TestMasqueradeWithoutPorts(t *testing.T) {
	t.Parallel()
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535))
	for _, proto := range []uint8{packet.ProtoESP, packet.ProtoUDPLite, packet.ProtoDCCP} {
		ask := made{proto: proto, src: at("10.0.0.7:0"), dst: at("198.51.100.9:0")}
		out, answer := ask, ask
		out.src = at("192.0.2.1:0")
		answer.src, answer.dst = out.dst, out.src
		back := answer
		back.dst = ask.src
		r.wants("out", "lan", ask, toWAN, xlatSrc, out)
		r.wants("back", "wan", answer, toLAN, xlatDst|xlatReply, back)
		ask.src = at("10.0.0.8:0")
		r.refused("the same of another host", "lan", ask, toWAN, bpf.XDPReasonREASON_NAT_CONFLICT)
	}
	r.holds("after all", 6, 3, 0)
}

// What comes for an address and port goes to a server behind, on another port, and its answers come from
// where they were asked for. Its own address is not to be seen outside.
func TestForward(t *testing.T) {
	r := openNATRig(t, Options{}, forward("www", "192.0.2.5/32", "10.0.0.9", 8080), forward("six", "2001:db8::5/128", "fd00:1::9", 0))
	for _, row := range []struct{ client, public, server string }{
		{"198.51.100.9:40000", "192.0.2.5:80", "10.0.0.9:8080"},
		{"[2001:db8:9::9]:40000", "[2001:db8::5]:80", "[fd00:1::9]:80"},
	} {
		ask := made{proto: tcp, flags: tcpSYN, src: at(row.client), dst: at(row.public)}
		in := ask
		in.dst = at(row.server)
		r.wants("a connection", "wan", ask, toLAN, xlatDst, in)
		answer := made{proto: tcp, flags: tcpSYN | tcpACK, src: in.dst, dst: in.src}
		back := answer
		back.src = ask.dst
		r.wants("its answer", "lan", answer, toWAN, xlatSrc|xlatReply, back)

		r.refused("the answer with the outer address", "lan", back, toWAN, bpf.XDPReasonREASON_NAT_UNTRANSLATED)
		r.refused("the question with the inner address", "wan", in, toLAN, bpf.XDPReasonREASON_NAT_CONFLICT)
		ask.src = netip.AddrPortFrom(ask.src.Addr(), 40001)
		r.refused("a connection to the gateway itself behind", "wan", ask, flowHost, bpf.XDPReasonREASON_NAT_TO_HOST)
	}
	counters, err := r.p.NATCounters()
	if err != nil || counters["www"].Flows != 1 || counters["six"].Flows != 1 {
		t.Errorf("rules have counted %+v (%v), want one flow each", counters, err)
	}
	r.holds("after all", 4, 2, 0)
}

const flowHost = 1 // next hop of what is for the gateway

// The same host of another prefix, both ways. IPv6 keeps every transport checksum as it is (RFC 6296).
func TestPrefix(t *testing.T) {
	// 0xfd00 + 1 = 0xfd01 of the inner prefix; 0x2001 + 0x0db8 + 1 = 0x2dba of the outer one
	const adjust = 0xfd01 - 0x2dba
	r := openNATRig(t, Options{},
		prefix("out", "10.4.0.0/24", "203.0.113.0/24", bpf.XDPNatKindNAT_PREFIX_SOURCE, 0),
		prefix("in", "203.0.113.0/24", "10.4.0.0/24", bpf.XDPNatKindNAT_PREFIX_DESTINATION, 0),
		prefix("out6", "fd00:1::/48", "2001:db8:1::/48", bpf.XDPNatKindNAT_PREFIX_SOURCE, adjust),
		prefix("in6", "2001:db8:1::/48", "fd00:1::/48", bpf.XDPNatKindNAT_PREFIX_DESTINATION, 0xffff-adjust),
	)
	for _, row := range []struct{ inside, outside, far string }{
		{"10.4.0.77:4000", "203.0.113.77:4000", "198.51.100.9:53"},
		{"[fd00:1:0:5::77]:4000", "[2001:db8:1:cf4c::77]:4000", "[2001:db8:9::9]:53"},
	} {
		out := made{proto: udp, src: at(row.inside), dst: at(row.far)}
		seen := out
		seen.src = at(row.outside)
		r.wants("from inside", "lan", out, toWAN, xlatSrc, seen)
		r.wants("its answer", "wan", made{proto: udp, src: seen.dst, dst: seen.src}, toLAN, xlatDst|xlatReply, made{proto: udp, src: out.dst, dst: out.src})
		if a, b := out.ip(), seen.ip(); a[0]>>4 == 6 && !bytes.Equal(a[40:], b[40:]) {
			t.Errorf("the checksum of %x is another in %x: the test's own adjustment is wrong", a, b)
		}
		in := made{proto: tcp, flags: tcpSYN, src: at(row.far), dst: at(row.outside)}
		got := in
		got.dst = at(row.inside)
		r.wants("from outside", "wan", in, toLAN, xlatDst, got)
	}
}

// An ICMP error about a translated packet reaches who sent it, and quotes what he sent.
func TestErrorAboutTranslated(t *testing.T) {
	r := openNATRig(t, Options{},
		masquerade("out", "10.0.0.0/24", 1024, 65535), forward("www", "192.0.2.5/32", "10.0.0.9", 8080),
		masquerade("out6", "fd00:1::/64", 1024, 65535), forward("www6", "2001:db8::5/128", "fd00:1::9", 8080))
	for _, f := range []struct {
		inside, gateway, far, router, public, server, peer string
		icmp, unreachable, ask                             uint8
		header                                             int
	}{
		{"10.0.0.7", "192.0.2.1", "198.51.100.9", "198.51.100.1", "192.0.2.5", "10.0.0.9", "10.0.0.2", icmp, 3, 8, 20},
		{"[fd00:1::7]", "[2001:db8::1]", "[2001:db8:9::9]", "[2001:db8:9::1]", "[2001:db8::5]", "[fd00:1::9]", "[fd00:1::2]", icmpv6, 1, 128, 40},
	} {
		about := func(from, to string, quoted made, length int) made {
			q := quoted.ip()
			if length > 0 {
				q = q[:f.header+length]
			}
			return made{proto: f.icmp, kind: f.unreachable, code: 1, rest: 0, src: at(from + ":0"), dst: at(to + ":0"), payload: q}
		}
		for _, q := range []made{
			{proto: tcp, flags: tcpSYN, src: at(f.inside + ":4000"), dst: at(f.far + ":443")},
			{proto: udp, payload: []byte("ab"), src: at(f.inside + ":4000"), dst: at(f.far + ":53")},
			{proto: f.icmp, kind: f.ask, payload: []byte("ab"), src: at(f.inside + ":4000"), dst: at(f.far + ":0")},
		} {
			out := q
			out.src = netip.AddrPortFrom(at(f.gateway+":0").Addr(), 4000)
			r.wants("what the error will be about", "lan", q, toWAN, xlatSrc, out)
			for _, length := range []int{0, 8} {
				if length == 8 && q.proto == tcp {
					continue // its checksum is not there: nothing to compare with
				}
				r.wants("the error of a router on the way", "wan", about(f.router, f.gateway, out, length), toLAN, xlatDst|xlatReply,
					about(f.router, f.inside, q, length))
			}
			// who answers says that the answer did not arrive
			back := made{proto: q.proto, kind: 0, payload: q.payload, flags: tcpSYN | tcpACK, src: out.dst, dst: out.src}
			if q.proto == f.icmp {
				continue // errors about answers are about no query
			}
			back.flags, back.kind = tcpSYN|tcpACK, 0
			got := back
			got.dst = q.src
			r.wants("its answer", "wan", back, toLAN, xlatDst|xlatReply, got)
			r.wants("the error of who asked", "lan", about(f.inside, f.far, got, 0), toWAN, xlatSrc, about(f.gateway, f.far, back, 0))
		}
		ask := made{proto: tcp, flags: tcpSYN, src: at(f.far + ":5000"), dst: at(f.public + ":80")}
		in := ask
		in.dst = at(f.server + ":8080")
		r.wants("a connection from outside", "wan", ask, toLAN, xlatDst, in)
		// as netfilter has it, the error comes from where the connection went
		r.wants("the error of a router behind", "lan", about(f.peer, f.far, in, 0), toWAN, xlatSrc|xlatReply, about(f.public, f.far, ask, 0))
		// its quotation is cut before the checksum of TCP: ports and addresses are right all the same
		short := r.send("lan", about(f.peer, f.far, in, 8), toWAN)
		if want := ask.ip()[:f.header+8]; short.Reason != 0 || !bytes.HasSuffix(short.ip, want) {
			t.Errorf("an error with 8 bytes of TCP: %v, leaves as\n%x, want at its end\n%x", bpf.XDPReason(short.Reason), short.ip, want)
		}
	}
}

// Later fragments go where their first one went, with its addresses.
func TestFragmentsOfTranslated(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535), masquerade("six", "fd00:1::/64", 1024, 65535))
	for _, f := range []struct{ inside, gateway, far string }{
		{"10.0.0.7:4000", "192.0.2.1:4000", "198.51.100.9:53"},
		{"[fd00:1::7]:4000", "[2001:db8::1]:4000", "[2001:db8:9::9]:53"},
	} {
		first := made{proto: udp, id: 7, first: true, payload: []byte("12345678"), src: at(f.inside), dst: at(f.far)}
		rest := made{proto: udp, id: 7, later: []byte("rest"), src: at(f.inside), dst: at(f.far)}
		out := func(m made) made { m.src = at(f.gateway); return m }
		turned := func(m made) made { m.src, m.dst = m.dst, m.src; return m }
		r.refused("a later fragment without a first one", "lan", rest, toWAN, bpf.XDPReasonREASON_FRAGMENT_NO_FIRST)
		r.wants("the first fragment", "lan", first, toWAN, xlatSrc, out(first))
		r.wants("the last fragment", "lan", rest, toWAN, xlatSrc, out(rest))
		r.wants("the first of the answer", "wan", turned(out(first)), toLAN, xlatDst|xlatReply, turned(first))
		r.wants("the last of the answer", "wan", turned(out(rest)), toLAN, xlatDst|xlatReply, turned(rest))
	}
}

// A packet that goes no further is explained to who sent it, as he sent it, since the kernel knows nothing of
// the translation.
func TestExplainTranslated(t *testing.T) {
	r := openNATRig(t, Options{}, masquerade("out", "10.0.0.0/24", 1024, 65535), masquerade("six", "fd00:1::/64", 1024, 65535))
	for _, f := range []struct {
		inside, own, far                string
		icmp, expired, tooBig, tooBigAs uint8
		header                          int
	}{
		{"10.0.0.7", "10.0.0.1", "198.51.100.9", icmp, 11, 3, 4, 20},
		{"[fd00:1::7]", "[fd00:1::1]", "[2001:db8:9::9]", icmpv6, 3, 2, 0, 40},
	} {
		last := made{proto: udp, ttl: 1, src: at(f.inside + ":4000"), dst: at(f.far + ":53"), payload: []byte("12345678")}
		big := last
		big.ttl, big.payload = 64, make([]byte, 700)
		for _, row := range []struct {
			what       string
			in         made
			route      uint32
			reason     bpf.XDPReason
			kind, code uint8
			rest       uint32
		}{
			{"its TTL is used up", last, toWAN, bpf.XDPReasonREASON_TTL_EXPIRED, f.expired, 0, 0},
			{"it is too big", big, toNarrow, bpf.XDPReasonREASON_TOO_BIG, f.tooBig, f.tooBigAs, 600},
		} {
			r.end()
			got := r.send("lan", row.in, row.route)
			want := made{
				proto: f.icmp, kind: row.kind, code: row.code, rest: row.rest, src: at(f.own + ":0"), dst: at(f.inside + ":0"),
				payload: row.in.ip()[:f.header+8],
			}.ip()
			if f.header == 20 { // the answer may be fragmented
				want[6] = 0
				binary.BigEndian.PutUint16(want[10:], 0)
				binary.BigEndian.PutUint16(want[10:], packet.Checksum(want[:20], 0))
			}
			if bpf.XDPReason(got.Reason) != row.reason || got.verdict != 3 || !bytes.Equal(got.ip, want) {
				t.Errorf("%s: %v, verdict %d, answer\n%x, want\n%x", row.what, bpf.XDPReason(got.Reason), got.verdict, got.ip, want)
			}
		}
	}
}
