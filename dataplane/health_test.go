package dataplane

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// says compares a plane's problems with what they must name; "" is none.
func says(t *testing.T, p *Plane, when, want string) {
	t.Helper()
	problems := p.Problems()
	text := ""
	if err := errors.Join(problems...); err != nil {
		text = err.Error()
	}
	if want == "" && len(problems) > 0 || !strings.Contains(text, want) {
		t.Errorf("%s: problems %q, not %q", when, text, want)
	}
}

func TestProblems(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	says(t, p, "before anything", "no policy is in force")
	says(t, p, "before anything", "no port is attached")
	if err := p.Publish(Generation{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	says(t, p, "without a watcher", "routes are not followed")
	routes, err := p.WatchRoutes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- routes.Run(ctx) }()
	says(t, p, "running", "")

	setUp := func(up bool) {
		t.Helper()
		if err := g.ns.SetUp("wan", up); err != nil {
			t.Fatal(err)
		}
	}
	setUp(false)
	says(t, p, "down", "port wan0: device wan is down")
	setUp(true)
	if err := g.lab.Must(t, "server").SetUp("s0", false); err != nil {
		t.Fatal(err)
	}
	says(t, p, "unplugged", "port wan0: device wan has no carrier")
	if err := g.lab.Must(t, "server").SetUp("s0", true); err != nil {
		t.Fatal(err)
	}
	says(t, p, "plugged in", "")

	forwarding6 := "ipv6/conf/wan/forwarding"
	if !forcesIPv6() {
		forwarding6 = "ipv6/conf/all/forwarding"
	}
	for _, name := range []string{"ipv4/conf/lan/forwarding", forwarding6} {
		g.do(t, func() error { return writeSysctl(name, "0") })
		says(t, p, name, "net/"+name+" is 0")
		g.do(t, func() error { return writeSysctl(name, "1") })
	}
	says(t, p, "forwarding again", "")

	generations := p.maps[bpf.XDPMapGenerations]
	if err := generations.Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	says(t, p, "an empty slot", "policy 1 is not in force")
	if err := generations.Put(uint32(0), p.running.Load().xdp); err != nil {
		t.Fatal(err)
	}
	says(t, p, "a filled slot", "")

	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	long := time.Now().Add(-time.Minute)
	p.watched.Store(&long)
	says(t, p, "with a watcher that has stopped", "routes have not been followed for 1m0s")
	p.watchedNow()

	if len(p.ports[1].guards) > 0 {
		if err := p.ports[1].guards[0].Detach(); err != nil {
			t.Fatal(err)
		}
		says(t, p, "without its guard", "port wan0: the egress guard is not attached to device wan")
	}
	if err := p.ports[0].xdp.Detach(); err != nil {
		t.Fatal(err)
	}
	says(t, p, "without XDP", "port lan0: XDP is not attached to device lan")
}

// Before Linux 6.6 the guard hangs in clsact filters, which anybody may remove.
func TestProblemsOfFilters(t *testing.T) {
	g := newGateway(t, "client-server")
	var p *Plane
	g.do(t, func() error {
		k, err := probeKernel()
		if err != nil {
			return err
		}
		k.tcx = false
		p, err = open(Options{FlowsMax: 4096}, k)
		return err
	})
	defer p.Close()
	if err := p.Publish(Generation{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	p.watchedNow()
	says(t, p, "running", "")
	g.do(t, func() error {
		l, err := p.nl.LinkByName("lan")
		if err != nil {
			return err
		}
		qdiscs, err := p.nl.QdiscList(l)
		for _, q := range qdiscs {
			if q.Type() == "clsact" {
				err = errors.Join(err, p.nl.QdiscDel(q))
			}
		}
		return err
	})
	says(t, p, "without filters", "port lan0: the egress guard is not attached to device lan: its clsact filter is gone")
}

func TestDeviceCounters(t *testing.T) {
	g := newGateway(t, "client-server")
	p := g.plane(t)
	if err := p.Publish(Generation{Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(routed()); err != nil {
		t.Fatal(err)
	}
	counters, err := p.DeviceCounters()
	if err != nil || len(counters) != 2 || counters[0].Port != "lan0" || counters[1].Port != "wan0" {
		t.Fatalf("%+v, %v", counters, err)
	}
	g.do(t, func() error {
		l, err := p.nl.LinkByName("wan")
		if err != nil {
			return err
		}
		return p.nl.LinkDel(l)
	})
	if counters, err := p.DeviceCounters(); err != nil || len(counters) != 1 || counters[0].Port != "lan0" {
		t.Errorf("after a device went: %+v, %v", counters, err)
	}
	says(t, p, "after a device went", "port wan0: device wan is gone")
}
