package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// natFarm is a policy with two servers, .11 of weight 3 and .12, in both families, and what is added to the first.
func natFarm(first string) string {
	return natZones + fmt.Sprintf(`
  - {name: farm4, from: lan, to: {addresses: [203.0.113.6]}, service: tcp/443, dnat: {servers: [{address: 10.10.2.11, port: 8443, weight: 3%[1]s}, {address: 10.10.2.12, port: 8443}]}}
  - {name: farm6, from: lan, to: {addresses: ["fd20::6"]}, service: tcp/443, dnat: {servers: [{address: "fd10:2::11", port: 8443, weight: 3%[1]s}, {address: "fd10:2::12", port: 8443}]}}
`, first)
}

// serveName tells everybody who connects the server's address, and then whatever comes.
func serveName(t *testing.T, ns *testenv.Namespace, at netip.AddrPort) {
	t.Helper()
	l := must(ns.Listen(context.Background(), "tcp", at.String()))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				a := at.Addr().As16()
				_, _ = c.Write(a[:]) // who waits for it notices
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// nameOf connects and returns who answers.
func nameOf(t *testing.T, r *rig, from netip.Addr, to netip.AddrPort) (net.Conn, netip.Addr) {
	t.Helper()
	c, err := meeting{network: "tcp", from: r.client, local: netip.AddrPortFrom(from, 0), to: to}.ask()
	if err != nil {
		t.Fatalf("%v\n%s", err, r.tally(t))
	}
	t.Cleanup(func() { c.Close() })
	var a [16]byte
	if _, err := io.ReadFull(c, a[:]); err != nil {
		t.Fatalf("from %s: %v\n%s", from, err, r.tally(t))
	}
	return c, netip.AddrFrom16(a).Unmap()
}

// One address outside, several servers behind it: each client stays with its own, all servers have some as their
// weights say, and one that is drained keeps its connections and gets none.
func TestLabNATFarm(t *testing.T) {
	t.Parallel()
	const clients = 40
	r := newRig(t, "client-server", testenv.Options{Prefix: "t-lab-nf"}, labRouted, natFarm(""))
	type client struct{ from, farm, server, first netip.Addr }
	var all []client
	kept := map[netip.Addr]net.Conn{} // by server
	for i, base := range []string{"10.10.2.%d", "fd10:2::%d"} {
		farm := netip.MustParseAddr([]string{"203.0.113.6", "fd20::6"}[i])
		first, second := addHost(t, r.server, "s0", base, 11), addHost(t, r.server, "s0", base, 12)
		serveName(t, r.server, netip.AddrPortFrom(first, 8443))
		serveName(t, r.server, netip.AddrPortFrom(second, 8443))
		got := map[netip.Addr]int{}
		for n := range clients {
			from := addHost(t, r.client, "c0", []string{"10.10.1.%d", "fd10:1::%d"}[i], 100+n)
			c, server := nameOf(t, r, from, netip.AddrPortFrom(farm, 443))
			all = append(all, client{from, farm, server, first})
			got[server]++
			kept[server] = c
		}
		// Weights 3 and 1: about 30 and 10.
		if got[first]+got[second] != clients || got[first] < clients/3 || got[second] == 0 {
			t.Errorf("of %d clients the servers have %v", clients, got)
		}
	}
	for _, c := range all {
		if _, server := nameOf(t, r, c.from, netip.AddrPortFrom(c.farm, 443)); server != c.server {
			t.Errorf("%s was sent to %s, and then to %s", c.from, c.server, server)
		}
	}
	r.mustReload(t, labRouted, natFarm(", drain: true"))
	for _, c := range all {
		if _, server := nameOf(t, r, c.from, netip.AddrPortFrom(c.farm, 443)); server == c.first {
			t.Errorf("%s was sent to %s, which is drained", c.from, server)
		} else if c.server != c.first && server != c.server {
			t.Errorf("%s was taken from %s, which stays", c.from, c.server)
		}
	}
	for server, c := range kept {
		_ = c.SetDeadline(time.Now().Add(testenv.Patience(5 * time.Second)))
		if _, err := c.Write([]byte("still there?")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 12)); err != nil {
			t.Errorf("a connection with %s broke: %v", server, err)
		}
	}
}
