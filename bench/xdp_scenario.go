package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/softdpu/softdpu/bpf"
)

// scenario is one way through the packet path.
type scenario struct {
	name      string
	limit     float64 // ns over empty, 0 = none is set
	limitOver float64 // ns over ipv4-hit, likewise
	flows     int     // connections that must be established
	conn      func(i int) conn
	// frame of round i; c is the connection of that round
	spec   func(i int, c conn, rig *rig) frameSpec
	rounds int // packets in one measurement
	// outcome of every packet, checked against counters after each measurement
	reason  bpf.XDPReason // drop, or REASON_NONE: sent
	creates bool          // every packet creates a flow, which is taken away again
	oneWay  bool          // the other side never answers
	nat     bool          // connections are masqueraded
	replies bool          // the packets are the other side's
	random  bool          // visit connections in random order; else in the order of i
}

func scenarios() []scenario {
	v4 := func(proto int) func(i int) conn {
		return func(i int) conn {
			u := uint32(i) * 2654435761
			return conn{src: ip4(10<<24 | 1<<23 | u&0x7fffff), dst: ip4(10<<24 | 1<<22 | uint32(i)&0x3fffff>>3),
				sport: uint16(1024 + i%60000), dport: 443, tcp: proto == 6 || proto == 0 && i%2 == 0}
		}
	}
	v6 := func(i int) conn {
		return conn{src: ip6(0xfd20, i), dst: ip6(0xfd30, i>>3), sport: uint16(1024 + i%60000), dport: 443, tcp: i%2 == 0}
	}
	plain := func(size int) func(int, conn, *rig) frameSpec {
		return func(i int, c conn, r *rig) frameSpec {
			return frameSpec{dstMAC: r.lan.MAC, srcMAC: r.client, size: size, flags: flagACK, seq: 2, ack: 2}
		}
	}
	partial := func(size int) func(int, conn, *rig) frameSpec {
		return func(i int, c conn, r *rig) frameSpec {
			s := plain(size)(i, c, r)
			s.partial = true
			return s
		}
	}
	return []scenario{
		{name: "ipv4-hit", limit: 50, flows: 64, conn: v4(0), spec: plain(60), rounds: 400_000, random: true},
		{name: "ipv4-hit-1k", flows: 1000, conn: v4(17), spec: plain(60), rounds: 400_000, random: true},
		{name: "ipv4-hit-1m", flows: scanFlows, conn: v4(17), spec: plain(60), rounds: 1 << 20, random: true},
		{name: "ipv6-hit", limit: 65, flows: 64, conn: v6, spec: plain(76), rounds: 400_000, random: true},
		{name: "drop-miss-100", limit: 200, conn: func(i int) conn {
			c := v4(17)(i % 1000)
			c.dport = 9 // no rule has it
			return c
		}, spec: plain(60), rounds: 200_000, reason: bpf.XDPReasonREASON_NO_RULE_MATCHED, random: true},
		// the kernel here may have no VLAN devices, so that there is no way back into the VLAN
		{name: "vlan-hit", flows: 64, oneWay: true, conn: func(i int) conn {
			c := v4(17)(i)
			c.dport = 444
			return c
		}, spec: func(i int, c conn, r *rig) frameSpec {
			s := plain(64)(i, c, r)
			s.vlan = rigVLAN
			return s
		}, rounds: 200_000, random: true},
		{name: "fragment", flows: 0, conn: func(i int) conn {
			c := v4(17)(i / 2 % 64)
			c.dport = 445
			return c
		}, spec: func(i int, c conn, r *rig) frameSpec {
			// first and last fragment in turn, 24 + 26 bytes of payload
			s := plain(58)(i, c, r)
			s.id = uint16(i / 2)
			s.fragment = 1 << 13
			if i%2 == 1 {
				s.size, s.fragment = 58, 3
			}
			return s
		}, rounds: traceMin},
		{name: "malformed", conn: v4(17), spec: func(i int, c conn, r *rig) frameSpec {
			s := plain(60)(i, c, r)
			s.badChecksum = true
			return s
		}, rounds: 400_000, reason: bpf.XDPReasonREASON_MALFORMED_IPV4CHECKSUM, random: true},
		// ipv4-hit beside them: what it costs to complete a checksum
		{name: "checksum-60", flows: 64, conn: v4(0), spec: partial(60), rounds: 400_000, random: true},
		{name: "checksum-1514", flows: 64, conn: v4(0), spec: partial(1514), rounds: 200_000, random: true},
		{name: "nat-hit", flows: 64, conn: v4(0), spec: plain(60), rounds: 400_000, random: true, nat: true, limitOver: 25},
		{name: "nat-reply", flows: 64, conn: v4(0), spec: plain(60), rounds: 400_000, random: true, nat: true, limitOver: 25, replies: true},
		{name: "nat-new-flow", conn: func(i int) conn {
			c := v4(17)(i)
			c.dport = 446
			return c
		}, spec: plain(60), rounds: traceMin / 2, creates: true, nat: true},
		{name: "new-flow", conn: func(i int) conn {
			c := v4(17)(i)
			c.dport = 446
			return c
		}, spec: plain(60), rounds: traceMin / 2, creates: true}, // what the million leaves room for
	}
}

func ip4(a uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], a)
	return netip.AddrFrom4(b)
}

func ip6(net uint16, i int) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint16(b[0:], net)
	binary.BigEndian.PutUint64(b[8:], uint64(i)+2)
	return netip.AddrFrom16(b)
}

// xdpPolicy has 100 rules that no scenario's packets match but the last three, which admit them: what
// is dropped has passed all.
func xdpPolicy() string {
	var b strings.Builder
	b.WriteString(`apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  lan10: {ports: [lan], vlans: [10]}
  wan: {ports: [wan]}
rules:
`)
	for i := range 97 {
		fmt.Fprintf(&b, "  - {name: r%d, from: {zone: lan, addresses: [10.%d.0.0/16]}, to: {zone: wan, addresses: [10.%d.%d.0/24]}, service: tcp/%d, action: allow}\n",
			i, i%40, 64+i%3, i, 1000+i)
	}
	b.WriteString(`  - {name: web, from: [lan, lan10], to: wan, service: [tcp/443-446, udp/443-446], action: allow}
  - {name: dns, from: lan, to: wan, service: udp/53, action: allow}
  - {name: back, from: wan, to: lan, service: tcp/22, action: allow}
`)
	return b.String()
}

// natPolicy masquerades whatever goes out.
func natPolicy() string {
	return xdpPolicy() + "nat:\n  - {name: out, from: lan, to: wan, masquerade: {}}\n"
}
