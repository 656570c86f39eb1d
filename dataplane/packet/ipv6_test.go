package packet

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// extension is a header of 8 bytes of padding whose next header is next.
func extension(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }

func udpHeader() []byte { return []byte{0x14, 0xe9, 0, 53, 0, 8, 0, 0} }

func fragmentHeader(next byte, offset uint16, more bool) []byte {
	word := offset
	if more {
		word |= 1
	}
	return []byte{next, 0, byte(word >> 8), byte(word), 1, 2, 3, 4}
}

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func hopByHop(t testing.TB) []byte {
	return other6(t, 0, join(extension(ProtoUDP), udpHeader())...)
}

func TestIPv6(t *testing.T) {
	good := udp6(t)
	chain := func(n int) []byte {
		var b []byte
		for range n - 1 {
			b = append(b, extension(ProtoDestination)...)
		}
		return append(append(b, extension(ProtoUDP)...), udpHeader()...)
	}
	routing := func(typ, left byte) []byte { return []byte{ProtoUDP, 0, typ, left, 0, 0, 0, 0} }
	ah := []byte{ProtoUDP, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2}
	run(t, []row{
		{name: "good", frame: good},
		{name: "padded", frame: good, change: grow(0, 0, 0)},
		{name: "39 bytes", frame: good, change: cut(14 + 39), want: BadIPv6},
		{name: "version 4", frame: good, change: set(14, 0x40), want: BadIPv6},
		{name: "payload beyond the frame", frame: good, change: set(18, 0, 20), want: BadIPv6},
		{name: "payload of 0 has no header", frame: good, change: set(18, 0, 0), want: BadUDP},
		{name: "no next header", frame: other6(t, 59)},
		{name: "no next header but bytes", frame: other6(t, 59, 1, 2, 3)},

		{name: "hop-by-hop", frame: hopByHop(t)},
		{name: "hop-by-hop second", frame: other6(t, 60, join(extension(0), extension(ProtoUDP), udpHeader())...), want: BadIPv6Extension},
		{name: "six extensions", frame: other6(t, 60, chain(6)...)},
		{name: "seven extensions", frame: other6(t, 60, chain(7)...), want: BadIPv6Extension},
		{name: "extension cut short", frame: other6(t, 60, 17, 0, 1, 4), want: BadIPv6Extension},
		{name: "extension beyond the payload", frame: other6(t, 60, 17, 1, 1, 4, 0, 0, 0, 0), want: BadIPv6Extension},
		{name: "AH", frame: other6(t, 51, join(ah, udpHeader())...)},
		{name: "AH beyond the payload", frame: other6(t, 51, ah[:8]...), want: BadIPv6Extension},
		{name: "routing header type 0", frame: other6(t, 43, join(routing(0, 1), udpHeader())...), want: IPv6RoutingHeader},
		{name: "routing header type 0, arrived", frame: other6(t, 43, join(routing(0, 0), udpHeader())...)},
		{name: "segment routing", frame: other6(t, 43, join(routing(4, 1), udpHeader())...)},

		{name: "source is destination", frame: good, change: set(14+8, b6...), want: Martian},
		{name: "loopback source", frame: good, change: set(14+8, loopback6[:]...), want: Martian},
		{name: "loopback destination", frame: good, change: set(14+24, loopback6[:]...), want: Martian},
		{name: "multicast source", frame: good, change: set(14+8, 0xff, 2), want: Martian},
		{name: "unspecified destination", frame: good, change: set(14+24, make([]byte, 16)...), want: Martian},
		{name: "unspecified source", frame: good, change: set(14+8, make([]byte, 16)...), want: Martian},
		{name: "unspecified source, UDP to a group", frame: good, change: func(f []byte) []byte {
			return set(14+24, 0xff, 2)(set(14+8, make([]byte, 16)...)(f))
		}, want: Martian},
		{name: "unspecified source, ICMPv6 to a group", frame: other6(t, 58, 135, 0, 0, 0, 0, 0, 0, 0), change: func(f []byte) []byte {
			return set(14+24, 0xff, 2)(set(14+8, make([]byte, 16)...)(f))
		}},
		{name: "unspecified source, ICMPv6 to a host", frame: other6(t, 58, 135, 0, 0, 0, 0, 0, 0, 0), change: set(14+8, make([]byte, 16)...), want: Martian},
		{name: "the header names it before the address", frame: other6(t, 60, 17, 1, 1, 4, 0, 0, 0, 0), change: set(14+8, loopback6[:]...), want: BadIPv6Extension},
		{name: "the address names it before the transport header", frame: good, change: func(f []byte) []byte {
			return set(18, 0, 4)(set(14+8, loopback6[:]...)(f))
		}, want: Martian},
	})
}

func TestFragments6(t *testing.T) {
	tcp := serialize(t, ethernet(layers.EthernetTypeIPv6), ipv6(layers.IPProtocolTCP), &layers.TCP{SYN: true}, gopacket.Payload("data"))[54:]
	f := func(parts ...[]byte) []byte { return other6(t, 44, join(parts...)...) }
	run(t, []row{
		{name: "atomic", frame: f(fragmentHeader(ProtoUDP, 0, false), udpHeader())},
		{name: "atomic is whole: UDP length counts", frame: f(fragmentHeader(ProtoUDP, 0, false), []byte{0, 1, 0, 2, 0, 9, 0, 0}), want: BadUDP},
		{name: "first", frame: f(fragmentHeader(ProtoUDP, 0, true), udpHeader())},
		{name: "later", frame: f(fragmentHeader(ProtoUDP, 16, false), []byte("x"))},
		{name: "two fragment headers", frame: f(fragmentHeader(44, 0, false), fragmentHeader(ProtoUDP, 0, false), udpHeader()), want: BadIPv6Extension},
		{name: "later: what follows is not looked at", frame: f(fragmentHeader(44, 8, false), []byte("x"))},
		{name: "not a multiple of 8", frame: f(fragmentHeader(ProtoUDP, 0, true), udpHeader(), []byte("x")), want: BadFragment},
		{name: "empty", frame: f(fragmentHeader(ProtoUDP, 8, false)), want: BadFragment},
		{name: "beyond 65,535", frame: f(fragmentHeader(ProtoUDP, 0xfff8, false), udpHeader()), want: BadFragment},
		{name: "first TCP cut short", frame: f(fragmentHeader(ProtoTCP, 0, true), tcp[:16]), want: TinyFragment},
		{name: "first TCP", frame: f(fragmentHeader(ProtoTCP, 0, true), tcp[:24])},
		{name: "TCP at offset 8", frame: f(fragmentHeader(ProtoTCP, 8, false), []byte("x")), want: TinyFragment},
		{name: "chain ends behind the first fragment", frame: f(fragmentHeader(ProtoDestination, 0, true), []byte{17, 1, 1, 4, 0, 0, 0, 0}), want: BadIPv6Extension},
		{name: "chain inside the first fragment", frame: f(fragmentHeader(ProtoDestination, 0, true), extension(ProtoUDP), udpHeader())},
		{name: "chain inside, but not the transport header", frame: f(fragmentHeader(ProtoDestination, 0, true), extension(ProtoUDP)), want: TinyFragment},
		{name: "hop-by-hop in a fragment", frame: f(fragmentHeader(ProtoHopByHop, 0, true), extension(ProtoUDP), udpHeader()), want: BadIPv6Extension},
	})

	var p Parsed
	frame := f(fragmentHeader(ProtoDestination, 0, true), extension(ProtoUDP), udpHeader())
	if got := p.Decode(frame); got != OK {
		t.Fatalf("Decode = %v", got)
	}
	if want := (Fragment{ID: 0x04030201, Proto: ProtoDestination, More: true, Payload: 16}); p.Fragment != want ||
		p.Piece != First || p.Proto != ProtoUDP || p.L4 != 14+40+16 {
		t.Errorf("got %+v, protocol %d at %d; want %+v", p.Fragment, p.Proto, p.L4, want)
	}
}
