package packet

import "testing"

func TestTransport(t *testing.T) {
	tcp, udp, udpSix := tcp4(t), udp4(t), udp6(t)
	length := func(n byte) change { return fixed(set(16, 0, n)) }
	zeros := make([]byte, 16)
	rows := []row{
		{name: "TCP", frame: tcp},
		{name: "TCP of 19 bytes", frame: tcp, change: length(39), want: BadTCP},
		{name: "TCP header of 4 words", frame: tcp, change: set(46, 0x40), want: BadTCP},
		{name: "TCP header beyond the packet", frame: tcp, change: length(46), want: BadTCP},
		{name: "UDP", frame: udp},
		{name: "UDP of 7 bytes", frame: udp, change: length(27), want: BadUDP},
		{name: "UDP length 7", frame: udp, change: set(38, 0, 7), want: BadUDP},
		{name: "UDP length beyond the packet", frame: udp, change: set(38, 0, 20), want: BadUDP},
		{name: "UDP length below the packet", frame: udp, change: set(38, 0, 12)},
		{name: "UDP length 0 over IPv6", frame: udpSix, change: set(58, 0, 0), want: BadUDP},
		{name: "ESP of 7 bytes", frame: other4(t, 50, zeros[:7]...), want: BadTransport},
		{name: "ESP", frame: other4(t, 50, zeros[:8]...)},
		{name: "AH of 11 bytes", frame: other4(t, 51, zeros[:11]...), want: BadTransport},
		{name: "AH", frame: other4(t, 51, zeros[:12]...)},
		{name: "GRE of 3 bytes", frame: other4(t, 47, zeros[:3]...), want: BadTransport},
		{name: "GRE", frame: other6(t, 47, zeros[:4]...)},
		{name: "SCTP of 11 bytes", frame: other6(t, 132, zeros[:11]...), want: BadTransport},
		{name: "SCTP", frame: other6(t, 132, zeros[:12]...)},
		{name: "OSPF is not looked at", frame: other4(t, 89)},
	}
	valid := map[byte]bool{
		SYN: true, SYN | URG: true, SYN | ACK: true, RST: true, RST | ACK: true,
		FIN | ACK: true, FIN | ACK | URG: true, ACK: true, ACK | URG: true,
	}
	for flags := range 256 {
		want := BadTCPFlags
		if valid[byte(flags)&^(0x08|0x40|0x80)] { // PSH, ECE, CWR
			want = OK
		}
		f := set(47, byte(flags))(append([]byte(nil), tcp...))
		var p Parsed
		if got := p.Decode(f); got != want {
			t.Errorf("TCP flags %#02x: %v, want %v", flags, got, want)
		}
	}
	run(t, rows)
}

func TestWindowScale(t *testing.T) {
	for _, tc := range []struct {
		name  string
		opt   []byte
		scale uint8
		ok    bool
	}{
		{"none", nil, 0, false},
		{"alone", []byte{3, 3, 7, 0}, 7, true},
		{"behind others", []byte{2, 4, 5, 180, 1, 3, 3, 9}, 9, true},
		{"above 14 is 14", []byte{3, 3, 15, 0}, 14, true},
		{"behind the end", []byte{0, 3, 3, 7}, 0, false},
		{"of a wrong length", []byte{3, 4, 7, 0}, 0, false},
		{"cut short", []byte{1, 1, 3, 3}, 0, false},
		{"without length", []byte{1, 1, 1, 3}, 0, false},
		{"behind an option of length 0", []byte{8, 0, 3, 3, 7, 0, 0, 0}, 0, false},
	} {
		if scale, ok := windowScale(tc.opt); scale != tc.scale || ok != tc.ok {
			t.Errorf("%s: %d, %v; want %d, %v", tc.name, scale, ok, tc.scale, tc.ok)
		}
	}
}
