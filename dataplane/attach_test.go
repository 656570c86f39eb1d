package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// gateway is a lab whose gateway namespace has a plane.
type gateway struct {
	lab *testenv.Lab
	ns  *testenv.Namespace
}

func newGateway(t *testing.T, topology string) *gateway {
	t.Helper()
	lab := testenv.New(t, topology, testenv.Options{})
	return &gateway{lab, lab.Must(t, testenv.Gateway)}
}

// open makes a plane in the gateway's namespace. The caller closes it.
func (g *gateway) open(t *testing.T) *Plane {
	t.Helper()
	var p *Plane
	g.do(t, func() (err error) {
		p, err = Open(Options{FlowsMax: 4096})
		return err
	})
	return p
}

func (g *gateway) do(t *testing.T, fn func() error) {
	t.Helper()
	if err := g.ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// plane is open, closed at the test's end.
// forcesIPv6 tells whether this kernel has a switch for the forwarding of IPv6 by one port: since Linux 6.17.
func forcesIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6/conf/all/force_forwarding")
	return err == nil
}

func (g *gateway) plane(t *testing.T) *Plane {
	t.Helper()
	p := g.open(t)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// snapshot is what Attach may change of a namespace and Close must give back.
func (g *gateway) snapshot(t *testing.T) map[string]string {
	t.Helper()
	state := make(map[string]string)
	g.do(t, func() error {
		for _, root := range []string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"} {
			err := filepath.WalkDir(filepath.Join(procSysNet, root), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					if b, err := os.ReadFile(path); err == nil {
						state[path] = strings.TrimSpace(string(b))
					}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			a := l.Attrs()
			state["features "+a.Name] = features(t, a.Name)
			state["link "+a.Name] = fmt.Sprintf("flags %v promiscuous %d xdp %+v", a.Flags, a.Promisc, a.Xdp)
			qdiscs, err := netlink.QdiscList(l)
			if err != nil {
				return err
			}
			for _, q := range qdiscs {
				state["qdisc "+a.Name] += q.Type() + " "
			}
			for _, hook := range []ebpf.AttachType{ebpf.AttachTCXEgress, ebpf.AttachTCXIngress} {
				q, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: hook})
				if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
					continue // before Linux 6.6 there is no tcx
				}
				if err != nil {
					return err
				}
				state[fmt.Sprintf("tcx %s %s", a.Name, hook)] = fmt.Sprint(len(q.Programs))
			}
		}
		return nil
	})
	return state
}

// far is the features of the devices at the other ends.
func (g *gateway) far(t *testing.T) map[string]string {
	t.Helper()
	state := make(map[string]string)
	for node, dev := range map[string]string{"client": "c0", "server": "s0"} {
		if err := g.lab.Must(t, node).Do(func() error {
			state["features "+dev] = features(t, dev)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return state
}

// features returns what is on of a device of the thread's namespace, in order.
func features(t *testing.T, dev string) string {
	t.Helper()
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	all, err := e.Features(dev)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	maps.DeleteFunc(all, func(_ string, on bool) bool { return !on })
	return strings.Join(slices.Sorted(maps.Keys(all)), " ")
}

// setRaw turns a feature of a device of the thread's namespace on or off.
func setRaw(dev, feature string, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(dev, map[string]bool{feature: on})
}

func differences(a, b map[string]string) (lines []string) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if a[key] != b[key] {
			lines = append(lines, fmt.Sprintf("%s: %q, then %q", key, a[key], b[key]))
		}
	}
	return lines
}

func (g *gateway) sysctl(t *testing.T, name string) (value string) {
	t.Helper()
	g.do(t, func() (err error) {
		value, err = readSysctl(name)
		return err
	})
	return value
}

func routed() []PortConfig {
	return []PortConfig{{Name: "lan0", Device: "lan", Zone: 2}, {Name: "wan0", Device: "wan", Zone: 3}}
}

func TestAttachGivesEverythingBack(t *testing.T) {
	for _, tt := range []struct {
		name string
		old  func(*kernel) // what an older kernel lacks
	}{
		{"this kernel", func(*kernel) {}},
		{"clsact", func(k *kernel) { k.tcx = false }},
		{"IPv6 forwarding of all devices", func(k *kernel) { k.force6 = false }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, "client-server")
			before := g.snapshot(t)
			p := g.open(t)
			tt.old(&p.kernel)
			if err := p.Attach(routed()); err != nil {
				p.Close()
				t.Fatal(err)
			}
			for _, dev := range []string{"lan", "wan"} {
				for name, want := range map[string]string{
					"ipv4/conf/" + dev + "/forwarding":              "1",
					"ipv4/neigh/" + dev + "/base_reachable_time_ms": "2000",
					"ipv6/neigh/" + dev + "/retrans_time_ms":        "500",
					"ipv4/neigh/" + dev + "/delay_first_probe_time": "1",
				} {
					if got := g.sysctl(t, name); got != want {
						t.Errorf("%s is %s, want %s", name, got, want)
					}
				}
			}
			switch6 := "ipv6/conf/all/forwarding"
			if p.kernel.force6 && before[filepath.Join(procSysNet, "ipv6/conf/lan/force_forwarding")] != "" {
				switch6 = "ipv6/conf/lan/force_forwarding"
				if got := g.sysctl(t, "ipv6/conf/wan/forwarding"); got != "1" {
					t.Errorf("without ipv6/conf/wan/forwarding the kernel answers no route look-up")
				}
			}
			if got := g.sysctl(t, switch6); got != "1" {
				t.Errorf("%s is %s, want 1", switch6, got)
			}
			for i, port := range p.Ports() {
				if port.Running != ModeNative || port.WhyNotNative != "" || port.Driver != "veth" || !port.Up {
					t.Errorf("port %d is %+v", i+1, port)
				}
				if want := map[bool]string{true: "tcx", false: "clsact"}[p.kernel.tcx]; port.Guard != want {
					t.Errorf("port %s has its guard by %s, want %s", port.Name, port.Guard, want)
				}
				if want := fmt.Sprintf("10.10.%d.1 fd10:%d::1", i+1, i+1); fmt.Sprint(port.IP4, " ", port.IP6) != want {
					t.Errorf("port %s sends from %v and %v, want %s", port.Name, port.IP4, port.IP6, want)
				}
			}
			during := g.snapshot(t)
			if len(differences(before, during)) < 10 {
				t.Errorf("the snapshot does not see what Attach does: %v", differences(before, during))
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			for _, line := range differences(before, g.snapshot(t)) {
				t.Errorf("not given back: %s", line)
			}
		})
	}
}

func TestAttachFillsTables(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	for _, port := range p.Ports() {
		var (
			e      bpf.XDPPort
			egress bpf.XDPEgress
			target uint32
			local  uint32
		)
		if err := p.maps[bpf.XDPMapPorts].Lookup(port.Index*p.mem.gateway[0].PortMul>>24, &e); err != nil || e.Id != port.ID || e.Mac != port.MAC || e.Mtu != 1500 {
			t.Errorf("port %s has the entry %+v (%v)", port.Name, e, err)
		}
		if e.Flags&portFixChecksum == 0 || e.Flags&portUp == 0 || e.Flags&portInline != 0 {
			t.Errorf("port %s has the flags %#x", port.Name, e.Flags)
		}
		if err := p.maps[bpf.XDPMapEgresses].Lookup(port.Index, &egress); err != nil || egress.Port != port.ID || egress.Zone != port.Zone {
			t.Errorf("port %s has the egress %+v (%v)", port.Name, egress, err)
		}
		if err := p.maps[bpf.XDPMapDevices].Lookup(uint32(port.ID), &target); err != nil || target != port.Index {
			t.Errorf("port %s is redirected to device %d (%v), want %d", port.Name, target, err, port.Index)
		}
		key := bpf.XDPLocalKey{Prefixlen: 64, Family: 4, Addr: words(port.IP4)}
		if err := p.maps[bpf.XDPMapLocals].Lookup(&key, &local); err != nil {
			t.Errorf("address %s is not known as the gateway's own: %v", port.IP4, err)
		}
		key = bpf.XDPLocalKey{Prefixlen: 160, Family: 6, Addr: words(port.IP6)}
		if err := p.maps[bpf.XDPMapLocals].Lookup(&key, &local); err != nil {
			t.Errorf("address %s is not known as the gateway's own: %v", port.IP6, err)
		}
	}
	if err := p.Attach(routed()); err == nil || !strings.Contains(err.Error(), "ports already") {
		t.Errorf("a second Attach ended with %v", err)
	}
}

func TestAttachInline(t *testing.T) {
	g := newGateway(t, "inline")
	before := g.snapshot(t)
	p := g.open(t)
	err := p.Attach([]PortConfig{
		{Name: "lan0", Device: "lan", Zone: 2, Peer: "wan0"},
		{Name: "wan0", Device: "wan", Zone: 3, Peer: "lan0", FixChecksum: SwitchOff, Mode: ModeGeneric, FixOffloads: true},
	})
	if err != nil {
		p.Close()
		t.Fatal(err)
	}
	g.do(t, func() error {
		for _, name := range []string{"lan", "wan"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if l.Attrs().Promisc != 1 {
				t.Errorf("%s has promiscuity %d, want 1", name, l.Attrs().Promisc)
			}
		}
		return nil
	})
	if got := g.sysctl(t, "ipv4/conf/lan/forwarding"); got != "0" {
		t.Errorf("forwarding of an inline port is %s, want 0", got)
	}
	ports := p.Ports()
	if ports[0].Running != ModeNative || ports[1].Running != ModeGeneric || ports[1].WhyNotNative != "" {
		t.Errorf("modes are %s and %s (%q), want native and generic as asked", ports[0].Running, ports[1].Running, ports[1].WhyNotNative)
	}
	e := p.mem.ports[ports[1].Index*p.mem.gateway[0].PortMul>>24]
	if e.Flags&portInline == 0 || e.Flags&portFixChecksum != 0 || e.Peer != PortNexthop(1) || e.PeerZone != 2 {
		t.Errorf("the entry is %+v", e)
	}
	var egress bpf.XDPEgress
	if err := p.maps[bpf.XDPMapEgresses].Lookup(ports[0].Index, &egress); err == nil {
		t.Error("routes may leave by an inline port")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, line := range differences(before, g.snapshot(t)) {
		t.Errorf("not given back: %s", line)
	}
}

// passAll is somebody else's XDP program.
func passAll(t *testing.T) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// A refusal names the remedy, and leaves the other port as it was.
func TestAttachRefuses(t *testing.T) {
	t.Parallel()
	withWAN := func(change func(*PortConfig)) []PortConfig {
		ports := routed()
		change(&ports[1])
		return ports
	}
	wan := func() netlink.Link {
		l, err := netlink.LinkByName("wan")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	bridge := func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Flags: net.FlagUp}})
	}
	for _, tt := range []struct {
		name  string
		setup func(t *testing.T) error // inside the namespace
		ports []PortConfig
		want  []string
	}{
		{"no such device", nil, withWAN(func(c *PortConfig) { c.Device = "eth7" }),
			[]string{"port wan0: no device eth7 in this network namespace", "`ip link` lists them"}},
		{"no device named", nil, withWAN(func(c *PortConfig) { c.Device = "" }), []string{"port wan0: no device is named"}},
		{"both at once", nil, []PortConfig{{Name: "a", Device: "eth7"}, {Name: "b", Device: "eth8"}},
			[]string{"port a: no device eth7", "port b: no device eth8"}},
		{"loopback", nil, withWAN(func(c *PortConfig) { c.Device = "lo" }), []string{"device lo is the loopback"}},
		{"down", func(*testing.T) error { return netlink.LinkSetDown(wan()) }, routed(),
			[]string{"port wan0: device wan is down: `ip link set wan up` first"}},
		{"same device by its other name", func(*testing.T) error { return netlink.LinkAddAltName(wan(), "uplink-to-the-provider") },
			append(routed(), PortConfig{Name: "wan1", Device: "uplink-to-the-provider"}),
			[]string{"port wan1: device wan is port wan0 already"}},
		{"in a bridge", func(*testing.T) error {
			if err := bridge(); err != nil {
				return err
			}
			br, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMaster(wan(), br)
		}, routed(), []string{"device wan is a member of bridge br0", "`ip link set wan nomaster` first"}},
		{"other program, by netlink", func(t *testing.T) error {
			return netlink.LinkSetXdpFdWithFlags(wan(), passAll(t).FD(), 1<<1)
		}, routed(), []string{`device wan runs an XDP program "stranger" (id `, "`ip link set dev wan xdpgeneric off` takes it off"}},
		{"other program, by bpf_link", func(t *testing.T) error {
			l, err := link.AttachXDP(link.XDPOptions{Program: passAll(t), Interface: wan().Attrs().Index})
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, routed(), []string{`"stranger"`, "attached by bpf_link", fmt.Sprintf("(pid %d)", os.Getpid()), "stop that process, or `bpftool link detach id "}},
		{"no native XDP", func(*testing.T) error { return bridge() },
			withWAN(func(c *PortConfig) { c.Device, c.Mode = "br0", ModeNative }),
			[]string{"port wan0: attach XDP to device br0 in native mode: driver bridge:", "it has no native XDP", "set xdp_mode: auto"}},
		{"tags hidden by the other end", nil,
			withWAN(func(c *PortConfig) { c.VLANs = map[uint16]uint8{10: 4} }),
			[]string{"port wan0: the other end of device wan, s0, hides VLAN tags (tx-vlan-hw-insert", "`ethtool -K s0 tx-vlan-hw-insert off", " off` there", "fix_offloads: true"}},
		{"work left undone by the other end, in generic mode", nil,
			withWAN(func(c *PortConfig) { c.Mode = ModeGeneric }),
			[]string{"port wan0: the other end of device wan, s0, leaves segmentation and checksums to XDP", "(tx-tcp-segmentation, ", "`ethtool -K s0 tx-tcp-segmentation off tx-tcp6-segmentation off", " off` there", "fix_offloads: true"}},
		{"frames merged below the device", func(*testing.T) error {
			if err := bridge(); err != nil {
				return err
			}
			br, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(wan(), br); err != nil {
				return err
			}
			return setRaw("wan", "rx-gro", true)
		}, withWAN(func(c *PortConfig) { c.Device = "br0" }),
			[]string{"port wan0: device wan below device br0 merges frames into ones larger than the MTU", "(rx-gro is on): `ethtool -K wan rx-gro off`, or",
				"port wan0: the other end of device wan, s0, leaves segmentation", "generic mode, because of driver bridge"}},
		{"fixed for the first port, when the second fails", nil, []PortConfig{
			{Name: "lan0", Device: "lan", Zone: 2, Mode: ModeGeneric, FixOffloads: true},
			{Name: "wan0", Device: "wan", Zone: 3, Mode: ModeGeneric},
		}, []string{"port wan0: the other end of device wan, s0, leaves segmentation"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, "client-server")
			if tt.setup != nil {
				g.do(t, func() error { return tt.setup(t) })
			}
			before := g.snapshot(t)
			maps.Copy(before, g.far(t))
			p := g.plane(t)
			err := p.Attach(tt.ports)
			if err == nil {
				t.Fatal("it was attached")
			}
			t.Log(err)
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q", want)
				}
			}
			after := g.snapshot(t)
			maps.Copy(after, g.far(t))
			for _, line := range differences(before, after) {
				t.Errorf("not given back: %s", line)
			}
			if len(p.Ports()) != 0 {
				t.Error("there are ports after an error")
			}
		})
	}
}

func TestAttachFallsBackToGeneric(t *testing.T) {
	g := newGateway(t, "client-server")
	g.do(t, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", Flags: net.FlagUp}})
	})
	p := g.plane(t) // an empty bridge merges nothing
	if err := p.Attach([]PortConfig{{Name: "a", Device: "br0", Zone: 2}}); err != nil {
		t.Fatal(err)
	}
	port := p.Ports()[0]
	if port.Running != ModeGeneric || !strings.Contains(port.WhyNotNative, "driver bridge") {
		t.Errorf("it runs in %s mode because of %q", port.Running, port.WhyNotNative)
	}
}

// Without multi-buffer XDP a driver refuses jumbo frames, and says so only by netlink.
func TestDriversOwnWords(t *testing.T) {
	lab := testenv.New(t, "client-server", testenv.Options{MTU: 9000})
	k, err := probeKernel()
	if err != nil {
		t.Fatal(err)
	}
	k.frags = false
	var p *Plane
	if err := lab.Must(t, testenv.Gateway).Do(func() (err error) {
		p, err = open(Options{FlowsMax: 4096}, k)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ports := routed()
	if err := p.Attach(ports); err == nil || !strings.Contains(err.Error(), "the other end of device lan, c0, leaves segmentation") || !strings.Contains(err.Error(), "(generic mode, because of driver veth") {
		t.Errorf("the other end would leave its segmentation undone, and Attach ended with %v", err)
	}
	for i := range ports {
		ports[i].FixOffloads = true
	}
	if err := p.Attach(ports); err != nil {
		t.Fatal(err)
	}
	port := p.Ports()[0]
	if port.Running != ModeGeneric || !strings.Contains(port.WhyNotNative, "MTU is too large to set XDP") || !strings.Contains(port.WhyNotNative, "the MTU is 9000") {
		t.Errorf("it runs in %s mode because of %q", port.Running, port.WhyNotNative)
	}
	if notes := strings.Join(p.Notes(), "\n"); !strings.Contains(notes, "no multi-buffer XDP") {
		t.Errorf("the notes are %q", notes)
	}
}

// After an error the same plane can try again.
func TestAttachAgain(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Attach([]PortConfig{{Name: "a", Device: "lan", Zone: 2, Mode: ModeNative}, {Name: "b", Device: "eth7"}}); err == nil {
		t.Fatal("a missing device was attached")
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
}

func TestFixOffloadsAtTheOtherEnd(t *testing.T) {
	t.Parallel()
	vlans := map[uint16]uint8{10: 3}
	for _, tt := range []struct {
		name    string
		port    PortConfig
		off     []string
		stillOn string
	}{
		{"tags", PortConfig{VLANs: vlans}, []string{"tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"}, ""},
		{"work left undone", PortConfig{Mode: ModeGeneric},
			[]string{"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-sctp-segmentation", "tx-checksum-ip-generic"}, "tx-vlan-hw-insert"},
		{"both", PortConfig{VLANs: vlans, Mode: ModeGeneric}, []string{"tx-vlan-hw-insert", "tx-tcp-segmentation"}, "tx-generic-segmentation"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGateway(t, "client-server")
			before := g.far(t)
			p := g.open(t)
			tt.port.Name, tt.port.Device, tt.port.Zone, tt.port.FixOffloads = "lan0", "lan", 2, true
			if err := p.Attach([]PortConfig{tt.port}); err != nil {
				p.Close()
				t.Fatal(err)
			}
			during := g.far(t)
			was, on := strings.Fields(before["features c0"]), strings.Fields(during["features c0"])
			for _, name := range tt.off {
				if !slices.Contains(was, name) {
					t.Errorf("%s was not on: nothing is tested", name)
				}
				if slices.Contains(on, name) {
					t.Errorf("%s is still on", name)
				}
			}
			if tt.stillOn != "" && !slices.Contains(on, tt.stillOn) {
				t.Errorf("%s is off, which was in nobody's way", tt.stillOn)
			}
			if during["features s0"] != before["features s0"] {
				t.Error("features of a device that is no port's other end were changed")
			}
			if notes := strings.Join(p.Ports()[0].Notes, "\n"); !strings.Contains(notes, "turned off "+tt.off[0]) || !strings.Contains(notes, "the other end of device lan, c0 until the end") {
				t.Errorf("the notes are %q", notes)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			for _, line := range differences(before, g.far(t)) {
				t.Errorf("not given back: %s", line)
			}
		})
	}
}

// What a device does not let go of is not asked for again.
func TestFixOffloadsThatAreFixed(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	port := &Port{PortConfig: PortConfig{Name: "lan0", FixOffloads: true}}
	lo := end{ns: p.ns, device: "lo", name: "device lo"}
	err := p.requireOff(port, lo, offload{[]string{"tx-checksum-ip-generic"}, "is in the way"})
	if err == nil || err.Error() != "port lan0: device lo is in the way (tx-checksum-ip-generic is on), and the device does not let them be turned off" {
		t.Error(err)
	}
}

// In native mode veth itself keeps frames of many segments away. Nothing is refused, asked for or noted.
func TestNativeLeavesSegmentationToTheDriver(t *testing.T) {
	g := newGateway(t, "client-server")
	before := g.far(t)
	p := g.open(t)
	if err := p.Attach(routed()); err != nil {
		p.Close()
		t.Fatal(err)
	}
	if on := g.far(t)["features c0"]; strings.Contains(on, "tx-tcp-segmentation") {
		t.Errorf("the other end still sends frames of many segments: %s is on", on)
	}
	for _, port := range p.Ports() {
		if len(port.Notes) > 0 {
			t.Errorf("port %s: %q", port.Name, port.Notes)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, line := range differences(before, g.far(t)) {
		t.Errorf("not given back: %s", line)
	}
}

// A namespace that no process is in and that has no name cannot be entered.
func TestOtherEndOutOfSight(t *testing.T) {
	g := newGateway(t, "client-server")
	hidden := make(chan *namespace)
	var hide func()
	hide = func() {
		runtime.LockOSThread() // and ends with this goroutine
		if unix.Gettid() == unix.Getpid() {
			// But the process's first thread never ends, and /proc shows its namespace as that of the
			// process: it is held here while another thread takes the part.
			defer runtime.UnlockOSThread()
			taken := make(chan struct{})
			go func() {
				defer close(taken)
				hide()
			}()
			<-taken
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		ns, err := currentNamespace()
		if err != nil {
			t.Error(err)
		}
		hidden <- ns
	}
	go hide()
	ns := <-hidden
	defer ns.close()
	g.do(t, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "far0", Flags: net.FlagUp}, PeerName: "far1", PeerNamespace: netlink.NsFd(ns.file.Fd())}
		return netlink.LinkAdd(pair)
	})
	p := g.plane(t)
	if err := p.Attach([]PortConfig{{Name: "far", Device: "far0", Zone: 2, VLANs: map[uint16]uint8{10: 3}, Mode: ModeGeneric}}); err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(p.Ports()[0].Notes, "\n")
	for _, want := range []string{"whether VLAN tags are hidden could not be looked up: ", "leaves segmentation and checksums to XDP could not be looked up: ", "cannot be seen from here", "`ethtool -K DEVICE tx off tso off"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q: %q", want, notes)
		}
	}
}
