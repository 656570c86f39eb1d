package flowtable

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

func rejecting(t testing.TB) *rig {
	return newRig(t, func(c *Config) { c.Classifier = always(Verdict(3, uint32(bpf.XDPActionACTION_REJECT), 0)) })
}

const rejected = bpf.XDPReasonREASON_REJECT

// checkAnswer parses an answer with our parser and with gopacket, which checks its checksums.
func checkAnswer(t *testing.T, frame []byte) (packet.Parsed, gopacket.Packet) {
	t.Helper()
	var p packet.Parsed
	if f := p.Decode(frame); f != packet.OK {
		t.Fatalf("the answer is %v: % x", f, frame)
	}
	if p.End != len(frame) || p.TTL != 64 {
		t.Errorf("answer of %d bytes in %d, TTL %d", p.End, len(frame), p.TTL)
	}
	l4 := frame[p.L4:p.End]
	sum := packet.PseudoSum(p.Family, &p.Src, &p.Dst, p.Proto, len(l4))
	if p.Proto == packet.ProtoICMP {
		sum = 0
	}
	if c := packet.Checksum(l4, sum); c != 0 {
		t.Errorf("checksum of the answer is off by %#x", c)
	}
	return p, gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
}

func TestRejectTCP(t *testing.T) {
	for _, tc := range []struct {
		name     string
		side     side
		g        seg
		tags     []uint16
		seq, ack uint32
		flags    uint8
	}{
		{"SYN", fromClient4, seg{flags: syn, seq: 1000}, nil, 0, 1001, rst | ack},
		{"SYN with data", fromClient4, seg{flags: syn, seq: 1000, payload: 10}, nil, 0, 1011, rst | ack},
		{"ACK", fromClient4, seg{flags: ack, seq: 1000, ack: 5000, payload: 10}, nil, 5000, 0, rst},
		{"FIN", fromClient4, seg{flags: fin | ack, seq: 1000, ack: 5000}, nil, 5000, 0, rst},
		{"IPv6", fromClient6, seg{flags: syn, seq: 1000, scale: 7}, nil, 0, 1001, rst | ack},
		{"tagged", fromClient6, seg{flags: syn, seq: 1000}, []uint16{7, 9}, 0, 1001, rst | ack},
		{"inline", inline4, seg{flags: syn, seq: 1000}, nil, 0, 1001, rst | ack},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rejecting(t)
			in := tag(tc.side.tcp(t, 40000, 443, tc.g), tc.tags...)
			res := r.want(tc.side.ifindex, in, Answer, rejected)
			p, _ := checkAnswer(t, res.Frame)
			back := tc.side.tuple(6, 40000, 443)
			if p.Src != back.Dst || p.Dst != back.Src || p.SrcPort != 443 || p.DstPort != 40000 ||
				p.TCP.Seq != tc.seq || p.TCP.Ack != tc.ack || p.TCP.Flags != tc.flags || p.TCP.Window != 0 {
				t.Errorf("answer %+v", p.TCP)
			}
			if string(res.Frame[:6]) != string(hostMAC) || string(res.Frame[6:12]) != string(in[:6]) || int(p.Tags) != len(tc.tags) {
				t.Errorf("answer's frame % x", res.Frame[:22])
			}
			if res.Rule != 3 || r.Counters.Reasons[rejected].Packets != 1 || r.Table().Flows() != 0 {
				t.Errorf("%+v", res)
			}
		})
	}
}

func TestRejectOthers(t *testing.T) {
	for _, tc := range []struct {
		name string
		side side
		in   []byte
		src  packet.Addr
		typ  byte
		code byte
	}{
		{"UDP", fromClient4, fromClient4.udp(t, 1000, 53, 100), packet.Addr{10, 1, 0, 1}, 3, 13},
		{"ping", fromClient4, fromClient4.echo(t, true, 9), packet.Addr{10, 1, 0, 1}, 3, 13},
		{"UDP, IPv6", fromClient6, fromClient6.udp(t, 1000, 53, 100), packet.Addr(gateway6), 1, 1},
		{"inline", inline4, inline4.udp(t, 1000, 53, 100), packet.Addr{10, 2, 0, 2}, 3, 13},
		{"with extensions", fromClient6, fromClient6.raw(t, 60, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, fromClient6.udp(t, 1, 2, 30)[54:]...)...), packet.Addr(gateway6), 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rejecting(t)
			res := r.want(tc.side.ifindex, tc.in, Answer, rejected)
			p, _ := checkAnswer(t, res.Frame)
			if p.Src != tc.src || p.Dst != tc.side.tuple(0, 0, 0).Src || p.ICMP.Type != tc.typ || p.ICMP.Code != tc.code {
				t.Errorf("answer from %v to %v: %d/%d", p.Src, p.Dst, p.ICMP.Type, p.ICMP.Code)
			}
			var in packet.Parsed
			in.Decode(tc.in)
			if quote := res.Frame[p.L4+8:]; string(quote) != string(tc.in[14:in.L4+8]) {
				t.Errorf("quotes % x", quote)
			}
		})
	}
}

func TestNoAnswer(t *testing.T) {
	udp := fromClient4.udp(t, 1000, 53, 100)
	group := side{lanIf, client4, []byte{224, 0, 0, 251}}
	dhcp := side{lanIf, []byte{0, 0, 0, 0}, []byte{255, 255, 255, 255}}
	toServer := side{wanIf, server4, client4} // the port has no address
	for _, tc := range []struct {
		name    string
		ifindex uint32
		frame   []byte
	}{
		{"RST", lanIf, fromClient4.tcp(t, 1, 2, seg{flags: rst})},
		{"RST+ACK", lanIf, fromClient4.tcp(t, 1, 2, seg{flags: rst | ack})},
		{"to a group", lanIf, group.udp(t, 1, 2, 3)},
		{"to everybody from nobody", lanIf, dhcp.udp(t, 1, 2, 3)},
		{"to a group MAC", lanIf, patch(udp, 0, 1)},
		{"by a port without address", wanIf, toServer.udp(t, 1, 2, 3)},
		{"nothing to quote", lanIf, fromClient4.raw(t, 89)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rejecting(t)
			r.want(tc.ifindex, tc.frame, Drop, rejected)
		})
	}
	t.Run("later fragments", func(t *testing.T) {
		r := rejecting(t)
		f := cutUp(t, udp, 24)
		r.want(lanIf, f[0], Answer, rejected)
		r.want(lanIf, f[1], Drop, rejected)
	})
	t.Run("no room", func(t *testing.T) {
		r := rejecting(t)
		res := r.Process(r.now, lanIf, udp, Route{Nexthop: hopWAN}, r.answer[:60])
		if res.Verdict != Drop || res.Reason != rejected {
			t.Errorf("%+v", res)
		}
	})
}

func TestAnswersAreRateLimited(t *testing.T) {
	r := rejecting(t)
	count := func(s side, n int) (answers int) {
		for range n {
			if r.send(s.ifindex, s.udp(t, 1000, 53, 10)).Verdict == Answer {
				answers++
			}
		}
		return answers
	}
	if n := count(fromClient4, 30); n != 10 {
		t.Errorf("%d answers in the first second", n)
	}
	if n := count(fromClient6, 30); n != 10 {
		t.Errorf("another source got %d", n)
	}
	r.now += second / 2
	if n := count(fromClient4, 5); n != 0 {
		t.Errorf("%d answers beyond the rate", n)
	}
	r.now += second/2 + 1<<tickShift
	if n := count(fromClient4, 30); n != 10 {
		t.Errorf("%d answers in the next second", n)
	}
	if r.Counters.Reasons[rejected].Packets != 95 {
		t.Errorf("%d packets rejected", r.Counters.Reasons[rejected].Packets)
	}
}
