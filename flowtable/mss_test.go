package flowtable

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// withOptions is a segment whose header holds these bytes behind the first 20.
func (s side) withOptions(t testing.TB, flags uint8, options ...byte) []byte {
	t.Helper()
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	l := &layers.TCP{
		SrcPort: 1000, DstPort: 80, Seq: 7, Window: 8000, SYN: flags&packet.SYN != 0, ACK: flags&packet.ACK != 0,
	}
	frame := serialize(t, append(s.ip(layers.IPProtocolTCP), l, gopacket.Payload(options))...)
	at := len(frame) - len(options) - 20
	frame[at+12] = byte(5+len(options)/4) << 4
	return summed(frame)
}

// summed makes a frame's TCP checksum right.
func summed(frame []byte) []byte {
	var p packet.Parsed
	p.Decode(frame)
	b := frame[p.L4:p.End]
	b[16], b[17] = 0, 0
	binary.BigEndian.PutUint16(b[16:], packet.Checksum(b, packet.PseudoSum(p.Family, &p.Src, &p.Dst, p.Proto, len(b))))
	return frame
}

// mssIn is the segment's MSS by gopacket, 0 without one; false if its checksum is wrong.
func mssIn(frame []byte) (mss uint16, right bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	tcp, ok := p.TransportLayer().(*layers.TCP)
	if !ok {
		return 0, false
	}
	for _, o := range tcp.Options {
		if o.OptionType == layers.TCPOptionKindMSS && len(o.OptionData) == 2 {
			mss = binary.BigEndian.Uint16(o.OptionData)
		}
	}
	return mss, bytes.Equal(frame, summed(bytes.Clone(frame)))
}

func mssOption(mss uint16) []byte { return []byte{2, 4, byte(mss >> 8), byte(mss)} }

func TestMSSIsClamped(t *testing.T) {
	const syn, synAck = packet.SYN, packet.SYN | packet.ACK
	limits := MSS{Ports: map[uint8]uint16{1: 1300, 2: 1400}, Rules: map[uint32]uint16{ruleAll: 1350}}
	for _, row := range []struct {
		name    string
		limits  MSS
		family  int
		options []byte
		want    uint16 // of the SYN, and of the SYN+ACK
	}{
		{"arrival port", limits, 4, mssOption(1460), 1300},
		{"IPv6", limits, 6, mssOption(1440), 1280},
		{"leaving port", MSS{Ports: map[uint8]uint16{2: 1400}}, 4, mssOption(1460), 1400},
		{"rule", MSS{Rules: map[uint32]uint16{ruleAll: 88}}, 4, mssOption(1460), 88},
		{"rule over IPv6", MSS{Rules: map[uint32]uint16{ruleAll: 88}}, 6, mssOption(1460), 68},
		{"another port and rule", MSS{Ports: map[uint8]uint16{3: 100}, Rules: map[uint32]uint16{5: 100}}, 4, mssOption(1460), 1460},
		{"nothing clamps", MSS{}, 4, mssOption(1460), 1460},
		{"smaller", limits, 4, mssOption(1200), 1200},
		{"equal", limits, 4, mssOption(1300), 1300},
		{"behind others", limits, 4, append([]byte{3, 3, 7, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0}, mssOption(65535)...), 1300},
		{"at an odd place", limits, 4, append([]byte{1}, mssOption(1460)...), 1300},
		{"at an odd place over IPv6", limits, 6, append([]byte{3, 3, 7}, mssOption(1441)...), 1280},
		{"none", limits, 4, []byte{3, 3, 7}, 0},
		{"no options", limits, 4, nil, 0},
		{"behind the end", limits, 4, append([]byte{0, 1, 1, 1}, mssOption(1460)...), 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.MSS = row.limits })
			there, back := fromClient4, side{wanIf, server4, client4}
			if row.family == 6 {
				there, back = fromClient6, fromServer6
			}
			for i, flags := range []uint8{syn, synAck} {
				in := packetIn{there.ifindex, there.withOptions(t, flags, row.options...)}
				if i == 1 {
					frame := back.withOptions(t, flags, row.options...)
					var p packet.Parsed
					p.Decode(frame)
					binary.BigEndian.PutUint16(frame[p.L4:], 80)
					binary.BigEndian.PutUint16(frame[p.L4+2:], 1000)
					binary.BigEndian.PutUint32(frame[p.L4+8:], 8)
					in = packetIn{back.ifindex, summed(frame)}
				}
				res := r.want(in.ifindex, in.frame, Forward, reasonNone)
				if got, right := mssIn(res.Frame); got != row.want || !right {
					t.Errorf("packet %d leaves with MSS %d, checksum right: %v; want %d", i, got, right, row.want)
				}
			}
		})
	}
}

// What is not a sound option is nobody's to change, and of a bare checksum nothing is corrected: it is not one yet.
func TestMSSLeftAlone(t *testing.T) {
	limit := func(c *Config) { c.MSS.Ports = map[uint8]uint16{1: 1300, 4: 1300} }
	for name, options := range map[string][]byte{
		"behind a malformed option": {8, 1, 2, 4, 5, 0xb4}, "cut short": {1, 1, 2, 4}, "of another length": {2, 3, 5, 0xb4},
		"longer than the header": {8, 40, 2, 4, 5, 0xb4},
	} {
		in := inline4.withOptions(t, packet.SYN, options...)
		if res := newRig(t, limit).want(leftIf, in, Forward, reasonNone); !bytes.Equal(res.Frame, in) {
			t.Errorf("%s: changed to\n%x from\n%x", name, res.Frame, in)
		}
	}
	// To the gateway itself.
	in := toHost4.withOptions(t, packet.SYN, mssOption(1460)...)
	r := newRig(t, limit)
	frame := bytes.Clone(in)
	if res := r.Process(r.now, lanIf, frame, Route{Nexthop: NexthopHost, Local: true}, r.answer[:]); res.Verdict != Pass || !bytes.Equal(frame, in) {
		t.Errorf("to the gateway: %v, %x", res.Verdict, frame)
	}
	// A segment that is no SYN, with an option that no such segment has.
	r = newRig(t, limit)
	r.want(lanIf, fromClient4.withOptions(t, packet.SYN), Forward, reasonNone)
	syn := fromServer4.tcp(t, 80, 1000, seg{flags: packet.SYN | packet.ACK, seq: ^uint32(0), ack: 8, scale: -1})
	r.want(wanIf, syn, Forward, reasonNone)
	if got, _ := mssIn(r.want(lanIf, fromClient4.withOptions(t, packet.ACK, mssOption(1460)...), Forward, reasonNone).Frame); got != 1460 {
		t.Errorf("an ACK leaves with MSS %d", got)
	}
}

// The kernel carries on a packet whose neighbour is not known. Its checksum stays bare if it came so, since
// the kernel will complete it; else it is right.
func TestMSSOfPassedPackets(t *testing.T) {
	for _, bare := range []bool{false, true} {
		r := newRig(t, func(c *Config) {
			c.MSS.Ports = map[uint8]uint16{2: 1300}
			c.Ports[0].Flags |= PortFixChecksum
		})
		r.route = &Route{Nexthop: hopPending}
		frame := fromClient4.withOptions(t, packet.SYN, mssOption(1460)...)
		var p packet.Parsed
		p.Decode(frame)
		sum := uint16(packet.PseudoSum(4, &p.Src, &p.Dst, p.Proto, p.End-p.L4))
		if bare {
			binary.BigEndian.PutUint16(frame[p.L4+16:], sum)
		}
		if res := r.Process(r.now, lanIf, frame, *r.route, r.answer[:]); res.Verdict != Pass || res.Pass != 1+uint8(bpf.XDPPassCausePASS_NEIGHBOUR) {
			t.Fatalf("%v, cause %d", res.Verdict, res.Pass)
		}
		got, right := mssIn(frame)
		if got != 1300 || right == bare {
			t.Errorf("bare %v: MSS %d, checksum right: %v", bare, got, right)
		}
		if bare && binary.BigEndian.Uint16(frame[p.L4+16:]) != sum {
			t.Error("the bare sum has changed")
		}

		// And where XDP sends it, it is completed over what it says then.
		r.route, r.now = nil, r.now+5*second
		frame = fromClient4.withOptions(t, packet.SYN, mssOption(1460)...)
		if bare {
			binary.BigEndian.PutUint16(frame[p.L4+16:], sum)
		}
		if got, right := mssIn(r.want(lanIf, frame, Forward, reasonNone).Frame); got != 1300 || !right {
			t.Errorf("bare %v: sent with MSS %d, checksum right: %v", bare, got, right)
		}
	}
}

func TestMSSOf(t *testing.T) {
	for mtu, want := range map[int]uint16{1500: 1460, 1400: 1360, 68: MSSMin, 128: 88, 129: 89, 65535: MSSMax, 70000: MSSMax} {
		if got := MSSOf(mtu); got != want {
			t.Errorf("MTU %d: MSS %d, want %d", mtu, got, want)
		}
	}
}
