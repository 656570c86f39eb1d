package packet

import (
	"encoding/binary"
	"testing"
)

func TestEthernet(t *testing.T) {
	good := udp4(t)
	run(t, []row{
		{name: "good", frame: good},
		{name: "empty", frame: good, change: cut(0), want: BadEthernet},
		{name: "13 bytes", frame: good, change: cut(13), want: BadEthernet},
		{name: "14 bytes of another type", frame: good, change: func(f []byte) []byte {
			return set(12, 0x88, 0xcc)(f)[:14]
		}},
		{name: "one tag", frame: good, change: tagged(0x8100_0064)},
		{name: "two tags", frame: good, change: tagged(0x88a8_0064, 0x8100_00c8)},
		{name: "three tags", frame: good, change: tagged(0x88a8_0064, 0x8100_00c8, 0x8100_0001), want: BadVLAN},
		{name: "tag cut short", frame: tagged(0x8100_0064)(good), change: cut(17), want: BadVLAN},
		{name: "second tag cut short", frame: tagged(0x88a8_0064, 0x8100_00c8)(good), change: cut(20), want: BadVLAN},
	})
}

func TestTags(t *testing.T) {
	for _, tc := range []struct {
		name string
		tags []uint32
		vlan uint16
		l3   int
	}{
		{"none", nil, 0, 14},
		{"priority", []uint32{0x8100_6000}, 0, 18},
		{"one, with priority bits", []uint32{0x8100_6064}, 100, 18},
		{"the outer one counts", []uint32{0x88a8_0064, 0x8100_00c8}, 100, 22},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p Parsed
			f := tagged(tc.tags...)(udp4(t))
			if got := p.Decode(f); got != OK {
				t.Fatalf("Decode = %v", got)
			}
			if p.VLAN != tc.vlan || p.L3 != tc.l3 || int(p.Tags) != len(tc.tags) || p.EtherType != EtherTypeIPv4 {
				t.Errorf("VLAN %d, L3 %d, %d tags, type %#x; want %d, %d", p.VLAN, p.L3, p.Tags, p.EtherType, tc.vlan, tc.l3)
			}
		})
	}
}

func TestFieldsTCP(t *testing.T) {
	var p Parsed
	f := append(tcp4(t), 0, 0, 0) // padding
	if got := p.Decode(f); got != OK {
		t.Fatalf("Decode = %v", got)
	}
	want := Parsed{
		Frame: f, EtherType: EtherTypeIPv4, L3: 14, Family: 4, TTL: 64, Proto: ProtoTCP,
		Src: Addr{10, 1, 0, 2}, Dst: Addr{10, 2, 0, 2}, Length: len(f) - 17, End: len(f) - 3, L4: 34,
		SrcPort: 40000, DstPort: 443, Fragment: p.Fragment,
		TCP: TCP{Seq: 1000, Window: 64240, Flags: SYN, Scale: 7, HasScale: true, HeaderLen: 28, Payload: 5},
	}
	if string(p.Frame) != string(want.Frame) {
		t.Fatal("the frame is another")
	}
	p.Frame, want.Frame = nil, nil
	if got := p; got.TCP != want.TCP || got.Src != want.Src || got.Dst != want.Dst || got.Length != want.Length ||
		got.End != want.End || got.L4 != want.L4 || got.SrcPort != want.SrcPort || got.DstPort != want.DstPort ||
		got.Piece != Whole || got.TTL != want.TTL || got.Family != want.Family {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if end := p.TCP.End(); end != 1006 {
		t.Errorf("End = %d, want seq 1000 + 5 + SYN = 1006", end)
	}
}

// An offset or address of the frame before must not survive in a Parsed that is used again.
func TestReuse(t *testing.T) {
	var p Parsed
	for _, f := range [][]byte{udp6(t), tagged(0x8100_0064)(tcp4(t)), udp4(t)} {
		if got := p.Decode(f); got != OK {
			t.Fatalf("Decode = %v", got)
		}
	}
	if p.VLAN != 0 || p.L3 != 14 || p.Family != 4 || p.Src != (Addr{10, 1, 0, 2}) || p.SrcPort != 5353 {
		t.Errorf("left over from the frame before: %+v", p)
	}
	if f := other4(t, 89, make([]byte, 20)...); p.Decode(f) != OK || p.SrcPort != 0 || p.DstPort != 0 {
		t.Errorf("protocol without ports has %d, %d", p.SrcPort, p.DstPort)
	}
}

func TestNoAllocs(t *testing.T) {
	frames := [][]byte{tcp4(t), udp6(t), icmpError4(t, 0), hopByHop(t), tagged(0x8100_0064)(udp4(t))}
	var p Parsed
	if n := testing.AllocsPerRun(100, func() {
		for _, f := range frames {
			if p.Decode(f) != OK {
				t.Fatal("a good frame is refused")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

func TestFailureNames(t *testing.T) {
	seen := map[string]bool{}
	for f := range FailureLen {
		if s := f.String(); s == "" || seen[s] {
			t.Errorf("failure %d: name %q is missing or doubled", f, s)
		} else {
			seen[s] = true
		}
	}
	if s := FailureLen.String(); s != "unknown-20" {
		t.Errorf("unknown failure is %q", s)
	}
}

func TestChecksum(t *testing.T) {
	// RFC 1071 section 3's example.
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	if sum := Sum(b, 0); sum != 0xddf2 {
		t.Errorf("Sum = %#x, want 0xddf2", sum)
	}
	if sum := Sum(b[4:], Sum(b[:4], 0)); sum != 0xddf2 {
		t.Errorf("Sum of parts = %#x, want 0xddf2", sum)
	}
	if sum := Sum([]byte{1, 2, 3}, 0); sum != 0x0402 {
		t.Errorf("odd length: %#x, want 0x0402", sum)
	}
	for _, f := range [][]byte{tcp4(t), udp4(t), udp6(t)} {
		var p Parsed
		p.Decode(f)
		l4 := f[p.L4:p.End]
		if c := Checksum(l4, PseudoSum(p.Family, &p.Src, &p.Dst, p.Proto, len(l4))); c != 0 {
			t.Errorf("family %d protocol %d: gopacket's checksum leaves %#x", p.Family, p.Proto, c)
		}
	}
	if binary.BigEndian.Uint16(udp4(t)[24:]) == 0 {
		t.Error("the frames have no checksums at all")
	}
}
