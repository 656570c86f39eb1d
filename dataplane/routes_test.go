package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// watched is a gateway with its ports attached and its routes followed.
type watched struct {
	*gateway
	p    *Plane
	stop func() // ends the watcher, once
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{gateway: newGateway(t, "client-server")}
	w.p = w.plane(t)
	passToKernel(t, w.p)
	if err := w.p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	routes, err := w.p.WatchRoutes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- routes.Run(ctx) }()
	ended := false
	w.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("the watcher did not end")
		}
	}
	t.Cleanup(w.stop)
	return w
}

// passToKernel publishes programs that leave everything to the kernel, so that it speaks with its
// neighbours and the policy has no part in what is tested.
func passToKernel(t *testing.T, p *Plane) {
	t.Helper()
	flags := uint32(0)
	if p.MultiBuffer() {
		flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	for name, spec := range map[string]*ebpf.ProgramSpec{
		bpf.XDPMapGenerations: {Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Flags: flags,
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}, // XDP_PASS
		bpf.XDPMapGuards: {Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}}, // TC_ACT_UNSPEC
	} {
		prog, err := ebpf.NewProgram(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer prog.Close()
		if err := p.maps[name].Put(uint32(0), prog); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *watched) link(t *testing.T, name string) (l netlink.Link) {
	t.Helper()
	w.do(t, func() (err error) {
		l, err = netlink.LinkByName(name)
		return err
	})
	return l
}

// hop puts a next hop into a slot, as XDP's look-up would.
func (w *watched) hop(slot int, port uint8, gateway, mac string) *bpf.XDPNexthop {
	ip := netip.MustParseAddr(gateway)
	hop := bpf.XDPNexthop{State: nexthopReady, Used: NowTick(), Port: port, Zone: 3, Family: 6, Gateway: words(ip)}
	if ip.Is4() {
		hop.Family = 4
	}
	hop.Dst, hop.Src = macOf(mac), w.p.Ports()[port-1].source()
	storeWords(&w.p.mem.nexthops[slot], &hop)
	return &w.p.mem.nexthops[slot]
}

func macOf(mac string) uint64 {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	return macWord(hw)
}

func (w *watched) setNeighbour(t *testing.T, ip, mac string, state int) {
	t.Helper()
	index := w.link(t, "wan").Attrs().Index
	hw, _ := net.ParseMAC(mac)
	w.do(t, func() error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: net.ParseIP(ip), HardwareAddr: hw, State: state})
	})
}

func dstIs(hop *bpf.XDPNexthop, mac string, state uint32) func() error {
	return func() error {
		if got, s := atomic.LoadUint64(&hop.Dst), atomic.LoadUint32(&hop.State); got != macOf(mac) || s != state {
			return fmt.Errorf("next hop goes to %#x in state %d, want %s (%#x) in %d", got, s, mac, macOf(mac), state)
		}
		return nil
	}
}

func TestNeighbourMovesItsNexthops(t *testing.T) {
	w := watch(t)
	for _, gateway := range []string{"10.10.2.9", "fd10:2::9"} {
		t.Run(gateway, func(t *testing.T) {
			other := "10.10.2.10"
			w.setNeighbour(t, gateway, "02:00:00:00:00:01", netlink.NUD_PERMANENT)
			hop := w.hop(200, 2, gateway, "02:00:00:00:00:01")
			sameOnOtherPort := w.hop(201, 1, gateway, "02:00:00:00:00:01")
			otherGateway := w.hop(202, 2, other, "02:00:00:00:00:01")
			idle := w.hop(203, 2, gateway, "02:00:00:00:00:01")
			atomic.StoreUint32(&idle.Used, NowTick()-nexthopKeep)

			w.setNeighbour(t, gateway, "02:00:00:00:00:02", netlink.NUD_PERMANENT)
			testenv.Eventually(t, 5*time.Second, dstIs(hop, "02:00:00:00:00:02", nexthopReady))
			for _, h := range []*bpf.XDPNexthop{sameOnOtherPort, otherGateway, idle} {
				if err := dstIs(h, "02:00:00:00:00:01", nexthopReady)(); err != nil {
					t.Errorf("another next hop was changed: %v", err)
				}
			}

			// Gone: XDP has to ask for every packet, until it hears that it need not.
			index := w.link(t, "wan").Attrs().Index
			atomic.StoreUint32(&hop.Used, NowTick())
			w.do(t, func() error {
				return netlink.NeighDel(&netlink.Neigh{LinkIndex: index, IP: net.ParseIP(gateway)})
			})
			testenv.Eventually(t, 5*time.Second, dstIs(hop, "02:00:00:00:00:02", nexthopPending))
		})
	}
}

// What traffic goes to stays resolved, though the kernel sees nothing of it, and is let go at the end.
func TestNexthopsInUseAreKeptAlive(t *testing.T) {
	t.Parallel()
	w := watch(t)
	server := w.lab.Must(t, "server")
	mac, err := server.MAC("s0")
	if err != nil {
		t.Fatal(err)
	}
	entry := func(ip string) (found netlink.Neigh, err error) {
		err = w.ns.Do(func() error {
			list, err := netlink.NeighList(0, netlink.FAMILY_V4)
			for _, n := range list {
				if n.IP.String() == ip {
					found = n
				}
			}
			return err
		})
		return found, err
	}
	hop := w.hop(200, 2, "10.10.2.2", mac.String())
	w.setNeighbour(t, "10.10.2.7", "02:00:00:00:00:07", netlink.NUD_PERMANENT)
	static := w.hop(201, 2, "10.10.2.7", "02:00:00:00:00:07")
	testenv.Eventually(t, 10*time.Second, func() error {
		atomic.StoreUint32(&hop.Used, NowTick())
		atomic.StoreUint32(&static.Used, NowTick())
		n, err := entry("10.10.2.2")
		if err != nil {
			return err
		}
		if n.State&valid == 0 || n.HardwareAddr.String() != mac.String() {
			return fmt.Errorf("the neighbour is %+v", n)
		}
		if w.p.kernel.atLeast(5, 16) && n.FlagsExt&netlink.NTF_EXT_MANAGED == 0 {
			return errors.New("the kernel does not keep the neighbour by itself")
		}
		return nil
	})
	if n, err := entry("10.10.2.7"); err != nil || n.State&netlink.NUD_PERMANENT == 0 || n.FlagsExt != 0 {
		t.Errorf("the operator's own entry became %+v (%v)", n, err)
	}

	w.stop()
	if n, err := entry("10.10.2.2"); err != nil || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0 {
		t.Errorf("after the end the neighbour is %+v (%v)", n, err)
	}
}

func TestChangesMakeRoutesStale(t *testing.T) {
	w := watch(t)
	wan := w.link(t, "wan")
	route := &netlink.Route{LinkIndex: wan.Attrs().Index, Dst: cidr("198.51.100.0/24"), Gw: net.ParseIP("10.10.2.2")}
	rule := netlink.NewRule()
	rule.Table, rule.Src, rule.Priority = 100, cidr("10.10.1.0/24"), 1000
	for _, tt := range []struct {
		name   string
		change func() error
	}{
		{"route added", func() error { return netlink.RouteAdd(route) }},
		{"route removed", func() error { return netlink.RouteDel(route) }},
		{"rule added", func() error { return netlink.RuleAdd(rule) }},
		{"address added", func() error { return netlink.AddrAdd(wan, &netlink.Addr{IPNet: cidr("10.10.2.77/32")}) }},
		{"link changed", func() error { return netlink.LinkSetMTU(wan, 1400) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := &w.p.mem.gateway[0].RouteChanged
			atomic.StoreUint32(changed, 0)
			before := NowTick()
			w.do(t, tt.change)
			testenv.Eventually(t, 5*time.Second, func() error {
				if got := atomic.LoadUint32(changed); got == 0 || int32(got-before) < 0 {
					return fmt.Errorf("routes changed at tick %d, asked at %d", got, before)
				}
				return nil
			})
		})
	}
}

func cidr(s string) *net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}

func TestPortFollowsItsDevice(t *testing.T) {
	w := watch(t)
	wan := w.link(t, "wan")
	hop := w.hop(200, 2, "10.10.2.2", "02:00:00:00:00:01")
	entry := func() *bpf.XDPPort {
		return &w.p.mem.ports[uint32(wan.Attrs().Index)*w.p.mem.gateway[0].PortMul>>24]
	}
	w.do(t, func() error {
		hw, _ := net.ParseMAC("02:00:00:00:00:77")
		return errors.Join(netlink.LinkSetMTU(wan, 1400), netlink.LinkSetHardwareAddr(wan, hw))
	})
	want := macOf("02:00:00:00:00:77") | 1400<<48
	testenv.Eventually(t, 5*time.Second, func() error {
		for name, got := range map[string]uint64{
			"next hop":           atomic.LoadUint64(&hop.Src),
			"port's next hop":    atomic.LoadUint64(&w.p.mem.nexthops[PortNexthop(2)].Src),
			"port's MAC and MTU": macWord(entry().Mac[:]) | uint64(entry().Mtu)<<48,
		} {
			if got != want {
				return fmt.Errorf("%s: %#x, want %#x", name, got, want)
			}
		}
		return nil
	})

	w.do(t, func() error {
		return errors.Join(
			netlink.AddrDel(wan, &netlink.Addr{IPNet: cidr("10.10.2.1/24")}),
			netlink.AddrAdd(wan, &netlink.Addr{IPNet: cidr("192.0.2.9/24")}))
	})
	ownAddress := func(ip string) error {
		var v uint32
		key := localKey(netip.PrefixFrom(netip.MustParseAddr(ip), 32))
		return w.p.maps[bpf.XDPMapLocals].Lookup(&key, &v)
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if got := w.p.Ports()[1].IP4; got != netip.MustParseAddr("192.0.2.9") {
			return fmt.Errorf("the port sends from %s", got)
		}
		if got := words(netip.MustParseAddr("192.0.2.9"))[0]; entry().Ip4 != got {
			return fmt.Errorf("XDP sends from %#x", entry().Ip4)
		}
		if err := ownAddress("192.0.2.9"); err != nil {
			return fmt.Errorf("the new address is not the gateway's own: %w", err)
		}
		if err := ownAddress("192.0.2.255"); err != nil {
			return fmt.Errorf("the new broadcast address is not the gateway's own: %w", err)
		}
		if err := ownAddress("10.10.2.1"); !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("the old address is still the gateway's own: %v", err)
		}
		return nil
	})

	w.do(t, func() error { return netlink.LinkSetDown(wan) })
	testenv.Eventually(t, 5*time.Second, func() error {
		if entry().Flags&portUp != 0 || w.p.Ports()[1].Up {
			return errors.New("the port is still up")
		}
		return nil
	})
	// A device that goes takes nothing with it but itself.
	w.do(t, func() error { return netlink.LinkDel(wan) })
}

// VLAN devices come and go. The links stand for those of a kernel that has them.
func TestVLANDevicesAreFollowed(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	err := p.Attach([]PortConfig{
		{Name: "lan0", Device: "lan", Zone: 2, VLANs: map[uint16]uint8{10: 4, 20: 5}, FixOffloads: true},
		{Name: "wan0", Device: "wan", Zone: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	lan := p.Ports()[0]
	vlan := func(index, parent, id int) *netlink.Vlan {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index, attrs.ParentIndex = fmt.Sprintf("lan.%d", id), index, parent
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	}
	ours := vlan(501, int(lan.Index), 10)
	for _, l := range []netlink.Link{
		ours,
		vlan(502, int(lan.Index), 30), // no zone has it
		vlan(503, 999, 10),            // on another device
	} {
		if err := p.followLink(l, false); err != nil {
			t.Fatal(err)
		}
	}
	var (
		egress bpf.XDPEgress
		index  uint32
	)
	if err := p.maps[bpf.XDPMapEgresses].Lookup(uint32(501), &egress); err != nil || egress.Port != 1 || egress.Zone != 4 || egress.Vlan != networkOrder16(10) {
		t.Errorf("the VLAN device has the egress %+v (%v)", egress, err)
	}
	if err := p.maps[bpf.XDPMapVlanDevices].Lookup(uint32(1<<12|10), &index); err != nil || index != 501 {
		t.Errorf("routes of VLAN 10 are asked of device %d (%v), want 501", index, err)
	}
	for _, stranger := range []uint32{502, 503} {
		if err := p.maps[bpf.XDPMapEgresses].Lookup(stranger, &egress); !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Errorf("routes may leave by device %d", stranger)
		}
	}

	// A neighbour on the VLAN moves the next hop with its tag, not the untagged one.
	w := &watched{gateway: g, p: p}
	untagged := w.hop(200, 1, "10.10.1.9", "02:00:00:00:00:01")
	tagged := w.hop(201, 1, "10.10.1.9", "02:00:00:00:00:01")
	tag := uint64(networkOrder16(10)) << 48
	tagged.Dst |= tag
	mac, _ := net.ParseMAC("02:00:00:00:00:02")
	p.followNeighbour(&netlink.Neigh{LinkIndex: 501, IP: net.ParseIP("10.10.1.9").To4(), State: netlink.NUD_REACHABLE, HardwareAddr: mac}, false)
	if untagged.Dst != macOf("02:00:00:00:00:01") || tagged.Dst != macOf("02:00:00:00:00:02")|tag {
		t.Errorf("next hops go to %#x and, tagged, %#x", untagged.Dst, tagged.Dst)
	}

	if err := p.followLink(ours, true); err != nil {
		t.Fatal(err)
	}
	if err := p.maps[bpf.XDPMapEgresses].Lookup(uint32(501), &egress); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Error("routes may leave by a VLAN device that has gone")
	}
	if err := p.maps[bpf.XDPMapVlanDevices].Lookup(uint32(1<<12|10), &index); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Error("routes are asked of a VLAN device that has gone")
	}
}

// Lost messages are made up for.
func TestResync(t *testing.T) {
	w := watch(t)
	w.stop()
	wan := w.link(t, "wan")
	w.do(t, func() error { return netlink.LinkSetMTU(wan, 1300) })
	routes, err := w.p.WatchRoutes()
	if err != nil {
		t.Fatal(err)
	}
	defer routes.socket.Close()
	if got := w.p.Ports()[1].MTU; got != 1300 {
		t.Errorf("the MTU is %d after starting, want 1300", got)
	}
	// Overrun the socket: with 2,000 messages and no reader it reports ENOBUFS once.
	raw, err := routes.socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4096)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.do(t, func() error {
		for i := range 200 {
			r := &netlink.Route{LinkIndex: wan.Attrs().Index, Dst: cidr(fmt.Sprintf("198.51.%d.0/24", i)), Gw: net.ParseIP("10.10.2.2")}
			if err := netlink.RouteAdd(r); err != nil {
				return err
			}
		}
		return netlink.LinkSetMTU(wan, 1280)
	})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if err := routes.Run(ctx); err != nil {
		t.Error(err)
	}
	if got := w.p.Ports()[1].MTU; got != 1280 {
		t.Errorf("the MTU is %d after lost messages, want 1280", got)
	}
}
