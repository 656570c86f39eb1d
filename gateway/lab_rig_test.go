package gateway

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// long reports whether the tests of labs run in full size.
func long() bool { return os.Getenv("SOFTDPU_LONG") != "" }

// sized returns what a test uses in reduced or in full size.
func sized[T any](reduced, full T) T {
	if long() {
		return full
	}
	return reduced
}

// labPolicy lets the client do what the tests of labs do, and no more.
const labPolicy = `apiVersion: softdpu/v1
kind: Policy
zones:
  lan: {ports: [lan], addresses: [10.10.1.0/24, "fd10:1::/64"]}
  wan: {ports: [wan]}
rules:
  - {name: bulk, from: {zone: lan}, to: {zone: wan}, service: tcp/5001, action: allow}
  - {name: web, from: {zone: lan}, to: {zone: wan}, service: tcp/80, action: allow}
  - {name: echo, from: {zone: lan}, to: {zone: wan}, service: udp/7, action: allow}
  - {name: trace, from: {zone: lan}, to: {zone: wan}, service: udp/33434-33534, action: allow}
  - {name: ping, from: {zone: lan}, to: {zone: wan}, service: [icmp/echo-request, icmpv6/echo-request], action: allow}
`

const labRouted = `apiVersion: softdpu/v1
kind: Gateway
ports: {lan: {device: lan}, wan: {device: wan}}
policy: policy.yaml
management: none
on_stop: open
control: {socket: softdpu.sock, group: softdpu-nobody}
events: {file: eve.json}
state: state
`

const labInline = labRouted + "inline: [[lan, wan]]\n"

// labConfig returns the configuration for a topology.
func labConfig(topology string) string {
	if topology == "inline" {
		return labInline
	}
	return labRouted
}

// generic asks for XDP in the kernel's stack, and lets it have what it needs.
func generic(config string) string { return fixed(config, "xdp_mode: generic, fix_offloads: true") }

// fixed adds keys to both ports of a configuration.
func fixed(config, keys string) string {
	return strings.NewReplacer("{device: lan}", "{device: lan, "+keys+"}", "{device: wan}", "{device: wan, "+keys+"}").Replace(config)
}

// jumboInDriver reports whether a port with frames larger than a page runs in the driver: Linux 6.3 is
// the first to redirect packets of several buffers.
func jumboInDriver(t *testing.T) bool { return kernelAtLeast(t, 6, 3) }

func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var has [2]int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &has[0], &has[1]); err != nil {
		t.Fatal(err)
	}
	return has[0] > major || has[0] == major && has[1] >= minor
}

// A rig is a lab with a gateway in it.
type rig struct {
	*testGateway
	lab                *testenv.Lab
	client, server, gw *testenv.Namespace
	mayDrop            []string // reasons for which a little may be dropped: a worker that others keep from its CPU for 50 ms is full
}

// newRig starts a gateway in a lab. XDP runs in the driver, unless the configuration asks for generic
// mode or the kernel leaves no other.
func newRig(t *testing.T, topology string, o testenv.Options, config, policy string) *rig {
	t.Helper()
	return newRigIn(t, testenv.New(t, topology, o), o, config, policy)
}

// newRigIn starts the gateway in a lab that was made with those options.
func newRigIn(t *testing.T, l *testenv.Lab, o testenv.Options, config, policy string) *rig {
	t.Helper()
	r := &rig{
		testGateway: runIn(t, l, write(t, config, policy)), lab: l,
		client: l.Must(t, "client"), server: l.Must(t, "server"), gw: l.Must(t, testenv.Gateway),
	}
	want := "native"
	if config == generic(config) || o.MTU > os.Getpagesize() && !jumboInDriver(t) {
		want = "generic"
	}
	for _, p := range must(r.Status(t.Context())).Ports {
		if p.Mode != want {
			t.Errorf("port %s runs in %s mode, not %s: %s", p.Name, p.Mode, want, p.WhyNotNative)
		}
	}
	return r
}

// addresses returns the server's, of both families.
func (r *rig) addresses() []netip.Addr { return serverAddresses(r.lab) }

func serverAddresses(l *testenv.Lab) []netip.Addr {
	n, _ := l.Topology.Node("server")
	return []netip.Addr{n.Devices[0].IPv4(), n.Devices[0].IPv6()}
}

// A tally says what became of packets, by the counters of devices, gateway and kernel.
type tally struct {
	sent, arrived uint64 // frames that the far ends sent, and got
	counted       uint64 // packets on the flows of the policy's rules
	drops, passes map[string]uint64
	forwarded     [2]uint64 // by the gateway's kernel, IPv4 and IPv6
}

func (r *rig) tally(t *testing.T) tally {
	t.Helper()
	n := tally{drops: map[string]uint64{}, passes: map[string]uint64{}}
	for _, d := range must(r.Drops(t.Context(), true)) {
		n.drops[d.Reason] = d.Packets
	}
	for _, far := range []struct {
		ns     *testenv.Namespace
		device string
	}{{r.client, "c0"}, {r.server, "s0"}} {
		s, err := far.ns.DeviceStats(far.device)
		if err != nil {
			t.Fatal(err)
		}
		n.sent += s.TxPackets
		n.arrived += s.RxPackets
	}
	rules, err := r.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules {
		if rule.Action == "allow" && !rule.Builtin {
			n.counted += rule.Packets
		}
	}
	for _, p := range must(r.Passes(t.Context())) {
		n.passes[p.Cause] = p.Packets
	}
	if n.forwarded[0], n.forwarded[1], err = r.gw.Forwarded(); err != nil {
		t.Fatal(err)
	}
	return n
}

// since returns what came on top of an earlier tally. Reasons and causes without packets are left out.
func (n tally) since(before tally) tally {
	out := tally{
		sent: n.sent - before.sent, arrived: n.arrived - before.arrived, counted: n.counted - before.counted,
		drops: map[string]uint64{}, passes: map[string]uint64{},
		forwarded: [2]uint64{n.forwarded[0] - before.forwarded[0], n.forwarded[1] - before.forwarded[1]},
	}
	for _, m := range []struct{ out, now, before map[string]uint64 }{{out.drops, n.drops, before.drops}, {out.passes, n.passes, before.passes}} {
		for name, v := range m.now {
			if v > m.before[name] {
				m.out[name] = v - m.before[name]
			}
		}
	}
	return out
}

// kernel returns how many packets of allowed flows went to the kernel instead of out by XDP.
func (n tally) kernel() uint64 {
	return n.passes["neighbour-unknown"] + n.passes["fragmentation-needed"] + n.passes["host"]
}

// redirected is the share of the sent frames that XDP redirected.
func (n tally) redirected() float64 {
	return float64(n.counted-n.kernel()) / float64(max(1, n.sent))
}

func (n tally) String() string {
	return fmt.Sprintf("%d frames sent, %d arrived, %.3f %% redirected by XDP, passed to the kernel %v, forwarded by it %v, dropped %v",
		n.sent, n.arrived, 100*n.redirected(), n.passes, n.forwarded, n.drops)
}

// ip runs ip(8), which knows namespaces by name.
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// sysctl writes a setting of the namespace.
func sysctl(t *testing.T, ns *testenv.Namespace, name, value string) {
	t.Helper()
	if err := ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }); err != nil {
		t.Fatal(err)
	}
}
