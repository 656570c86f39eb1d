package flowtable

import (
	"net"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

var (
	stranger4 = net.IP{10, 2, 9, 9}
	stranger6 = net.ParseIP("fd10:2::99")
)

// mapping is a masquerade with mappings.
func mapping(family uint8, flags uint8) natRow {
	row := masquerade(family, zoneLAN, zoneWAN, 1024, 65535)
	row.rule.Flags = natMapping | flags
	return row
}

// rightFrom builds a datagram between two ends, seen by a port.
func rightFrom(t *testing.T, ifindex uint32, src net.IP, sport uint16, dst net.IP, dport uint16) []byte {
	t.Helper()
	return right(side{ifindex, src, dst}.udp(t, sport, dport, 8))
}

// An end inside leaves as one port whoever the other end is, and nobody else does, by each protocol for itself.
func TestMapping(t *testing.T) {
	r := natRig(t, mapping(4, 0), mapping(6, 0))
	for _, f := range []struct{ client, neighbour, server, stranger, outer net.IP }{
		{client4, neighbour, server4, stranger4, outer4}, {client6, net.ParseIP("fd10:1::3"), server6, stranger6, outer6},
	} {
		for _, dst := range []end{{f.server, 53}, {f.server, 54}, {f.stranger, 53}} {
			r.passes(lanIf, rightFrom(t, lanIf, f.client, 1030, dst.ip, dst.port), 2, end{f.outer, 1030}, dst)
			r.passes(wanIf, rightFrom(t, wanIf, dst.ip, dst.port, f.outer, 1030), 1, dst, end{f.client, 1030})
		}
		first := r.send(lanIf, rightFrom(t, lanIf, f.neighbour, 1030, f.server, 53)).Outer.SrcPort
		if again := r.send(lanIf, rightFrom(t, lanIf, f.neighbour, 1030, f.stranger, 7)).Outer.SrcPort; first == 1030 || first < 1024 || again != first {
			t.Errorf("another one with port 1030 leaves as %d and %d", first, again)
		}
		r.passes(lanIf, right(side{lanIf, f.client, f.server}.tcp(t, 1030, 443, seg{flags: syn, seq: 1})), 2, end{f.outer, 1030}, end{f.server, 443})
	}
	for _, dst := range []net.IP{server4, stranger4} {
		r.passes(lanIf, right(side{lanIf, client4, dst}.echo(t, true, 1030)), 2, end{outer4, 1030}, end{dst, 0})
	}
	mappings := 0
	for f := range r.Table().All() {
		if f.State == bpf.XDPFlowStateFLOW_MAPPING {
			mappings++
			if f.NAT == nil || f.NAT.SourceRule == 0 || f.NAT.Outer.Destination().IsValid() && !f.NAT.Outer.Destination().IsUnspecified() {
				t.Errorf("mapping %+v, %+v", f.Tuple, f.NAT)
			}
		}
	}
	if mappings != 7 {
		t.Errorf("%d mappings", mappings)
	}
}

// Who may send to a mapping is what filtering says; the rules judge it by the end inside, as long as it lives.
func TestFiltering(t *testing.T) {
	to := uint16(0)
	inside := rules(func(k *bpf.XDPClassifyKey, _ func(uint32)) uint32 {
		if k.From == zoneWAN && (k.To != zoneLAN || k.Dport != to || k.DstLo == uint64(outer4[3])|10<<24|2<<16) {
			return Verdict(0, 0, 0)
		}
		return allow(ruleAll)
	})
	for _, tc := range []struct {
		name                string
		flags               uint8
		stranger, otherPort bool
	}{
		{"nobody else", 0, false, false}, {"hosts", natFilterAddress, false, true}, {"everybody", natFilterAny, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to = 1030
			r, epoch := natRig(t, mapping(4, tc.flags)), uint32(10)
			publish := func() {
				epoch++
				r.Publish(epoch, inside, 9)
			}
			publish()
			r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, server4, 53), 2, end{outer4, 1030}, end{server4, 53})
			for _, row := range []struct {
				from end
				lets bool
			}{{end{stranger4, 53}, tc.stranger}, {end{server4, 99}, tc.otherPort}} {
				frame := rightFrom(t, wanIf, row.from.ip, row.from.port, outer4, 1030)
				if !row.lets {
					r.want(wanIf, frame, Drop, bpf.XDPReasonREASON_NO_RULE_MATCHED)
					continue
				}
				res := r.passes(wanIf, frame, 1, row.from, end{client4, 1030})
				if res.DestinationRule != 1 || res.SourceRule != 0 {
					t.Errorf("rules %d and %d", res.DestinationRule, res.SourceRule)
				}
				r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, row.from.ip, row.from.port), 2, end{outer4, 1030}, row.from)
				// Another policy that allows the end inside lets it go on, one that does not ends it: both ways.
				publish()
				r.passes(wanIf, frame, 1, row.from, end{client4, 1030})
				to = 9
				publish()
				r.want(lanIf, rightFrom(t, lanIf, client4, 1030, row.from.ip, row.from.port), Drop, bpf.XDPReasonREASON_POLICY_REVOKED)
				to = 1030
				publish()
				r.passes(wanIf, frame, 1, row.from, end{client4, 1030})
			}
			// What no mapping is there for, and what the rules do not allow of what it admits.
			r.want(wanIf, rightFrom(t, wanIf, stranger4, 53, outer4, 1031), Drop, bpf.XDPReasonREASON_NO_RULE_MATCHED)
			to = 9
			publish()
			r.want(wanIf, rightFrom(t, wanIf, stranger4, 5, outer4, 1030), Drop, bpf.XDPReasonREASON_NO_RULE_MATCHED)
		})
	}
}

// A connection that both ends open at once is one.
func TestFilteringSimultaneousOpen(t *testing.T) {
	r := natRig(t, mapping(4, natFilterAny))
	out, in := side{lanIf, client4, stranger4}, side{wanIf, stranger4, outer4}
	r.passes(lanIf, right(side{lanIf, client4, server4}.tcp(t, 5000, 443, seg{flags: syn, seq: 1})), 2, end{outer4, 5000}, end{server4, 443})
	r.passes(wanIf, right(in.tcp(t, 6000, 5000, seg{flags: syn, seq: 100})), 1, end{stranger4, 6000}, end{client4, 5000})
	r.passes(lanIf, right(out.tcp(t, 5000, 6000, seg{flags: syn, seq: 200})), 2, end{outer4, 5000}, end{stranger4, 6000})
	r.passes(wanIf, right(in.tcp(t, 6000, 5000, seg{flags: syn | ack, seq: 100, ack: 201})), 1, end{stranger4, 6000}, end{client4, 5000})
	r.passes(lanIf, right(out.tcp(t, 5000, 6000, seg{flags: syn | ack, seq: 200, ack: 101})), 2, end{outer4, 5000}, end{stranger4, 6000})
	r.passes(lanIf, right(out.tcp(t, 5000, 6000, seg{flags: ack, seq: 201, ack: 101})), 2, end{outer4, 5000}, end{stranger4, 6000})
	f := r.flow(in.tuple(6, 6000, 5000))
	if f.State != bpf.XDPFlowStateFLOW_ESTABLISHED {
		t.Errorf("the connection is %v", f.State)
	}
}

// Two inside meet by what they are outside.
func TestMappingHairpin(t *testing.T) {
	r := natRig(t, mapping(4, natFilterAny))
	for _, ip := range []net.IP{client4, neighbour} {
		r.send(lanIf, rightFrom(t, lanIf, ip, 1030, server4, 53))
	}
	peer := r.send(lanIf, rightFrom(t, lanIf, neighbour, 1030, server4, 53)).Outer.SrcPort
	r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, outer4, peer), 1, end{outer4, 1030}, end{neighbour, 1030})
	r.passes(lanIf, rightFrom(t, lanIf, neighbour, 1030, outer4, 1030), 1, end{outer4, peer}, end{client4, 1030})
}

// A mapping, and whom its end has sent to, lives while a flow does and for its own time-out after the end's last
// packet, and its port no longer.
func TestMappingLives(t *testing.T) {
	const flow, mapped = 60, 100 // s
	var timeouts Timeouts
	for class := range timeouts {
		for _, s := range []bpf.XDPFlowState{bpf.XDPFlowStateFLOW_NEW, bpf.XDPFlowStateFLOW_REPLIED} {
			timeouts[class][s] = Ticks(flow * 1e9)
		}
		timeouts[class][bpf.XDPFlowStateFLOW_MAPPING] = Ticks(mapped * 1e9)
	}
	for _, in := range []bool{false, true} { // who sends
		r := natRig(t, mapping(4, natFilterAddress))
		table := r.Table()
		there, back := rightFrom(t, lanIf, client4, 1030, server4, 53), rightFrom(t, wanIf, server4, 54, outer4, 1030)
		r.passes(lanIf, there, 2, end{outer4, 1030}, end{server4, 53})
		scan := func() { table.Scan(Tick(r.now), &timeouts, func() {}, func(*Flow) {}) }
		for i := range 600 {
			if i%30 == 0 {
				if in {
					r.passes(wanIf, back, 1, end{server4, 54}, end{client4, 1030})
				} else {
					r.passes(lanIf, there, 2, end{outer4, 1030}, end{server4, 53})
				}
			}
			r.now += second
			scan()
		}
		last := r.now - 30*second
		for table.Flows() > 0 && r.now < last+1000*second {
			r.now += second
			scan()
		}
		// With the last of the flows, at the latest, or after the last packet of the end inside.
		if idle := (r.now - last) / second; idle < mapped || idle > flow+mapped+3 {
			t.Errorf("in %v: it ended %d s after the last packet", in, idle)
		}
		if s := table.State(); s.Aliases != 0 || s.Flows != 0 {
			t.Errorf("in %v: left are %+v", in, s)
		}
		for i := range table.natPorts {
			if table.natPorts[i].Taken[1030>>6]&(1<<(1030&63)) != 0 {
				t.Errorf("in %v: the port is taken in element %d", in, i)
			}
		}
	}
}

// Killed, a mapping ends, and what the flows have stays theirs; one that is made anew gets another port then.
func TestMappingKilled(t *testing.T) {
	r := natRig(t, mapping(4, 0))
	there := rightFrom(t, lanIf, client4, 1030, server4, 53)
	r.passes(lanIf, there, 2, end{outer4, 1030}, end{server4, 53})
	n := r.Table().Kill(func(f *Flow) bool { return f.State == bpf.XDPFlowStateFLOW_MAPPING }, func() {}, func(*Flow) {})
	if s := r.Table().State(); n != 1 || s.Aliases != 1 || s.Flows != 2 {
		t.Errorf("%d killed, left are %+v", n, s)
	}
	r.passes(lanIf, there, 2, end{outer4, 1030}, end{server4, 53})
	r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, stranger4, 53), 2, end{outer4, 1030}, end{stranger4, 53})
}

// A policy that begins to map keeps the ports of flows from those that begin.
func TestMappingBegins(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	for _, dst := range []end{{server4, 53}, {stranger4, 99}} {
		r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, dst.ip, dst.port), 2, end{outer4, 1030}, dst)
	}
	r.SetNAT(buildNAT(t, mapping(4, 0)))
	r.Publish(11, always(allow(ruleAll)), 9)
	r.passes(lanIf, rightFrom(t, lanIf, client4, 1030, server4, 53), 2, end{outer4, 1030}, end{server4, 53})
	if port := r.send(lanIf, rightFrom(t, lanIf, neighbour, 1030, net.IP{10, 2, 7, 7}, 7)).Outer.SrcPort; port == 1030 || port == 0 {
		t.Errorf("another one leaves as port %d", port)
	}
}

// Without a place for all that a flow needs it is refused, and nothing is left of it but a mapping.
func TestMappingWithoutPlace(t *testing.T) {
	for limit, want := range map[int64][2]int64{0: {}, 1: {}, 2: {2, 1}, 3: {2, 1}, 4: {4, 2}} {
		r := natRig(t, mapping(4, 0))
		r.cfg.Table.cfg.FlowsMax = limit
		res := r.send(lanIf, rightFrom(t, lanIf, client4, 1030, server4, 53))
		if ok := res.Reason == reasonNone; ok != (limit >= 4) || !ok && res.Reason != bpf.XDPReasonREASON_FLOW_TABLE_FULL {
			t.Errorf("%d places: %v", limit, res.Reason)
		}
		if s := r.Table().State(); s.Flows != want[0] || s.Aliases != want[1] {
			t.Errorf("%d places: left are %+v", limit, s)
		}
	}
}
