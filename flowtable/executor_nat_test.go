package flowtable

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

var (
	outer4    = net.IP{10, 2, 0, 1} // the gateway's on wan
	outer6    = net.ParseIP("fd10:2::1")
	neighbour = net.IP{10, 1, 0, 3}  // of client4
	inner4    = net.IP{10, 1, 0, 80} // servers on lan
	inner6    = net.ParseIP("fd10:1::80")
	public4   = net.IP{10, 2, 0, 80} // what they are known as on wan
	public6   = net.ParseIP("fd10:2::80")
)

const (
	natConflict     = bpf.XDPReasonREASON_NAT_CONFLICT
	natExhausted    = bpf.XDPReasonREASON_NAT_EXHAUSTED
	natUntranslated = bpf.XDPReasonREASON_NAT_UNTRANSLATED
)

// natRow is a nat rule: of which list, when it matches, what it does.
type natRow struct {
	source bool
	when   ACLEntry
	rule   bpf.XDPNatRule
	ports  [2]uint16 // that it chooses from; zero: it chooses none
	to     []bpf.XDPNatServer
}

func wordsOf(ip net.IP) (w [4]uint32) {
	if four := ip.To4(); four != nil {
		return [4]uint32{load32(four)}
	}
	return words((*packet.Addr)(ip))
}

func zones(ids ...uint8) (z Zones) {
	for _, id := range ids {
		z.Add(id)
	}
	return z
}

func only(ip net.IP) []AddrRange {
	a, _ := netip.AddrFromSlice(ip)
	if ip.To4() != nil {
		a = a.Unmap()
	}
	return []AddrRange{{a, a}}
}

func masquerade(family uint8, from, to uint8, first, last uint16) natRow {
	return natRow{source: true, when: ACLEntry{From: zones(from), To: zones(to), Family: family}, ports: [2]uint16{first, last},
		rule: bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_MASQUERADE), Family: family, Addresses: 1}}
}

func forward(from net.IP, proto uint8, port uint16, flags uint8, servers ...bpf.XDPNatServer) natRow {
	family := uint8(4)
	if from.To4() == nil {
		family = 6
	}
	row := natRow{when: ACLEntry{Dst: only(from), Family: family}, to: servers,
		rule: bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_DESTINATION), Family: family, Flags: flags, Addresses: 1}}
	if proto != 0 {
		row.when.Proto, row.when.DstPort = U8Range{proto, proto}, U16Range{port, port}
	}
	if flags&natHairpin != 0 {
		row.ports = [2]uint16{1024, 65535}
	}
	return row
}

func natServer(ip net.IP, port uint16) bpf.XDPNatServer {
	return bpf.XDPNatServer{Address: wordsOf(ip), Port: swap16(port)}
}

// buildNAT compiles rules, whose ids count from 1 in this order, as the compiler of policies does.
func buildNAT(t testing.TB, rows ...natRow) *NAT {
	t.Helper()
	n := &NAT{Rules: make([]bpf.XDPNatRule, 1)}
	var destinations, sources []ACLEntry
	elements := uint32(0)
	for i, row := range rows {
		e, r := row.when, row.rule
		e.Verdict = Verdict(uint32(i+1), 0, 0)
		if e.Proto == (U8Range{}) {
			e.Proto.Last = 255
		}
		for _, ports := range []*U16Range{&e.SrcPort, &e.DstPort} {
			if *ports == (U16Range{}) {
				ports.Last = 65535
			}
		}
		if row.source {
			sources = append(sources, e)
		} else {
			destinations = append(destinations, e)
		}
		r.Ports = natNoPorts
		if row.ports != [2]uint16{} {
			r.Ports = elements
			count := r.Addresses * natClasses * natSlices
			n.Ports = append(n.Ports, NATPorts{Elements: count, First: row.ports[0], Last: row.ports[1]})
			elements += count
		}
		r.Bucket = uint32(len(n.Buckets))
		for j, s := range row.to {
			n.Buckets = append(n.Buckets, uint16(len(n.Servers)))
			n.Servers = append(n.Servers, s)
			r.Buckets = uint32(j + 1)
		}
		n.Rules = append(n.Rules, r)
	}
	var err error
	if n.Destinations, err = CompileACL(destinations); err != nil {
		t.Fatal(err)
	}
	if n.Sources, err = CompileACL(sources); err != nil {
		t.Fatal(err)
	}
	return n
}

// natRig is a rig that translates.
func natRig(t testing.TB, rows ...natRow) *rig {
	t.Helper()
	n := buildNAT(t, rows...)
	return newRig(t, func(c *Config) {
		c.NAT = n
		address := func(ip4, ip6 net.IP) bpf.XDPNatAddress {
			return bpf.XDPNatAddress{Ip4: load32(ip4), Ip6: wordsOf(ip6)}
		}
		c.NATAddresses = map[bpf.XDPNatDevice]bpf.XDPNatAddress{
			{Port: 1}: address(gateway4, gateway6), {Port: 2}: address(outer4, outer6),
			{Port: 2, Vlan: swap16(100)}: address(net.IP{10, 2, 100, 1}, make(net.IP, 16)),
		}
		c.Ports[1].Ip4, c.Ports[1].Ip6 = load32(outer4), wordsOf(outer6)
	})
}

// right makes all checksums of a frame right.
func right(frame []byte) []byte {
	f := append([]byte(nil), frame...)
	recompute(f[14:], true)
	return f
}

// end is a source or destination, with a port or identifier.
type end struct {
	ip   net.IP
	port uint16
}

func between(family uint8, src, dst end) *Tuple {
	t := Tuple{Family: family, SrcPort: src.port, DstPort: dst.port}
	if family == 4 {
		copy(t.Src[:], src.ip.To4())
		copy(t.Dst[:], dst.ip.To4())
	} else {
		copy(t.Src[:], src.ip)
		copy(t.Dst[:], dst.ip)
	}
	return &t
}

// passes sends a frame and checks that it leaves as a naive rewriting says, by that port.
func (r *rig) passes(ifindex uint32, frame []byte, port uint8, src, dst end) Result {
	r.t.Helper()
	frame = right(frame)
	res := r.want(ifindex, frame, Forward, reasonNone)
	want := append([]byte(nil), frame...)
	if want[14]>>4 == 4 {
		want[22]--
	} else {
		want[21]--
	}
	out := between(want[14]>>4, src, dst)
	rewriteNaively(want[14:], out, XlatSource|XlatDestination, takeApart(want[14:]).proto == 17 && want[40]|want[41] == 0)
	if res.Port != port || string(res.Frame[14:]) != string(want[14:]) {
		r.t.Fatalf("by port %d:\n% x\nleft as\n% x, want by %d\n% x", res.Port, frame[14:], res.Frame[14:], port, want[14:])
	}
	return res
}

// A client behind a masqueraded port, and what comes back to it: every protocol, both families.
func TestMasquerade(t *testing.T) {
	back4, back6 := side{wanIf, server4, outer4}, side{wanIf, server6, outer6}
	noSum := func(f []byte) []byte { return patch(f, 40, 0, 0) }
	for _, tc := range []struct {
		name         string
		there, back  []byte
		sport, dport uint16 // of the way there
		outer        net.IP
	}{
		{"TCP", fromClient4.tcp(t, 40000, 443, seg{flags: syn, seq: 1000}), back4.tcp(t, 443, 40000, seg{flags: syn | ack, seq: 1, ack: 1001}), 40000, 443, outer4},
		{"UDP", fromClient4.udp(t, 1030, 53, 11), back4.udp(t, 53, 1030, 20), 1030, 53, outer4},
		{"UDP without checksum", noSum(fromClient4.udp(t, 1030, 53, 11)), noSum(back4.udp(t, 53, 1030, 20)), 1030, 53, outer4},
		{"ping", fromClient4.echo(t, true, 2000), back4.echo(t, false, 2000), 2000, 0, outer4},
		{"GRE", fromClient4.raw(t, packet.ProtoGRE, 0, 0, 8, 0), back4.raw(t, packet.ProtoGRE, 0, 0, 8, 0), 0, 0, outer4},
		{"UDP-Lite", fromClient4.raw(t, packet.ProtoUDPLite, 4, 0, 4, 1, 0, 0, 0, 0, 9), back4.raw(t, packet.ProtoUDPLite, 4, 0, 4, 1, 0, 0, 0, 0, 9), 0, 0, outer4},
		{"TCP, IPv6", fromClient6.tcp(t, 40000, 443, seg{flags: syn, seq: 1000}), back6.tcp(t, 443, 40000, seg{flags: syn | ack, seq: 1, ack: 1001}), 40000, 443, outer6},
		{"UDP, IPv6", fromClient6.udp(t, 1030, 53, 11), back6.udp(t, 53, 1030, 20), 1030, 53, outer6},
		{"ping, IPv6", fromClient6.echo(t, true, 2000), back6.echo(t, false, 2000), 2000, 0, outer6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), masquerade(6, zoneLAN, zoneWAN, 1024, 65535))
			client, server, id := client4, server4, uint32(1)
			if tc.outer.To4() == nil {
				client, server, id = client6, server6, 2
			}
			for range 2 {
				res := r.passes(lanIf, tc.there, 2, end{tc.outer, tc.sport}, end{server, tc.dport})
				if res.Xlat != XlatSource {
					t.Errorf("what changes: %#x", res.Xlat)
				}
			}
			if reply := r.passes(wanIf, tc.back, 1, end{server, tc.dport}, end{client, tc.sport}); reply.Xlat != XlatDestination|XlatReply {
				t.Errorf("what of a reply changes: %#x", reply.Xlat)
			}
			flows := 0
			for f := range r.Table().All() {
				flows++
				if f.NAT == nil || f.Tuple.Source().String() != client.String() || f.NAT.Outer.Source().String() != tc.outer.String() ||
					f.NAT.Outer.SrcPort != tc.sport || f.NAT.SourceRule != id || f.NAT.DestinationRule != 0 || f.Packets != [2]uint64{2, 1} {
					t.Errorf("flow %+v", f)
				}
			}
			if flows != 1 || r.Counters.NAT[id] != (bpf.XDPNatCounter{Flows: 1}) {
				t.Errorf("%d flows, counted %+v", flows, r.Counters.NAT[id])
			}
		})
	}
}

// Two clients with the same port to the same server are two ends on the outside, and what comes back is told
// apart.
func TestMasqueradeOfEqualPorts(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	r.passes(lanIf, fromClient4.udp(t, 5000, 53, 10), 2, end{outer4, 5000}, end{server4, 53})
	res := r.want(lanIf, right(side{lanIf, neighbour, server4}.udp(t, 5000, 53, 10)), Forward, reasonNone)
	port := res.Outer.SrcPort
	if port == 5000 || port < 1024 || res.Xlat != XlatSource || res.SourceRule != 1 {
		t.Fatalf("the second one leaves as %+v", res.Outer)
	}
	back := side{wanIf, server4, outer4}
	r.passes(wanIf, back.udp(t, 53, 5000, 9), 1, end{server4, 53}, end{client4, 5000})
	r.passes(wanIf, back.udp(t, 53, port, 9), 1, end{server4, 53}, end{neighbour, 5000})
	// Another port of the outside is nobody's: it is the gateway's own.
	r.want(wanIf, right(back.udp(t, 53, port+1, 9)), Pass, reasonNone)
}

func TestForwarding(t *testing.T) {
	web := func(flags uint8) []natRow {
		return []natRow{
			forward(public4, 6, 80, flags, natServer(inner4, 8080)),
			forward(outer4, 17, 53, 0, natServer(inner4, 0)),
			forward(public6, 0, 0, 0, natServer(inner6, 8080)),
		}
	}
	in := side{wanIf, server4, public4}
	t.Run("port", func(t *testing.T) {
		r := natRig(t, web(0)...)
		res := r.passes(wanIf, in.tcp(t, 3000, 80, seg{flags: syn, seq: 5}), 1, end{server4, 3000}, end{inner4, 8080})
		if res.Xlat != XlatDestination || res.DestinationRule != 1 || res.SourceRule != 0 {
			t.Errorf("%+v", res)
		}
		r.passes(lanIf, side{lanIf, inner4, server4}.tcp(t, 8080, 3000, seg{flags: syn | ack, seq: 9, ack: 6}), 2, end{public4, 80}, end{server4, 3000})
		if f := r.flow(in.tuple(6, 3000, 80)); f.NAT == nil || f.NAT.Outer.DstPort != 8080 || f.NAT.DestinationRule != 1 || f.State != bpf.XDPFlowStateFLOW_SYN_RECEIVED {
			t.Errorf("flow %+v", f)
		}
		r.want(wanIf, right(in.tcp(t, 3000, 81, seg{flags: syn, seq: 5})), Forward, reasonNone) // not the rule's: as it is
	})
	t.Run("the gateway's own address", func(t *testing.T) {
		r := natRig(t, web(0)...)
		to := side{wanIf, server4, outer4}
		r.passes(wanIf, to.udp(t, 3000, 53, 5), 1, end{server4, 3000}, end{inner4, 53})
		r.want(wanIf, right(to.udp(t, 3000, 54, 5)), Pass, reasonNone)
	})
	t.Run("only what is to the gateway", func(t *testing.T) {
		row := forward(outer4, 17, 53, 0, natServer(inner4, 0))
		row.when.Dst, row.when.To = nil, zones(ZoneHost)
		r := natRig(t, row)
		r.passes(wanIf, side{wanIf, server4, outer4}.udp(t, 3000, 53, 5), 1, end{server4, 3000}, end{inner4, 53})
		r.passes(wanIf, side{wanIf, server4, client4}.udp(t, 3000, 53, 5), 1, end{server4, 3000}, end{client4, 53})
	})
	t.Run("IPv6, ICMP too", func(t *testing.T) {
		r := natRig(t, web(0)...)
		r.passes(wanIf, side{wanIf, server6, public6}.echo(t, true, 99), 1, end{server6, 99}, end{inner6, 0})
		r.passes(lanIf, side{lanIf, inner6, server6}.echo(t, false, 99), 2, end{public6, 0}, end{server6, 99})
		r.passes(wanIf, side{wanIf, server6, public6}.udp(t, 1, 2, 3), 1, end{server6, 1}, end{inner6, 8080})
	})
	t.Run("hairpin", func(t *testing.T) {
		r := natRig(t, web(natHairpin)...)
		inside := side{lanIf, client4, public4}
		res := r.passes(lanIf, inside.tcp(t, 3000, 80, seg{flags: syn, seq: 5}), 1, end{gateway4, 3000}, end{inner4, 8080})
		if res.SourceRule != 1 || res.DestinationRule != 1 || res.Xlat != XlatSource|XlatDestination {
			t.Errorf("%+v", res)
		}
		r.passes(lanIf, side{lanIf, inner4, gateway4}.tcp(t, 8080, 3000, seg{flags: syn | ack, seq: 9, ack: 6}), 1, end{public4, 80}, end{client4, 3000})
		if r.Counters.NAT[1] != (bpf.XDPNatCounter{Flows: 1}) {
			t.Errorf("counted %+v", r.Counters.NAT[1])
		}
		// From elsewhere the source is left alone.
		r.passes(wanIf, in.tcp(t, 3000, 80, seg{flags: syn, seq: 5}), 1, end{server4, 3000}, end{inner4, 8080})
	})
	t.Run("of a server to itself", func(t *testing.T) {
		r := natRig(t, web(0)...)
		r.want(lanIf, right(side{lanIf, inner4, public4}.tcp(t, 3000, 80, seg{flags: syn, seq: 5})), Drop, natConflict)
		if r.Table().Flows() != 0 || r.Counters.NAT[1].Conflicts != 1 {
			t.Errorf("%d entries, counted %+v", r.Table().Flows(), r.Counters.NAT[1])
		}
	})
	t.Run("to the gateway", func(t *testing.T) {
		r := natRig(t, forward(public4, 0, 0, 0, natServer(gateway4, 0)))
		if res := r.want(wanIf, right(in.udp(t, 1, 2, 3)), Drop, bpf.XDPReasonREASON_NAT_TO_HOST); res.Rule != 0 {
			t.Errorf("rule %d", res.Rule)
		}
	})
	t.Run("not what is to a group", func(t *testing.T) {
		row := forward(outer4, 17, 5353, 0, natServer(inner4, 0))
		row.when.Dst = nil
		r := natRig(t, row)
		r.want(lanIf, right(side{lanIf, client4, net.IP{224, 0, 0, 251}}.udp(t, 5353, 5353, 9)), Pass, reasonNone)
	})
	t.Run("to nobody", func(t *testing.T) {
		r := natRig(t, forward(public4, 0, 0, 0))
		r.passes(wanIf, side{wanIf, server4, client4}.udp(t, 1, 2, 3), 1, end{server4, 1}, end{client4, 2})
	})
}

// Rules judge what the packet says, not what it becomes.
func TestRulesSeeOriginals(t *testing.T) {
	var asked []bpf.XDPClassifyKey
	r := natRig(t, forward(public4, 6, 80, 0, natServer(inner4, 8080)), masquerade(4, zoneWAN, zoneLAN, 20000, 20100))
	r.Publish(10, rules(func(k *bpf.XDPClassifyKey, _ func(uint32)) uint32 { asked = append(asked, *k); return allow(1) }), 9)
	syn1 := side{wanIf, server4, public4}.tcp(t, 3000, 80, seg{flags: syn, seq: 5})
	res := r.want(wanIf, right(syn1), Forward, reasonNone)
	r.Publish(11, r.cfg.Classifier, 9)
	r.want(lanIf, right(side{lanIf, inner4, gateway4}.tcp(t, 8080, res.Outer.SrcPort, seg{flags: syn | ack, seq: 9, ack: 6})), Forward, reasonNone)
	if len(asked) != 2 || asked[0] != asked[1] {
		t.Fatalf("asked %+v", asked)
	}
	if k := asked[0]; k.SrcLo != uint64(binary.BigEndian.Uint32(server4)) || k.DstLo != uint64(binary.BigEndian.Uint32(public4)) ||
		k.Sport != 3000 || k.Dport != 80 || k.From != zoneWAN || k.To != zoneLAN {
		t.Errorf("asked about %+v", k)
	}
}

func TestKeep(t *testing.T) {
	keep := natRow{source: true, when: ACLEntry{Dst: only(server4)}, rule: bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_KEEP), Family: 4}}
	r := natRig(t, keep, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	res := r.passes(lanIf, fromClient4.udp(t, 5000, 53, 10), 2, end{client4, 5000}, end{server4, 53})
	if res.Xlat != 0 || res.SourceRule != 1 || r.Table().Flows() != 1 {
		t.Errorf("%+v, %d entries", res, r.Table().Flows())
	}
	other := net.IP{10, 2, 0, 9}
	r.passes(lanIf, side{lanIf, client4, other}.udp(t, 5000, 53, 10), 2, end{outer4, 5000}, end{other, 53})
}

// A port without an address of the family masquerades nothing, and says so.
func TestNoAddress(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), masquerade(6, zoneLAN, zoneWAN, 1024, 65535))
	r.route = &Route{Nexthop: hopTagged}
	if res := r.want(lanIf, right(fromClient4.udp(t, 5000, 53, 10)), Forward, reasonNone); res.Outer.Source().String() != "10.2.100.1" {
		t.Errorf("by a VLAN as %v", res.Outer.Source())
	}
	r.want(lanIf, right(fromClient6.udp(t, 5000, 53, 10)), Drop, bpf.XDPReasonREASON_NAT_NO_ADDRESS)
	r.cfg.NATAddresses = nil
	res := r.want(lanIf, right(fromClient4.udp(t, 5001, 53, 10)), Drop, bpf.XDPReasonREASON_NAT_NO_ADDRESS)
	if res.Rule != ruleAll || res.SourceRule != 1 || r.Table().Flows() != 2 {
		t.Errorf("%+v, %d entries", res, r.Table().Flows())
	}
}

// What bears the wrong one of a flow's two tuples is refused: the outer one from inside, the original one from
// outside.
func TestWrongTuple(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	r.passes(lanIf, fromClient4.udp(t, 5000, 53, 10), 2, end{outer4, 5000}, end{server4, 53})
	before := r.flow(fromClient4.tuple(17, 5000, 53))
	for _, tc := range []struct {
		name   string
		side   side
		s, d   uint16
		reason bpf.XDPReason
	}{
		{"outer, from the opener's side", side{lanIf, outer4, server4}, 5000, 53, natConflict},
		{"original, from the other end", fromServer4, 53, 5000, natUntranslated},
	} {
		if res := r.want(tc.side.ifindex, right(tc.side.udp(t, tc.s, tc.d, 9)), Drop, tc.reason); res.Leg != 0 || res.Rule != 0 || res.Xlat != 0 {
			t.Errorf("%s: %+v", tc.name, res)
		}
	}
	if after := r.flow(fromClient4.tuple(17, 5000, 53)); after.Packets != before.Packets || after.Seen != before.Seen {
		t.Errorf("refused packets count: %+v", after)
	}
	// Its tuple is an alias's, so it cannot be a flow of its own.
	r.want(wanIf, right(side{wanIf, server4, outer4}.udp(t, 53, 5000, 9)), Forward, reasonNone)
}

// Translation outlives the rules that made it, and ends when the policy refuses the flow.
func TestTranslationOutlivesItsPolicy(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	there, back := fromClient4.udp(t, 5000, 53, 10), side{wanIf, server4, outer4}.udp(t, 53, 5000, 10)
	r.passes(lanIf, there, 2, end{outer4, 5000}, end{server4, 53})
	r.SetNAT(nil)
	r.Publish(11, always(allow(2)), 9)
	r.passes(lanIf, there, 2, end{outer4, 5000}, end{server4, 53})
	r.passes(wanIf, back, 1, end{server4, 53}, end{client4, 5000})
	if f := r.flow(fromClient4.tuple(17, 5000, 53)); f.Rule != 2 || f.Epoch != 11 {
		t.Errorf("flow %+v", f)
	}
	r.passes(lanIf, fromClient4.udp(t, 5001, 53, 10), 2, end{client4, 5001}, end{server4, 53}) // a new one is not translated
	r.Publish(12, always(deny(3)), 9)
	r.want(wanIf, right(back), Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
	r.want(lanIf, right(there), Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
	// With the rules back its port is known to be taken.
	r.SetNAT(buildNAT(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535)))
	r.Publish(13, always(allow(1)), 9)
	if res := r.want(lanIf, right(side{lanIf, neighbour, server4}.udp(t, 5000, 53, 10)), Forward, reasonNone); res.Outer.SrcPort == 5000 {
		t.Error("a port was given twice")
	}
	r.passes(wanIf, back, 1, end{server4, 53}, end{client4, 5000})
}

// A connection that begins anew gives up the port of the old one; a SYN that comes back by the old tuple does not.
func TestReopenedTranslation(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	open := right(fromClient4.tcp(t, 5000, 443, seg{flags: syn, seq: 1000}))
	back := side{wanIf, server4, outer4}
	r.passes(lanIf, open, 2, end{outer4, 5000}, end{server4, 443})
	r.want(wanIf, right(back.tcp(t, 443, 5000, seg{flags: rst | ack, ack: 1001})), Forward, reasonNone)
	r.want(wanIf, right(back.tcp(t, 443, 5000, seg{flags: syn, seq: 5})), Drop, natConflict)
	res := r.want(lanIf, open, Forward, reasonNone)
	if res.Outer.SrcPort == 5000 || r.Table().Flows() != 2 || r.Table().State().Aliases != 1 || r.Table().Counters.Reopened != 1 {
		t.Fatalf("again as %+v, %d entries, %d aliases", res.Outer, r.Table().Flows(), r.Table().State().Aliases)
	}
	r.want(wanIf, right(back.tcp(t, 443, res.Outer.SrcPort, seg{flags: syn | ack, seq: 5, ack: 1001})), Forward, reasonNone)
	// The port of the first time is free.
	r.passes(lanIf, side{lanIf, neighbour, server4}.tcp(t, 5000, 443, seg{flags: syn, seq: 9}), 2, end{outer4, 5000}, end{server4, 443})
}

func TestTranslationNoAllocs(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), masquerade(6, zoneLAN, zoneWAN, 1024, 65535),
		forward(public4, 6, 80, natHairpin, natServer(inner4, 8080), natServer(neighbour, 8080)))
	udp := right(fromClient4.udp(t, 5000, 53, 100))
	back := side{wanIf, server4, outer4}
	ins := []struct {
		packetIn
		route Route
	}{
		{packetIn{lanIf, udp}, Route{Nexthop: hopWAN}},
		{packetIn{wanIf, right(back.udp(t, 53, 5000, 100))}, Route{Nexthop: hopLAN}},
		{packetIn{lanIf, right(side{lanIf, neighbour, server4}.udp(t, 5000, 53, 100))}, Route{Nexthop: hopWAN}},
		{packetIn{lanIf, cutUp(t, udp, 16)[0]}, Route{Nexthop: hopWAN}},
		{packetIn{lanIf, cutUp(t, udp, 16)[1]}, Route{Nexthop: hopWAN}},
		{packetIn{wanIf, right(side{wanIf, net.IP{10, 2, 9, 9}, outer4}.icmpError(t, 3, 1, right(side{wanIf, outer4, server4}.udp(t, 5000, 53, 9))))}, Route{Nexthop: hopLAN}},
		{packetIn{lanIf, patch(udp, 22, 1)}, Route{Nexthop: hopWAN}},
		{packetIn{lanIf, right(fromClient6.echo(t, true, 9))}, Route{Nexthop: hopTagged}},
		{packetIn{lanIf, right(side{lanIf, client4, public4}.tcp(t, 3000, 80, seg{flags: syn, seq: 7}))}, Route{Nexthop: hopLAN}},
		{packetIn{lanIf, right(side{lanIf, client4, public4}.tcp(t, 3000, 80, seg{flags: rst, seq: 8}))}, Route{Nexthop: hopLAN}},
		{packetIn{wanIf, right(back.udp(t, 9, 9, 9))}, Route{Nexthop: hopPending}},
	}
	var buf [512]byte
	now := r.now
	if n := testing.AllocsPerRun(200, func() {
		now += second / 10
		for i := range ins {
			f := buf[:copy(buf[:], ins[i].frame)]
			r.Routed(now, ins[i].ifindex, f, false)
			r.Process(now, ins[i].ifindex, f, ins[i].route, r.answer[:])
		}
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if c := r.Counters.NAT; c[1].Flows < 2 || c[2].Flows == 0 && r.Counters.Reasons[bpf.XDPReasonREASON_NAT_NO_ADDRESS].Packets == 0 || c[3].Flows < 2 ||
		r.Counters.Rules[ruleICMPErrors].Packets == 0 || r.Counters.Reasons[bpf.XDPReasonREASON_TTL_EXPIRED].Packets == 0 {
		t.Errorf("the packets took other paths: %+v, %+v", c, r.Counters.Reasons)
	}
}

// A table without a place refuses the flow, and nothing of its translation stays.
func TestTranslationInAFullTable(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	r.Table().cfg.FlowsMax, r.Table().cfg.HalfOpenMax = 3, 3
	r.passes(lanIf, fromClient4.udp(t, 5000, 53, 10), 2, end{outer4, 5000}, end{server4, 53})
	r.want(wanIf, right(side{wanIf, server4, outer4}.udp(t, 53, 5000, 9)), Forward, reasonNone) // no longer half-open
	full := bpf.XDPReasonREASON_FLOW_TABLE_FULL
	r.want(lanIf, right(fromClient4.udp(t, 5001, 53, 10)), Drop, full) // room for the alias alone
	if n, a := r.Table().Flows(), r.Table().State().Aliases; n != 2 || a != 1 {
		t.Fatalf("%d entries, %d aliases", n, a)
	}
	r.Table().cfg.FlowsMax = 2
	r.want(lanIf, right(fromClient4.udp(t, 5001, 53, 10)), Drop, full)
	r.Table().cfg.FlowsMax = 4
	r.passes(lanIf, fromClient4.udp(t, 5001, 53, 10), 2, end{outer4, 5001}, end{server4, 53})
}
