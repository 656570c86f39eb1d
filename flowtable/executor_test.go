package flowtable

import (
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softdpu/softdpu/bpf"
)

// arrival is a row of TestArrival and TestRoutedChecks: one frame, what becomes of it.
type arrival struct {
	name    string
	ifindex uint32
	frame   []byte
	verdict Outcome
	reason  bpf.XDPReason
	pass    uint8 // 1 + cause
	port    uint8 // valid iff forwarded
	route   *Route
	setup   func(*Config)
}

func runArrivals(t *testing.T, rows []arrival) {
	t.Helper()
	for _, tc := range rows {
		t.Run(tc.name, func(t *testing.T) {
			var setup []func(*Config)
			if tc.setup != nil {
				setup = append(setup, tc.setup)
			}
			r := newRig(t, setup...)
			r.route = tc.route
			before := append([]byte(nil), tc.frame...)
			res := r.want(tc.ifindex, tc.frame, tc.verdict, tc.reason)
			if res.Pass != tc.pass || tc.verdict == Forward && res.Port != tc.port {
				t.Errorf("pass %d by port %d, want %d by %d", res.Pass, res.Port, tc.pass, tc.port)
			}
			if string(tc.frame) != string(before) {
				t.Error("the test's own frame was changed")
			}
			checkCounted(t, r, res, len(tc.frame))
		})
	}
}

// checkCounted expects one packet in exactly the counter that its result names.
func checkCounted(t *testing.T, r *rig, res Result, length int) {
	t.Helper()
	want := bpf.XDPCounter{Packets: 1, Bytes: uint64(length)}
	for reason, c := range r.Counters.Reasons {
		if counted := c == want; counted != (res.Reason != reasonNone && res.Reason == bpf.XDPReason(reason)) || !counted && c != (bpf.XDPCounter{}) {
			t.Errorf("reason %v counts %+v", bpf.XDPReason(reason), c)
		}
	}
	for cause, c := range r.Counters.Passes {
		if counted := c == want; counted != (int(res.Pass) == cause+1) || !counted && c != (bpf.XDPCounter{}) {
			t.Errorf("pass cause %v counts %+v", bpf.XDPPassCause(cause), c)
		}
	}
}

func arp(t testing.TB, ifindex uint32, dst []byte) []byte {
	return serialize(t, &layers.Ethernet{SrcMAC: hostMAC, DstMAC: dst, EthernetType: layers.EthernetTypeARP},
		gopacket.Payload(make([]byte, 28)))
}

const (
	passHost     = 1 + uint8(bpf.XDPPassCausePASS_HOST)
	passARP      = 1 + uint8(bpf.XDPPassCausePASS_ARP)
	passND       = 1 + uint8(bpf.XDPPassCausePASS_ND)
	passNeigh    = 1 + uint8(bpf.XDPPassCausePASS_NEIGHBOUR)
	passFragment = 1 + uint8(bpf.XDPPassCausePASS_FRAGMENT)
)

func TestArrival(t *testing.T) {
	good := fromClient4.udp(t, 1000, 53, 10)
	left := inline4.udp(t, 1000, 53, 10)
	broadcast := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	lldp := patch(left, 12, 0x88, 0xcc)
	lan := portMACs[lanIf]
	runArrivals(t, []arrival{
		{name: "good", ifindex: lanIf, frame: good, verdict: Forward, port: 2},
		{name: "no such port", ifindex: 99, frame: good, reason: bpf.XDPReasonREASON_INTERNAL},
		{name: "short", ifindex: lanIf, frame: good[:13], reason: bpf.XDPReasonREASON_MALFORMED_ETHERNET},
		{name: "three tags", ifindex: lanIf, frame: tag(good, 7, 7, 7), reason: bpf.XDPReasonREASON_MALFORMED_VLAN},
		{name: "VLAN of a zone", ifindex: lanIf, frame: tag(good, 7), verdict: Forward, port: 2},
		{name: "two tags, the outer one counts", ifindex: lanIf, frame: tag(good, 7, 99), verdict: Forward, port: 2},
		{name: "VLAN without zone", ifindex: lanIf, frame: tag(good, 9), reason: bpf.XDPReasonREASON_VLAN_UNKNOWN},
		{name: "priority tag", ifindex: lanIf, frame: tag(good, 0xe000), verdict: Forward, port: 2},
		{name: "untagged on a port without that", ifindex: lanIf, frame: good, reason: bpf.XDPReasonREASON_VLAN_UNKNOWN,
			setup: func(c *Config) { c.Ports[0].Zone = ZoneNone }},
		{name: "the zone comes before the MAC", ifindex: lanIf, frame: tag(patch(good, 5, 9), 9), reason: bpf.XDPReasonREASON_VLAN_UNKNOWN},
		{name: "for another MAC", ifindex: lanIf, frame: patch(good, 5, 9), reason: bpf.XDPReasonREASON_NOT_FOR_US},
		{name: "for a group MAC", ifindex: lanIf, frame: patch(good, 0, 1), verdict: Forward, port: 2},
		{name: "inline for any MAC", ifindex: leftIf, frame: patch(left, 5, 9), verdict: Forward, port: 5},
		{name: "the MAC comes before the type", ifindex: lanIf, frame: patch(arp(t, lanIf, broadcast), 0, 2), reason: bpf.XDPReasonREASON_NOT_FOR_US},
		{name: "ARP", ifindex: lanIf, frame: arp(t, lanIf, broadcast), verdict: Pass, pass: passARP},
		{name: "ARP reply", ifindex: lanIf, frame: arp(t, lanIf, lan[:]), verdict: Pass, pass: passARP},
		{name: "ARP inline", ifindex: leftIf, frame: arp(t, leftIf, broadcast), verdict: Forward, port: 5},
		{name: "another type", ifindex: lanIf, frame: patch(good, 12, 0x88, 0xcc), reason: bpf.XDPReasonREASON_ETHERTYPE},
		{name: "listed type inline", ifindex: leftIf, frame: lldp, verdict: Forward, port: 5},
		{name: "unlisted type inline", ifindex: leftIf, frame: patch(left, 12, 0x88, 0xcd), reason: bpf.XDPReasonREASON_ETHERTYPE},
		{name: "malformed IPv4", ifindex: lanIf, frame: good[:30], reason: bpf.XDPReasonREASON_MALFORMED_IPV4},
		{name: "martian", ifindex: lanIf, frame: patch(good, 26, 127, 0, 0, 1), reason: bpf.XDPReasonREASON_MARTIAN},
	})
}

func TestRoutedChecks(t *testing.T) {
	good, good6 := fromClient4.udp(t, 1000, 53, 100), fromClient6.udp(t, 1000, 53, 100)
	toGroup := side{lanIf, client4, []byte{224, 0, 0, 251}}
	toGroup6 := side{lanIf, client6, []byte{0xff, 2, 15: 0xfb}}
	linkLocal := side{lanIf, []byte{0xfe, 0x80, 15: 9}, server6}
	linkLocalHost := side{lanIf, []byte{0xfe, 0x80, 15: 9}, gateway6}
	dhcp := side{lanIf, []byte{0, 0, 0, 0}, []byte{255, 255, 255, 255}}
	to := func(hop uint32) *Route { return &Route{Nexthop: hop} }
	df := func(f []byte) []byte { return patch(f, 20, 0x40) }
	runArrivals(t, []arrival{
		{name: "IPv4", ifindex: lanIf, frame: good, verdict: Forward, port: 2},
		{name: "IPv6", ifindex: lanIf, frame: good6, verdict: Forward, port: 2},
		{name: "to the host", ifindex: lanIf, frame: toHost4.udp(t, 1, 2, 3), verdict: Pass, pass: passHost},
		{name: "to the host with TTL 1", ifindex: lanIf, frame: patch(toHost4.udp(t, 1, 2, 3), 22, 1), verdict: Pass, pass: passHost},
		{name: "to a group, without route", ifindex: lanIf, frame: toGroup.udp(t, 1, 2, 3), verdict: Pass, pass: passHost},
		{name: "to a group, IPv6", ifindex: lanIf, frame: toGroup6.udp(t, 1, 2, 3), verdict: Pass, pass: passHost},
		{name: "DHCP", ifindex: lanIf, frame: dhcp.udp(t, 68, 67, 3), verdict: Pass, pass: passHost},
		{name: "no route", ifindex: lanIf, frame: good, reason: bpf.XDPReasonREASON_NO_ROUTE, route: &Route{Reason: bpf.XDPReasonREASON_NO_ROUTE}},
		{name: "blocked route", ifindex: lanIf, frame: good, reason: bpf.XDPReasonREASON_ROUTE_BLOCKED, route: &Route{Reason: bpf.XDPReasonREASON_ROUTE_BLOCKED}},
		{name: "neither route nor reason", ifindex: lanIf, frame: good, reason: bpf.XDPReasonREASON_INTERNAL, route: &Route{}},
		{name: "next hop beyond the table", ifindex: lanIf, frame: good, reason: bpf.XDPReasonREASON_INTERNAL, route: to(5000)},
		{name: "unresolved neighbour", ifindex: lanIf, frame: good, verdict: Pass, pass: passNeigh, route: to(hopPending)},
		{name: "link-local source", ifindex: lanIf, frame: linkLocal.udp(t, 1, 2, 3), reason: bpf.XDPReasonREASON_MARTIAN},
		{name: "link-local source to the host", ifindex: lanIf, frame: linkLocalHost.udp(t, 1, 2, 3), verdict: Pass, pass: passHost},
		{name: "0.0.0.0 that is routed", ifindex: lanIf, frame: dhcp.udp(t, 68, 67, 3), verdict: Pass, pass: passHost, route: to(hopWAN)},
		{name: "TTL 1", ifindex: lanIf, frame: patch(good, 22, 1), verdict: Pass, reason: bpf.XDPReasonREASON_TTL_EXPIRED},
		{name: "TTL 0", ifindex: lanIf, frame: patch(good, 22, 0), verdict: Pass, reason: bpf.XDPReasonREASON_TTL_EXPIRED},
		{name: "hop limit 1", ifindex: lanIf, frame: patch(good6, 21, 1), verdict: Pass, reason: bpf.XDPReasonREASON_TTL_EXPIRED},
		{name: "TTL 1 inline", ifindex: leftIf, frame: patch(inline4.udp(t, 1, 2, 3), 22, 1), verdict: Forward, port: 5},
		{name: "as large as the MTU", ifindex: lanIf, frame: df(fromClient4.udp(t, 1, 2, 32)), verdict: Forward, port: 2, route: to(hopSmall)},
		{name: "larger than the MTU", ifindex: lanIf, frame: fromClient4.udp(t, 1, 2, 33), verdict: Pass, pass: passFragment, route: to(hopSmall)},
		{name: "larger, not to be fragmented", ifindex: lanIf, frame: df(fromClient4.udp(t, 1, 2, 33)), verdict: Pass, reason: bpf.XDPReasonREASON_TOO_BIG, route: to(hopSmall)},
		{name: "larger, IPv6", ifindex: lanIf, frame: good6, verdict: Pass, reason: bpf.XDPReasonREASON_TOO_BIG, route: to(hopSmall)},
		{name: "TTL comes before size", ifindex: lanIf, frame: patch(df(good), 22, 1), verdict: Pass, reason: bpf.XDPReasonREASON_TTL_EXPIRED, route: to(hopSmall)},
		{name: "larger inline", ifindex: leftIf, frame: inline4.udp(t, 1, 2, 1473), reason: bpf.XDPReasonREASON_TOO_BIG},
		{name: "inline VLAN", ifindex: leftIf, frame: tag(inline4.udp(t, 1, 2, 3), 7), verdict: Forward, port: 5},
		{name: "inline VLAN that the peer lacks", ifindex: leftIf, frame: tag(inline4.udp(t, 1, 2, 3), 8), reason: bpf.XDPReasonREASON_VLAN_UNKNOWN},
	})
}

func TestRulesDecideOnAMiss(t *testing.T) {
	for _, tc := range []struct {
		name    string
		verdict uint32
		frame   []byte
		outcome Outcome
		reason  bpf.XDPReason
		rule    uint32
		state   bpf.XDPFlowState // of the flow, FREE = none
		flags   uint64
	}{
		{"no rule", 0, fromClient4.udp(t, 1, 2, 3), Drop, bpf.XDPReasonREASON_NO_RULE_MATCHED, 0, 0, 0},
		{"deny", Verdict(3, uint32(bpf.XDPActionACTION_DENY), 0), fromClient4.udp(t, 1, 2, 3), Drop, bpf.XDPReasonREASON_DENY, 3, 0, 0},
		{"spoofed", Verdict(0, uint32(bpf.XDPActionACTION_SPOOFED), 0), fromClient4.udp(t, 1, 2, 3), Drop, bpf.XDPReasonREASON_SPOOFED, 0, 0, 0},
		{"UDP", allow(4), fromClient4.udp(t, 1, 2, 3), Forward, 0, 4, bpf.XDPFlowStateFLOW_NEW, 0},
		{"logged", Verdict(4, 1, VerdictLog), fromClient4.udp(t, 1, 2, 3), Forward, 0, 4, bpf.XDPFlowStateFLOW_NEW, WordLog},
		{"opened by the higher address", allow(4), fromServer4.udp(t, 1, 2, 3), Forward, 0, 4, bpf.XDPFlowStateFLOW_NEW, WordHiOpened},
		{"ping", allow(4), fromClient6.echo(t, true, 9), Forward, 0, 4, bpf.XDPFlowStateFLOW_NEW, 0},
		{"GRE", allow(4), fromClient4.raw(t, 47, 0, 0, 8, 0), Forward, 0, 4, bpf.XDPFlowStateFLOW_NEW, 0},
		{"SYN", allow(4), fromClient4.tcp(t, 1, 2, seg{flags: syn}), Forward, 0, 4, bpf.XDPFlowStateFLOW_SYN_SENT, 0},
		{"SYN+URG", allow(4), fromClient4.tcp(t, 1, 2, seg{flags: syn | urg}), Forward, 0, 4, bpf.XDPFlowStateFLOW_SYN_SENT, 0},
		{"ACK", allow(4), fromClient4.tcp(t, 1, 2, seg{flags: ack}), Drop, bpf.XDPReasonREASON_NOT_SYN, 4, 0, 0},
		{"SYN+ACK", allow(4), fromClient4.tcp(t, 1, 2, seg{flags: syn | ack}), Drop, bpf.XDPReasonREASON_NOT_SYN, 4, 0, 0},
		{"ACK in midstream", Verdict(4, 1, VerdictMidstream), fromClient4.tcp(t, 1, 2, seg{flags: ack}), Forward, 0, 4, bpf.XDPFlowStateFLOW_ESTABLISHED, WordMidstream},
		{"FIN in midstream", Verdict(4, 1, VerdictMidstream), fromClient4.tcp(t, 1, 2, seg{flags: fin | ack}), Forward, 0, 4, bpf.XDPFlowStateFLOW_FIN_WAIT, WordMidstream},
		{"SYN+ACK in midstream", Verdict(4, 1, VerdictMidstream), fromClient4.tcp(t, 1, 2, seg{flags: syn | ack}), Drop, bpf.XDPReasonREASON_NOT_SYN, 4, 0, 0},
		{"RST+ACK in midstream", Verdict(4, 1, VerdictMidstream), fromClient4.tcp(t, 1, 2, seg{flags: rst | ack}), Drop, bpf.XDPReasonREASON_NOT_SYN, 4, 0, 0},
		{"a denied ACK is denied", Verdict(3, uint32(bpf.XDPActionACTION_DENY), 0), fromClient4.tcp(t, 1, 2, seg{flags: ack}), Drop, bpf.XDPReasonREASON_DENY, 3, 0, 0},
		{"a ping's reply", allow(4), fromClient4.echo(t, false, 9), Drop, bpf.XDPReasonREASON_ICMP_NO_REQUEST, 0, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.Classifier = always(tc.verdict) })
			ifindex := uint32(lanIf)
			if tc.flags&WordHiOpened != 0 {
				ifindex = wanIf
			}
			res := r.want(ifindex, tc.frame, tc.outcome, tc.reason)
			if res.Rule != tc.rule {
				t.Errorf("rule %d, want %d", res.Rule, tc.rule)
			}
			flows := int64(0)
			if tc.state != bpf.XDPFlowStateFLOW_FREE {
				flows = 1
				if want := uint64(tc.state) | tc.flags | 1<<WordGenerationBit; res.Word != want {
					t.Errorf("word %#x, want %#x", res.Word, want)
				}
			}
			if r.Table().Flows() != flows {
				t.Errorf("%d flows", r.Table().Flows())
			}
			// What a flow counts is not on its rule's account yet; what was refused is.
			c := r.Counters.Rules[tc.rule]
			refused := tc.outcome == Drop && tc.reason != bpf.XDPReasonREASON_ICMP_NO_REQUEST
			if (c.Packets == 1) != refused {
				t.Errorf("rule %d counts %+v", tc.rule, c)
			}
			if asked := tc.reason != bpf.XDPReasonREASON_ICMP_NO_REQUEST; asked != (c.Judged == 1) || asked && c.Last != Tick(r.now) {
				t.Errorf("rule %d: judged %d times, last at %d", tc.rule, c.Judged, c.Last)
			}
		})
	}
}

// What the classifier is asked is the opening packet, whoever's packet makes it be asked.
func TestClassifyKey(t *testing.T) {
	var asked []bpf.XDPClassifyKey
	record := rules(func(k *bpf.XDPClassifyKey, audit func(uint32)) uint32 {
		asked = append(asked, *k)
		audit(7)
		return allow(1)
	})
	for _, tc := range []struct {
		name         string
		there, back  []byte
		there2, via2 uint32
		want         bpf.XDPClassifyKey
	}{
		{"UDP", fromClient4.udp(t, 1000, 53, 3), fromServer4.udp(t, 53, 1000, 3), lanIf, wanIf,
			bpf.XDPClassifyKey{SrcLo: 0x0a010002, DstLo: 0x0a020002, Sport: 1000, Dport: 53, Proto: 17, Family: 4, From: zoneLAN, To: zoneWAN, Context: 77}},
		{"opened by the higher address", fromServer4.udp(t, 1000, 53, 3), fromClient4.udp(t, 53, 1000, 3), wanIf, lanIf,
			bpf.XDPClassifyKey{SrcLo: 0x0a020002, DstLo: 0x0a010002, Sport: 1000, Dport: 53, Proto: 17, Family: 4, From: zoneWAN, To: zoneLAN, Context: 77}},
		{"ping", fromClient4.echo(t, true, 9), fromServer4.echo(t, false, 9), lanIf, wanIf,
			bpf.XDPClassifyKey{SrcLo: 0x0a010002, DstLo: 0x0a020002, Dport: 0x0800, Proto: 1, Family: 4, From: zoneLAN, To: zoneWAN, Context: 77}},
		{"timestamp", fromClient4.raw(t, 1, 13, 0, 0, 0, 0, 9, 0, 1), fromServer4.raw(t, 1, 14, 0, 0, 0, 0, 9, 0, 1), lanIf, wanIf,
			bpf.XDPClassifyKey{SrcLo: 0x0a010002, DstLo: 0x0a020002, Dport: 0x0d00, Proto: 1, Family: 4, From: zoneLAN, To: zoneWAN, Context: 77}},
		{"ping6", fromClient6.echo(t, true, 9), fromServer6.echo(t, false, 9), lanIf, wanIf,
			bpf.XDPClassifyKey{SrcHi: 0xfd10_0001_0000_0000, SrcLo: 2, DstHi: 0xfd10_0002_0000_0000, DstLo: 2, Dport: 0x8000, Proto: 58, Family: 6, From: zoneLAN, To: zoneWAN, Context: 77}},
		{"SCTP has no ports", fromClient4.raw(t, 132, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0), fromServer4.raw(t, 132, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0), lanIf, wanIf,
			bpf.XDPClassifyKey{SrcLo: 0x0a010002, DstLo: 0x0a020002, Proto: 132, Family: 4, From: zoneLAN, To: zoneWAN, Context: 77}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked = nil
			r := newRig(t, func(c *Config) {
				c.Classifier = record
				c.MACs = map[[6]byte]uint16{[6]byte(hostMAC): 77}
			})
			r.want(tc.there2, tc.there, Forward, reasonNone)
			r.Publish(11, record, 9)
			r.want(tc.via2, tc.back, Forward, reasonNone)
			r.Publish(12, record, 9)
			r.want(tc.there2, tc.there, Forward, reasonNone)
			if len(asked) != 3 || r.Counters.Rules[7].Judged != 3 {
				t.Fatalf("asked %d times, audit rule judged %d times", len(asked), r.Counters.Rules[7].Judged)
			}
			for i, k := range asked {
				if k != tc.want {
					t.Errorf("question %d: %+v, want %+v", i+1, k, tc.want)
				}
			}
		})
	}
}

func TestTCPLife(t *testing.T) {
	r := newRig(t)
	c := func(g seg) []byte { return fromClient4.tcp(t, 40000, 443, g) }
	s := func(g seg) []byte { return fromServer4.tcp(t, 443, 40000, g) }
	tuple := fromClient4.tuple(6, 40000, 443)
	state := func(want bpf.XDPFlowState, halfOpen int64) {
		t.Helper()
		if f := r.flow(tuple); f.State != want || r.Table().HalfOpen() != halfOpen {
			t.Fatalf("%v with %d half-open flows, want %v with %d", f.State, r.Table().HalfOpen(), want, halfOpen)
		}
	}
	r.want(lanIf, c(seg{flags: syn, seq: 1000, win: 1000}), Forward, reasonNone)
	state(synSent, 1)
	r.want(wanIf, s(seg{flags: syn | ack, seq: 5000, ack: 1001, win: 2000}), Forward, reasonNone)
	state(synReceived, 1)
	r.want(lanIf, c(seg{flags: ack, seq: 1001, ack: 5001, win: 1000}), Forward, reasonNone)
	state(established, 0)
	r.want(lanIf, c(seg{flags: rst, seq: 9000}), Drop, bpf.XDPReasonREASON_TCP_WINDOW)
	state(established, 0)
	r.want(lanIf, c(seg{flags: fin | ack, seq: 1001, ack: 5001, payload: 100}), Forward, reasonNone)
	state(finWait, 0)
	r.want(wanIf, s(seg{flags: fin | ack, seq: 5001, ack: 1102}), Forward, reasonNone)
	state(timeWait, 0)

	f := r.flow(tuple)
	if f.Packets != [2]uint64{3, 2} || f.Bytes != [2]uint64{44 + 40 + 140, 44 + 40} {
		t.Errorf("counts %v packets, %v bytes", f.Packets, f.Bytes)
	}

	// A denied SYN leaves the old flow; an allowed one takes its place, from whichever end it comes.
	r.Publish(10, always(Verdict(3, uint32(bpf.XDPActionACTION_DENY), 0)), 9)
	r.want(wanIf, s(seg{flags: syn, seq: 1}), Drop, bpf.XDPReasonREASON_DENY)
	state(timeWait, 0)
	r.Publish(10, always(allow(2)), 9)
	res := r.want(wanIf, s(seg{flags: syn, seq: 1}), Forward, reasonNone)
	state(synSent, 1)
	again := r.flow(tuple)
	if again.ID.Generation != f.ID.Generation+1 || again.ID.Slot != f.ID.Slot || again.Tuple != fromServer4.tuple(6, 443, 40000) || res.Rule != 2 {
		t.Errorf("in its place: %+v", again)
	}
	if got := r.Counters.Rules[ruleAll]; got.Packets != 5 || got.Bytes != 44+40+140+44+40 {
		t.Errorf("the old flow left its rule %+v", got)
	}
	if got := r.Counters.Rules[ruleReplies]; got.Packets != 2 || got.Bytes != 44+40 {
		t.Errorf("the old flow left the replies %+v", got)
	}
	want := bpf.XDPTableCounter{Created: 1, Reopened: 1}
	if r.Table().Counters != want || r.Table().Flows() != 1 {
		t.Errorf("%+v, %d flows", r.Table().Counters, r.Table().Flows())
	}
}

func TestReopenAfterRST(t *testing.T) {
	r := newRig(t)
	c := func(g seg) []byte { return fromClient6.tcp(t, 40000, 443, g) }
	r.want(lanIf, c(seg{flags: syn, seq: 1000}), Forward, reasonNone)
	r.want(wanIf, fromServer6.tcp(t, 443, 40000, seg{flags: rst | ack, ack: 1001}), Forward, reasonNone)
	if f := r.flow(fromClient6.tuple(6, 40000, 443)); f.State != closed {
		t.Fatalf("state %v", f.State)
	}
	r.want(lanIf, c(seg{flags: ack, seq: 1001}), Forward, reasonNone) // closed, but known
	r.want(lanIf, c(seg{flags: syn | urg, seq: 3000}), Forward, reasonNone)
	if f := r.flow(fromClient6.tuple(6, 40000, 443)); f.State != synSent || f.Packets != [2]uint64{1, 0} {
		t.Errorf("%+v", f)
	}
}

func TestUDPAndPing(t *testing.T) {
	for _, tc := range []struct {
		name           string
		there, back    []byte
		proto          uint8
		sport, dport   uint16
		client, server side
	}{
		{"UDP", fromClient4.udp(t, 1000, 53, 10), fromServer4.udp(t, 53, 1000, 20), 17, 1000, 53, fromClient4, fromServer4},
		{"UDP over IPv6", fromClient6.udp(t, 1000, 53, 10), fromServer6.udp(t, 53, 1000, 20), 17, 1000, 53, fromClient6, fromServer6},
		{"ping", fromClient4.echo(t, true, 9), fromServer4.echo(t, false, 9), 1, 9, 0, fromClient4, fromServer4},
		{"ping6", fromClient6.echo(t, true, 9), fromServer6.echo(t, false, 9), 58, 9, 0, fromClient6, fromServer6},
		{"GRE", fromClient4.raw(t, 47, 0, 0, 0, 0), fromServer4.raw(t, 47, 0, 0, 0, 0), 47, 0, 0, fromClient4, fromServer4},
		{"inline UDP", inline4.udp(t, 1000, 53, 10), inlineBack4.udp(t, 53, 1000, 20), 17, 1000, 53, inline4, inlineBack4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			for range 2 {
				r.want(tc.client.ifindex, tc.there, Forward, reasonNone)
				if f := r.flow(tc.client.tuple(tc.proto, tc.sport, tc.dport)); f.State != bpf.XDPFlowStateFLOW_NEW {
					t.Fatalf("state %v", f.State)
				}
			}
			r.want(tc.server.ifindex, tc.back, Forward, reasonNone)
			f := r.flow(tc.client.tuple(tc.proto, tc.sport, tc.dport))
			if f.State != bpf.XDPFlowStateFLOW_REPLIED || f.Packets != [2]uint64{2, 1} || r.Table().HalfOpen() != 0 ||
				f.Bytes[1] != uint64(len(tc.back)-14) {
				t.Errorf("%+v, %d half-open", f, r.Table().HalfOpen())
			}
			if strings.HasPrefix(tc.name, "ping") { // a request from the other end is another flow
				r.want(tc.server.ifindex, tc.server.echo(t, true, 9), Forward, reasonNone)
				if r.Table().Flows() != 2 {
					t.Errorf("%d flows", r.Table().Flows())
				}
			}
		})
	}
}

func TestWrongZone(t *testing.T) {
	r := newRig(t)
	r.want(lanIf, fromClient4.udp(t, 1000, 53, 10), Forward, reasonNone)
	dmz := side{dmzIf, server4, client4}
	r.want(dmzIf, dmz.udp(t, 53, 1000, 1), Drop, bpf.XDPReasonREASON_WRONG_ZONE)
	again := side{wanIf, client4, server4}
	r.want(wanIf, again.udp(t, 1000, 53, 1), Drop, bpf.XDPReasonREASON_WRONG_ZONE)
	if f := r.flow(fromClient4.tuple(17, 1000, 53)); f.State != bpf.XDPFlowStateFLOW_NEW || f.Packets != [2]uint64{1, 0} {
		t.Errorf("the flow took notice: %+v", f)
	}
}

// A packet that the kernel forwards counts on its flow like one that is sent.
func TestPassedPacketsCount(t *testing.T) {
	for _, tc := range []struct {
		hop     uint32
		packets uint64
	}{{hopPending, 1}, {hopSmall, 1}, {NexthopHost, 1}} {
		r := newRig(t)
		r.route = &Route{Nexthop: tc.hop}
		frame := fromClient4.udp(t, 1000, 53, 100)
		if res := r.want(lanIf, frame, Pass, reasonNone); res.Frame != nil {
			t.Error("a passed packet has a frame to send")
		}
		if f := r.flow(fromClient4.tuple(17, 1000, 53)); f.Packets[0] != tc.packets {
			t.Errorf("next hop %d: %d packets", tc.hop, f.Packets[0])
		}
	}
	r := newRig(t)
	r.want(lanIf, patch(fromClient4.udp(t, 1000, 53, 100), 22, 1), Pass, bpf.XDPReasonREASON_TTL_EXPIRED)
	if f := r.flow(fromClient4.tuple(17, 1000, 53)); f.Packets[0] != 0 {
		t.Error("an expired packet counts on its flow")
	}
}

func TestNewExecutorRefuses(t *testing.T) {
	table := scanTable(t)
	for name, cfg := range map[string]Config{
		"no table":      {Classifier: always(0), Fragments: 1},
		"no classifier": {Table: table, Fragments: 1},
		"no fragments":  {Table: table, Classifier: always(0)},
		"no peer":       {Table: table, Classifier: always(0), Fragments: 1, Ports: []bpf.XDPPort{{Flags: PortInline, Peer: 9}}},
	} {
		if _, err := NewExecutor(cfg); err == nil {
			t.Errorf("%s: made an executor", name)
		}
	}
}

func TestProcessNoAllocs(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Classifier = rules(func(k *bpf.XDPClassifyKey, audit func(uint32)) uint32 {
			audit(2)
			if k.Dport == 99 {
				return Verdict(3, uint32(bpf.XDPActionACTION_REJECT), 0)
			}
			return allow(1)
		})
		c.Ports[0].Flags |= PortFixChecksum
		c.MACs = map[[6]byte]uint16{[6]byte(hostMAC): 77}
	})
	ins := []struct {
		packetIn
		route Route
	}{
		{packetIn{lanIf, fromClient4.tcp(t, 40000, 443, seg{flags: syn, seq: 1000})}, Route{Nexthop: hopWAN}},
		{packetIn{wanIf, fromServer4.tcp(t, 443, 40000, seg{flags: rst | ack, ack: 1001})}, Route{Nexthop: hopLAN}},
		{packetIn{lanIf, fromClient6.udp(t, 1000, 53, 100)}, Route{Nexthop: hopTagged}},
		{packetIn{lanIf, fromClient4.udp(t, 1000, 99, 100)}, Route{Nexthop: hopWAN}},
		{packetIn{lanIf, tag(fromClient4.udp(t, 1000, 53, 100), 7)}, Route{Nexthop: hopWAN}},
		{packetIn{leftIf, inline4.echo(t, true, 9)}, Route{}},
		{packetIn{lanIf, fromClient4.udp(t, 1000, 53, 100)[:20]}, Route{}},
		{packetIn{lanIf, patch(fromClient4.udp(t, 1000, 53, 100), 20, 0x20)}, Route{Nexthop: hopWAN}},
	}
	var buf [512]byte
	now := r.now
	if n := testing.AllocsPerRun(200, func() {
		now += second / 10
		for i := range ins {
			f := buf[:copy(buf[:], ins[i].frame)]
			r.Process(now, ins[i].ifindex, f, ins[i].route, r.answer[:])
		}
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if r.Counters.Reasons[bpf.XDPReasonREASON_REJECT].Packets == 0 || r.Table().Counters.Created < 4 || r.Table().Counters.Reopened == 0 {
		t.Errorf("the packets took other paths: %+v", r.Table().Counters)
	}
}
