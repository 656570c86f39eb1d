package flowtable

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/softdpu/softdpu/dataplane/packet"
)

// naiveSum is the ones' complement sum of parts, each padded to whole words.
func naiveSum(parts ...[]byte) int {
	total := 0
	for _, b := range parts {
		for i, x := range b {
			total += int(x) << (8 * (1 - i%2))
		}
	}
	for total > 0xffff {
		total = total%0x10000 + total/0x10000
	}
	return total
}

// naivePacket is an IP packet taken apart by hand: without VLAN tags, the extension header of IPv6 being one of
// destination options.
type naivePacket struct {
	family, proto uint8
	header        []byte
	src, dst      []byte
	l4            []byte
}

func takeApart(ip []byte) naivePacket {
	if ip[0]>>4 == 4 {
		n := int(ip[0]&15) * 4
		return naivePacket{4, ip[9], ip[:n], ip[12:16], ip[16:20], ip[n:]}
	}
	p := naivePacket{6, ip[6], nil, ip[8:24], ip[24:40], ip[40:]}
	if p.proto == 60 {
		p.proto, p.l4 = p.l4[0], p.l4[8*(1+int(p.l4[1])):]
	}
	return p
}

// recompute makes all checksums of an IP packet anew, inside an ICMP error first. None says that a UDP checksum of
// 0 stays one.
func recompute(ip []byte, none bool) {
	p := takeApart(ip)
	if p.family == 4 {
		p.header[10], p.header[11] = 0, 0
		binary.BigEndian.PutUint16(p.header[10:], uint16(^naiveSum(p.header)))
	}
	at, covered := -1, p.l4
	pseudo := append(append(append([]byte(nil), p.src...), p.dst...), 0, p.proto, byte(len(p.l4)>>8), byte(len(p.l4)))
	switch p.proto {
	case 1:
		at, pseudo = 2, nil
	case 58:
		at = 2
	case 6:
		at = 16
	case 17:
		if at = 6; none && p.l4[6] == 0 && p.l4[7] == 0 {
			at = -1
		}
	case 136:
		at = 6
		if n := int(binary.BigEndian.Uint16(p.l4[4:])); n != 0 {
			covered = p.l4[:n]
		}
	case 33:
		at = 6
	}
	if at < 0 || at+2 > len(p.l4) {
		return
	}
	p.l4[at], p.l4[at+1] = 0, 0
	sum := uint16(^naiveSum(pseudo, covered))
	if sum == 0 && (p.proto == 17 || p.proto == 136) {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(p.l4[at:], sum)
}

// rewriteNaively writes what a packet of a flow leaves with, and makes its checksums anew.
func rewriteNaively(ip []byte, out *Tuple, parts uint8, none bool) {
	p := takeApart(ip)
	query := p.proto == 1 && (p.l4[0] == 8 || p.l4[0] == 13) || p.proto == 58 && p.l4[0] == 128
	icmp := p.proto == 1 || p.proto == 58
	if parts&XlatSource != 0 {
		copy(p.src, out.Src[:])
		switch {
		case p.proto == 6 || p.proto == 17:
			binary.BigEndian.PutUint16(p.l4, out.SrcPort)
		case icmp && query:
			binary.BigEndian.PutUint16(p.l4[4:], out.SrcPort)
		}
	}
	if parts&XlatDestination != 0 {
		copy(p.dst, out.Dst[:])
		switch {
		case p.proto == 6 || p.proto == 17:
			binary.BigEndian.PutUint16(p.l4[2:], out.DstPort)
		case icmp && !query:
			binary.BigEndian.PutUint16(p.l4[4:], out.DstPort)
		}
	}
	recompute(ip, none)
}

// randomPacket is an IP packet of a protocol with right checksums.
func randomPacket(rng *rand.Rand, family, proto uint8, t *Tuple, reply bool) []byte {
	n := 1 + rng.IntN(90)
	l4 := make([]byte, n)
	for i := range l4 {
		l4[i] = byte(rng.Uint32())
	}
	grow := func(n int) { l4 = append(make([]byte, n), l4...) }
	zero := false
	switch proto {
	case 6:
		grow(20)
		l4[12], l4[13] = 5<<4, 0x10
		binary.BigEndian.PutUint32(l4[4:], rng.Uint32())
	case 17:
		grow(8)
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
		if zero = rng.IntN(3) == 0; !zero {
			l4[6] = 1
		}
	case 136:
		grow(8)
		if rng.IntN(2) == 0 {
			binary.BigEndian.PutUint16(l4[4:], uint16(8+rng.IntN(len(l4)-7)))
		}
	case 33:
		grow(12)
	case 47:
		grow(8)
	case 1, 58:
		grow(8)
		types := map[uint8][]byte{1: {8, 0, 13, 14}, 58: {128, 129}}[proto]
		l4[0] = types[2*rng.IntN(len(types)/2)]
		id := t.SrcPort
		if reply {
			l4[0], id = types[1], t.DstPort
		}
		binary.BigEndian.PutUint16(l4[4:], id)
	}
	if proto == 6 || proto == 17 {
		binary.BigEndian.PutUint16(l4, t.SrcPort)
		binary.BigEndian.PutUint16(l4[2:], t.DstPort)
	}
	var ip []byte
	if family == 4 {
		options := 4 * (rng.IntN(3) / 2)
		ip = make([]byte, 20+options)
		ip[0], ip[8], ip[9] = 4<<4|byte(len(ip)/4), byte(rng.IntN(200)+2), proto
		for i := range options {
			ip[20+i] = 1
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		binary.BigEndian.PutUint16(ip[4:], uint16(rng.Uint32()))
		copy(ip[12:16], t.Src[:])
		copy(ip[16:20], t.Dst[:])
	} else {
		ip = make([]byte, 40)
		ip[0], ip[6], ip[7] = 6<<4, proto, byte(rng.IntN(200)+2)
		copy(ip[8:24], t.Src[:])
		copy(ip[24:40], t.Dst[:])
		if rng.IntN(4) == 0 {
			ip[6] = 60
			ip = append(ip, proto, 0, 1, 4, 0, 0, 0, 0)
		}
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40+len(l4)))
	}
	ip = append(ip, l4...)
	recompute(ip, zero)
	return ip
}

// enclose quotes a packet, or its beginning, in an ICMP error from another router to its source.
func enclose(rng *rand.Rand, ip []byte, from packet.Addr) []byte {
	p := takeApart(ip)
	var out []byte
	if p.family == 4 {
		out = make([]byte, 28)
		out[0], out[8], out[9] = 4<<4|5, 64, 1
		binary.BigEndian.PutUint16(out[2:], uint16(28+len(ip)))
		copy(out[12:], from[:4])
		copy(out[16:], p.src)
		out[20] = []byte{3, 11, 12}[rng.IntN(3)]
	} else {
		out = make([]byte, 48)
		out[0], out[6], out[7] = 6<<4, 58, 64
		binary.BigEndian.PutUint16(out[4:], uint16(8+len(ip)))
		copy(out[8:], from[:])
		copy(out[24:], p.src)
		out[40] = byte(1 + rng.IntN(4))
	}
	out = append(out, ip...)
	recompute(out, true)
	return out
}

func ethernetOf(ip []byte) []byte {
	f := make([]byte, 14, 14+len(ip))
	f[12], f[13] = 8, 0
	if ip[0]>>4 == 6 {
		f[12], f[13] = 0x86, 0xdd
	}
	return append(f, ip...)
}

func randomUnicast(rng *rand.Rand, family uint8) (a packet.Addr) {
	n := addrLen(family)
	for i := range n {
		a[i] = byte(rng.Uint32())
	}
	if rng.IntN(8) == 0 { // words of all ones and zeros, for the sums' corners
		a[n-1], a[n-2] = 0xff, 0xff
	}
	if a[0] = 10; family == 6 {
		a[0] = 0xfd
	}
	return a
}

// What is corrected is what summing all anew gives: of every protocol, both families, and of errors with
// whole and cut packets inside. SOFTDPU_LONG=1 makes it a million of rewrites.
func TestTranslateChecksums(t *testing.T) {
	rewrites := 100_000
	if os.Getenv("SOFTDPU_LONG") != "" {
		rewrites = 1_000_000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	protos := map[uint8][]uint8{4: {1, 6, 17, 17, 33, 136, 47}, 6: {58, 6, 17, 33, 136, 47}}
	done := map[[3]uint8]int{}
	for i := range rewrites {
		family := []uint8{4, 6}[i&1]
		proto := protos[family][rng.IntN(len(protos[family]))]
		reply := rng.IntN(2) == 0
		in := Tuple{Family: family, Proto: proto, Src: randomUnicast(rng, family), Dst: randomUnicast(rng, family),
			SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32())}
		out := Tuple{Family: family, Proto: proto, Src: randomUnicast(rng, family), Dst: randomUnicast(rng, family),
			SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32())}
		if in.Src == in.Dst || out.Src == out.Dst {
			continue
		}
		parts := uint8(1 + rng.IntN(3))
		ip := randomPacket(rng, family, proto, &in, reply)
		want := append([]byte(nil), ip...)
		failed := rng.IntN(3) == 0 && !(reply && (proto == 1 || proto == 58))
		if !failed {
			// zero: the packet came without a checksum
			p := takeApart(ip)
			rewriteNaively(want, &out, parts, proto == 17 && p.l4[6]|p.l4[7] == 0)
		} else {
			// The error goes the other way: what is inside becomes what it was quoted from.
			quoted := out.reverse()
			p := takeApart(ip)
			old := append([]byte(nil), p.l4...)
			rewriteNaively(want, &quoted, 3, proto == 17 && p.l4[6]|p.l4[7] == 0)
			cut := len(ip)
			if rng.IntN(2) == 0 {
				header := len(ip) - len(p.l4)
				cut = header + 8 + rng.IntN(len(p.l4)-7)
				if l := cut - header; proto == 6 && l < 20 && l > 16 {
					w := takeApart(want)
					copy(w.l4[16:18], old[16:18])
				}
			}
			if proto == 136 || proto == 33 { // inside, addresses alone
				w := takeApart(want)
				copy(w.l4, old)
			}
			from := randomUnicast(rng, family)
			if from == in.Src {
				continue
			}
			ip, want = enclose(rng, ip[:cut], from), want[:cut]
			outer := append([]byte(nil), ip...)
			o := takeApart(outer)
			copy(o.l4[8:], want)
			if parts&XlatSource != 0 {
				copy(o.src, out.Src[:])
			}
			if parts&XlatDestination != 0 {
				copy(o.dst, out.Dst[:])
			}
			recompute(outer, true)
			want = outer
		}

		var p packet.Parsed
		frame := ethernetOf(ip)
		if f := p.Decode(frame); f != packet.OK {
			t.Fatalf("rewrite %d: %v: % x", i, f, frame)
		}
		translate(&p, &out, parts)
		if string(frame[14:]) != string(want) {
			t.Fatalf("rewrite %d of protocol %d, IPv%d, error %v, parts %d:\n% x became\n% x, want\n% x", i, proto, family, failed, parts, ip, frame[14:], want)
		}
		kind := uint8(0)
		if failed {
			kind = 1
		}
		done[[3]uint8{family, proto, kind}]++
	}
	for family, list := range protos {
		for _, proto := range list {
			for kind := range uint8(2) {
				if n := done[[3]uint8{family, proto, kind}]; n < rewrites/200 {
					t.Errorf("IPv%d, protocol %d, error %d: %d rewrites", family, proto, kind, n)
				}
			}
		}
	}
}

// Of a later fragment the addresses are all; a packet that was wrong by something stays so.
func TestTranslateKeeps(t *testing.T) {
	out := Tuple{Family: 4, Proto: 17, Src: packet.Addr{192, 0, 2, 1}, Dst: packet.Addr{192, 0, 2, 2}, SrcPort: 1, DstPort: 2}
	t.Run("later fragment", func(t *testing.T) {
		f := cutUp(t, fromClient4.udp(t, 1000, 53, 100), 48)[1]
		payload := string(f[34:])
		var p packet.Parsed
		p.Decode(f)
		translate(&p, &out, XlatSource|XlatDestination)
		if string(f[34:]) != payload {
			t.Error("the payload of a later fragment has changed")
		}
		if p.Decode(f) != packet.OK || p.Src != out.Src || p.Dst != out.Dst {
			t.Errorf("from %v to %v", p.Src, p.Dst)
		}
	})
	t.Run("wrong checksum", func(t *testing.T) {
		f := fromClient4.udp(t, 1000, 53, 100)
		f[60]++ // off by 256 in the word's high byte
		var p packet.Parsed
		p.Decode(f)
		translate(&p, &out, XlatSource|XlatDestination)
		f[60]--
		got := append([]byte(nil), f[14:]...)
		recompute(f[14:], true)
		if string(got) != string(f[14:]) {
			t.Error("the error of the checksum was not kept")
		}
	})
}

// FuzzTranslate holds that whatever can be read can be translated: what leaves is read as the tuple with which it
// should, and translating it back gives what came, but for checksums that were not canonical.
func FuzzTranslate(f *testing.F) {
	for _, s := range []side{fromClient4, fromClient6} {
		udp := s.udp(f, 1000, 53, 20)
		f.Add(udp)
		f.Add(s.tcp(f, 1000, 53, seg{flags: syn, scale: 3}))
		f.Add(s.echo(f, true, 7))
		f.Add(s.icmpError(f, 3, 1, udp))
		f.Add(s.icmpError(f, 3, 1, s.echo(f, true, 7)))
		f.Add(s.icmpError(f, 3, 1, s.tcp(f, 1000, 53, seg{flags: syn, scale: 3}))[:14+60])
		f.Add(s.raw(f, packet.ProtoUDPLite, 1, 2, 3, 4, 5, 6, 7))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		var p packet.Parsed
		if p.Decode(frame) != packet.OK || p.EtherType != packet.EtherTypeIPv4 && p.EtherType != packet.EtherTypeIPv6 {
			return
		}
		before := append([]byte(nil), frame...)
		in := p
		out := Tuple{Family: p.Family, Proto: p.Proto, Src: packet.Addr{10, 1, 1, 1}, Dst: packet.Addr{10, 2, 2, 2}, SrcPort: 5, DstPort: 6}
		if p.Family == 6 {
			out.Src, out.Dst = packet.Addr{0xfd, 15: 1}, packet.Addr{0xfd, 15: 2}
		}
		translate(&p, &out, XlatSource|XlatDestination)
		if string(frame[:p.L3]) != string(before[:p.L3]) || string(frame[p.End:]) != string(before[p.End:]) {
			t.Fatal("wrote outside the IP packet")
		}
		if f := p.Decode(frame); f != packet.OK && f != packet.BadIPv4Checksum {
			t.Fatalf("what leaves is %v", f)
		} else if f != packet.OK {
			t.Fatalf("the IPv4 checksum is wrong: % x", frame)
		}
		if p.Src != out.Src || p.Dst != out.Dst || p.L4 != in.L4 || p.End != in.End || p.Piece != in.Piece {
			t.Fatalf("leaves as %+v", p)
		}
		if p.Piece == packet.Later {
			return
		}
		if (p.Proto == packet.ProtoTCP || p.Proto == packet.ProtoUDP) && (p.SrcPort != 5 || p.DstPort != 6) {
			t.Fatalf("leaves with ports %d, %d", p.SrcPort, p.DstPort)
		}
		if icmp := p.Proto == packet.ProtoICMP || p.Proto == packet.ProtoICMPv6; icmp && p.ICMP.Kind == packet.Error {
			q := &p.ICMP.Inner
			if q.Src != out.Dst || q.Dst != out.Src || q.L4 != in.ICMP.Inner.L4 || q.Proto != in.ICMP.Inner.Proto {
				t.Fatalf("quotes %+v", *q)
			}
		}
	})
}
