package oracle

import (
	"net/netip"
	"testing"

	"github.com/softdpu/softdpu/firewall"
)

// Whom a mapping lets in: by each word of filtering, strangers, and another port of a host to which it was sent.
func TestMappingAdmits(t *testing.T) {
	inside, outside := netip.MustParseAddrPort("10.20.0.9:4500"), netip.MustParseAddrPort("192.0.2.1:4500")
	known, stranger := netip.MustParseAddr("192.0.2.80"), netip.MustParseAddr("192.0.2.81")
	for _, tt := range []struct {
		filtering      firewall.NATFiltering
		known, unknown bool
	}{
		{"", false, false}, {firewall.FilterAddress, true, false}, {firewall.FilterNone, true, true},
	} {
		m := &Mapping{Rule: "out", Proto: protoUDP, Inside: inside, Outside: outside, To: "wan"}
		o := &Oracle{
			policy: &firewall.Policy{NAT: []firewall.NATRule{{Name: "out", Kind: firewall.NATMasquerade, Mapping: true, Filtering: tt.filtering}}},
			mapped: mappings{
				all: []*Mapping{m}, at: map[endpoint]*Mapping{{outside, protoUDP}: m},
				peers: map[peer]bool{{endpoint{inside, protoUDP}, known}: true},
			},
		}
		for _, from := range []netip.Addr{known, stranger} {
			want := map[netip.Addr]bool{known: tt.known, stranger: tt.unknown}[from]
			p := &packet{src: from, dst: outside.Addr(), sport: 7, dport: outside.Port(), proto: protoUDP}
			if got := o.admits(p) == m; got != want {
				t.Errorf("filtering %q admits %s: %v", tt.filtering, from, got)
			}
			p.dport++
			if o.admits(p) != nil {
				t.Errorf("filtering %q admits to a port that is no mapping's", tt.filtering)
			}
			p.dport, p.proto = outside.Port(), protoTCP
			if o.admits(p) != nil {
				t.Errorf("filtering %q admits another protocol", tt.filtering)
			}
		}
		o.policy = &firewall.Policy{}
		if o.admits(&packet{src: known, dst: outside.Addr(), dport: outside.Port(), proto: protoUDP}) != nil {
			t.Error("a mapping whose rule is gone lets somebody in")
		}
	}
}
