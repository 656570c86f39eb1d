package dataplane

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/bpf"
)

func TestArrange(t *testing.T) {
	many := make([]PortConfig, portMax+1)
	for i := range many {
		many[i] = PortConfig{Name: string(rune('a'+i%26)) + string(rune('a'+i/26)), Device: string(rune('a'+i%26)) + string(rune('a'+i/26))}
	}
	for _, tt := range []struct {
		name  string
		ports []PortConfig
		want  string // in the error; empty = none
	}{
		{"routed", []PortConfig{{Name: "lan0", Device: "eth0"}, {Name: "wan0", Device: "eth1"}}, ""},
		{"inline", []PortConfig{{Name: "a", Device: "x", Peer: "b"}, {Name: "b", Device: "y", Peer: "a"}}, ""},
		{"none", nil, "no port is configured"},
		{"too many", many, "65 ports are configured, at most 64"},
		{"no name", []PortConfig{{Device: "x"}}, "port 1 has no name"},
		{"name twice", []PortConfig{{Name: "a", Device: "x"}, {Name: "a", Device: "y"}}, "port a: there are two of this name"},
		{"device twice", []PortConfig{{Name: "a", Device: "x"}, {Name: "b", Device: "x"}}, "port b: device x is port a already"},
		{"peer missing", []PortConfig{{Name: "a", Device: "x", Peer: "b"}}, "port a: its inline peer b is no port"},
		{"peer itself", []PortConfig{{Name: "a", Device: "x", Peer: "a"}}, "it is its own inline peer"},
		{"peer of another", []PortConfig{
			{Name: "a", Device: "x", Peer: "b"}, {Name: "b", Device: "y", Peer: "c"}, {Name: "c", Device: "z", Peer: "b"},
		}, "port a: its inline peer b is not joined to it"},
		{"VLAN 0", []PortConfig{{Name: "a", Device: "x", VLANs: map[uint16]uint8{0: 2}}}, "VLAN 0: ids go from 1 to 4094"},
		{"VLAN 4095", []PortConfig{{Name: "a", Device: "x", VLANs: map[uint16]uint8{4095: 2}}}, "VLAN 4095"},
		{"VLAN without zone", []PortConfig{{Name: "a", Device: "x", VLANs: map[uint16]uint8{10: 0}}}, "VLAN 10 has no zone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var ports []*Port
			for _, c := range tt.ports {
				ports = append(ports, &Port{PortConfig: c})
			}
			err := arrange(ports, numbering{})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("got error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestPortEntry(t *testing.T) {
	a := &Port{
		PortConfig: PortConfig{Name: "a", Device: "x", Zone: 2, Peer: "b", VLANs: map[uint16]uint8{10: 4}},
		Index:      7, MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 1500, Up: true,
		IP4: netip.MustParseAddr("10.1.2.3"), IP6: netip.MustParseAddr("fd00::1"), fixChecksum: true,
	}
	b := &Port{PortConfig: PortConfig{Name: "b", Device: "y", Zone: 3, Peer: "a"}, Index: 8, MTU: 9000}
	if err := arrange([]*Port{a, b}, numbering{}); err != nil {
		t.Fatal(err)
	}
	want := bpf.XDPPort{
		Ifindex: 7, Id: 1, Flags: portInline | portVLANs | portFixChecksum | portUp, Zone: 2, Pair: 1,
		Mac: [6]uint8{2, 0, 0, 0, 0, 1}, Mtu: 1500, Peer: PortNexthop(2), PeerZone: 3, PeerPort: 2,
		Ip4: 0x0302010a, Ip6: [4]uint32{0x000000fd, 0, 0, 0x01000000}, // as little-endian machines see them
	}
	if got := a.entry(); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := b.entry(); got.Pair != 1 || got.Peer != PortNexthop(1) || got.Flags != portInline {
		t.Errorf("the peer is %+v", got)
	}
	if got, want := a.nexthop().Src, uint64(1500)<<48|0x010000000002; got != want {
		t.Errorf("source word %#x, want %#x", got, want)
	}
}
