package flowtable

import (
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

const noFlow = bpf.XDPReasonREASON_ICMP_NO_FLOW

// icmpError is an error of this side's port that quotes a frame.
func (s side) icmpError(t testing.TB, typ, code byte, quoted []byte) []byte {
	if s.src.To4() != nil {
		return s.raw(t, 1, append([]byte{typ, code, 0, 0, 0, 0, 5, 0}, quoted[14:]...)...)
	}
	return s.raw(t, 58, append([]byte{typ, code, 0, 0, 0, 0, 5, 0}, quoted[14:]...)...)
}

func TestICMPErrors(t *testing.T) {
	there, back := fromClient4.udp(t, 1000, 53, 10), fromServer4.udp(t, 53, 1000, 20)
	there6 := fromClient6.udp(t, 1000, 53, 10)
	router := side{wanIf, []byte{10, 9, 9, 9}, client4}
	router6 := side{wanIf, []byte{0xfd, 9, 15: 9}, client6}
	inside := side{lanIf, []byte{10, 1, 0, 99}, server4}
	for _, tc := range []struct {
		name    string
		ifindex uint32
		frame   []byte
		verdict Outcome
		reason  bpf.XDPReason
	}{
		{"from a router behind", wanIf, router.icmpError(t, 11, 0, there), Forward, reasonNone},
		{"from the other end", wanIf, fromServer4.icmpError(t, 3, 3, there), Forward, reasonNone},
		{"Path MTU, IPv6", wanIf, router6.icmpError(t, 2, 0, there6), Forward, reasonNone},
		{"about a reply", lanIf, inside.icmpError(t, 3, 1, back), Forward, reasonNone},
		{"about an unknown flow", wanIf, router.icmpError(t, 11, 0, fromClient4.udp(t, 1001, 53, 10)), Drop, noFlow},
		{"to another than the inner source", wanIf, side{wanIf, []byte{10, 9, 9, 9}, []byte{10, 1, 0, 3}}.icmpError(t, 11, 0, there), Drop, noFlow},
		{"about a later fragment", wanIf, router.icmpError(t, 11, 0, patch(there, 20, 0, 2)), Drop, noFlow},
		{"about equal addresses", wanIf, router.icmpError(t, 11, 0, patch(there, 30, client4...)), Drop, noFlow},
		{"from the wrong zone", dmzIf, side{dmzIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 11, 0, there), Drop, bpf.XDPReasonREASON_WRONG_ZONE},
		{"with TTL 1", wanIf, patch(router.icmpError(t, 11, 0, there), 22, 1), Pass, bpf.XDPReasonREASON_TTL_EXPIRED},
		{"cut short", wanIf, router.icmpError(t, 11, 0, there[:14+27]), Drop, bpf.XDPReasonREASON_MALFORMED_ICMP},
		{"source quench", wanIf, router.icmpError(t, 4, 0, there), Drop, bpf.XDPReasonREASON_ICMP_TYPE},
		{"redirect", wanIf, router.icmpError(t, 5, 0, there), Drop, bpf.XDPReasonREASON_ICMP_TYPE},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.want(lanIf, there, Forward, reasonNone)
			r.want(wanIf, back, Forward, reasonNone)
			r.want(lanIf, there6, Forward, reasonNone)
			before := r.flow(fromClient4.tuple(17, 1000, 53))
			r.now += second / 10
			res := r.want(tc.ifindex, tc.frame, tc.verdict, tc.reason)
			f := r.flow(fromClient4.tuple(17, 1000, 53))
			if f.Seen != before.Seen || f.State != before.State {
				t.Errorf("the error counts as a packet of the flow: %+v", f)
			}
			if r.Table().Flows() != 2 {
				t.Errorf("%d flows", r.Table().Flows())
			}
			counted := r.Counters.Rules[ruleICMPErrors]
			if tc.verdict != Forward {
				if counted.Packets != 0 {
					t.Error("a refused error counts as an admitted one")
				}
				if f.Packets != before.Packets {
					t.Error("a refused error counts")
				}
				return
			}
			wantPort := uint8(1)
			if tc.ifindex == lanIf {
				wantPort = 2
			}
			if counted.Packets != 1 || counted.Bytes != uint64(len(tc.frame)-14) {
				t.Errorf("errors count %+v, want one of %d bytes", counted, len(tc.frame)-14)
			}
			if res.Port != wantPort || res.Rule != ruleAll {
				t.Errorf("port %d, rule %d", res.Port, res.Rule)
			}
		})
	}
}

// An error counts on the leg of the end that it comes from, and goes where that leg goes.
func TestICMPErrorCounts(t *testing.T) {
	r := newRig(t)
	there := fromClient4.udp(t, 1000, 53, 10)
	r.want(lanIf, there, Forward, reasonNone)
	frame := side{wanIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 11, 0, there)
	res := r.want(wanIf, frame, Forward, reasonNone)
	f := r.flow(fromClient4.tuple(17, 1000, 53))
	if f.Packets != [2]uint64{1, 1} || f.Bytes[1] != uint64(len(frame)-14) || f.State != bpf.XDPFlowStateFLOW_NEW || f.Nexthop != [2]uint16{hopWAN, hopLAN} {
		t.Errorf("%+v", f)
	}
	if res.Frame[22] != 63 || string(res.Frame[:6]) != string([]byte{2, 0, 0, 0, 2, 1}) {
		t.Errorf("not rewritten: % x", res.Frame[:24])
	}
}

func TestICMPErrorAboutPing(t *testing.T) {
	r := newRig(t)
	ping, pong := fromClient4.echo(t, true, 9), fromServer4.echo(t, false, 9)
	r.want(lanIf, ping, Forward, reasonNone)
	r.want(wanIf, side{wanIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 11, 0, ping), Forward, reasonNone)
	r.want(wanIf, pong, Forward, reasonNone)
	r.want(lanIf, side{lanIf, []byte{10, 1, 0, 9}, server4}.icmpError(t, 3, 1, pong), Forward, reasonNone)
	r.want(lanIf, side{lanIf, []byte{10, 1, 0, 9}, server4}.icmpError(t, 3, 1, fromServer4.echo(t, false, 8)), Drop, noFlow)
	r.want(wanIf, side{wanIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 3, 1, fromClient4.echo(t, false, 9)), Drop, noFlow) // it answered nothing
	if f := r.flow(fromClient4.tuple(1, 9, 0)); f.Packets != [2]uint64{2, 2} {
		t.Errorf("%v packets are counted on the legs", f.Packets)
	}
}

func TestICMPErrorOfRevokedFlow(t *testing.T) {
	r := newRig(t)
	there := fromClient4.udp(t, 1000, 53, 10)
	frame := side{wanIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 11, 0, there)
	r.want(lanIf, there, Forward, reasonNone)
	r.Publish(11, always(deny(3)), 9)
	r.want(wanIf, frame, Drop, noFlow)
	r.want(wanIf, frame, Drop, noFlow)
	r.Publish(12, always(allow(1)), 9)
	r.want(wanIf, frame, Forward, reasonNone)
}

func TestNeighbourDiscovery(t *testing.T) {
	solicit := side{lanIf, []byte{0xfe, 0x80, 15: 9}, []byte{0xff, 2, 15: 1}}.raw(t, 58, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, client6...)...)
	limit := func(f []byte, n byte) []byte { return patch(f, 21, n) }
	report := func(ifindex uint32, src ...byte) []byte { // behind a router alert
		frame := side{ifindex, src, []byte{0xff, 2, 15: 0x16}}.raw(t, packet.ProtoHopByHop, 58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0)
		return limit(frame, 1)
	}
	local := []byte{0xfe, 0x80, 15: 9}
	inlineND := side{leftIf, []byte{0xfe, 0x80, 15: 9}, []byte{0xff, 2, 15: 1}}.raw(t, 58, append([]byte{133, 0, 0, 0, 0, 0, 0, 0}, client6...)...)
	runArrivals(t, []arrival{
		{name: "solicitation", ifindex: lanIf, frame: limit(solicit, 255), verdict: Pass, pass: passND},
		{name: "that a router forwarded", ifindex: lanIf, frame: limit(solicit, 254), reason: bpf.XDPReasonREASON_ICMP_TYPE},
		{name: "inline", ifindex: leftIf, frame: limit(inlineND, 255), verdict: Forward, port: 5},
		{name: "listener report", ifindex: lanIf, frame: report(lanIf, local...), verdict: Pass, pass: passND},
		{name: "listener report before there is an address", ifindex: lanIf, frame: report(lanIf, make([]byte, 16)...), verdict: Pass, pass: passND},
		{name: "listener report, inline", ifindex: leftIf, frame: report(leftIf, local...), verdict: Forward, port: 5},
		{name: "listener report from afar", ifindex: leftIf, frame: limit(report(leftIf, local...), 64), reason: bpf.XDPReasonREASON_ICMP_TYPE},
		{name: "listener report of a global address", ifindex: lanIf, frame: report(lanIf, client6...), reason: bpf.XDPReasonREASON_ICMP_TYPE},
		{name: "ICMP over IPv6", ifindex: lanIf, frame: fromClient6.raw(t, 1, 8, 0, 0, 0, 0, 0, 0, 0), reason: bpf.XDPReasonREASON_ICMP_TYPE},
	})
}

// A flow that the running policy does not allow is none that an error may speak of, wherever the error
// comes from and whether or not the flow was judged again before.
func TestICMPErrorAboutARevokedFlow(t *testing.T) {
	r := newRig(t)
	there := fromClient4.udp(t, 1000, 53, 10)
	r.want(lanIf, there, Forward, reasonNone)
	stray := side{dmzIf, []byte{10, 9, 9, 9}, client4}.icmpError(t, 11, 0, there)
	r.want(dmzIf, stray, Drop, bpf.XDPReasonREASON_WRONG_ZONE)
	r.Publish(11, always(deny(3)), 9)
	for range 2 {
		if res := r.want(dmzIf, stray, Drop, noFlow); res.Rule != 0 {
			t.Errorf("rule %d", res.Rule)
		}
	}
	if f := r.flow(fromClient4.tuple(17, 1000, 53)); !f.Revoked || f.Epoch != 11 {
		t.Errorf("flow %+v was not judged again", f)
	}
}
