package flowtable

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// What leaves a routed port is what came, but for MACs, tag, TTL and IPv4 checksum.
func TestBytesOut(t *testing.T) {
	four, six := fromClient4.udp(t, 1000, 53, 10), fromClient6.udp(t, 1000, 53, 10)
	macs := []byte{2, 0, 0, 0, 2, 2, 2, 0, 0, 0, 1, 2}
	tagMACs := []byte{2, 0, 0, 0, 2, 5, 2, 0, 0, 0, 1, 2}
	lowered4, lowered6 := patch(four, 22, 63), patch(six, 21, 63)
	join := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	vlan := []byte{0x81, 0, 0, 100}
	for _, tc := range []struct {
		name    string
		ifindex uint32
		in      []byte
		hop     uint32
		out     []byte
	}{
		{"IPv4", lanIf, four, hopWAN, join(macs, lowered4[12:])},
		{"IPv6", lanIf, six, hopWAN, join(macs, lowered6[12:])},
		{"padding stays", lanIf, append(append([]byte(nil), four...), 1, 2, 3), hopWAN, join(macs, lowered4[12:], []byte{1, 2, 3})},
		{"tag popped", lanIf, tag(four, 7), hopWAN, join(macs, lowered4[12:])},
		{"two tags popped", lanIf, tag(six, 7, 9), hopWAN, join(macs, lowered6[12:])},
		{"priority tag popped", lanIf, tag(four, 0x2000), hopWAN, join(macs, lowered4[12:])},
		{"tag pushed", lanIf, four, hopTagged, join(tagMACs, vlan, lowered4[12:])},
		{"tag replaced", lanIf, tag(six, 7), hopTagged, join(tagMACs, vlan, lowered6[12:])},
		{"two tags replaced", lanIf, tag(four, 7, 9), hopTagged, join(tagMACs, vlan, lowered4[12:])},
		{"inline unchanged", leftIf, tag(inline4.udp(t, 1, 2, 3), 7, 9), 0, tag(inline4.udp(t, 1, 2, 3), 7, 9)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.route = &Route{Nexthop: tc.hop}
			res := r.want(tc.ifindex, tc.in, Forward, reasonNone)
			if string(res.Frame) != string(tc.out) {
				t.Errorf("out\n% x, want\n% x", res.Frame, tc.out)
			}
		})
	}
}

func TestNoRoomForTag(t *testing.T) {
	r := newRig(t)
	f := fromClient4.udp(t, 1000, 53, 10)
	f = f[:len(f):len(f)]
	res := r.Process(r.now, lanIf, f, Route{Nexthop: hopTagged}, nil)
	if res.Verdict != Drop || res.Reason != bpf.XDPReasonREASON_INTERNAL || r.Counters.Reasons[bpf.XDPReasonREASON_INTERNAL].Packets != 1 {
		t.Errorf("%+v", res)
	}
}

// The corrected IPv4 checksum is the one that a whole sum gives, whatever it was.
func TestLowerTTL(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	frame := fromClient4.udp(t, 1000, 53, 10)
	for id := range 0x10000 {
		f := patch(frame, 18, byte(id>>8), byte(id))
		f = patch(f, 22, byte(2+rng.IntN(254)))
		want := patch(f, 22, f[22]-1)
		p := packet.Parsed{Frame: f, L3: 14, Family: 4}
		lowerTTL(&p)
		if string(f) != string(want) {
			t.Fatalf("identification %#x: checksum % x, want % x", id, f[24:26], want[24:26])
		}
	}
}

func TestCompleteChecksum(t *testing.T) {
	bare := func(s side, frame []byte, at int) []byte {
		var p packet.Parsed
		p.Decode(frame)
		f := append([]byte(nil), frame...)
		binary.BigEndian.PutUint16(f[p.L4+at:], uint16(packet.PseudoSum(p.Family, &p.Src, &p.Dst, p.Proto, p.End-p.L4)))
		return f
	}
	tcp4 := fromClient4.tcp(t, 1, 2, seg{flags: syn, payload: 99})
	tcp6 := fromClient6.tcp(t, 1, 2, seg{flags: syn, payload: 98})
	udp4, udp6 := fromClient4.udp(t, 1, 2, 33), fromClient6.udp(t, 1, 2, 32)
	for _, tc := range []struct {
		name  string
		side  side
		right []byte
		in    []byte
		fix   bool
	}{
		{"TCP", fromClient4, tcp4, bare(fromClient4, tcp4, 16), true},
		{"TCP, IPv6", fromClient6, tcp6, bare(fromClient6, tcp6, 16), true},
		{"UDP", fromClient4, udp4, bare(fromClient4, udp4, 6), true},
		{"UDP, IPv6", fromClient6, udp6, bare(fromClient6, udp6, 6), true},
		{"padding is not summed", fromClient4, udp4, append(bare(fromClient4, udp4, 6), 9, 9, 9), true},
		{"right ones stay", fromClient4, tcp4, tcp4, true},
		{"wrong ones stay", fromClient4, patch(tcp4, 50, 1, 2), patch(tcp4, 50, 1, 2), true},
		{"UDP without stays so", fromClient4, patch(udp4, 40, 0, 0), patch(udp4, 40, 0, 0), true},
		{"not on this port", fromClient4, bare(fromClient4, tcp4, 16), bare(fromClient4, tcp4, 16), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) {
				if tc.fix {
					c.Ports[0].Flags |= PortFixChecksum
				}
			})
			res := r.want(lanIf, tc.in, Forward, reasonNone)
			var p packet.Parsed
			p.Decode(res.Frame)
			if got, want := res.Frame[p.L4:p.End], tc.right[p.L4:p.End]; string(got) != string(want) {
				t.Errorf("% x, want % x", got, want)
			}
		})
	}
	t.Run("UDP's computed 0 is 0xffff", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Ports[0].Flags |= PortFixChecksum })
		f := fromClient4.udp(t, 1, 2, 2)
		// Payload that makes the sum 0xffff.
		binary.BigEndian.PutUint16(f[42:], binary.BigEndian.Uint16(f[40:]))
		f = bare(fromClient4, f, 6)
		res := r.want(lanIf, f, Forward, reasonNone)
		if got := binary.BigEndian.Uint16(res.Frame[40:]); got != 0xffff {
			t.Errorf("checksum %#x", got)
		}
	})
	t.Run("fragments stay", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Ports[0].Flags |= PortFixChecksum })
		f := cutUp(t, bare(fromClient4, udp4, 6), 16)
		res := r.want(lanIf, f[0], Forward, reasonNone)
		if string(res.Frame[34:]) != string(f[0][34:]) {
			t.Error("a fragment's checksum was touched")
		}
	})
}
