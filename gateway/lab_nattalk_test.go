package gateway

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// natTagsATalk is how many steps a talk may have.
const natTagsATalk = 16

// A natTalk is a random conversation through a translator: the same packets whoever translates, but for the port that
// it chose.
type natTalk struct {
	name     string // for messages
	index    int
	seed     uint64
	fromLAN  bool // who opens it
	changes  bool // it is translated
	proto    uint8
	sum      bool // UDP with a checksum; without one over IPv6 too, as tunnels send it (RFC 6935)
	pieces   bool // UDP in fragments
	src, dst netip.AddrPort
	steps    []natStep
}

// A natStep is what one end sends.
type natStep struct {
	back  bool   // by the end that did not open the talk
	about int    // error about what the sender got in that step; 0: none (the first packet is never spoken of)
	flags byte   // of TCP
	whole bool   // error that quotes all
	size  uint16 // payload
}

// natSeen is a talk at the end that did not open it: who spoke, by what arrived there.
type natSeen struct {
	src, dst netip.AddrPort
}

const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
	tcpPSH
	tcpACK
	tcpURG
)

// natWorld is what the talks of one family are about.
type natWorld struct {
	lan, wan             string // networks, but for two numbers
	pool, www, both, out string
}

var natWorlds = map[bool]natWorld{
	false: {lan: "10.50.%d.%d", wan: "10.60.%d.%d", pool: "203.0.113.8", www: "203.0.113.5", both: "203.0.113.6", out: "198.51.100.%d"},
	true:  {lan: "fd50::%x:%x", wan: "fd60::%x:%x", pool: "fd20::8", www: "fd20::5", both: "fd20::6"},
}

// natPolicy and natRuleset say the same.
const natPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan]}
  wan: {ports: [wan]}
rules:
  - {name: out, from: {zone: lan}, to: {zone: wan}, action: allow}
  - {name: in, from: {zone: wan}, to: {zone: lan}, action: allow}
nat:
  - {name: one-to-one, from: lan, to: wan, prefix: {inside: 10.50.128.0/24, outside: 198.51.100.0/24}}
  - {name: pool4, from: {zone: lan, addresses: [10.50.64.0/18]}, to: wan, snat: {addresses: [203.0.113.8/32], ports: 20000-29999}}
  - {name: pool6, from: {zone: lan, addresses: ["fd50::40:0/106"]}, to: wan, snat: {addresses: ["fd20::8/128"], ports: 20000-29999}}
  - {name: all, from: {zone: lan, addresses: [10.50.0.0/18, "fd50::/106"]}, to: wan, masquerade: {}}
  - {name: www4, from: wan, to: {addresses: [203.0.113.5]}, service: [tcp/80, udp/80], dnat: {to: 10.50.200.5, port: 8080}}
  - {name: www6, from: wan, to: {addresses: ["fd20::5"]}, service: [tcp/80, udp/80], dnat: {to: "fd50::c8:5", port: 8080}}
  - {name: other4, from: wan, to: {addresses: [203.0.113.5]}, dnat: {to: 10.50.200.5}}
  - {name: other6, from: wan, to: {addresses: ["fd20::5"]}, dnat: {to: "fd50::c8:5"}}
  - {name: both4, from: wan, to: {addresses: [203.0.113.6]}, dnat: {to: 10.50.200.6}}
  - {name: both6, from: wan, to: {addresses: ["fd20::6"]}, dnat: {to: "fd50::c8:6"}}
  - {name: inwards, from: {zone: wan, addresses: [10.60.200.0/24, "fd60::c8:0/112"]}, to: lan, masquerade: {}}
`

// natRuleset takes how sources choose their port.
const natRuleset = `table inet nat {
	chain pre {
		type nat hook prerouting priority dstnat;
		iifname wan ip daddr 198.51.100.0/24 dnat ip prefix to ip daddr map { 198.51.100.0/24 : 10.50.128.0/24 }
		iifname wan ip daddr 203.0.113.5 meta l4proto { tcp, udp } th dport 80 dnat ip to 10.50.200.5:8080
		iifname wan ip daddr 203.0.113.5 dnat ip to 10.50.200.5
		iifname wan ip daddr 203.0.113.6 dnat ip to 10.50.200.6
		iifname wan ip6 daddr fd20::5 meta l4proto { tcp, udp } th dport 80 dnat ip6 to [fd50::c8:5]:8080
		iifname wan ip6 daddr fd20::5 dnat ip6 to fd50::c8:5
		iifname wan ip6 daddr fd20::6 dnat ip6 to fd50::c8:6
	}
	chain post {
		type nat hook postrouting priority srcnat;
		oifname wan ip saddr 10.50.128.0/24 snat ip prefix to ip saddr map { 10.50.128.0/24 : 198.51.100.0/24 }
		oifname wan ip saddr 10.50.64.0/18 meta l4proto { tcp, udp, icmp } snat ip to 203.0.113.8:20000-29999 %[1]s
		oifname wan ip saddr 10.50.64.0/18 snat ip to 203.0.113.8
		oifname wan ip6 saddr fd50::40:0/106 meta l4proto { tcp, udp, ipv6-icmp } snat ip6 to [fd20::8]:20000-29999 %[1]s
		oifname wan ip6 saddr fd50::40:0/106 snat ip6 to fd20::8
		oifname wan ip saddr 10.50.0.0/18 masquerade %[1]s
		oifname wan ip6 saddr fd50::/106 masquerade %[1]s
		oifname lan ip saddr 10.60.200.0/24 masquerade %[1]s
		oifname lan ip6 saddr fd60::c8:0/112 masquerade %[1]s
	}
}
`

// newNatTalk makes the talk of that number.
func newNatTalk(seed uint64, index int) *natTalk {
	r := rand.New(rand.NewPCG(seed, uint64(index)))
	six := r.IntN(3) == 0
	w := natWorlds[six]
	host := func(network string, numbers ...any) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf(network, numbers...))
	}
	// Ends that must not meet another talk's are of this one alone; the others are shared, and so are ports.
	hi, lo := index/250, 1+index%250
	inside := func(net int) netip.Addr { return host(w.lan, net+hi, lo) }
	sport, dport := uint16(1+r.IntN(2000)), []uint16{53, 80, 443, 8080}[r.IntN(4)]
	if r.IntN(2) == 0 {
		sport = uint16(1024 + r.IntN(64512))
	}
	t := &natTalk{index: index, seed: seed, fromLAN: true, changes: true}
	protos := []uint8{unix.IPPROTO_TCP, unix.IPPROTO_TCP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ESP}
	t.proto = protos[r.IntN(len(protos))]
	if six && t.proto == unix.IPPROTO_ICMP {
		t.proto = unix.IPPROTO_ICMPV6
	}
	server := host(w.wan, 1, 1+r.IntN(8))
	if t.proto == unix.IPPROTO_ESP {
		server = host(w.wan, 100+hi, lo)
	}
	src, dst := inside(0), server
	kinds := []string{"masquerade", "masquerade", "pool", "dnat", "both", "prefix-out", "prefix-in", "kept"}
	t.name = kinds[r.IntN(len(kinds))]
	if six && t.name[:3] == "pre" {
		t.name = "masquerade"
	}
	switch t.name {
	case "pool":
		src = inside(64)
	case "dnat":
		t.fromLAN, src, dst = false, host(w.wan, 10+hi, lo), netip.MustParseAddr(w.www)
	case "both":
		t.fromLAN, src, dst = false, host(w.wan, 200, lo), netip.MustParseAddr(w.both)
		sport = uint16(1024 + 64*hi + r.IntN(64))
		if t.proto == unix.IPPROTO_ESP { // one outside host may have one such talk with the other end
			src, t.name = host(w.wan, 10+hi, lo), "dnat"
		}
	case "prefix-out":
		src = host(w.lan, 128, lo)
		sport = uint16(1024 + 64*hi + r.IntN(64))
	case "prefix-in":
		t.fromLAN, src, dst = false, host(w.wan, 10+hi, lo), host(w.out, 1+r.IntN(250))
	case "kept":
		src, t.changes = inside(220), false
	}
	t.name = fmt.Sprintf("%d %s %s", index, t.name, map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp",
		unix.IPPROTO_ICMP: "echo", unix.IPPROTO_ICMPV6: "echo6", unix.IPPROTO_ESP: "esp"}[t.proto])
	size := func(most int) uint16 { return uint16(r.IntN(most)) }
	switch t.proto {
	case unix.IPPROTO_TCP:
		t.steps = []natStep{{flags: tcpSYN}, {back: true, flags: tcpSYN | tcpACK}, {flags: tcpACK}}
		for range 2 + r.IntN(3) {
			t.steps = append(t.steps, natStep{back: r.IntN(2) == 0, flags: tcpACK | []byte{0, tcpPSH, tcpURG}[r.IntN(3)], size: size(1200)})
		}
		t.steps = append(t.steps, t.complaints(r)...)
		if r.IntN(2) == 0 {
			t.steps = append(t.steps, natStep{back: r.IntN(2) == 0, flags: tcpRST | tcpACK})
		} else {
			t.steps = append(t.steps, natStep{flags: tcpFIN | tcpACK}, natStep{back: true, flags: tcpFIN | tcpACK}, natStep{flags: tcpACK})
		}
	case unix.IPPROTO_UDP:
		t.sum = r.IntN(3) > 0
		if t.pieces = r.IntN(4) == 0; t.pieces {
			t.name += " in fragments"
		}
		t.steps = []natStep{{size: size(1300)}, {back: true, size: size(1300)}, {size: size(1300)}, {back: r.IntN(2) == 0, size: size(1300)}}
		t.steps = append(t.steps, t.complaints(r)...)
	default:
		dport = 0
		if t.proto == unix.IPPROTO_ESP {
			sport = 0
		}
		t.steps = []natStep{{size: size(1300)}, {back: true, size: size(1300)}, {size: size(1300)}}
		t.steps = append(t.steps, t.complaints(r)...)
		t.steps = append(t.steps, natStep{size: size(1300)})
	}
	t.src, t.dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return t
}

// complaints are errors of both ends, or of routers on the way to them.
func (t *natTalk) complaints(r *rand.Rand) (errors []natStep) {
	for range 1 + r.IntN(3) {
		about := 1 + r.IntN(len(t.steps)-1)
		if t.proto == unix.IPPROTO_ICMP || t.proto == unix.IPPROTO_ICMPV6 {
			about = 2 // docs/PACKET-PATH.md, section 6: errors about replies belong to no flow
		}
		// Who got it complains.
		errors = append(errors, natStep{back: !t.steps[about].back, about: about, whole: r.IntN(3) == 0})
	}
	return errors
}

// packets returns what is sent in a step, and whether it goes from lan to wan. arrived is what the sender's end got in
// the step that an error is about.
func (t *natTalk) packets(step int, seen natSeen, arrived ipPacket) (packets []ipPacket, toWAN bool) {
	s := t.steps[step]
	r := rand.New(rand.NewPCG(t.seed, uint64(t.index*natTagsATalk+step)<<20))
	tag := uint32((t.index+1)*natTagsATalk + step)
	from, to := t.src, t.dst
	if s.back {
		from, to = seen.dst, seen.src
	}
	toWAN = t.fromLAN != s.back
	if s.about > 0 {
		return []ipPacket{t.complaint(r, s, tag, arrived)}, toWAN
	}
	segment := t.segment(r, s, from.Port(), to.Port())
	if !t.pieces {
		t.sumUp(r, s, segment, from, to, seen)
		return []ipPacket{wrap(r, from.Addr(), to.Addr(), t.proto, tag, segment)}, toWAN
	}
	for len(segment) < 700 {
		segment = append(segment, byte(r.Uint32()))
	}
	binary.BigEndian.PutUint16(segment[4:], uint16(len(segment)))
	t.sumUp(r, s, segment, from, to, seen)
	whole := wrap(r, from.Addr(), to.Addr(), t.proto, tag, segment)
	for len(whole) != len(segment)+20 && len(whole) != len(segment)+40 { // options are not for everyone's fragments
		whole = wrap(r, from.Addr(), to.Addr(), t.proto, tag, segment)
	}
	if !whole.six() {
		whole[6] = 0
	}
	return whole.cut(r.Uint32(), 8*(40+r.IntN(40))), toWAN
}

// segment returns a transport header without checksum, and payload.
func (t *natTalk) segment(r *rand.Rand, s natStep, from, to uint16) (b []byte) {
	put := binary.BigEndian.AppendUint16
	switch t.proto {
	case unix.IPPROTO_TCP:
		b = put(put(nil, from), to)
		// Each end has its first number, and all that follows is the segment behind it.
		mine, theirs := uint32(t.seed)*7+uint32(t.index)<<12, uint32(t.seed)*13+uint32(t.index)<<13
		if s.back {
			mine, theirs = theirs, mine
		}
		if s.flags&tcpSYN == 0 {
			mine++
		}
		if theirs++; s.flags&tcpACK == 0 {
			theirs = 0
		}
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, mine), theirs)
		var options []byte
		switch {
		case s.flags&tcpSYN != 0:
			options = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, byte(r.IntN(15))}
		case r.IntN(2) == 0:
			options = []byte{1, 1, 8, 10, 1, 2, 3, byte(r.IntN(256)), 9, 9, 9, 9}
		case r.IntN(2) == 0:
			options = append([]byte{1, 1, 5, 10}, binary.BigEndian.AppendUint64(nil, r.Uint64())...)
		}
		b = append(b, byte((20+len(options))/4)<<4, s.flags)
		b = put(b, 0xffff)                          // window
		b = put(put(b, 0), uint16(r.IntN(2)*0x123)) // checksum, urgent pointer
		b = append(b, options...)
	case unix.IPPROTO_UDP:
		b = put(put(put(put(nil, from), to), 8+s.size), 0)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		kind := byte(8)
		if t.proto == unix.IPPROTO_ICMPV6 {
			kind = 128
		}
		if s.back {
			from, kind = to, map[byte]byte{8: 0, 128: 129}[kind]
		}
		b = put(put(put([]byte{kind, 0}, 0), from), uint16(r.Uint32()))
	default:
		b = binary.BigEndian.AppendUint64(nil, r.Uint64()) // index of the association and number
	}
	for range s.size {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

// sumUp writes the checksum, and now and then sees to it that 0 is what comes out when the translation has been done.
func (t *natTalk) sumUp(r *rand.Rand, s natStep, segment []byte, from, to netip.AddrPort, seen natSeen) {
	at := sumAt(t.proto)
	if at < 0 || t.proto == unix.IPPROTO_UDP && !t.sum {
		return
	}
	if n := len(segment) &^ 1; r.IntN(4) == 0 && s.size >= 4 && seen.src.IsValid() {
		left := natSeen{netip.AddrPortFrom(seen.src.Addr(), t.src.Port()), seen.dst}
		if s.back {
			left = natSeen{t.dst, t.src}
		}
		then := append([]byte(nil), segment...)
		switch t.proto {
		case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
			binary.BigEndian.PutUint16(then, left.src.Port())
			binary.BigEndian.PutUint16(then[2:], left.dst.Port())
		default:
			binary.BigEndian.PutUint16(then[4:], t.src.Port())
		}
		then[n-2], then[n-1] = 0, 0
		binary.BigEndian.PutUint16(segment[n-2:], transportSum(left.src.Addr(), left.dst.Addr(), t.proto, then))
	}
	sumSegment(from.Addr(), to.Addr(), t.proto, segment)
}

// complaint is an error about what arrived, by the end where it did or by a router on the way there.
func (t *natTalk) complaint(r *rand.Rand, s natStep, tag uint32, arrived ipPacket) ipPacket {
	from, to := arrived.dst(), arrived.src()
	if r.IntN(2) == 0 {
		router := from.AsSlice()
		router[len(router)-1] = 254
		from, _ = netip.AddrFromSlice(router)
	}
	behind := []int{8, 8, 12, 16, 20, 32, 64}[r.IntN(7)]
	if proto, _ := arrived.transport(); proto != unix.IPPROTO_TCP {
		behind = 8 + r.IntN(64)
	}
	if s.whole {
		behind = 1200 - 68
	}
	quoted := arrived.quote(r, behind)
	if arrived.six() {
		kinds := [][2]byte{{1, 0}, {1, 1}, {1, 3}, {1, 4}, {2, 0}, {3, 0}, {3, 1}, {4, 1}}
		k := kinds[r.IntN(len(kinds))]
		segment := append([]byte{k[0], k[1], 0, 0, 0, 0, 5, byte(r.IntN(256))}, quoted...)
		sumSegment(from, to, unix.IPPROTO_ICMPV6, segment)
		return wrap(r, from, to, unix.IPPROTO_ICMPV6, tag, segment)
	}
	kinds := [][2]byte{{3, 0}, {3, 1}, {3, 2}, {3, 3}, {3, 4}, {3, 13}, {11, 0}, {11, 1}, {12, 0}}
	k := kinds[r.IntN(len(kinds))]
	segment := append([]byte{k[0], k[1], 0, 0, 0, 0, 5, byte(r.IntN(256))}, quoted...)
	sumSegment(from, to, unix.IPPROTO_ICMP, segment)
	return wrap(r, from, to, unix.IPPROTO_ICMP, tag, segment)
}
