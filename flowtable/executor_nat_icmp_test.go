package flowtable

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// An error about a translated flow reaches who sent what it quotes, and quotes what that sender knows: about every
// protocol, cut short or not, from either side.
func TestErrorsAboutTranslatedFlows(t *testing.T) {
	type dir struct {
		port     uint8 // by which the error leaves
		ifindex  uint32
		router   net.IP
		about    []byte // as the router saw it
		original []byte // as its sender sent it
		as       net.IP // whose the error seems to be: the router's own if only its receiver is translated
	}
	router4, router6 := net.IP{10, 2, 9, 9}, net.ParseIP("fd10:2::9")
	host4 := net.IP{10, 1, 0, 99}
	out4 := side{wanIf, outer4, server4}
	in4, behind4 := side{wanIf, server4, public4}, side{lanIf, server4, inner4}
	for _, tc := range []struct {
		name string
		open []byte
		from uint32
		d    dir
	}{
		{"masqueraded UDP", fromClient4.udp(t, 5000, 53, 40), lanIf, dir{port: 1, ifindex: wanIf, router: router4,
			about: out4.udp(t, 5000, 53, 40), original: fromClient4.udp(t, 5000, 53, 40), as: router4}},
		{"masqueraded TCP", fromClient4.tcp(t, 5000, 80, seg{flags: syn, seq: 7}), lanIf, dir{port: 1, ifindex: wanIf, router: router4,
			about: out4.tcp(t, 5000, 80, seg{flags: syn, seq: 7}), original: fromClient4.tcp(t, 5000, 80, seg{flags: syn, seq: 7}), as: router4}},
		{"masqueraded ping", fromClient4.echo(t, true, 5000), lanIf, dir{port: 1, ifindex: wanIf, router: router4,
			about: out4.echo(t, true, 5000), original: fromClient4.echo(t, true, 5000), as: router4}},
		{"masqueraded UDP, IPv6", fromClient6.udp(t, 5000, 53, 40), lanIf, dir{port: 1, ifindex: wanIf, router: router6,
			about: side{wanIf, outer6, server6}.udp(t, 5000, 53, 40), original: fromClient6.udp(t, 5000, 53, 40), as: router6}},
		{"masqueraded ping, IPv6", fromClient6.echo(t, true, 5000), lanIf, dir{port: 1, ifindex: wanIf, router: router6,
			about: side{wanIf, outer6, server6}.echo(t, true, 5000), original: fromClient6.echo(t, true, 5000), as: router6}},
		{"about a reply of a masqueraded flow", fromClient4.udp(t, 5000, 53, 40), lanIf, dir{port: 2, ifindex: lanIf, router: host4,
			about: fromServer4.udp(t, 53, 5000, 40), original: side{wanIf, server4, outer4}.udp(t, 53, 5000, 40), as: outer4}},
		{"about what was forwarded", in4.tcp(t, 3000, 80, seg{flags: syn, seq: 7}), wanIf, dir{port: 2, ifindex: lanIf, router: host4,
			about: behind4.tcp(t, 3000, 8080, seg{flags: syn, seq: 7}), original: in4.tcp(t, 3000, 80, seg{flags: syn, seq: 7}), as: public4}},
		{"about a reply of a forwarded flow", in4.tcp(t, 3000, 80, seg{flags: syn, seq: 7}), wanIf, dir{port: 1, ifindex: wanIf, router: router4,
			about: side{wanIf, public4, server4}.tcp(t, 80, 3000, seg{flags: syn | ack, seq: 9, ack: 8}), original: side{lanIf, inner4, server4}.tcp(t, 8080, 3000, seg{flags: syn | ack, seq: 9, ack: 8}), as: router4}},
	} {
		for _, cut := range []int{0, 8} {
			t.Run(tc.name, func(t *testing.T) {
				r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), masquerade(6, zoneLAN, zoneWAN, 1024, 65535),
					forward(public4, 6, 80, 0, natServer(inner4, 8080)))
				r.want(tc.from, right(tc.open), Forward, reasonNone)
				d := &tc.d
				error := func(router net.IP, quoted []byte) []byte {
					q := right(quoted)
					p := takeApart(q[14:])
					to := net.IP(p.src)
					if cut > 0 {
						q = q[:len(q)-len(p.l4)+cut]
					}
					return right(side{d.ifindex, router, to}.icmpError(t, 3, 1, q))
				}
				res := r.want(d.ifindex, error(d.router, d.about), Forward, reasonNone)
				want := error(d.as, d.original)
				if want[14]>>4 == 4 {
					want[22]--
				} else {
					want[21]--
				}
				recompute(want[14:], true)
				if res.Port != d.port || string(res.Frame[14:]) != string(want[14:]) {
					t.Errorf("left by port %d as\n% x, want by %d\n% x", res.Port, res.Frame[14:], d.port, want[14:])
				}
				if n := r.Counters.Rules[ruleICMPErrors].Packets; n != 1 {
					t.Errorf("%d errors counted", n)
				}
			})
		}
	}
}

// An error about the answer to a translated ping reaches who answered, and quotes the identifier that it knows.
func TestErrorsAboutTranslatedReplies(t *testing.T) {
	const outside = 20000
	for _, f := range []struct {
		name         string
		client       side
		outer, inner net.IP // as the server sees the client, and a router before it
	}{{"IPv4", fromClient4, outer4, net.IP{10, 1, 0, 99}}, {"IPv6", fromClient6, outer6, net.ParseIP("fd10:1::99")}} {
		t.Run(f.name, func(t *testing.T) {
			r := natRig(t, masquerade(4, zoneLAN, zoneWAN, outside, outside), masquerade(6, zoneLAN, zoneWAN, outside, outside))
			r.want(lanIf, right(f.client.echo(t, true, 5000)), Forward, reasonNone)
			inside, answer := side{wanIf, f.client.dst, f.client.src}, side{wanIf, f.client.dst, f.outer}
			res := r.want(lanIf, right(side{lanIf, f.inner, f.client.dst}.icmpError(t, 3, 1, right(inside.echo(t, false, 5000)))), Forward, reasonNone)
			want := right(side{lanIf, f.outer, f.client.dst}.icmpError(t, 3, 1, right(answer.echo(t, false, outside))))
			if want[14]>>4 == 4 {
				want[22]--
			} else {
				want[21]--
			}
			recompute(want[14:], true)
			if string(res.Frame[14:]) != string(want[14:]) {
				t.Errorf("it leaves as\n% x, want\n% x", res.Frame[14:], want[14:])
			}
		})
	}
}

// An error about what nobody sent is none, and one that bears the wrong tuple says so.
func TestErrorsAboutWrongTuples(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	there := fromClient4.udp(t, 5000, 53, 40)
	r.want(lanIf, right(there), Forward, reasonNone)
	router := net.IP{10, 2, 9, 9}
	r.want(wanIf, right(side{wanIf, router, client4}.icmpError(t, 3, 1, there)), Drop, natUntranslated)
	r.want(wanIf, right(side{wanIf, router, outer4}.icmpError(t, 3, 1, side{wanIf, outer4, server4}.udp(t, 5001, 53, 40))), Drop, noFlow)
	r.want(lanIf, right(side{lanIf, net.IP{10, 1, 0, 9}, server4}.icmpError(t, 3, 1, side{wanIf, server4, outer4}.udp(t, 53, 5000, 40))), Drop, natConflict)
}

// Later fragments go where their first one went, both ways.
func TestFragmentsOfTranslatedFlows(t *testing.T) {
	back4 := side{wanIf, server4, outer4}
	ping := func(s side, typ byte) []byte {
		return s.raw(t, 1, append([]byte{typ, 0, 0, 0, 0x13, 0x88, 0, 1}, make([]byte, 80)...)...)
	}
	for _, tc := range []struct {
		name          string
		there, back   []byte
		client, outer net.IP
	}{
		{"IPv4", fromClient4.udp(t, 5000, 53, 100), back4.udp(t, 53, 5000, 100), client4, outer4},
		{"IPv6", fromClient6.udp(t, 5000, 53, 100), side{wanIf, server6, outer6}.udp(t, 53, 5000, 100), client6, outer6},
		{"ping", ping(fromClient4, 8), ping(back4, 0), client4, outer4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), masquerade(6, zoneLAN, zoneWAN, 1024, 65535))
			for _, way := range []struct {
				ifindex uint32
				frame   []byte
				xlat    uint8
			}{{lanIf, tc.there, XlatSource}, {wanIf, tc.back, XlatDestination | XlatReply}} {
				whole := right(way.frame)
				together := append([]byte(nil), whole[:len(whole)-len(takeApart(whole[14:]).l4)]...)
				for i, piece := range cutUp(t, whole, 16, 24) {
					res := r.want(way.ifindex, piece, Forward, reasonNone)
					var p packet.Parsed
					if f := p.Decode(res.Frame); f != packet.OK || res.Xlat != way.xlat {
						t.Fatalf("piece %d leaves as %v, translated %#x", i, f, res.Xlat)
					}
					got, want := address(p.Family, &p.Src).String(), tc.outer.String()
					if way.ifindex == wanIf {
						got, want = address(p.Family, &p.Dst).String(), tc.client.String()
					}
					if got != want {
						t.Errorf("piece %d leaves from %v to %v", i, p.Src, p.Dst)
					}
					// What arrives is put together again under the addresses of the last piece.
					h := takeApart(together[14:])
					copy(h.src, p.Src[:])
					copy(h.dst, p.Dst[:])
					together = append(together, res.Frame[p.End-p.Fragment.Payload:p.End]...)
				}
				got := string(together[len(whole)-len(takeApart(whole[14:]).l4):])
				recompute(together[14:], true)
				if string(takeApart(together[14:]).l4) != got {
					t.Errorf("the datagram's checksum is wrong: % x", together)
				}
			}
			if r.Table().Flows() != 2 {
				t.Errorf("%d entries", r.Table().Flows())
			}
		})
	}
}

// What the kernel would tell the sender of a packet of a translated flow the gateway tells: with the packet as it
// came.
func TestAnswersToTranslatedFlows(t *testing.T) {
	back := side{wanIf, server4, outer4}
	open4 := fromClient4.udp(t, 5000, 53, 10)
	open6 := fromClient6.udp(t, 5000, 53, 10)
	for _, tc := range []struct {
		name      string
		ifindex   uint32
		frame     []byte
		reason    bpf.XDPReason
		from      net.IP // the answer's; nil: none is due
		typ, code byte
		word      uint32
		hop       uint32
	}{
		{"TTL", lanIf, patch(open4, 22, 1), bpf.XDPReasonREASON_TTL_EXPIRED, gateway4, 11, 0, 0, hopWAN},
		{"TTL of a reply", wanIf, patch(back.udp(t, 53, 5000, 10), 22, 1), bpf.XDPReasonREASON_TTL_EXPIRED, outer4, 11, 0, 0, hopLAN},
		{"hop limit", lanIf, patch(open6, 21, 1), bpf.XDPReasonREASON_TTL_EXPIRED, gateway6, 3, 0, 0, hopWAN},
		{"TTL of a RST", lanIf, patch(fromClient4.tcp(t, 6000, 80, seg{flags: rst, seq: 8}), 22, 1), bpf.XDPReasonREASON_TTL_EXPIRED, gateway4, 11, 0, 0, hopWAN},
		{"too big", lanIf, patch(fromClient4.udp(t, 5000, 53, 80), 20, 0x40), bpf.XDPReasonREASON_TOO_BIG, gateway4, 3, 4, 60, hopSmall},
		{"too big, IPv6", lanIf, fromClient6.udp(t, 5000, 53, 80), bpf.XDPReasonREASON_TOO_BIG, gateway6, 2, 0, 60, hopSmall},
		{"an error", wanIf, patch(side{wanIf, net.IP{10, 2, 9, 9}, outer4}.icmpError(t, 3, 1, right(side{wanIf, outer4, server4}.udp(t, 5000, 53, 10))), 22, 1), bpf.XDPReasonREASON_TTL_EXPIRED, nil, 0, 0, 0, hopLAN},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), masquerade(6, zoneLAN, zoneWAN, 1024, 65535))
			r.route = &Route{Nexthop: hopWAN}
			r.want(lanIf, right(open4), Forward, reasonNone)
			r.want(lanIf, right(open6), Forward, reasonNone)
			r.want(lanIf, right(fromClient4.tcp(t, 6000, 80, seg{flags: syn, seq: 7})), Forward, reasonNone)
			r.now += 2 * second // routes are looked up again
			r.route.Nexthop = tc.hop
			frame := right(tc.frame)
			if tc.from == nil {
				r.want(tc.ifindex, frame, Drop, tc.reason)
				return
			}
			res := r.want(tc.ifindex, frame, Answer, tc.reason)
			p, _ := checkAnswer(t, res.Frame)
			src, dst := net.IP(takeApart(res.Frame[14:]).src), net.IP(takeApart(res.Frame[14:]).dst)
			if !src.Equal(tc.from) || !dst.Equal(takeApart(frame[14:]).src) || p.ICMP.Type != tc.typ || p.ICMP.Code != tc.code ||
				binary.BigEndian.Uint32(res.Frame[p.L4+4:]) != tc.word {
				t.Errorf("answer from %v to %v: % x", src, dst, res.Frame[p.L4:])
			}
			if quote := res.Frame[p.L4+8:]; string(quote) != string(frame[14:14+len(quote)]) {
				t.Errorf("quotes % x of % x", quote, frame[14:])
			}
			if r.Counters.Reasons[tc.reason].Packets != 1 {
				t.Error("not counted as refused")
			}
		})
	}
}

// What the kernel carries on has the destination that it becomes, and the source that it came with.
func TestPassedPacketsOfTranslatedFlows(t *testing.T) {
	rows := []natRow{
		masquerade(4, zoneLAN, zoneWAN, 20000, 20999), masquerade(4, zoneWAN, zoneLAN, 30000, 30999),
		forward(public4, 17, 80, 0, natServer(inner4, 8080)),
	}
	in := side{wanIf, server4, public4}
	bare := func(s side, frame []byte) []byte {
		f := right(frame)
		var p packet.Parsed
		p.Decode(f)
		binary.BigEndian.PutUint16(f[p.L4+6:], uint16(packet.PseudoSum(4, &p.Src, &p.Dst, p.Proto, p.End-p.L4)))
		return f
	}
	t.Run("unknown neighbour, source alone", func(t *testing.T) {
		r := natRig(t, rows...)
		r.route = &Route{Nexthop: hopPending}
		frame := right(fromClient4.udp(t, 5000, 53, 10))
		res := r.want(lanIf, frame, Pass, reasonNone)
		if string(res.Frame) != string(frame) || res.Xlat != XlatSource || res.Pass != 1+uint8(bpf.XDPPassCausePASS_NEIGHBOUR) {
			t.Errorf("%+v", res)
		}
	})
	t.Run("unknown neighbour, both", func(t *testing.T) {
		r := natRig(t, rows...)
		r.hops[hopLAN].State = NexthopPending
		frame := right(in.udp(t, 3000, 80, 10))
		res := r.want(wanIf, frame, Pass, reasonNone)
		want := right(side{wanIf, server4, inner4}.udp(t, 3000, 8080, 10))
		if string(res.Frame) != string(want) || res.Xlat != XlatSource|XlatDestination || res.Outer.SrcPort < 30000 || res.Outer.SrcPort > 30999 {
			t.Errorf("%+v\n% x, want\n% x", res, res.Frame, want)
		}
	})
	t.Run("a checksum that hardware was to complete", func(t *testing.T) {
		r := natRig(t, rows...)
		r.hops[hopLAN].State = NexthopPending
		r.ports[wanIf].Flags |= PortFixChecksum
		res := r.want(wanIf, bare(in, in.udp(t, 3000, 80, 10)), Pass, reasonNone)
		to := side{wanIf, server4, inner4}
		if want := bare(to, to.udp(t, 3000, 8080, 10)); string(res.Frame) != string(want) {
			t.Errorf("% x, want\n% x", res.Frame, want)
		}
		r.hops[hopLAN].State = NexthopReady
		res = r.want(wanIf, bare(in, in.udp(t, 3000, 80, 10)), Forward, reasonNone)
		if got := right(res.Frame); string(got) != string(res.Frame) {
			t.Errorf("left as % x", res.Frame)
		}
	})
	t.Run("too big for the next hop", func(t *testing.T) {
		r := natRig(t, rows...)
		r.hops[hopLAN].Src = r.hops[hopLAN].Src&(1<<48-1) | 60<<48
		res := r.want(wanIf, right(in.udp(t, 3000, 80, 100)), Pass, reasonNone)
		if want := right(side{wanIf, server4, inner4}.udp(t, 3000, 8080, 100)); string(res.Frame) != string(want) || res.Pass != 1+uint8(bpf.XDPPassCausePASS_FRAGMENT) {
			t.Errorf("%+v\n% x, want\n% x", res, res.Frame, want)
		}
	})
	t.Run("an error", func(t *testing.T) {
		r := natRig(t, rows[2])
		open := right(in.udp(t, 3000, 80, 10))
		r.want(wanIf, open, Forward, reasonNone)
		r.hops[hopWAN].State = NexthopPending
		host := net.IP{10, 1, 0, 99}
		error := func(from net.IP, quoted []byte) []byte {
			return right(side{lanIf, from, server4}.icmpError(t, 3, 1, quoted))
		}
		res := r.want(lanIf, error(host, right(side{lanIf, server4, inner4}.udp(t, 3000, 8080, 10))), Pass, reasonNone)
		if want := error(host, open); string(res.Frame) != string(want) {
			t.Errorf("% x, want\n% x", res.Frame, want)
		}
	})
}
