package dataplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/testenv"
)

// follow has a plane follow the routes until the test ends.
func (g *gateway) follow(t *testing.T, p *Plane) {
	t.Helper()
	routes, err := p.WatchRoutes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- routes.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Real packets through the real program: routes and neighbours are found, a policy is replaced under
// traffic, and a MAC that changes without a word is noticed.
func TestTraffic(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	g.follow(t, p)
	client, server := g.lab.Must(t, "client"), g.lab.Must(t, "server")
	ping := func(ip string) error {
		r, err := client.Ping(ctx, netip.MustParseAddr(ip), testenv.PingOptions{Timeout: 200 * time.Millisecond})
		if err == nil && r.Received == 0 {
			err = fmt.Errorf("no answer from %s, ICMP errors %v", ip, r.Errors)
		}
		return err
	}
	report := func(err error) {
		t.Helper()
		reasons, _ := p.Reasons()
		passes, _ := p.Passes()
		for i, c := range reasons {
			if c.Packets > 0 {
				t.Logf("dropped %s: %d", bpf.XDPReason(i), c.Packets)
			}
		}
		for i, c := range passes {
			if c.Packets > 0 {
				t.Logf("passed %s: %d", bpf.XDPPassCause(i), c.Packets)
			}
		}
		t.Fatal(err)
	}
	answers := func(limit time.Duration) {
		t.Helper()
		for _, ip := range []string{"10.10.2.2", "fd10:2::2"} {
			for start := time.Now(); ; {
				err := ping(ip)
				if err == nil {
					t.Logf("%s answers after %s", ip, time.Since(start).Round(time.Millisecond))
					break
				}
				if time.Since(start) > limit {
					report(err)
				}
			}
		}
	}
	answers(3 * time.Second)

	// Nothing but a neighbour's resolution needs the kernel.
	before4, before6, err := g.ns.Forwarded()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := ping("10.10.2.2"); err != nil {
			report(err)
		}
	}
	if after4, after6, err := g.ns.Forwarded(); err != nil || after4 != before4 || after6 != before6 {
		t.Errorf("the kernel forwarded %d and %d packets of 40 (%v)", after4-before4, after6-before6, err)
	}

	// The far end gets another MAC and says nothing.
	err = server.Do(func() error {
		l, err := netlink.LinkByName("s0")
		if err != nil {
			return err
		}
		hw, _ := net.ParseMAC("02:00:00:00:00:22")
		return netlink.LinkSetHardwareAddr(l, hw)
	})
	if err != nil {
		t.Fatal(err)
	}
	answers(15 * time.Second)

	// Refuse everything: from the next packet on.
	if err := p.Publish(Generation{Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	if err := ping("10.10.2.2"); err == nil {
		t.Error("a policy that refuses everything lets a ping through")
	}
	reasons, err := p.Reasons()
	if err != nil {
		t.Fatal(err)
	}
	refused := reasons[bpf.XDPReasonREASON_NO_RULE_MATCHED].Packets + reasons[bpf.XDPReasonREASON_POLICY_REVOKED].Packets
	if refused == 0 {
		t.Errorf("the ping was not refused by policy: %+v", reasons)
	}
	if err := p.Publish(Generation{Epoch: 3, ACL: allowAll(t), Rules: 1}); err != nil {
		t.Fatal(err)
	}
	answers(3 * time.Second)
}
