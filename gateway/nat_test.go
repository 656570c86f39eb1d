package gateway

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/packet"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable"
)

// take takes ports of an element of nat_ports.
func take(b *bpf.XDPNatBitmap, ports ...uint16) {
	for _, p := range ports {
		b.Taken[p/64] |= 1 << (p % 64)
	}
}

// Ports in use are those of the rule's own part of nat_ports that it may choose, and where most are is named.
func TestNATPortsInUse(t *testing.T) {
	pool := inMemory("198.51.100.254")
	pool6 := inMemory("2001:db8::ffff")
	nat := &flowtable.NAT{
		Rules: []bpf.XDPNatRule{
			{Ports: natNoPorts},
			{Kind: uint8(bpf.XDPNatKindNAT_MASQUERADE), Family: 4, Ports: 0},
			{Kind: uint8(bpf.XDPNatKindNAT_SOURCE), Family: 4, Address: pool, Addresses: 3, Ports: 12},
			{Kind: uint8(bpf.XDPNatKindNAT_SOURCE), Family: 6, Address: pool6, Addresses: 2, Ports: 48},
		},
		Ports: []flowtable.NATPorts{{Elements: 12, First: 1024, Last: 65535}, {Elements: 36, First: 5000, Last: 5009}, {Elements: 24, Last: 65535}},
	}
	bitmaps := nat.NewBitmaps()
	take(&bitmaps[0], 1024, 65535)              // TCP
	take(&bitmaps[11], 2000)                    // ICMP, another part of the remote ends
	take(&bitmaps[12], 5000)                    // first address, TCP
	take(&bitmaps[12+2*12+5], 5001, 5003, 5009) // third address, UDP
	take(&bitmaps[48+12+3], 0, 1, 2, 3, 65535)  // second address of IPv6, TCP
	for _, row := range []struct {
		rule    int
		used    uint64
		percent float64
		of      string
	}{
		{0, 0, 0, ""},
		{1, 3, 100 * 2 / 64512., "tcp"},
		{2, 4, 30, "198.51.101.0 udp"},
		{3, 5, 100 * 5 / 65536., "2001:db8::1:0 tcp"},
	} {
		var got NATRuleStatus
		got.addPorts(nat, &nat.Rules[row.rule], bitmaps)
		if got.PortsUsed != row.used || got.FullestPercent != row.percent || got.FullestOf != row.of {
			t.Errorf("rule %d has %d ports in use, %v %% of %q; want %d, %v %% of %q", row.rule, got.PortsUsed, got.FullestPercent, got.FullestOf, row.used, row.percent, row.of)
		}
	}
}

// Rules of policies before are listed as long as they translate flows, unless a rule of the name is there again.
func TestNATRulesThatAreGone(t *testing.T) {
	r := &Ruleset{Compiled: &firewall.Compiled{NATRules: []firewall.NATRuleInfo{
		{}, {Name: "branch", Kind: firewall.NATMasquerade}, {Name: "old", File: "nat.yaml", Line: 4, Kind: firewall.NATMasquerade, Family: 4, Gone: true},
		{Name: "old", File: "nat.yaml", Line: 4, Kind: firewall.NATMasquerade, Family: 6, Gone: true}, {Name: "over", Gone: true}, {}, {Name: "branch", Gone: true},
	}}}
	got := r.natGone(map[string]natFlows{"branch": {flows: 5, ports: 5}, "old": {flows: 3, ports: 2}})
	want := []NATRuleStatus{{Name: "old", Kind: "masquerade", File: "nat.yaml", Line: 4, Flows: 3, PortsUsed: 2, Sources: []NATSourceStatus{}, Gone: true, Unaddressed: []string{}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("gone are %+v, want %+v", got, want)
	}
}

// Of a rule the five sources with the most flows are told, by all its parts, and how many are near its limit.
func TestNATSources(t *testing.T) {
	var list []flowtable.Source
	for i := range 8 {
		list = append(list, flowtable.Source{Rule: uint32(1 + i%4), Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32), Flows: 100 - i})
	}
	list[1].Prefix = netip.MustParsePrefix("fd10:1::/64")
	r := NATRuleStatus{Name: "branch", SourceLimit: 107}
	r.addSources(list, map[uint32]bool{1: true, 2: true, 4: true})
	want := []NATSourceStatus{{"10.0.0.0", 100}, {"fd10:1::/64", 99}, {"10.0.0.3", 97}, {"10.0.0.4", 96}, {"10.0.0.5", 95}}
	if !slices.Equal(r.Sources, want) || r.SourcesNear != 3 {
		t.Errorf("sources are %+v, %d near the limit", r.Sources, r.SourcesNear)
	}
	if got := r.fullestSource(); got != 100./107 {
		t.Errorf("the fullest has %v of its limit", got)
	}
	notes := NATSourceNotes([]NATRuleStatus{{Name: "a"}, {Name: "b", SourceLimit: 107, Sources: want}, r})
	if len(notes) != 1 || !strings.Contains(notes[0], "nat rule branch: 10.0.0.0 has 100 of the 107 flows that one source may have, and 2 more are near") ||
		!strings.Contains(notes[0], "nat-source-limit") {
		t.Errorf("notes are %q", notes)
	}
	if got := (&NATRuleStatus{}).fullestSource(); got != 0 {
		t.Errorf("without a limit the fullest has %v of it", got)
	}
}

func TestNATNotes(t *testing.T) {
	notes := NATNotes([]NATRuleStatus{
		{Name: "a", FullestPercent: 90, FullestOf: "tcp"}, {Name: "b", FullestPercent: 90.1, FullestOf: "198.51.100.7 udp"}, {Name: "c"},
	})
	if len(notes) != 1 || !strings.Contains(notes[0], "nat rule b: 90 %") || !strings.Contains(notes[0], "198.51.100.7 udp") || !strings.Contains(notes[0], "nat-exhausted") {
		t.Errorf("notes are %q", notes)
	}
}

// A rule that masquerades where no address of a family that it translates is says so, and says nothing of other
// ports, or of the other family.
func TestNATWithoutAddress(t *testing.T) {
	var wan flowtable.Zones
	wan.Add(3)
	masquerade := func(family uint8, to flowtable.Zones) firewall.NATRuleInfo {
		return firewall.NATRuleInfo{Name: "branch", Kind: firewall.NATMasquerade, Family: family, To: to}
	}
	r := &Ruleset{Compiled: &firewall.Compiled{NATRules: []firewall.NATRuleInfo{
		{}, masquerade(4, wan), masquerade(6, wan), masquerade(4, flowtable.Zones{}), {Name: "pool", Kind: firewall.NATSource, Family: 4, To: wan},
	}}}
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	ports := []dataplane.NATAddress{
		{Port: "lan", Zone: 2}, {Port: "wan", Zone: 3, IP6: six}, {Port: "wan", VLAN: 10, Zone: 3}, {Port: "both", Zone: 3, IP4: four, IP6: six}, {Port: "mute", VLAN: 7},
	}
	for _, row := range []struct {
		name string
		ids  []uint32
		want []string
	}{
		{"of both families", []uint32{1, 2}, []string{"wan.10"}},
		{"of IPv4", []uint32{1}, []string{"wan", "wan.10"}},
		{"to wherever", []uint32{3}, []string{"lan", "wan", "wan.10"}},
		{"of a pool", []uint32{4}, []string{}},
	} {
		if got := r.natUnaddressed(row.ids, ports); !slices.Equal(got, row.want) {
			t.Errorf("a rule %s lacks addresses at %q, want %q", row.name, got, row.want)
		}
	}
	notes := NATAddressNotes([]NATRuleStatus{{Name: "a"}, {Name: "b", Unaddressed: []string{"wan", "wan.10"}}})
	if len(notes) != 1 || !strings.Contains(notes[0], "nat rule b: ") || !strings.Contains(notes[0], "wan, wan.10") || !strings.Contains(notes[0], "nat-no-address") {
		t.Errorf("notes are %q", notes)
	}
}

// Rules are called by their names, also those of policies before; and of the flows with an address that has gone only
// those end that had it from their port.
func TestNATRulesOfFlows(t *testing.T) {
	r := &Ruleset{Compiled: &firewall.Compiled{NATRules: []firewall.NATRuleInfo{
		{}, {Name: "branch", Kind: firewall.NATMasquerade}, {Name: "pool", Kind: firewall.NATSource}, {Name: "www", Kind: firewall.NATDestination},
		{Name: "old", Kind: firewall.NATMasquerade, Gone: true}, {}, {Name: "net", Kind: firewall.NATPrefix},
	}}}
	if names := r.natNames(); !slices.Equal(names, []string{"", "branch", "pool", "www", "old", "", "net"}) {
		t.Errorf("names are %q", names)
	}
	tuple := func(src string, sport uint16, dst string, dport uint16) flowtable.Tuple {
		tuple := flowtable.Tuple{Family: 4, Proto: protoTCP, SrcPort: sport, DstPort: dport}
		tuple.Src, tuple.Dst = packet.Addr{}, packet.Addr{}
		copy(tuple.Src[:], netip.MustParseAddr(src).AsSlice())
		copy(tuple.Dst[:], netip.MustParseAddr(dst).AsSlice())
		return tuple
	}
	gone := map[netip.Addr]bool{netip.MustParseAddr("203.0.113.5"): true}
	original := tuple("10.1.1.1", 40000, "192.0.2.1", 443)
	for _, row := range []struct {
		name string
		nat  *flowtable.Translation
		want *FlowNAT
		ends bool
	}{
		{name: "not translated"},
		{
			name: "masqueraded", nat: &flowtable.Translation{Outer: tuple("203.0.113.5", 1024, "192.0.2.1", 443), SourceRule: 1}, ends: true,
			want: &FlowNAT{SrcIP: netip.MustParseAddr("203.0.113.5"), SrcPort: 1024, DestIP: netip.MustParseAddr("192.0.2.1"), DestPort: 443, SourceRule: "branch"},
		},
		{
			name: "to another address", nat: &flowtable.Translation{Outer: tuple("203.0.113.6", 1024, "192.0.2.1", 443), SourceRule: 1},
			want: &FlowNAT{SrcIP: netip.MustParseAddr("203.0.113.6"), SrcPort: 1024, DestIP: netip.MustParseAddr("192.0.2.1"), DestPort: 443, SourceRule: "branch"},
		},
		{
			name: "of the policy's own pool", nat: &flowtable.Translation{Outer: tuple("203.0.113.5", 1024, "192.0.2.1", 443), SourceRule: 2},
			want: &FlowNAT{SrcIP: netip.MustParseAddr("203.0.113.5"), SrcPort: 1024, DestIP: netip.MustParseAddr("192.0.2.1"), DestPort: 443, SourceRule: "pool"},
		},
		{
			name: "of a prefix", nat: &flowtable.Translation{Outer: tuple("203.0.113.5", 40000, "192.0.2.1", 443), SourceRule: 6},
			want: &FlowNAT{SrcIP: netip.MustParseAddr("203.0.113.5"), SrcPort: 40000, DestIP: netip.MustParseAddr("192.0.2.1"), DestPort: 443, SourceRule: "net"},
		},
		{
			name: "a hairpin", nat: &flowtable.Translation{Outer: tuple("203.0.113.5", 40000, "10.1.1.2", 8443), DestinationRule: 3}, ends: true,
			want: &FlowNAT{SrcIP: netip.MustParseAddr("203.0.113.5"), SrcPort: 40000, DestIP: netip.MustParseAddr("10.1.1.2"), DestPort: 8443, DestinationRule: "www"},
		},
		{
			name: "by a rule of a policy before", nat: &flowtable.Translation{Outer: tuple("203.0.113.5", 40000, "192.0.2.1", 443), SourceRule: 4, DestinationRule: 99}, ends: true,
			want: &FlowNAT{SrcIP: netip.MustParseAddr("203.0.113.5"), SrcPort: 40000, DestIP: netip.MustParseAddr("192.0.2.1"), DestPort: 443, SourceRule: "old", DestinationRule: "nat-99"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := r.translation(row.nat); !reflect.DeepEqual(got, row.want) {
				t.Errorf("it is told as %+v, want %+v", got, row.want)
			}
			if got := r.masqueradesTo(&flowtable.Flow{Tuple: original, NAT: row.nat}, gone); got != row.ends {
				t.Errorf("it ends: %t", got)
			}
		})
	}
	own := tuple("203.0.113.5", 40000, "10.1.1.2", 8443)
	if r.masqueradesTo(&flowtable.Flow{Tuple: own, NAT: &flowtable.Translation{Outer: own, DestinationRule: 3}}, gone) {
		t.Error("a flow ends that has its own address still")
	}
}
