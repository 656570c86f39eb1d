package flowtable

import (
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// crowd has n clients send one packet each to a server's port, from ports that are equal for some.
func crowd(t *testing.T, r *rig, n int, then func(i int, client side, port uint16, res Result)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 3))
	for i := range n {
		client := side{lanIf, net.IP{10, 1, byte(1 + i>>8), byte(i)}, server4}
		port := uint16(1024 + rng.IntN(64512))
		then(i, client, port, r.send(lanIf, right(client.udp(t, port, 53, 4))))
	}
}

// Which port a flow gets, by the words of docs/PACKET-PATH.md: its own if it is free, else the next free one from a
// start that its key tells.
func TestPortChoice(t *testing.T) {
	const first, last = 20000, 20255
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, first, last))
	table, err := NewTable(TableConfig{Groups4: 1024, Groups6: 1, Seed: 42, FlowsMax: 4000, HalfOpenMax: 4000, OverflowMax: 16})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Table = table
	r.SetNAT(r.cfg.NAT)
	var taken [4]map[uint16]bool // by slice of the remote ends
	for i := range taken {
		taken[i] = map[uint16]bool{}
	}
	rng := rand.New(rand.NewPCG(1, 4))
	kept, moved, refused := 0, 0, 0
	for i := range 1200 {
		client := side{lanIf, net.IP{10, 1, byte(1 + i>>8), byte(i)}, net.IP{10, 2, 1, byte(rng.IntN(16))}}
		sport, dport := uint16(first-20+rng.IntN(300)), uint16(rng.IntN(4))
		original := client.tuple(17, sport, dport)
		remote := between(4, end{client.dst, dport}, end{outer4, 0})
		remote.Proto = 17
		own, slice := keyOf(&original), keyOf(remote)
		used := taken[hash4(&slice.v4, 42)&3]

		want, ok := sport, sport >= first && sport <= last && !used[sport]
		if !ok {
			start := uint16(hash4(&own.v4, 42))
			for n := range uint16(65535) {
				if want = start + n; want >= first && want <= last && !used[want] {
					ok = true
					break
				}
			}
			moved++
		} else {
			kept++
		}
		res := r.send(lanIf, right(client.udp(t, sport, dport, 4)))
		switch {
		case !ok:
			if res.Verdict != Drop || res.Reason != natExhausted {
				t.Fatalf("flow %d: %v, but no port is free", i, res.Reason)
			}
			refused++
		case res.Verdict != Forward || res.Outer.SrcPort != want && (res.Xlat&XlatSource == 0 || want != sport):
			t.Fatalf("flow %d from port %d: %v, port %d, want %d", i, sport, res.Reason, res.Outer.SrcPort, want)
		}
		used[want] = ok || used[want]
	}
	if kept < 100 || moved-refused < 100 || refused < 50 {
		t.Errorf("%d flows kept their port, %d have another, %d none: no test", kept, moved, refused)
	}
	if n := r.Counters.NAT[1]; n.Exhausted != uint64(refused) || n.Flows != uint64(kept+moved-refused) || r.Counters.Reasons[natExhausted].Packets != uint64(refused) {
		t.Errorf("counted %+v, %d refused", n, refused)
	}
}

// A tuple that another flow has, though no bit says so, is a try; after NAT_TRIES of them there is no port.
func TestPortTries(t *testing.T) {
	for _, others := range []int{7, 8} {
		r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
		original := fromClient4.tuple(17, 5000, 53)
		k := keyOf(&original)
		h := r.Table().hash(&k)
		used := map[uint16]bool{}
		var port uint16
		for i := range others + 1 {
			port = uint16(5000)
			if i > 0 {
				for port = uint16(h + uint32(i)*40503); port < 1024 || used[port]; port++ {
				}
			}
			used[port] = true
			if i < others {
				opened(r.Table(), side{lanIf, outer4, server4}.tuple(17, port, 53), bpf.XDPFlowStateFLOW_REPLIED, Tick(r.now))
			}
		}
		frame := right(fromClient4.udp(t, 5000, 53, 9))
		if others == 8 {
			r.want(lanIf, frame, Drop, natExhausted)
			continue
		}
		r.passes(lanIf, frame, 2, end{outer4, port}, end{server4, 53})
		// What was tried is now known to be taken, for whoever comes next.
		next := r.want(lanIf, right(side{lanIf, neighbour, server4}.udp(t, 5000, 53, 9)), Forward, reasonNone)
		if used[next.Outer.SrcPort] {
			t.Errorf("port %d was given to another", next.Outer.SrcPort)
		}
	}
}

// The tuple that a flow becomes cannot be its own, the other way round.
func TestPortOfAnEcho(t *testing.T) {
	row := masquerade(4, zoneLAN, zoneLAN, 1024, 65535)
	row.rule.Kind, row.rule.Address = uint8(bpf.XDPNatKindNAT_SOURCE), wordsOf(public4)
	r := natRig(t, row, forward(public4, 17, 5000, 0, natServer(client4, 5000)))
	frame := right(side{lanIf, client4, public4}.udp(t, 5000, 5000, 9))
	res := r.want(lanIf, frame, Forward, reasonNone)
	port := res.Outer.SrcPort
	if port == 5000 {
		t.Fatal("the flow is its own alias")
	}
	r.passes(lanIf, frame, 1, end{public4, port}, end{client4, 5000})
	r.passes(lanIf, side{lanIf, client4, public4}.udp(t, 5000, port, 9), 1, end{public4, 5000}, end{client4, 5000})
}

// One address serves one server's port with every port that it may use, to the last, and again once flows end.
func TestAllPortsOfAnAddress(t *testing.T) {
	const ports = 64512
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535))
	table, err := NewTable(TableConfig{Groups4: 1 << 16, Groups6: 1, Seed: 42, FlowsMax: 200_000, HalfOpenMax: 200_000, OverflowMax: 16})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Table = table
	r.SetNAT(r.cfg.NAT)
	used := make([]bool, 1<<16)
	crowd(t, r, ports, func(i int, _ side, port uint16, res Result) {
		if res.Verdict != Forward || res.Outer.SrcPort < 1024 || used[res.Outer.SrcPort] || !used[port] && res.Outer.SrcPort != port {
			t.Fatalf("flow %d from port %d: %v as port %d", i, port, res.Reason, res.Outer.SrcPort)
		}
		used[res.Outer.SrcPort] = true
	})
	last := right(side{lanIf, neighbour, server4}.udp(t, 9, 53, 4))
	r.want(lanIf, last, Drop, natExhausted)
	if table.Flows() != 2*ports || table.State().Aliases != ports {
		t.Errorf("%d entries, %d aliases", table.Flows(), table.State().Aliases)
	}
	timeouts := UniformTimeouts(Tick(second))
	r.now += 3 * second
	for range 2 {
		table.Scan(Tick(r.now), &timeouts, func() {}, func(*Flow) {})
	}
	if table.Flows() != 0 || table.State().Aliases != 0 {
		t.Fatalf("%d entries, %d aliases are left", table.Flows(), table.State().Aliases)
	}
	r.passes(lanIf, side{lanIf, neighbour, server4}.udp(t, 1024, 53, 4), 2, end{outer4, 1024}, end{server4, 53})
	r.want(lanIf, last, Forward, reasonNone)
}

// One sender has one address of a pool, and many senders have all of them.
func TestPool(t *testing.T) {
	for _, tc := range []struct {
		family      uint8
		first, last net.IP
		n           uint32
		client      side
	}{
		{4, net.IP{198, 51, 100, 250}, net.IP{198, 51, 101, 3}, 10, fromClient4},
		{6, net.ParseIP("2001:db8::fffc"), net.ParseIP("2001:db8::1:5"), 10, fromClient6},
	} {
		row := masquerade(tc.family, zoneLAN, zoneWAN, 1024, 65535)
		row.rule.Kind, row.rule.Address, row.rule.Addresses = uint8(bpf.XDPNatKindNAT_SOURCE), wordsOf(tc.first), tc.n
		r := natRig(t, row)
		first, last := between(tc.family, end{tc.first, 0}, end{tc.last, 0}).Src, between(tc.family, end{tc.first, 0}, end{tc.last, 0}).Dst
		have := map[packet.Addr]int{}
		for i := range 60 {
			client := tc.client
			client.src = slices.Clone(client.src)
			client.src[len(client.src)-1] = byte(100 + i)
			a := r.want(lanIf, right(client.udp(t, 5000, 53, 4)), Forward, reasonNone).Outer
			b := r.want(lanIf, right(client.tcp(t, 5001, 80, seg{flags: syn})), Forward, reasonNone).Outer
			if a.Src != b.Src || less(&a.Src, &first) || less(&last, &a.Src) {
				t.Fatalf("client %d is %v and %v", i, a.Source(), b.Source())
			}
			have[a.Src]++
		}
		if len(have) != int(tc.n) {
			t.Errorf("IPv%d: %d addresses of %d are used: %v", tc.family, len(have), tc.n, have)
		}
	}
}

// A source keeps its server, whatever its ports, or has one for each connection.
func TestServers(t *testing.T) {
	var servers []bpf.XDPNatServer
	for i := range 4 {
		servers = append(servers, natServer(net.IP{10, 1, 0, byte(80 + i)}, uint16(8000+i)))
	}
	for _, flags := range []uint8{0, natByConnection} {
		r := natRig(t, forward(public4, 6, 80, flags, servers...))
		have := map[packet.Addr]int{}
		split := 0
		for i := range 40 {
			of := map[packet.Addr]bool{}
			for port := range uint16(4) {
				client := side{wanIf, net.IP{10, 2, 1, byte(i)}, public4}
				res := r.want(wanIf, right(client.tcp(t, 3000+port, 80, seg{flags: syn})), Forward, reasonNone)
				if res.Outer.DstPort != 8000+uint16(res.Outer.Dst[3])-80 || res.Port != 1 {
					t.Fatalf("leaves to %v:%d", res.Outer.Destination(), res.Outer.DstPort)
				}
				have[res.Outer.Dst]++
				of[res.Outer.Dst] = true
			}
			if len(of) > 1 {
				split++
			}
		}
		if len(have) != 4 || (flags == 0) != (split == 0) {
			t.Errorf("flags %d: %d servers have flows, %d sources have more than one", flags, len(have), split)
		}
		for a, n := range have {
			if n < 15 {
				t.Errorf("flags %d: server %v has %d flows of 160", flags, a, n)
			}
		}
	}
}

// Where a packet will go is told without anything being changed.
func TestRoutedChangesNothing(t *testing.T) {
	r := natRig(t, masquerade(4, zoneLAN, zoneWAN, 1024, 65535), forward(public4, 17, 80, 0, natServer(inner4, 8080)))
	pieces := cutUp(t, right(fromClient4.udp(t, 5000, 53, 100)), 16, 24)
	r.want(lanIf, pieces[0], Forward, reasonNone)
	r.want(wanIf, right(side{wanIf, server4, public4}.udp(t, 3000, 80, 9)), Forward, reasonNone)
	host := net.IP{10, 1, 0, 99}
	discovery := patch(side{lanIf, []byte{0xfe, 0x80, 15: 9}, []byte{0xff, 2, 15: 1}}.raw(t, 58, append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, client6...)...), 21, 255)
	for _, tc := range []struct {
		name    string
		ifindex uint32
		frame   []byte
		dst     string
	}{
		{"opens a flow", lanIf, right(fromClient4.udp(t, 6000, 53, 9)), "10.2.0.2"},
		{"opens a forwarded flow", wanIf, right(side{wanIf, server4, public4}.udp(t, 3001, 80, 9)), "10.1.0.80"},
		{"of a forwarded flow", wanIf, right(side{wanIf, server4, public4}.udp(t, 3000, 80, 9)), "10.1.0.80"},
		{"a reply to a client", wanIf, right(side{wanIf, server4, outer4}.udp(t, 53, 5000, 9)), "10.1.0.2"},
		{"a reply of a server", lanIf, right(side{lanIf, inner4, server4}.udp(t, 8080, 3000, 9)), "10.2.0.2"},
		{"a later fragment", lanIf, pieces[1], "10.2.0.2"},
		{"a fragment without its first", wanIf, cutUp(t, right(side{wanIf, server4, public4}.udp(t, 3002, 80, 100)), 16)[1], "10.2.0.80"},
		{"an error", wanIf, right(side{wanIf, net.IP{10, 2, 0, 9}, outer4}.icmpError(t, 3, 1, right(side{wanIf, outer4, server4}.udp(t, 5000, 53, 9)))), "10.1.0.2"},
		{"an error about a reply", lanIf, right(side{lanIf, host, public4}.icmpError(t, 3, 1, right(side{wanIf, public4, inner4}.udp(t, 1, 2, 9)))), "10.2.0.80"},
		{"discovery", lanIf, discovery, "ff02::1"},
		{"inline", leftIf, inline4.udp(t, 1, 2, 3), "10.2.0.2"},
	} {
		state := func() []any {
			var flows []Flow
			for f := range r.Table().All() {
				flows = append(flows, f)
			}
			frags := slices.Clone(r.frags.groups)
			counters := r.Counters
			counters.Rules, counters.NAT = slices.Clone(counters.Rules), slices.Clone(counters.NAT)
			return []any{flows, frags, counters, r.Table().Counters, *r.Table().State()}
		}
		before, frame := state(), slices.Clone(tc.frame)
		dst, ok := r.Routed(r.now, tc.ifindex, frame, false)
		if !ok || dst.String() != tc.dst {
			t.Errorf("%s: goes to %v, %v, want %v", tc.name, dst, ok, tc.dst)
		}
		if !reflect.DeepEqual(before, state()) || string(frame) != string(tc.frame) {
			t.Errorf("%s: something changed", tc.name)
		}
	}
	if _, ok := r.Routed(r.now, lanIf, pieces[0][:30], false); ok {
		t.Error("a frame that is cut short goes somewhere")
	}
	if dst, _ := r.Routed(r.now, wanIf, right(side{wanIf, server4, outer4}.udp(t, 3001, 81, 9)), true); dst.String() != "10.2.0.1" {
		t.Errorf("the gateway's own goes to %v", dst)
	}
}
