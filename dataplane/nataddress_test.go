package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

func TestNATAddressesOf(t *testing.T) {
	lan, vlan := bpf.XDPNatDevice{Port: 1}, bpf.XDPNatDevice{Port: 1, Vlan: networkOrder16(10)}
	devices := map[int]bpf.XDPNatDevice{5: lan, 6: vlan}
	type given struct {
		device int
		cidr   string
		flags  int
		scope  netlink.Scope
	}
	addr := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	for _, tt := range []struct {
		name string
		give []given
		want map[bpf.XDPNatDevice]bpf.XDPNatAddress
		own  []netip.Addr
	}{
		{name: "none"},
		{
			name: "the first of each family",
			give: []given{{5, "192.0.2.1/24", 0, 0}, {5, "192.0.2.2/25", 0, 0}, {5, "2001:db8::1/64", 0, 0}, {5, "2001:db8::2/64", 0, 0}},
			want: map[bpf.XDPNatDevice]bpf.XDPNatAddress{lan: {Ip4: words(addr("192.0.2.1"))[0], Ip6: words(addr("2001:db8::1"))}},
			own:  []netip.Addr{addr("192.0.2.1"), addr("192.0.2.2"), addr("2001:db8::1"), addr("2001:db8::2")},
		},
		{
			name: "a VLAN's own",
			give: []given{{5, "192.0.2.1/24", 0, 0}, {6, "198.51.100.1/24", 0, 0}, {7, "203.0.113.1/24", 0, 0}},
			want: map[bpf.XDPNatDevice]bpf.XDPNatAddress{lan: {Ip4: words(addr("192.0.2.1"))[0]}, vlan: {Ip4: words(addr("198.51.100.1"))[0]}},
			own:  []netip.Addr{addr("192.0.2.1"), addr("198.51.100.1")},
		},
		{
			name: "neither secondary, temporary, tentative nor deprecated",
			give: []given{
				{5, "192.0.2.9/24", unix.IFA_F_SECONDARY, 0}, {5, "192.0.2.1/24", unix.IFA_F_PERMANENT, 0},
				{5, "2001:db8::a/64", unix.IFA_F_TEMPORARY, 0}, {5, "2001:db8::b/64", unix.IFA_F_TENTATIVE, 0},
				{5, "2001:db8::c/64", unix.IFA_F_DEPRECATED, 0}, {5, "2001:db8::d/64", unix.IFA_F_DADFAILED, 0}, {5, "2001:db8::1/64", unix.IFA_F_MANAGETEMPADDR, 0},
			},
			want: map[bpf.XDPNatDevice]bpf.XDPNatAddress{lan: {Ip4: words(addr("192.0.2.1"))[0], Ip6: words(addr("2001:db8::1"))}},
			own: []netip.Addr{
				addr("192.0.2.1"), addr("192.0.2.9"), addr("2001:db8::1"), addr("2001:db8::a"), addr("2001:db8::b"), addr("2001:db8::c"), addr("2001:db8::d"),
			},
		},
		{
			name: "of global scope",
			give: []given{{5, "fe80::1/64", 0, netlink.SCOPE_LINK}, {5, "192.0.2.1/24", 0, netlink.SCOPE_LINK}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var addrs []netlink.Addr
			for _, g := range tt.give {
				addrs = append(addrs, netlink.Addr{IPNet: cidr(g.cidr), LinkIndex: g.device, Flags: g.flags, Scope: int(g.scope)})
			}
			got, own := natAddressesOf(devices, addrs)
			if !maps.Equal(got, tt.want) {
				t.Errorf("masquerading writes %v, want %v", got, tt.want)
			}
			if have := slices.SortedFunc(maps.Keys(own), netip.Addr.Compare); !slices.Equal(have, tt.own) {
				t.Errorf("the devices have %v, want %v", have, tt.own)
			}
		})
	}
}

// What masquerading writes follows the ports' devices, and who asks learns once which addresses have gone.
func TestNATAddressesFollow(t *testing.T) {
	w := watch(t)
	wan := w.link(t, "wan")
	written := func(port uint16) (a bpf.XDPNatAddress, err error) {
		device := bpf.XDPNatDevice{Port: port}
		return a, w.p.maps[bpf.XDPMapNatAddresses].Lookup(&device, &a)
	}
	is := func(port uint16, ip4, ip6 string) error {
		a, err := written(port)
		want := bpf.XDPNatAddress{Ip4: words(netip.MustParseAddr(ip4))[0], Ip6: words(netip.MustParseAddr(ip6))}
		if err != nil || a != want {
			return fmt.Errorf("port %d masquerades to %x (%v), want %x", port, a, err, want)
		}
		return nil
	}
	for port, want := range map[uint16][2]string{1: {"10.10.1.1", "fd10:1::1"}, 2: {"10.10.2.1", "fd10:2::1"}} {
		if err := is(port, want[0], want[1]); err != nil {
			t.Error(err)
		}
	}
	if got := w.p.NATAddresses(); len(got) != 2 || got[1] != (NATAddress{Port: "wan0", Zone: got[1].Zone, IP4: netip.MustParseAddr("10.10.2.1"), IP6: netip.MustParseAddr("fd10:2::1")}) {
		t.Errorf("addresses of masquerading are %v", got)
	}
	if gone := w.p.NATAddressesGone(); gone != nil {
		t.Errorf("%v have gone", gone)
	}

	// Another lease of DHCP.
	w.do(t, func() error {
		return errors.Join(
			netlink.AddrAdd(wan, &netlink.Addr{IPNet: cidr("192.0.2.9/24")}),
			netlink.AddrDel(wan, &netlink.Addr{IPNet: cidr("10.10.2.1/24")}))
	})
	testenv.Eventually(t, 5*time.Second, func() error { return is(2, "192.0.2.9", "fd10:2::1") })
	if gone := w.p.NATAddressesGone(); !maps.Equal(gone, map[netip.Addr]bool{netip.MustParseAddr("10.10.2.1"): true}) {
		t.Errorf("%v have gone, want 10.10.2.1", gone)
	}
	if gone := w.p.NATAddressesGone(); gone != nil {
		t.Errorf("%v have gone twice", gone)
	}

	// One that comes back before anybody has asked has not gone.
	for _, change := range []func(netlink.Link, *netlink.Addr) error{netlink.AddrDel, netlink.AddrAdd} {
		w.do(t, func() error { return change(wan, &netlink.Addr{IPNet: cidr("192.0.2.9/24")}) })
		testenv.Eventually(t, 5*time.Second, func() error {
			a, err := written(2)
			if removed := a.Ip4 == 0; err != nil || removed == (w.hasAddress(t, wan, "192.0.2.9")) {
				return fmt.Errorf("port 2 masquerades to %x (%v)", a, err)
			}
			return nil
		})
	}
	if gone := w.p.NATAddressesGone(); gone != nil {
		t.Errorf("%v have gone, and are there", gone)
	}

	w.do(t, func() error { return netlink.LinkDel(wan) })
	testenv.Eventually(t, 5*time.Second, func() error {
		if _, err := written(2); !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("a port without device masquerades: %v", err)
		}
		return nil
	})
	if gone := w.p.NATAddressesGone(); !gone[netip.MustParseAddr("192.0.2.9")] || !gone[netip.MustParseAddr("fd10:2::1")] {
		t.Errorf("%v have gone with the device", gone)
	}
}

func (w *watched) hasAddress(t *testing.T, l netlink.Link, ip string) (has bool) {
	t.Helper()
	w.do(t, func() error {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range addrs {
			has = has || a.IP.String() == ip
		}
		return err
	})
	return has
}
