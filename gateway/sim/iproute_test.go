package sim

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/softdpu/softdpu/firewall"
)

func TestKernelRoutes(t *testing.T) {
	const text = `[{"dst":"default","gateway":"10.2.0.9","dev":"eth0","metric":100,"flags":[]},
 {"dst":"default","gateway":"10.2.0.8","dev":"eth0","metric":50,"flags":[]},
 {"dst":"10.1.0.0/20","dev":"eth1","protocol":"kernel","scope":"link","prefsrc":"10.1.0.1","flags":[]},
 {"dst":"10.3.0.0/16","gateway":"10.1.0.3","dev":"eth1.20","flags":[]},
 {"type":"blackhole","dst":"10.9.0.0/16","flags":[]},
 {"type":"throw","dst":"10.10.0.0/16","flags":[]},
 {"dst":"10.11.0.1","dev":"tun0","flags":[]},
 {"dst":"10.12.0.0/16","gateway":"10.2.0.8","dev":"eth0","flags":["dead","linkdown"]},
 {"dst":"10.13.0.0/16","gateway":"10.2.0.8","dev":"tun0","table":"77","flags":[]},
 {"dst":"10.77.0.0/16","flags":[],"nexthops":[{"gateway":"10.2.0.3","dev":"eth0","weight":1,"flags":["dead"]},{"gateway":"10.1.0.4","dev":"eth1","weight":1,"flags":[]}]},
 {"dst":"10.78.0.0/16","via":{"family":"inet6","host":"fe80::1"},"dev":"eth0","flags":[]}]
[{"dst":"fd10:1::/64","dev":"eth1","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},
 {"dst":"fe80::/64","dev":"eth1","protocol":"kernel","metric":256,"flags":[],"pref":"medium"},
 {"dst":"default","dev":"eth0","metric":1024,"flags":[],"pref":"medium"},
 {"type":"local","dst":"fd10:1::1","dev":"eth1","table":"local","protocol":"kernel","metric":0,"flags":[],"pref":"medium"},
 {"type":"multicast","dst":"ff00::/8","dev":"eth1","table":"local","protocol":"kernel","metric":256,"flags":[],"pref":"medium"}]`
	device := func(name string) (string, uint16, bool) {
		switch name {
		case "eth0":
			return "wan", 0, true
		case "eth1":
			return "lan", 0, true
		case "eth1.20":
			return "lan", 20, true
		}
		return "", 0, false
	}
	k, err := ReadKernelRoutes(strings.NewReader(text), device)
	if err != nil {
		t.Fatal(err)
	}
	for dst, want := range map[string]Route{
		"10.1.0.1":    {Kind: RouteHost},
		"10.1.15.255": {Kind: RouteHost},
		"10.1.14.255": {Port: "lan"},
		"10.1.16.1":   {Port: "wan"},
		"10.3.1.1":    {Port: "lan", VLAN: 20},
		"10.9.1.1":    {Kind: RouteBlocked},
		"10.10.1.1":   {Port: "wan"},
		"10.11.0.1":   {Kind: RouteElsewhere},
		"10.12.1.1":   {Port: "wan"},
		"10.13.1.1":   {Port: "wan"},
		"10.77.1.1":   {Port: "lan"},
		"10.78.1.1":   {Port: "wan"},
		"fd10:1::1":   {Kind: RouteHost},
		"fd10:1::2":   {Port: "lan"},
		"2001:db8::1": {Port: "wan"},
		"fe80::1":     {Port: "wan"},
	} {
		r, ok := k.Lookup(netip.MustParseAddr(dst))
		if !ok || r.Kind != want.Kind || r.Port != want.Port || r.VLAN != want.VLAN {
			t.Errorf("%s: %+v, %t, want %+v", dst, r, ok, want)
		}
		if want.Port != "" && r.MAC == [6]byte{} {
			t.Errorf("%s: a next hop without MAC", dst)
		}
	}
	best, _ := k.Lookup(netip.MustParseAddr("8.8.8.8"))
	if best.MAC != neighbourMAC("eth0", "10.2.0.8") {
		t.Error("the default route with the higher metric won")
	}
	if want := []netip.Addr{netip.MustParseAddr("fd10:1::1"), netip.MustParseAddr("10.1.0.1")}; !slices.Equal(k.Addresses["lan"], want) {
		t.Errorf("own addresses %v", k.Addresses)
	}
	// The simulation looks routes up as the list says.
	s := open(t, Config{Policy: compile(t, "zones: {lan: {ports: [lan]}, v: {ports: [lan], vlans: [20]}, wan: {ports: [wan]}}\n", firewall.CompileOptions{}),
		Ports: []Port{{Name: "lan"}, {Name: "wan"}}, Routes: k.Routes})
	for _, dst := range []string{"10.1.0.1", "10.1.15.255", "10.1.14.255", "10.3.1.1", "10.9.1.1", "10.77.1.1", "fd10:1::1", "fd10:1::2", "2001:db8::1"} {
		r, _ := k.Lookup(netip.MustParseAddr(dst))
		want := r.Port
		if r.Kind == RouteHost {
			want = "host"
		}
		if got := s.Lookup(netip.MustParseAddr(dst)); got != want {
			t.Errorf("%s: the simulation says %q, the list %q", dst, got, want)
		}
	}
	for _, bad := range []string{"default via 10.0.0.1", `[{"dst":"here"}]`, `[{"dst":"10.0.0.0/8","protocol":"kernel","prefsrc":"me"}]`} {
		if _, err := ReadKernelRoutes(strings.NewReader(bad), device); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// What masquerading writes on a VLAN is the first address of its device that others can reach.
func TestKernelRoutesTellAddressesOfVLANs(t *testing.T) {
	const text = `[{"dst":"10.3.0.0/16","dev":"eth1.20","protocol":"kernel","scope":"link","prefsrc":"10.3.0.1","flags":[]},
 {"type":"local","dst":"fe80::5","dev":"eth1.20","table":"local","protocol":"kernel","flags":[],"pref":"medium"},
 {"type":"local","dst":"fd10:3::1","dev":"eth1.20","table":"local","protocol":"kernel","flags":[],"pref":"medium"}]`
	k, err := ReadKernelRoutes(strings.NewReader(text), func(name string) (string, uint16, bool) { return "lan", 20, name == "eth1.20" })
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{{Port: "lan", VLAN: 20, IP6: netip.MustParseAddr("fd10:3::1")}, {Port: "lan", VLAN: 20, IP4: netip.MustParseAddr("10.3.0.1")}}
	if !slices.Equal(k.VLANs, want) || len(k.Addresses) != 0 {
		t.Errorf("addresses %+v of VLANs, %v of ports", k.VLANs, k.Addresses)
	}
}
