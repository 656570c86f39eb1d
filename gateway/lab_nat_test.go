package gateway

import (
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// A branch behind one address: bulk data, requests, fragments and pings go through XDP, and the server hears of the
// gateway alone.
func TestLabNATMasquerade(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-nm", labPolicy+"nat:\n"+natMasquerade)
	passesTraffic(t, r, 1500)
	for i, a := range r.addresses() {
		for network, port := range map[string]uint16{"tcp": 80, "udp": 7} {
			local, seen := r.meet(t, meeting{network: network, from: r.client, to: netip.AddrPortFrom(a, port), at: r.server})
			if want := netip.AddrPortFrom(gwWAN[i], local.Port()); seen != want {
				t.Errorf("%s to %s: the server saw %s, want %s", network, a, seen, want)
			}
		}
	}
	flows, err := r.Flows(t.Context(), "dport 80", 0)
	if err != nil || len(flows) == 0 {
		t.Fatalf("%d flows to port 80, %v", len(flows), err)
	}
	for _, f := range flows {
		if f.SrcIP != client4 && f.SrcIP != client6 {
			t.Errorf("a flow is listed from %s, not from its opener", f.SrcIP)
		}
	}
}

// A pool of addresses with a range of ports: one sender has one address, the pool is used, and no port is outside.
func TestLabNATPool(t *testing.T) {
	t.Parallel()
	const hosts = 12
	r := newNATRig(t, "t-lab-np", natZones+`
  - {name: pool4, from: {zone: lan, addresses: [10.10.0.0/16]}, to: wan, snat: {addresses: [203.0.113.8/30], ports: 20000-20999}}
  - {name: pool6, from: {zone: lan, addresses: ["fd10::/16"]}, to: wan, snat: {addresses: ["fd20::8/126"], ports: 20000-20999}}
`)
	for i, base := range []string{"10.10.1.%d", "fd10:1::%d"} {
		pool := netip.MustParsePrefix([]string{"203.0.113.8/30", "fd20::8/126"}[i])
		addRoute(t, r.server, pool.String(), gwWAN[i].String())
		used := map[netip.Addr]bool{}
		for n := range hosts {
			host := addHost(t, r.client, "c0", base, 100+n)
			var first netip.Addr
			for _, network := range []string{"tcp", "udp", "tcp"} {
				_, seen := r.meet(t, meeting{network: network, from: r.client, local: netip.AddrPortFrom(host, 0), to: netip.AddrPortFrom(r.addresses()[i], 80), at: r.server})
				if !pool.Contains(seen.Addr()) || seen.Port() < 20000 || seen.Port() > 20999 {
					t.Errorf("%s was seen as %s", host, seen)
				}
				if first.IsValid() && seen.Addr() != first {
					t.Errorf("%s was seen as %s and as %s", host, first, seen.Addr())
				}
				first = seen.Addr()
			}
			used[first] = true
		}
		if len(used) < 2 {
			t.Errorf("%d hosts used only %v of %s", hosts, used, pool)
		}
	}
}

// Servers inside are reached from outside by other addresses and ports, the gateway's own among them; they see who
// asks. Who is inside with them reaches them by the same addresses, on one cable too.
func TestLabNATForward(t *testing.T) {
	t.Parallel()
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nd"})
	beside := besides(t, l)
	r := newRigIn(t, l, testenv.Options{}, labRouted, natZones+`
  - {name: www4, from: any, to: {addresses: [203.0.113.5]}, service: [tcp/80, udp/80], dnat: {to: 10.10.1.2, port: 8080}}
  - {name: www6, from: any, to: {addresses: ["fd20::5"]}, service: [tcp/80, udp/80], dnat: {to: "fd10:1::2", port: 8080}}
  - {name: own4, from: wan, to: host, service: [tcp/443, icmp/echo-request], dnat: {to: 10.10.1.2}}
  - {name: own6, from: wan, to: {addresses: ["fd10:2::1"]}, service: [tcp/443, icmpv6/echo-request], dnat: {to: "fd10:1::2"}}
`)
	hideFrom(t, l)
	for i, inside := range []netip.Addr{client4, client6} {
		outside := netip.MustParseAddr([]string{"203.0.113.5", "fd20::5"}[i])
		addRoute(t, r.server, outside.String(), gwWAN[i].String())
		for _, network := range []string{"tcp", "udp"} {
			m := meeting{network: network, from: r.server, to: netip.AddrPortFrom(outside, 80), at: r.client, listen: netip.AddrPortFrom(inside, 8080)}
			if local, seen := r.meet(t, m); seen != local || seen.Addr() != r.addresses()[i] {
				t.Errorf("%s from %s was seen as from %s", network, local, seen)
			}
			m.from = beside
			if _, seen := r.meet(t, m); seen.Addr() != gwLAN[i] {
				t.Errorf("%s from beside the server was seen as from %s, not from the gateway", network, seen)
			}
		}
		m := meeting{network: "tcp", from: r.server, to: netip.AddrPortFrom(gwWAN[i], 443), at: r.client, listen: netip.AddrPortFrom(inside, 443)}
		if local, seen := r.meet(t, m); seen != local {
			t.Errorf("from %s by the gateway's own address was seen as from %s", local, seen)
		}
		if p, err := r.server.Ping(t.Context(), gwWAN[i], testenv.PingOptions{Count: 5}); err != nil || p.Received != 5 {
			t.Errorf("%d of 5 pings to the gateway's address were answered from inside, %v", p.Received, err)
		}
		sink := must(r.client.ServeSink(t.Context(), netip.AddrPortFrom(inside, 8080)))
		for name, from := range map[string]*testenv.Namespace{"outside": r.server, "beside": beside} {
			if _, err := from.SendTo(limited(t, 20*time.Second), netip.AddrPortFrom(outside, 80), 8<<20, 3); err != nil {
				t.Errorf("bulk data from %s: %v\n%s", name, err, r.tally(t))
			}
		}
		sink.Close()
	}
	if n := r.tally(t); n.forwarded[0]+n.forwarded[1] > maxForwarded {
		t.Errorf("the kernel forwarded more than %d packets: %s", maxForwarded, n)
	}
}

// besides adds a second host to the cable of a client-server lab's client, with the address .3.
func besides(t *testing.T, l *testenv.Lab) *testenv.Namespace {
	t.Helper()
	client, name := l.Must(t, "client").Name(), l.Prefix+"-beside"
	_ = exec.Command("ip", "netns", "del", name).Run() // what a crash left
	ip(t, "netns add "+name)
	t.Cleanup(func() { ip(t, "netns del "+name) })
	ns := must(testenv.OpenNamespace(name))
	sysctl(t, ns, "ipv6/conf/default/accept_dad", "0")
	for _, args := range []string{"-n " + client + " link add b0 link c0 type macvlan mode bridge", "-n " + client + " link set b0 netns " + name,
		"-n " + name + " link set lo up", "-n " + name + " addr add 10.10.1.3/24 dev b0", "-n " + name + " addr add fd10:1::3/64 dev b0 nodad",
		"-n " + name + " link set b0 up", "-n " + name + " route add default via 10.10.1.1", "-n " + name + " -6 route add default via fd10:1::1"} {
		ip(t, args)
	}
	return ns
}

// A network is another one outside, host by host, both ways: who is inside is seen under the outer prefix, and is
// reached there from outside.
func TestLabNATPrefix(t *testing.T) {
	t.Parallel()
	r := newNATRig(t, "t-lab-n1", natZones+`
  - {name: static4, from: lan, to: wan, prefix: {inside: 10.10.1.0/24, outside: 198.51.100.0/24}}
  - {name: static6, from: lan, to: wan, prefix: {inside: "fd10:1::/64", outside: "fd99:7:8:9::/64"}}
`)
	for i, inside := range []netip.Addr{client4, client6} {
		outer := netip.MustParsePrefix([]string{"198.51.100.0/24", "fd99:7:8:9::/64"}[i])
		addRoute(t, r.server, outer.String(), gwWAN[i].String())
		var outside netip.Addr
		for _, network := range []string{"tcp", "udp"} {
			local, seen := r.meet(t, meeting{network: network, from: r.client, to: netip.AddrPortFrom(r.addresses()[i], 80), at: r.server})
			outside = seen.Addr()
			if !outer.Contains(outside) || seen.Port() != local.Port() || i == 0 && outside != netip.MustParseAddr("198.51.100.2") {
				t.Errorf("%s: %s was seen as %s", network, local, seen)
			}
			m := meeting{network: network, from: r.server, to: netip.AddrPortFrom(outside, 80), at: r.client, listen: netip.AddrPortFrom(inside, 80)}
			if local, seen := r.meet(t, m); seen != local {
				t.Errorf("%s from outside: %s was seen as %s", network, local, seen)
			}
		}
		if p, err := r.server.Ping(t.Context(), outside, testenv.PingOptions{Count: 5, Size: 1200}); err != nil || p.Received != 5 {
			t.Errorf("%d of 5 pings from outside to %s were answered, %v", p.Received, outside, err)
		}
		// What the checksums cover adds up to the same, so that nothing but addresses has to be rewritten (RFC 6296).
		if a, b := onesSum(0, inside.AsSlice())%0xffff, onesSum(0, outside.AsSlice())%0xffff; i == 1 && a != b {
			t.Errorf("%s adds up to %#x and %s to %#x", inside, a, outside, b)
		}
	}
}
