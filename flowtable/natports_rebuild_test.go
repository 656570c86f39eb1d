package flowtable

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane/packet"
)

// ruleAddress returns an address as nat rules hold it.
func ruleAddress(s string) (w [4]uint32) {
	a := netip.MustParseAddr(s)
	if a.Is4() {
		b := a.As4()
		w[0] = load32(b[:])
		return w
	}
	b := packet.Addr(a.As16())
	return words(&b)
}

// addrOf returns an address as tuples hold it.
func addrOf(s string) (a packet.Addr) {
	if p := netip.MustParseAddr(s); p.Is4() {
		b := p.As4()
		copy(a[:], b[:])
	} else {
		a = p.As16()
	}
	return a
}

// natRules are rules 1 masquerade, 2 and 3 pools, 4 a farm with hairpin, 5 one without, 6 none of ports.
func natRules() *NAT {
	n := &NAT{Rules: make([]bpf.XDPNatRule, 7)}
	block := uint32(0)
	add := func(id int, addresses uint32, r bpf.XDPNatRule) {
		r.Addresses, r.Ports = addresses, block
		n.Rules[id] = r
		n.Ports = append(n.Ports, NATPorts{addresses * natClasses * natSlices, 1024, 65535})
		block += addresses * natClasses * natSlices
	}
	add(1, 1, bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_MASQUERADE)})
	add(2, 8, bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_SOURCE), Family: 4, Address: ruleAddress("203.0.113.248")})
	add(3, 4, bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_SOURCE), Family: 6, Address: ruleAddress("2001:db8::ffff:ffff:ffff:fffe")})
	add(4, 1, bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_DESTINATION), Flags: natHairpin})
	n.Rules[5] = bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_DESTINATION), Ports: natNoPorts}
	n.Rules[6] = bpf.XDPNatRule{Kind: uint8(bpf.XDPNatKindNAT_KEEP), Ports: natNoPorts}
	return n
}

func TestRebuildNATPorts(t *testing.T) {
	const layout = 6
	for _, tc := range []struct {
		name                string
		family, proto       uint8
		source, destination uint32
		src                 string // outer; "": as it was
		port                uint16 // outer; 0: some port that rules have
		address             uint32 // number in the pool
		rule                int    // whose element; 0: none
		rules               func(*NAT) *NAT
	}{
		{name: "masquerade", family: 4, proto: packet.ProtoTCP, source: 1, src: "198.51.100.7", rule: 1},
		{name: "masquerade of IPv6", family: 6, proto: packet.ProtoUDP, source: 1, src: "2001:db8::7", rule: 1},
		{name: "masquerade of a ping", family: 4, proto: packet.ProtoICMP, source: 1, src: "198.51.100.7", rule: 1},
		{name: "first of a pool", family: 4, proto: packet.ProtoTCP, source: 2, src: "203.0.113.248", rule: 2},
		{name: "last of a pool", family: 4, proto: packet.ProtoUDP, source: 2, src: "203.0.113.255", address: 7, rule: 2},
		{name: "a port that the rule has no more", family: 4, proto: packet.ProtoTCP, source: 1, src: "198.51.100.7", port: 1023},
		{name: "behind a pool", family: 4, proto: packet.ProtoUDP, source: 2, src: "203.0.114.0"},
		{name: "before a pool", family: 4, proto: packet.ProtoUDP, source: 2, src: "203.0.113.247"},
		{name: "of an IPv6 pool, with a carry", family: 6, proto: packet.ProtoICMPv6, source: 3, src: "2001:db8:0:1::1", address: 3, rule: 3},
		{name: "behind an IPv6 pool", family: 6, proto: packet.ProtoTCP, source: 3, src: "2001:db8:0:1::2"},
		{name: "far from an IPv6 pool", family: 6, proto: packet.ProtoTCP, source: 3, src: "2001:db9::ffff:ffff:ffff:fffe"},
		{name: "a pool of the other family", family: 6, proto: packet.ProtoTCP, source: 2, src: "2001:db8::7"},
		{name: "hairpin", family: 4, proto: packet.ProtoTCP, destination: 4, src: "198.51.100.7", rule: 4},
		{name: "hairpin that names its rule twice", family: 4, proto: packet.ProtoTCP, source: 4, destination: 4, src: "198.51.100.7", rule: 4},
		{name: "destination alone, of a rule with hairpin", family: 4, proto: packet.ProtoTCP, destination: 4},
		{name: "a rule that has hairpin no more", family: 4, proto: packet.ProtoTCP, destination: 5, src: "198.51.100.7"},
		{name: "a rule that keeps", family: 4, proto: packet.ProtoTCP, source: 6, src: "198.51.100.7"},
		{name: "a rule that is gone", family: 4, proto: packet.ProtoTCP, source: 9, src: "198.51.100.7"},
		{name: "no rule at all", family: 4, proto: packet.ProtoTCP, source: 1, src: "198.51.100.7", rules: func(*NAT) *NAT { return nil }},
	} {
		table := scanTable(t)
		n, old := natRules(), make([]bpf.XDPNatBitmap, 500)
		table.SetNATPorts(5, old)
		rng := rand.New(rand.NewPCG(4, 4))
		original := randomTuple(rng, tc.family)
		original.Proto = tc.proto
		outer := original
		outer.Dst = randomTuple(rng, tc.family).Dst
		if tc.src != "" {
			outer.Src, outer.SrcPort = addrOf(tc.src), cmp.Or(tc.port, 4000)
		}
		natPorts(old).take(400, outer.SrcPort)
		translated(table, original, outer, bpf.XDPFlowStateFLOW_ESTABLISHED, 1, 400)
		k := keyOf(&outer)
		e, _ := table.find(&k)
		if e.flow4 != nil {
			e.alias4().SourceRule, e.alias4().DestinationRule = tc.source, tc.destination
		} else {
			e.alias6().SourceRule, e.alias6().DestinationRule = tc.source, tc.destination
		}
		bitmaps := n.NewBitmaps()
		if tc.rules != nil {
			n = tc.rules(n)
		}
		word := e.word()
		for range 2 { // once more behind the publication
			table.SetNATPorts(layout, bitmaps)
			table.RebuildNATPorts(layout, n, bitmaps)
		}
		want := uint32(natNoPorts)
		if tc.rule != 0 {
			want, _ = table.natElement(n.Rules[tc.rule].Ports, tc.address, &outer)
		}
		a := e.alias()
		if a.ports != want || a.layout != layout || a.source != tc.source || a.destination != tc.destination || e.word() != word {
			t.Errorf("%s: %+v, want element %d", tc.name, a, want)
		}
		if f, ok := table.Lookup(outer); !ok || f.Tuple != original {
			t.Errorf("%s: the flow is %+v, %v", tc.name, f, ok)
		}
		blank, taken := natRules().NewBitmaps(), 0
		for i := range bitmaps {
			if bitmaps[i] != blank[i] {
				taken++
			}
		}
		if tc.rule == 0 && taken != 0 || tc.rule != 0 && (taken != 1 || natPorts(bitmaps).take(want, outer.SrcPort)) {
			t.Errorf("%s: %d elements have other ports, that of the flow has its port free", tc.name, taken)
		}
		// It ends, and so does its port's being taken.
		table.Kill(func(*Flow) bool { return true }, func() {}, func(*Flow) {})
		for i := range bitmaps {
			if bitmaps[i] != blank[i] {
				t.Errorf("%s: element %d has a port taken when the flow has ended", tc.name, i)
			}
		}
		if natPorts(old).take(400, outer.SrcPort) {
			t.Errorf("%s: the port of the old layout was given back", tc.name)
		}
	}
}

// Slots that get other entries while ports are numbered anew are never written into.
func TestRebuildNATPortsRace(t *testing.T) {
	table := newTable(t, TableConfig{Groups4: 64, Groups6: 64, Seed: 1, FlowsMax: 1000, HalfOpenMax: 1000})
	rng := rand.New(rand.NewPCG(5, 5))
	for i := range 100 {
		original := randomTuple(rng, []uint8{4, 6}[i%2])
		original.Proto = packet.ProtoTCP
		outer := original
		outer.Src = randomTuple(rng, original.Family).Src
		translated(table, original, outer, bpf.XDPFlowStateFLOW_ESTABLISHED, 1, 3)
		k := keyOf(&outer)
		e, _ := table.find(&k)
		word, a := e.word(), e.alias()
		// Another flow gets the slot behind the rebuild's back.
		other := randomTuple(rng, original.Family)
		key := keyOf(&other)
		table.fill(&e, &key, &opening{state: bpf.XDPFlowStateFLOW_ESTABLISHED, rule: 77, epoch: 88, now: 99})
		before, _ := view(&e)
		if table.layOut(&e, word, &a, 7, 2) {
			t.Fatal("an alias that is gone has moved to another layout")
		}
		if after, _ := view(&e); after != before {
			t.Fatalf("flow %+v became %+v", before, after)
		}
	}
}
