package dataplane

import (
	"maps"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/flowtable"
)

// translating is a policy that masquerades to ports 2000 to 2999, and sends what comes for 192.0.2.1 to two servers.
func translating(t *testing.T, epoch uint32) Generation {
	t.Helper()
	entry := flowtable.ACLEntry{
		Proto: flowtable.U8Range{Last: 255}, SrcPort: flowtable.U16Range{Last: 65535}, DstPort: flowtable.U16Range{Last: 65535},
	}
	pipe := func(rule uint32) *flowtable.ACL {
		entry.Verdict = flowtable.Verdict(rule, uint32(bpf.XDPActionACTION_ALLOW), 0)
		acl, err := flowtable.CompileACL([]flowtable.ACLEntry{entry})
		if err != nil {
			t.Fatal(err)
		}
		return acl
	}
	return Generation{
		Epoch: epoch, ACL: allowAll(t), Rules: 1,
		NATNames: []string{"", "out", "farm"},
		NAT: &flowtable.NAT{
			Destinations: pipe(2), Sources: pipe(1),
			Rules: []bpf.XDPNatRule{
				{},
				{Kind: uint8(bpf.XDPNatKindNAT_MASQUERADE), Ports: 0},
				{Kind: uint8(bpf.XDPNatKindNAT_DESTINATION), Family: 4, Buckets: 3, Ports: 12},
			},
			Buckets: []uint16{0, 1, 0},
			Servers: []bpf.XDPNatServer{{Address: [4]uint32{0x0100000a}}, {Address: [4]uint32{0x0200000a}, Port: 0x5000}},
			Ports:   []flowtable.NATPorts{{Elements: 12, First: 2000, Last: 2999}, {Elements: 12, Last: 65535}},
		},
	}
}

// portsOf returns whose ports the plane shows.
func portsOf(p *Plane) NATPorts {
	ports, done := p.NATPorts()
	defer done()
	return ports
}

// instructions counts those that the kernel runs of the program in force.
func instructions(t *testing.T, p *Plane) int {
	t.Helper()
	prog, err := p.Program()
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	insns, err := info.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	return len(insns)
}

// mapsOf opens the maps that the program in force uses, by name.
func mapsOf(t *testing.T, p *Plane) map[string]*ebpf.Map {
	t.Helper()
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
	all := make(map[string]*ebpf.Map)
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		mi, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		all[mi.Name] = m
	}
	return all
}

// A program finds what its policy translates in maps of its own, also while somebody captures.
func TestPublishTranslates(t *testing.T) {
	p := openPlane(t, Options{})
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if p.Translates() || portsOf(p).NAT != nil {
		t.Error("a plane whose policy translates nothing translates")
	}
	used := mapsOf(t, p)
	for _, name := range []string{bpf.XDPMapNatRules, bpf.XDPMapNatBuckets, bpf.XDPMapNatServers, bpf.XDPMapNatAddresses, bpf.XDPMapNatPasses, bpf.XDPMapNatHalves} {
		if used[name] != nil {
			t.Errorf("a program that translates nothing uses map %s", name)
		}
	}
	without := instructions(t, p)
	g := translating(t, 2)
	if err := p.Publish(g); err != nil {
		t.Fatal(err)
	}
	if with := instructions(t, p); with < without+1000 {
		t.Errorf("a program that translates has %d instructions, and one that does not %d", with, without)
	}
	check := func(t *testing.T) {
		t.Helper()
		used := mapsOf(t, p)
		for id, want := range g.NAT.Rules {
			var got bpf.XDPNatRule
			if err := used[bpf.XDPMapNatRules].Lookup(uint32(id), &got); err != nil || got != want {
				t.Errorf("rule %d is %+v (%v), want %+v", id, got, err, want)
			}
		}
		for i, want := range g.NAT.Buckets {
			var got uint16
			if err := used[bpf.XDPMapNatBuckets].Lookup(uint32(i), &got); err != nil || got != want {
				t.Errorf("bucket %d holds server %d (%v), want %d", i, got, err, want)
			}
		}
		for i, want := range g.NAT.Servers {
			var got bpf.XDPNatServer
			if err := used[bpf.XDPMapNatServers].Lookup(uint32(i), &got); err != nil || got != want {
				t.Errorf("server %d is %+v (%v), want %+v", i, got, err, want)
			}
		}
		if n := used[bpf.XDPMapNatPorts].MaxEntries(); n != 24 {
			t.Errorf("there are %d bitmaps of ports, want 24", n)
		}
		var bitmap bpf.XDPNatBitmap
		if err := used[bpf.XDPMapNatPorts].Lookup(uint32(11), &bitmap); err != nil || bitmap.Taken[1999/64]>>(1999%64)&1 != 1 || bitmap.Taken[2000/64]>>(2000%64)&1 != 0 {
			t.Errorf("port 1999 is free or port 2000 taken (%v)", err)
		}
	}
	check(t)
	c, err := p.Capture(CaptureOptions{Points: Points{In: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Run("captured", check)
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

// The memory of ports is that of the generation in force. Rules of one name count
// on in the next generation, and a policy that translates nothing still knows translated flows.
func TestTranslationOutlivesItsGeneration(t *testing.T) {
	p := openPlane(t, Options{})
	if err := p.Publish(translating(t, 7)); err != nil {
		t.Fatal(err)
	}
	count := func(id uint32, flows uint64) {
		cpus := make([]bpf.XDPNatCounter, ebpf.MustPossibleCPU())
		cpus[len(cpus)-1].Flows, cpus[0].Exhausted = flows, 1
		if err := p.running.Load().nat.maps[bpf.XDPMapNatCounters].Put(id, cpus); err != nil {
			t.Fatal(err)
		}
	}
	count(1, 5)
	ports, done := p.NATPorts()
	if ports.Layout != 7 || len(ports.Bitmaps) != 24 {
		t.Fatalf("there are %d bitmaps of ports of generation %d", len(ports.Bitmaps), ports.Layout)
	}
	ports.Bitmaps[23].Taken[5] = 1
	done()
	next := translating(t, 8)
	next.NATNames = []string{"", "farm", "out"} // others have these numbers now
	if err := p.Publish(next); err != nil {
		t.Fatal(err)
	}
	count(2, 30)
	if ports, done = p.NATPorts(); ports.Layout != 8 || ports.Bitmaps[23].Taken[5] != 0 {
		t.Errorf("ports of generation 8 are those of 7")
	}
	done()
	want := map[string]bpf.XDPNatCounter{"out": {Flows: 35, Exhausted: 2}, "farm": {}}
	got, err := p.NATCounters()
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("rules have counted %v (%v), want %v", got, err, want)
	}

	if err := p.Publish(Generation{Epoch: 9, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if !p.Translates() || portsOf(p).NAT != nil {
		t.Error("flows of policy 8 are not translated any more, or have ports")
	}
	if got, err := p.NATCounters(); err != nil || !maps.Equal(got, want) {
		t.Errorf("rules that are gone have counted %v (%v), want %v", got, err, want)
	}
}

// A run that takes over flows that may be translated translates them, whatever its policy says.
func TestTranslationIsTakenOver(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	p := g.kept(t, thisKernel, Options{Ports: routed()})
	if err := p.Publish(translating(t, p.NextEpoch())); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		leave(t, p)
		p = g.kept(t, thisKernel, Options{Ports: routed()})
		if taken, why := p.TakenOver(); !taken {
			t.Fatalf("not taken over: %s", why)
		}
		if !p.Translates() {
			t.Error("flows of the run before are not translated any more")
		}
	}
	leave(t, p)
	g.detach(t)
	p = g.kept(t, thisKernel, Options{Ports: routed()})
	if p.Translates() {
		t.Error("a plane that began afresh translates")
	}
	leave(t, p)
	g.detach(t)
}
