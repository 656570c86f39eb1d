package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
	"github.com/softdpu/softdpu/testenv"
)

func openPlane(t *testing.T, o Options) *Plane {
	t.Helper()
	testenv.RequireRoot(t)
	if o.FlowsMax == 0 {
		o.FlowsMax = 4096
	}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// allowAll is a policy of one rule.
func allowAll(t *testing.T) *flowtable.ACL {
	t.Helper()
	acl, err := flowtable.CompileACL([]flowtable.ACLEntry{{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
		Verdict: flowtable.Verdict(1, uint32(bpf.XDPActionACTION_ALLOW), 0),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return acl
}

func TestMappedMemoryIsTheMaps(t *testing.T) {
	p := openPlane(t, Options{Ethertypes: []uint16{0x88cc}})
	flows := p.Flows()
	if got, want := len(flows.Groups4), int(p.Sizes().Groups); got != want || len(flows.Groups6) != want {
		t.Fatalf("%d and %d groups are mapped, want %d", got, len(flows.Groups6), want)
	}
	last := len(flows.Groups4) - 1
	flows.Groups4[last].Slot[3].Core.Epoch = 77
	var group bpf.XDPFlow4Group
	if err := p.maps[bpf.XDPMapFlows4].Lookup(uint32(last), &group); err != nil || group.Slot[3].Core.Epoch != 77 {
		t.Errorf("epoch of the last slot is %d (%v), want 77", group.Slot[3].Core.Epoch, err)
	}
	flows.Groups6[last].Slot[0].Core.Rule = 5
	var group6 bpf.XDPFlow6Group
	if err := p.maps[bpf.XDPMapFlows6].Lookup(uint32(last), &group6); err != nil || group6.Slot[0].Core.Rule != 5 {
		t.Errorf("rule of an IPv6 slot is %d (%v), want 5", group6.Slot[0].Core.Rule, err)
	}
	var state bpf.XDPGatewayState
	if err := p.maps[bpf.XDPMapGateway].Lookup(uint32(0), &state); err != nil || state.Ethertypes[0] != 0xcc88 {
		t.Errorf("ethertype is %#x (%v), want 0x88cc in network order", state.Ethertypes[0], err)
	}
}

func TestPublishSwapsBothPrograms(t *testing.T) {
	p := openPlane(t, Options{})
	if prog, err := p.Program(); prog != nil || err != nil {
		t.Fatalf("a program runs before the first publish: %v, %v", prog, err)
	}
	slots := func() (ids [2]ebpf.ProgramID) {
		for i, name := range []string{bpf.XDPMapGenerations, bpf.XDPMapGuards} {
			var id uint32
			if err := p.maps[name].Lookup(uint32(0), &id); err != nil {
				t.Fatalf("slot of %s: %v", name, err)
			}
			ids[i] = ebpf.ProgramID(id)
		}
		return ids
	}
	if err := p.Publish(Generation{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	first := slots()
	mac := map[[6]byte]uint16{{2, 0, 0, 0, 0, 9}: 3}
	if err := p.Publish(Generation{Epoch: 2, ACL: allowAll(t), Rules: 1, MACs: mac}); err != nil {
		t.Fatal(err)
	}
	second := slots()
	if first[0] == second[0] || first[1] == second[1] {
		t.Errorf("programs %v stayed after a publish: %v", first, second)
	}
	if epoch, ok := p.Epoch(); !ok || epoch != 2 {
		t.Errorf("epoch is %d (%v), want 2", epoch, ok)
	}
	// The old generation is freed, once the packets inside have left.
	testenv.Eventually(t, 5*time.Second, func() error {
		old, err := ebpf.NewProgramFromID(first[0])
		if err == nil {
			old.Close()
			return errors.New("the replaced program is still loaded")
		}
		return nil
	})

	// All generations have the same tables, but for the identities of MACs.
	prog, err := p.Program()
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	if len(ids) == 0 {
		t.Error("the generation has no maps")
	}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		mi, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		if ours := p.maps[mi.Name]; ours != nil {
			oi, err := ours.Info()
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := oi.ID(); id != want {
				t.Errorf("the generation has a map %s of its own", mi.Name)
			}
		}
		var identity uint16
		if mi.Name == bpf.XDPMapMacs && (m.Lookup([6]byte{2, 0, 0, 0, 0, 9}, &identity) != nil || identity != 3) {
			t.Errorf("identity of the MAC is %d, want 3", identity)
		}
		m.Close()
	}
}

func TestPublishKeepsTheOldOneAfterAnError(t *testing.T) {
	p := openPlane(t, Options{})
	if err := p.Publish(Generation{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(Generation{Epoch: 2, Rules: 1 << 20}); err == nil {
		t.Fatal("a policy with more rules than counters was published")
	}
	if epoch, ok := p.Epoch(); !ok || epoch != 1 {
		t.Errorf("epoch is %d (%v), want 1", epoch, ok)
	}
}

func TestCounters(t *testing.T) {
	p := openPlane(t, Options{Rules: 1000})
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	deny := uint32(bpf.XDPReasonREASON_DENY)
	values := make([]bpf.XDPCounter, cpus)
	for i := range values {
		values[i] = bpf.XDPCounter{Packets: 1, Bytes: uint64(10 + i)}
	}
	if err := p.maps[bpf.XDPMapReasons].Put(deny, values); err != nil {
		t.Fatal(err)
	}
	reasons, err := p.Reasons()
	if want := uint64(10*cpus + cpus*(cpus-1)/2); err != nil || reasons[deny] != (bpf.XDPCounter{Packets: uint64(cpus), Bytes: want}) {
		t.Errorf("deny counts %+v (%v), want %d packets and %d bytes", reasons[deny], err, cpus, want)
	}
	if passes, err := p.Passes(); err != nil || passes[bpf.XDPPassCausePASS_ARP].Packets != 0 {
		t.Errorf("passes: %+v, %v", passes, err)
	}

	const rule = 777 // in the fourth batch
	counts := make([]bpf.XDPRuleCounter, cpus)
	for i := range counts {
		counts[i] = bpf.XDPRuleCounter{Packets: 2, Judged: 1, Last: 0xfffffff0, Unlogged: 3}
	}
	counts[cpus-1].Last = 5 // later: ticks wrap
	if err := p.maps[bpf.XDPMapRules].Put(uint32(rule), counts); err != nil {
		t.Fatal(err)
	}
	rules := make([]bpf.XDPRuleCounter, 1001)
	if err := p.Rules(rules); err != nil {
		t.Fatal(err)
	}
	want := bpf.XDPRuleCounter{Packets: uint64(2 * cpus), Judged: uint64(cpus), Last: 5, Unlogged: uint32(3 * cpus)}
	if rules[rule] != want {
		t.Errorf("rule %d counts %+v, want %+v", rule, rules[rule], want)
	}
	if rules[rule-1] != (bpf.XDPRuleCounter{}) || rules[rule+1] != (bpf.XDPRuleCounter{}) {
		t.Error("its neighbours count too")
	}
	if err := p.Rules(make([]bpf.XDPRuleCounter, p.Sizes().Rules+1)); err == nil {
		t.Error("counters of rules that have none were read")
	}
	if _, err := p.TableCounters(); err != nil {
		t.Error(err)
	}
}

func TestEventsEndWithTheirContext(t *testing.T) {
	p := openPlane(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Events(ctx, func(*bpf.XDPEvent) {}) }()
	time.Sleep(20 * time.Millisecond)
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the reader did not end")
	}
}

func TestPlace(t *testing.T) {
	p := openPlane(t, Options{Simulate: true})
	ports := []Port{
		{PortConfig: PortConfig{Name: "lan", Zone: 2, Peer: "wan"}, Index: 101, MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 1500},
		{PortConfig: PortConfig{Name: "wan", Zone: 3, Peer: "lan", VLANs: map[uint16]uint8{7: 4}}, Index: 102, MTU: 1500, IP4: netip.MustParseAddr("192.0.2.1")},
	}
	if err := p.Place(ports); err != nil {
		t.Fatal(err)
	}
	for _, want := range ports {
		var e bpf.XDPPort
		slot := want.Index * p.mem.gateway[0].PortMul >> 24
		if err := p.maps[bpf.XDPMapPorts].Lookup(slot, &e); err != nil || e.Ifindex != want.Index || e.Zone != want.Zone || e.Pair != 1 {
			t.Errorf("port %s has the entry %+v (%v)", want.Name, e, err)
		}
	}
	var zone uint8
	if err := p.maps[bpf.XDPMapVlanZones].Lookup(uint32(2<<12|7), &zone); err != nil || zone != 4 {
		t.Errorf("VLAN 7 of the second port is in zone %d (%v), want 4", zone, err)
	}
	hop := p.Nexthops()[PortNexthop(2)]
	if hop.Port != 2 || hop.Zone != 3 || hop.State != nexthopReady || hop.Src>>48 != 1500 {
		t.Errorf("the next hop of the second port is %+v", hop)
	}
	if err := p.Place(ports); err == nil {
		t.Error("ports were placed twice")
	}
	if err := p.Attach([]PortConfig{{Name: "a", Device: "lo"}}); err == nil {
		t.Error("a plane that simulates took a device")
	}
	if err := p.SetNexthop(nexthopFirst, bpf.XDPNexthop{State: nexthopReady, Port: 2}); err != nil {
		t.Error(err)
	}
	if err := p.SetNexthop(3, bpf.XDPNexthop{}); err == nil {
		t.Error("a port's own next hop was overwritten")
	}
}

func TestClockAndGrace(t *testing.T) {
	testenv.RequireRoot(t)
	before := NowTick()
	if err := Grace(); err != nil {
		t.Fatal(err)
	}
	if err := graceByMap(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if passed := NowTick() - before; passed < 10 || passed > 5000 {
		t.Errorf("%d ticks passed in about 25 ms", passed)
	}
}

func TestRoutesChangedMakesEarlierLookupsStale(t *testing.T) {
	p := openPlane(t, Options{})
	for range 50 {
		tick := NowTick()
		p.routesChanged()
		changed := atomic.LoadUint32(&p.mem.gateway[0].RouteChanged)
		// As route_stale() of route.h reckons for a look-up of this tick, whatever the tick of asking.
		for offset := range uint32(4) {
			lookedUp := tick&^3 + offset
			if int32(lookedUp-changed) >= 0 {
				t.Fatalf("a look-up at tick %d is good after a change at %d", tick, changed)
			}
		}
		if ahead := int32(changed - tick); ahead > 12 {
			t.Fatalf("the change lies %d ticks ahead", ahead)
		}
		time.Sleep(time.Millisecond)
	}
}
