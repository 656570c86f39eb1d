package packet

import "testing"

func TestIPv4(t *testing.T) {
	good := udp4(t)
	length := func(n byte) change { return fixed(set(16, 0, n)) }
	src := func(b ...byte) change { return fixed(set(26, b...)) }
	dst := func(b ...byte) change { return fixed(set(30, b...)) }
	both := func(s, d []byte) change { return fixed(set(26, s...), set(30, d...)) }
	run(t, []row{
		{name: "good", frame: good},
		{name: "padded", frame: good, change: grow(0, 0, 0, 0)},
		{name: "19 bytes", frame: good, change: cut(14 + 19), want: BadIPv4},
		{name: "version 5", frame: good, change: fixed(set(14, 0x55)), want: BadIPv4},
		{name: "header of 4 words", frame: good, change: set(14, 0x44), want: BadIPv4},
		{name: "header beyond the frame", frame: good, change: func(f []byte) []byte {
			return set(14, 0x4f)(f)[:14+24]
		}, want: BadIPv4},
		{name: "total length below the header", frame: good, change: length(19), want: BadIPv4},
		{name: "total length beyond the frame", frame: good, change: length(47), want: BadIPv4},
		{name: "checksum", frame: good, change: set(24, 1, 2), want: BadIPv4Checksum},
		{name: "checksum before options", frame: options(131, 7, 4, 1, 2, 3, 4, 0)(good), change: set(24, 1, 2), want: BadIPv4Checksum},

		{name: "no-ops and end", frame: good, change: options(1, 1, 1, 0)},
		{name: "behind the end is anything", frame: good, change: options(0, 131, 99, 1)},
		{name: "router alert", frame: good, change: options(148, 4, 0, 0)},
		{name: "option of length 1", frame: good, change: options(7, 1, 0, 0), want: BadIPv4Options},
		{name: "option beyond the header", frame: good, change: options(7, 5, 0, 0), want: BadIPv4Options},
		{name: "option without length", frame: good, change: options(1, 1, 1, 7), want: BadIPv4Options},
		{name: "loose source route", frame: good, change: options(131, 3, 4, 0), want: IPv4SourceRoute},
		{name: "strict source route behind no-op", frame: good, change: options(1, 137, 3, 4), want: IPv4SourceRoute},
		{name: "source route that does not fit", frame: good, change: options(131, 9, 4, 0), want: BadIPv4Options},
		{name: "the first wrong option names it", frame: good, change: options(131, 3, 4, 7), want: IPv4SourceRoute},
		{name: "options before addresses", frame: fixed(set(26, 127, 0, 0, 1))(append([]byte(nil), good...)), change: options(131, 3, 4, 0), want: IPv4SourceRoute},

		{name: "source is destination", frame: good, change: src(10, 2, 0, 2), want: Martian},
		{name: "loopback source", frame: good, change: src(127, 1, 2, 3), want: Martian},
		{name: "loopback destination", frame: good, change: dst(127, 0, 0, 1), want: Martian},
		{name: "multicast source", frame: good, change: src(224, 0, 0, 1), want: Martian},
		{name: "class E source", frame: good, change: src(240, 0, 0, 1), want: Martian},
		{name: "broadcast source", frame: good, change: src(255, 255, 255, 255), want: Martian},
		{name: "source in 0/8", frame: good, change: src(0, 0, 0, 1), want: Martian},
		{name: "0.0.0.0 to a host", frame: good, change: src(0, 0, 0, 0), want: Martian},
		{name: "0.0.0.0 to everybody", frame: good, change: both([]byte{0, 0, 0, 0}, []byte{255, 255, 255, 255})},
		{name: "0.0.0.1 to everybody", frame: good, change: both([]byte{0, 0, 0, 1}, []byte{255, 255, 255, 255}), want: Martian},
		{name: "destination 0.0.0.0", frame: good, change: dst(0, 0, 0, 0), want: Martian},
		{name: "destination in 0/8", frame: good, change: dst(0, 1, 2, 3), want: Martian},
		{name: "multicast destination", frame: good, change: dst(224, 0, 0, 251)},
		{name: "class E destination", frame: good, change: dst(240, 0, 0, 1)},
	})
}

func TestFragments4(t *testing.T) {
	tcp, udp := tcp4(t), udp4(t)
	flags := func(hi, lo byte) change { return fixed(set(20, hi, lo)) }
	length := func(n byte, hi, lo byte) change { return fixed(set(16, 0, n), set(20, hi, lo)) }
	run(t, []row{
		{name: "first", frame: udp, change: length(36, 0x20, 0)},
		{name: "later", frame: udp, change: flags(0, 2)},
		{name: "length not a multiple of 8", frame: udp, change: flags(0x20, 0), want: BadFragment},
		{name: "last of any length", frame: udp, change: length(37, 0, 3)},
		{name: "first without payload", frame: udp, change: length(20, 0x20, 0), want: BadFragment},
		{name: "last without payload", frame: udp, change: length(20, 0, 9), want: BadFragment},
		{name: "end beyond 65,535", frame: udp, change: length(36, 0x1f, 0xff), want: BadFragment},
		{name: "end at 65,535", frame: udp, change: length(27, 0x1f, 0xff)},
		{name: "first TCP of 8 bytes", frame: tcp, change: length(28, 0x20, 0), want: TinyFragment},
		{name: "first TCP without its options", frame: tcp, change: length(44, 0x20, 0), want: TinyFragment},
		{name: "TCP at offset 8", frame: tcp, change: length(28, 0, 1), want: TinyFragment},
		{name: "TCP at offset 16", frame: tcp, change: length(28, 0, 2)},
		{name: "UDP at offset 8", frame: udp, change: length(28, 0, 1)},
		{name: "first UDP: length field beyond the fragment", frame: udp, change: fixed(length(36, 0x20, 0), set(38, 5, 0))},
		{name: "first UDP: length field below 8", frame: udp, change: fixed(length(36, 0x20, 0), set(38, 0, 7)), want: BadUDP},
		{name: "first TCP with a header of 4 words", frame: tcp, change: fixed(length(44, 0x20, 0), set(46, 0x40)), want: BadTCP},
		{name: "first SCTP of 8 bytes", frame: other4(t, 132, make([]byte, 16)...), change: length(28, 0x20, 0), want: TinyFragment},
		{name: "first GRE of 8 bytes", frame: other4(t, 47, make([]byte, 16)...), change: length(28, 0x20, 0)},
		{name: "first AH of 8 bytes", frame: other4(t, 51, make([]byte, 16)...), change: length(28, 0x20, 0), want: TinyFragment},
		{name: "martian comes first", frame: udp, change: fixed(flags(0x20, 0), set(26, 127)), want: Martian},
	})

	var p Parsed
	f := fixed(set(20, 0x20, 3), set(16, 0, 36))(udp4(t))
	if got := p.Decode(f); got != OK {
		t.Fatalf("Decode = %v", got)
	}
	if want := (Fragment{ID: 0x3412, Proto: ProtoUDP, More: true, Offset: 24, Payload: 16}); p.Fragment != want || p.Piece != Later {
		t.Errorf("got %+v, want %+v", p.Fragment, want)
	}
}
