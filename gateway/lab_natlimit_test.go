package gateway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// One host with a limit of 20 opens 30 connections: 20 stand, those that it had before the limit among them, the others
// are refused by name and told of; another host is not affected. So it is after a kill and a restart, and what a
// connection leaves the next one gets.
func TestLabNATSourceLimit(t *testing.T) {
	t.Parallel()
	const limit, beyond, closed = 20, 10, 5
	binary := buildSoftdpu(t, thisVersion)
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-nq"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	hideFrom(t, l)
	config := strings.Replace(labRouted, "on_stop: open", "on_stop: keep\nflows: {max: 10000, timeouts: {tcp_closed: 1s}}", 1)
	c := write(t, config, natZones+natMasquerade)
	p := startProcess(t, gw, binary, c)
	p.ready(t)

	// Addresses of one /64 are one host's.
	hosts := [2][]netip.Addr{{client4}, {client6, addHost(t, client, "c0", "fd10:1::%d", 9)}}
	others := [2]netip.Addr{addHost(t, client, "c0", "10.10.1.%d", 9), addHost(t, client, "c0", "fd10:8::%d", 9)}
	addRoute(t, gw, "fd10:8::/64", client6.String())
	var to [2]netip.AddrPort
	for i, a := range serverAddresses(l) {
		echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(a, 7)))
		defer echo.Close()
		to[i] = echo.Addr()
	}
	dial := func(i int, from netip.Addr, limit time.Duration, brief bool) (net.Conn, error) {
		conn, err := meeting{network: "tcp", from: client, local: netip.AddrPortFrom(from, 0), to: to[i], limit: limit, brief: brief}.ask()
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return conn, err
	}
	opens := func(i int, from netip.Addr) net.Conn {
		t.Helper()
		conn, err := dial(i, from, 10*time.Second, false)
		if err != nil {
			t.Fatalf("%v\n%s", err, p.log)
		}
		return conn
	}
	// Nobody answers the SYN, which is sent once, or twice by a machine that is late.
	refused := func(when string, n int) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range hosts {
			for k := range n {
				wg.Go(func() {
					var timeout net.Error
					if _, err := dial(i, hosts[i][k%len(hosts[i])], 400*time.Millisecond, true); !errors.As(err, &timeout) || !timeout.Timeout() {
						t.Errorf("%s: one more connection of %s: %v", when, hosts[i][0], err)
					}
				})
			}
		}
		wg.Wait()
	}
	var conns [2][]net.Conn
	for i := range hosts {
		for range limit / 2 {
			conns[i] = append(conns[i], opens(i, hosts[i][0]))
		}
	}
	policy := natZones + fmt.Sprintf("  - {name: branch, from: lan, to: wan, masquerade: {source_limit: %d}}\n", limit)
	if err := os.WriteFile(filepath.Join(filepath.Dir(c.File), "policy.yaml"), []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	must(p.Reload(t.Context()))
	for i := range hosts {
		for range limit / 2 {
			conns[i] = append(conns[i], opens(i, hosts[i][len(hosts[i])-1]))
		}
	}
	refused("at first", beyond)
	for i, other := range others {
		opens(i, other)
	}
	random := rand.New(rand.NewPCG(1, 1))
	goOn := func(when string) {
		t.Helper()
		for _, list := range conns {
			for _, conn := range list {
				if err := swap(conn, random, 10*time.Second); err != nil {
					t.Fatalf("%s: %v\n%s", when, err, p.log)
				}
			}
		}
	}
	goOn("at the limit")
	want := map[string]uint64{client4.String(): limit, "fd10:1::/64": limit, others[0].String(): 1, "fd10:8::/64": 1}
	has := func() error {
		r := must(p.NAT(t.Context())).Rules[0]
		got := map[string]uint64{}
		for _, s := range r.Sources {
			got[s.Source] = s.Flows
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || r.SourceLimit != limit || r.SourcesNear != 2 {
			return fmt.Errorf("the rule is %+v", r)
		}
		return nil
	}
	if err := has(); err != nil {
		t.Error(err)
	}
	r := must(p.NAT(t.Context())).Rules[0]
	if drops := must(p.Drops(t.Context(), false)); r.Limited < 2*beyond || r.Limited > 2*2*beyond || len(drops) == 0 || drops[0].Reason != "nat-source-limit" || drops[0].Packets != r.Limited {
		t.Errorf("%d flows were refused, want %d: %+v", r.Limited, 2*beyond, drops)
	}
	if notes := strings.Join(must(p.Status(t.Context())).Notes, "\n"); !strings.Contains(notes, "nat rule branch: 10.10.1.2 has 20 of the 20 flows that one source may have, and 1 more are near") {
		t.Errorf("the status tells %q", notes)
	}

	corrected := func() {
		t.Helper()
		if strings.Contains(p.log.String(), "counts of sources were corrected") {
			t.Errorf("somebody counted wrong\n%s", p.log)
		}
	}
	p.kill()
	corrected()
	goOn("killed")
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	if err := has(); err != nil {
		t.Errorf("started again: %v", err)
	}
	for i, list := range conns {
		for _, conn := range list[:closed] {
			_ = conn.(*net.TCPConn).SetLinger(0) // a RST, whose time-out is short here
			conn.Close()
		}
		conns[i] = list[closed:]
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		for _, s := range must(p.NAT(t.Context())).Rules[0].Sources[:2] {
			if s.Flows != limit-closed {
				return fmt.Errorf("%s has %d", s.Source, s.Flows)
			}
		}
		return nil
	})
	for i := range hosts {
		for range closed {
			conns[i] = append(conns[i], opens(i, hosts[i][0]))
		}
	}
	refused("started again", 2)
	goOn("started again")
	if err := has(); err != nil {
		t.Errorf("at the limit again: %v", err)
	}
	corrected()
	p.stop(t)
	if out, err := gw.Command(t.Context(), binary, "detach").CombinedOutput(); err != nil {
		t.Errorf("detach: %v: %s", err, out)
	}
}
